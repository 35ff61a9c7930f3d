"""Messages of a command on standard error, by the verbosity that the user chose."""

import io
import time
from collections.abc import Collection, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TextIO, TypeVar, final

from qkv.data.choices import LineKind
from qkv.data.report import Report, collecting, say
from qkv.errors import harmless
from qkv.heartbeat import Heartbeat
from qkv.system import standard_error


class Verbosity(NamedTuple):
    """How much a command writes, and in which form.

    Attributes:
        messages: "quiet" for errors only, "normal", or "verbose" for details too.
        json: whether results are written as JSON, one object per line.
    """

    messages: Literal["quiet", "normal", "verbose"] = "normal"
    json: bool = False


Items = TypeVar("Items", bound=Sized)
SILENCE = 10.0
"""Maximum seconds between two progress lines of a long operation."""
_VERBOSITY = ContextVar("verbosity", default=Verbosity())  # noqa: B039  # a tuple of constants


@contextmanager
def use_verbosity(verbosity: Verbosity) -> Iterator[None]:
    """Use a verbosity for everything inside.

    Example:
        >>> with use_verbosity(Verbosity(json=True)):
        ...     as_json()
        True
    """
    token = _VERBOSITY.set(verbosity)
    try:
        yield
    finally:
        _VERBOSITY.reset(token)


def as_json() -> bool:
    """Whether results are written as JSON."""
    return _VERBOSITY.get().json


def quiet() -> bool:
    """Whether only errors are written."""
    return _VERBOSITY.get().messages == "quiet"


def verbose() -> bool:
    """Whether details are written too."""
    return _VERBOSITY.get().messages == "verbose"


def note(text: str) -> None:
    """Write a message to standard error, unless the user asked for quiet.

    Example:
        >>> with use_verbosity(Verbosity("quiet")):
        ...     note("nothing of this is written")
    """
    if _VERBOSITY.get().messages != "quiet":
        print(harmless(text), file=standard_error(), flush=True)


def state(text: str) -> None:
    """Say something about data: in its report, or at once if there is none."""
    if collecting():
        say(text)
    else:
        note(f"qkv: {text}")


@contextmanager
def reporting(skip: Collection[LineKind]) -> Iterator[None]:
    """Report what is wrong or odd in the data that is read inside, and refuse it at the end.

    Inside another report, such as that of `qkv.check`, all is added to that one.

    Args:
        skip: the kinds of lines to leave out.

    Raises:
        DataError: lines cannot be used, and are not left out; the error is about the first one.
    """
    if collecting():
        yield
        return
    with Report(skip) as report:
        try:
            yield
        finally:
            for line in str(report).splitlines():
                note(f"qkv: {line}")
        report.expect_usable()


def progress() -> TextIO | None:
    """Return where progress is shown: None for standard error, or nowhere if the user asked for quiet."""
    return io.StringIO() if _VERBOSITY.get().messages == "quiet" else None


@final
@dataclass
class Progress:
    """The progress of a long operation; a total of 0 means that it is not known."""

    what: str
    endless: bool = False
    done: int = 0
    total: int = 0
    idle: bool = False
    began: float = field(default_factory=time.monotonic)

    def report(self) -> None:
        """Write a progress line, unless the operation waits for input."""
        if self.idle:
            return
        count = f", {self.done:,} of {self.total:,}" if self.total else f", {self.done:,}" if self.done else ""
        note(f"qkv: {self.what}{count}, {time.monotonic() - self.began:.0f} s")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Write nothing while the operation waits for input."""
        self.idle = True
        try:
            yield
        finally:
            self.idle = False


_WORK: ContextVar[Progress | None] = ContextVar("work", default=None)


@contextmanager
def working(what: str, *, endless: bool = False) -> Iterator[Progress]:
    """Report every ten seconds what is being done, and how much of it is done (see `counted`).

    Args:
        what: what is done, such as "reading the text".
        endless: whether the number of its parts is unknown: the items of all parts are added up.

    Example:
        >>> with working("reading the text"):
        ...     pass
    """
    work = Progress(what, endless)
    token, context = _WORK.set(work), copy_context()  # so that the reporting thread sees the verbosity
    heartbeat = Heartbeat(lambda: context.run(work.report), SILENCE)
    try:
        yield work
    finally:
        heartbeat.close()
        _WORK.reset(token)


def counted(batches: Sequence[Items]) -> Iterator[Items]:
    """Yield batches, and count their items for the progress lines of an enclosing `working`, if there is one.

    Args:
        batches: the parts of the operation; the length of each is its number of items.

    Example:
        >>> list(counted([[2, 0], [1]]))
        [[2, 0], [1]]
    """
    work = _WORK.get()
    if work is None:
        yield from batches
        return
    if not work.endless:
        work.done, work.total = 0, sum(map(len, batches))
    for batch in batches:
        yield batch
        work.done += len(batch)
