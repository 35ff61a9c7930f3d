"""The exception types. An error is data, which whoever shows it renders: Python, a command, the viewer.

Every error that qkv raises deliberately is a `QkvError`, raised with four texts: the argument that is wrong, what was
expected, what was given, and how to fix it. Where such a text names a setting, it writes `setting(name)`, because
Python and a command line spell settings differently.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

__all__ = [
    "MEMORY_ERRORS",
    "ArgumentError",
    "AttachError",
    "CheckpointError",
    "CompilationError",
    "ConfigError",
    "DataError",
    "DtypeError",
    "ForkError",
    "MaskError",
    "OutOfMemoryError",
    "Place",
    "QkvError",
    "ShapeError",
    "TrainingError",
    "UnsupportedError",
    "brief",
    "expect_enough_memory",
    "expect_name",
    "from_json_value",
    "harmless",
    "in_python",
    "nearest",
    "on_command_line",
    "out_of_memory_text",
    "quantity",
    "setting",
    "spelled",
    "to_json_value",
    "value_named",
]


def __dir__() -> list[str]:
    return __all__


# Everything a terminal interprets except tabs and line feeds: C0, DEL, C1, and Unicode direction controls.
_INTERPRETED = (*range(9), *range(11, 32), *range(127, 160), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F))
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in (*_INTERPRETED, *range(0x2066, 0x206A))
}
_NO_MEMORY = (
    "can't allocate",  # memory, or a lock
    "can't start new thread",  # no memory for its stack
    "annot allocate memory",  # the system's words, also for a library that cannot be loaded
    "failed to map segment from shared object",
    "not enough memory",
    "torage size calculation overflowed",  # more bytes than an address can say
    "std::bad_alloc",
    # Python's words for a library that failed without saying why, as NumPy does when it is refused memory.
    "error return without exception set",
    "returned NULL without setting an exception",
    "PyObject pointer is null",  # the panic of a library in Rust
)
_Name = TypeVar("_Name", bound=str)
MEMORY_ERRORS = (MemoryError, RuntimeError, SystemError)
"""Exception types that may mean out of memory; `out_of_memory_text` tells."""


class QkvError(Exception):
    """The base class of every error that qkv raises deliberately.

    Args:
        argument: what is wrong: an argument, a setting, or a file (`Place` for a line of it).
        expected: what it should be.
        got: what was given; a period at its end, as in another message, is left out.
        hint: one sentence that says how to fix it.

    Example:
        >>> error = QkvError("key", "width 64, that of query", "width 32", "Use Bilinear to relate two widths.")
        >>> print(error)
        key: expected width 64, that of query; got width 32. Use Bilinear to relate two widths.
        >>> error.argument, error.got
        ('key', 'width 32')
        >>> error = DataError(Place("pairs.tsv", 3), "two texts", "one", "Separate them by a tab.")
        >>> error.file, error.line, str(error)
        ('pairs.tsv', 3, 'pairs.tsv:3: expected two texts; got one. Separate them by a tab.')
    """

    # Properties, and no `__init__`: torch.compile traces the raising of errors.

    @property
    def argument(self) -> str:
        """What is wrong."""
        return self._text(0)

    @property
    def expected(self) -> str:
        """What it should be."""
        return self._text(1)

    @property
    def got(self) -> str:
        """What was given."""
        return self._text(2)

    @property
    def hint(self) -> str:
        """How to fix it."""
        return self._text(3)

    @property
    def file(self) -> str | None:
        """The data file that is wrong, or None."""
        return self._place.file if self._place is not None else None

    @property
    def line(self) -> int | None:
        """The line of the file, counted from 1, or None."""
        return self._place.line if self._place is not None else None

    @property
    def args(self) -> tuple[str, ...]:  # type: ignore[override]
        """The argument, what was expected, what was given and the hint, with settings spelled as in Python."""
        return tuple(_cleaned(text, in_python) for text in self.marked)

    @property
    def marked(self) -> tuple[str, ...]:
        """The four texts as they were given, in which settings are marked."""
        stored: tuple[object, ...] = super().args
        return tuple(text if isinstance(text, str) else str(text) for text in stored)

    @property
    def _place(self) -> "Place | None":
        argument = self.marked[0] if self.marked else None
        return argument if isinstance(argument, Place) else None

    def in_file(self, file: object) -> "QkvError":
        """Return the same error about a file, if it does not name one yet.

        Example:
            >>> error = DataError(Place(None, 3, "text"), "at most 4 tokens", "5", "Split it.").in_file("a.txt")
            >>> error.file, error.line, error.argument
            ('a.txt', 3, 'a.txt:3')
        """
        if self.file is not None or self.argument.startswith(str(file)):
            return self
        return self.about(f"{file}: {self.marked[0]}" if self.line is None else Place(file, self.line))

    def _text(self, index: int) -> str:
        return _cleaned(self.marked[index], in_python) if len(self.marked) > index else ""

    def render(self, spell: "Spelling") -> str:
        """Return the message, with control characters escaped and settings spelled by a function.

        Line feeds in the argument, which can be the name of a file, are escaped; of each part at most 2,000 characters
        are shown.

        Example:
            >>> hint = f"Give {setting('valid_data')}, or {setting('score', 'dot')}."
            >>> DataError(Place("pairs.tsv", 3), "two texts", "one", hint).render(on_command_line)
            'pairs.tsv:3: expected two texts; got one. Give --valid-data, or --score dot.'
        """
        texts = (_on_one_line("".join(self.marked[:1])), *self.marked[1:], "", "", "")
        argument, expected, got, hint = (_clipped(_cleaned(text, spell)) for text in texts[:4])
        if not expected:
            return harmless(argument)
        got = got if got.endswith("..") else got.removesuffix(".")
        return harmless(f"{argument}: expected {expected}; got {got}. {hint}")

    def about(self, argument: str) -> "QkvError":
        """Return the same error about another argument."""
        return type(self)(argument, *self.marked[1:])

    def as_kind(self, kind: "type[_Kind]") -> "_Kind":
        """Return the same error as one of another type.

        Example:
            >>> CheckpointError("a.svg", "a writable file", "none", "Give another.").as_kind(ConfigError)
            ConfigError('a.svg', 'a writable file', 'none', 'Give another.')
        """
        return kind(*self.marked)

    def respelled(self, spell: "Spelling") -> "QkvError":
        """Return the same error with its marked settings spelled by a function."""
        return type(self)(*self.marked[:1], *(spelled(text, spell) for text in self.marked[1:]))

    def __str__(self) -> str:
        return self.render(in_python)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.args))})"

    def __reduce__(self) -> tuple[object, ...]:
        parts = (text if isinstance(text, Place) else _SETTING.split(text) for text in self.marked)
        return _joined, (type(self), *parts), vars(self) or None


_Kind = TypeVar("_Kind", bound=QkvError)


def _joined(kind: type[_Kind], *texts: "Place | list[str | None]") -> _Kind:
    """Return an error whose texts are divided at their settings, as it is pickled: text, name, value, text, ..."""
    return kind(*(text if isinstance(text, Place) else _text_of(*text) for text in texts))


def _text_of(text: str | None, *settings: str | None) -> str:
    groups = zip(settings[::3], settings[1::3], settings[2::3], strict=True)
    return "".join((text or "", *(f"{setting(name or '', value)}{after}" for name, value, after in groups)))


class ShapeError(QkvError, ValueError):
    """Sizes that do not match."""


class DtypeError(QkvError, TypeError):
    """Dtypes or devices that do not match."""


class MaskError(QkvError, ValueError, TypeError):
    """A mask argument that is not a mask, or does not fit."""


class ArgumentError(QkvError, TypeError):
    """An argument that a function does not have, or that is of another kind than it takes."""


class AttachError(QkvError, TypeError):
    """A model whose attention cannot be replaced; the message names its modules."""


class UnsupportedError(QkvError, ValueError, NotImplementedError):
    """A combination that the chosen backend does not support, or that is mathematically undefined."""


class ConfigError(QkvError, ValueError):
    """A setting with an unknown name or a value outside its range."""


class DataError(QkvError, ValueError):
    """An invalid data file; the message names file and line."""


class CheckpointError(QkvError, ValueError):
    """A checkpoint that is missing, incomplete, corrupted or of another kind."""


class TrainingError(QkvError, ArithmeticError):
    """A training that cannot continue: its loss is not finite, or a step does not fit in memory."""


class CompilationError(QkvError, RuntimeError):
    """Kernels whose machine code is older than their source, or that could not be compiled."""


class ForkError(QkvError, RuntimeError):
    """A forked child that would wait forever for the threads of its parent."""


class OutOfMemoryError(QkvError, MemoryError):
    """Memory ran out; the message says how to reduce the need."""


def out_of_memory_text(error: BaseException) -> str | None:
    """Recognize out-of-memory errors from Python, PyTorch or a GPU.

    Args:
        error: the exception.

    Returns:
        Its message on one line; None for any other error.

    Example:
        >>> out_of_memory_text(MemoryError()), out_of_memory_text(ValueError("size")) is None
        ('none left', True)
    """
    text, *more = str(error).split("\n")
    if isinstance(error, ImportError):  # NumPy puts a page of advice before the reason, other libraries their own error
        reasons = [line for line in (text, *more) if any(words in line for words in _NO_MEMORY)]
        before = error.__cause__ or error.__context__
        return reasons[0] if reasons else None if before is None else out_of_memory_text(before)
    is_memory_error = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not is_memory_error and not any(words in text for words in _NO_MEMORY):
        return None
    # PyTorch puts a line of its own source code first.
    return text[text.find("DefaultCPUAllocator") :] if "DefaultCPUAllocator" in text else text or "none left"


def expect_enough_memory(error: ImportError) -> None:
    """Raise if a library cannot be imported because memory ran out, rather than because it is not installed.

    Args:
        error: what importing it raised.

    Raises:
        OutOfMemoryError: memory ran out.

    Example:
        >>> expect_enough_memory(ImportError("libx.so: failed to map segment from shared object"))
        Traceback (most recent call last):
        qkv.errors.OutOfMemoryError: memory: expected enough memory to load a library; got libx.so: failed to map
        segment from shared object. Raise the limit of this process (`ulimit -v`), or free some memory.
    """
    if (got := out_of_memory_text(error)) is not None:
        hint = "Raise the limit of this process (`ulimit -v`), or free some memory."
        raise OutOfMemoryError("memory", "enough memory to load a library", got, hint) from error


def harmless(text: str) -> str:
    """Escape control characters, so that names and texts from files cannot control the terminal.

    Args:
        text: any text; tabs and line feeds are kept.

    Returns:
        The text with every control character escaped.

    Example:
        >>> print(harmless("\\x1b[31mred\\ttoo"))
        \\x1b[31mred	too
    """
    return text.translate(_ESCAPES)


class Place(str):
    """The file that an error is about, or a line of it; as text, FILE or FILE:LINE.

    Example:
        >>> place = Place("pairs.tsv", 3)
        >>> place, place.file, place.line
        ('pairs.tsv:3', 'pairs.tsv', 3)
        >>> Place("pairs.tsv"), Place("pairs.tsv").line
        ('pairs.tsv', None)
        >>> Place(None, 3)
        'line 3'
    """

    file: str | None
    line: int | None
    unit: str

    def __new__(cls, file: object | None, line: int | None = None, unit: str = "line") -> "Place":
        """Name a file, or a line of it, counted from 1.

        Args:
            file: the file; None for lines that come from elsewhere.
            line: the number of the line; None for the file as a whole.
            unit: what a line is called if there is no file.
        """
        in_file = f"{file}" if line is None else f"{file}:{line}"
        location = super().__new__(cls, f"{unit} {line}" if file is None else in_file)
        location.file, location.line, location.unit = None if file is None else str(file), line, unit
        return location

    def __getnewargs__(self) -> tuple[str | None, int | None, str]:  # type: ignore[override]
        return self.file, self.line, self.unit


def to_json_value(error: QkvError) -> dict[str, object]:
    """Convert an error to names and texts, for another process.

    Example:
        >>> from_json_value(to_json_value(DataError(Place("a.txt", 3), "text", "none", "Write some."))).line
        3
    """
    entries: dict[str, object] = {"kind": type(error).__name__, "texts": list(error.marked)}
    where = {"file": error.file, "line": error.line}
    return entries if where == {"file": None, "line": None} else entries | where


def from_json_value(entries: Mapping[str, Any]) -> QkvError:
    """Return the error that `to_json_value` converted; one of an unknown kind as its base class."""
    kind = globals().get(entries["kind"], QkvError)
    kind = kind if isinstance(kind, type) and issubclass(kind, QkvError) else QkvError
    texts = list(entries["texts"])
    if "line" in entries:
        texts[0] = Place(entries["file"], entries["line"])
    error: QkvError = kind(*texts)
    return error


Spelling = Callable[[str, str | None], str]
"""How a setting is written: its name, and a value or None."""
_MARKS = frozenset("\ue000\ue001")
_ESCAPED = {ord(mark): ascii(mark)[1:-1] for mark in _MARKS}
_NAME = re.compile("[a-z_.]+")
_SETTING = re.compile("\ue000([a-z_.]+)(?:=([^\ue000\ue001]*))?\ue001")


def setting(name: str, value: str | None = None) -> str:
    """Mark a setting in the text of an error; it is spelled when the error is shown.

    Args:
        name: as in Python, `valid_data`; another, such as that of a file, is returned as it is.
        value: a value to give it, as on a command line.
    """
    if not _NAME.fullmatch(name):
        return name
    return f"\ue000{name}\ue001" if value is None else f"\ue000{name}={value}\ue001"


def spelled(text: str, spell: Spelling) -> str:
    """Return a text with its marked settings spelled by a function.

    Example:
        >>> spelled(f"or {setting('score', 'dot')}", lambda name, value: f"--{name} {value}")
        'or --score dot'
    """
    return _SETTING.sub(lambda match: spell(match[1], match[2]), text)


def _cleaned(text: str, spell: Spelling) -> str:
    """Spell the settings of a text; the marks that remain come from the user, and are escaped.

    A text without marks is returned itself: it may be a `Place`.
    """
    return text if _MARKS.isdisjoint(text) else spelled(text, spell).translate(_ESCAPED)


def in_python(name: str, value: str | None) -> str:
    """Spell a setting as Python writes it.

    Example:
        >>> in_python("valid_data", None), in_python("score", "dot"), in_python("beam", "5")
        ('valid_data', 'score="dot"', 'beam=5')
    """
    if value is None:
        return name
    plain = value.replace(".", "", 1).isdigit() or value in ("True", "False", "None")
    return f"{name}={value}" if plain else f'{name}="{value}"'


def on_command_line(name: str, value: str | None = None) -> str:
    """Spell a setting as a flag, or as in a settings file if it has a table.

    Example:
        >>> on_command_line("valid_data"), on_command_line("score", "dot"), on_command_line("model.width", "8")
        ('--valid-data', '--score dot', 'model.width = 8')
    """
    if "." in name:
        return name if value is None else f"{name} = {value}"
    return " ".join(("--" + name.replace("_", "-"), *([] if value is None else [value])))


_MOST, _LONGEST = 30, 60
"""Names, and characters of a name, that a message lists."""
_READABLE = 2000
"""Characters of each part of a message."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Suggest the valid name closest to an unknown one.

    Args:
        name: the unknown name.
        valid: the valid names.

    Returns:
        A sentence with the closest valid name, or with all of them if none is close: at most 30, and of each at most 60
        characters.

    Example:
        >>> nearest("adam", ["adamw", "sgd"])
        'Did you mean "adamw"?'
        >>> nearest("x", ["adamw", "sgd"])
        'Valid: adamw, sgd.'
    """
    names = list(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f'Did you mean "{brief(close[0])}"?'
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"Valid: {', '.join(map(brief, names[:_MOST]))}{more}."


def expect_name(argument: str, name: object, valid: Collection[_Name], expected: str | None = None) -> _Name:
    """Return a name if it is among the valid ones.

    Args:
        argument: what it is the value of, for the message.
        name: the name, as given.
        valid: the valid names.
        expected: a description of them; None to list them.

    Raises:
        ConfigError: it is not; the message suggests the valid name closest to it.

    Example:
        >>> expect_name("mean", "arithmetic", ("arithmetic", "geometric"))
        'arithmetic'
        >>> expect_name("mean", "geometrical", ("arithmetic", "geometric"))
        Traceback (most recent call last):
        qkv.errors.ConfigError: mean: expected "arithmetic" or "geometric"; got "geometrical". Did you mean "geometric"?
    """
    for candidate in valid:
        if candidate == name:
            return candidate
    got = f'"{brief(name)}"' if isinstance(name, str) else brief(repr(name))
    raise ConfigError(argument, expected or _choice(valid), got, nearest(str(name), valid))


def _choice(names: Collection[str]) -> str:
    if len(names) > 3:
        return f"one of {', '.join(names)}"
    *others, last = (f'"{name}"' for name in names)
    return f"{', '.join(others)} or {last}"


def value_named(value: object, package: str, names: Iterable[str]) -> str | None:
    """Return what to write in place of a string that names a value.

    Args:
        value: what was given in place of a value.
        package: where the values are.
        names: of its classes.

    Returns:
        A sentence, or None if the string names none of them.

    Example:
        >>> value_named("scaled-dot", "qkv.scores", ["Dot", "ScaledDot"])
        'Pass a value of the class qkv.scores.ScaledDot.'
    """
    plain = str(value).replace("_", "").replace("-", "").lower()
    exact = next((name for name in names if isinstance(value, str) and name.lower() == plain), None)
    return None if exact is None else f"Pass a value of the class {package}.{exact}."


def quantity(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1.

    Example:
        >>> quantity(1, "training pair"), quantity(1200, "token")
        ('1 training pair', '1,200 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def brief(name: str) -> str:
    """Shorten a name from a file for a message.

    Example:
        >>> brief("rent"), len(brief("x" * 1000))
        ('rent', 60)
    """
    name = _on_one_line(name)
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _clipped(text: str) -> str:
    """Leave out the middle of a text that is too long to be read, such as a value of a settings file."""
    return text if len(text) <= _READABLE else f"{text[: _READABLE // 2]} … {text[-_READABLE // 2 :]}"


def _on_one_line(name: str) -> str:
    # A name with a line feed could pass for a second message.
    return name.replace("\n", "\\n")
