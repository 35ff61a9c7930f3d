"""What is wrong or odd in data, by kind and line: collected while it is read, and said all at once.

Readers call `refuse` for a line that cannot be used, and `leaves_out` for lines that are odd. Within `with Report()`
all of them are collected; without a report, a line that cannot be used is an error at once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self, final

from qkv.data.choices import LineKind
from qkv.errors import DataError, quantity, setting

Outcome = Literal["refused", "left out", "kept"]
KINDS: Mapping[LineKind, str] = MappingProxyType(
    {
        "encoding": "not in UTF-8, with a NUL, or endless",
        "columns": "with other columns than expected",
        "empty": "without text where some belongs",
        "invalid": "that cannot be read",
        "swapped": "whose columns seem exchanged",
        "long": "of too many tokens",
        "duplicates": "equal to an earlier one",
        "identical": "with the same text on both sides",
        "ratio": "with one side far longer than usual for the other",
        "entities": "with entities of HTML, such as &amp;",
        "script": "without a letter of the usual script",
    }
)
"""What the lines of each kind are."""
SHOWN = 5
"""Lines that are named of each kind."""
_ACTIVE: "ContextVar[Report | None]" = ContextVar("report", default=None)


class Finding(NamedTuple):
    """Lines of one kind in a file.

    Attributes:
        file: the file, or the argument whose values they are.
        kind: one of `KINDS`.
        outcome: what happens to them in a training.
        number: how many there are.
        lines: the numbers of the first of them, from 1.
        example: what the first one holds, or what is wrong with it.
    """

    file: str
    kind: LineKind
    outcome: Outcome
    number: int
    lines: tuple[int, ...]
    example: str

    def __str__(self) -> str:
        outcome = "" if self.outcome == "kept" else f", {self.outcome}"
        more = ", …" if self.number > len(self.lines) else ""
        example = f": {self.example}" if self.example else ""
        return (
            f"{self.file}: {self.kind}: {quantity(self.number, 'line')} {KINDS[self.kind]}{outcome}: "
            f"{', '.join(f'{line:,}' for line in self.lines)}{more}{example}"
        )


@final
@dataclass(eq=False)
class Report:
    """What is wrong or odd in the data that is read inside `with`.

    Args:
        skip: the kinds of lines to leave out.

    Attributes:
        facts: what else is said of the data: sizes, counts, what is held out.
        refused: the error about the first line that cannot be used, or about a file as a whole; None if all is read.

    Example:
        >>> from qkv.errors import Place
        >>> with Report(skip=["empty"]) as report:
        ...     refuse("empty", DataError(Place("a.tsv", 3), "text", "an empty line", "Fill it."))
        >>> print(report)
        a.tsv: empty: 1 line without text where some belongs, left out: 3
        >>> report.expect_usable()
    """

    skip: Collection[LineKind] = ()
    facts: list[str] = field(default_factory=list)
    refused: DataError | None = None
    _found: dict[tuple[str, LineKind], Finding] = field(default_factory=dict)
    _bad: set[tuple[str, int]] = field(default_factory=set)
    _token: "Token[Report | None] | None" = None

    def __enter__(self) -> Self:
        self._token = _ACTIVE.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _ACTIVE.reset(self._token)

    @property
    def findings(self) -> list[Finding]:
        """Odd and refused lines by file and kind, in the order of `KINDS`."""
        order = list(KINDS)
        return sorted(self._found.values(), key=lambda finding: order.index(finding.kind))

    def kinds(self, outcome: Outcome) -> list[LineKind]:
        """Return the kinds of lines that have an outcome."""
        return list(dict.fromkeys(finding.kind for finding in self.findings if finding.outcome == outcome))

    def add(self, file: str, kind: LineKind, outcome: Outcome, lines: Iterable[int], example: str = "") -> None:
        """Add lines to those of their kind."""
        before = self._found.get((file, kind), Finding(file, kind, outcome, 0, (), example))
        numbers = list(lines)
        shown = (*before.lines, *numbers[: SHOWN - len(before.lines)])
        self._found[file, kind] = before._replace(number=before.number + len(numbers), lines=shown)

    def expect_usable(self) -> None:
        """Raise the error about the first line that cannot be used, if there is one; it proposes what to leave out.

        Raises:
            DataError: as in the files.
        """
        error = self.refused
        if error is None:
            return
        more = sum(finding.number for finding in self.findings if finding.outcome == "refused") - 1
        if more < 0 or (error.file or error.argument, error.line) not in self._bad:
            raise error  # about a file as a whole
        hint = error.args[3]
        if more:
            hint = hint + f" {'So is 1 more line' if more == 1 else f'So are {more:,} more lines'}, as reported above."
        kinds = ",".join(kind for kind in KINDS if kind in self.skip or kind in self.kinds("refused"))
        hint = hint + f" Or leave {'them' if more else 'it'} out with " + setting("skip", kinds) + "."
        raise DataError(*error.args[:3], hint)

    def __str__(self) -> str:
        findings = self.findings
        if len(findings) == 1 and findings[0].number == 1 and findings[0].outcome == "refused":
            findings = []  # the error says all of it
        return "\n".join([*self.facts, *map(str, findings)])

    def to_json_value(self) -> dict[str, Any]:
        """Return the report as names and values."""
        return {
            "usable": self.refused is None,
            "findings": [{**finding._asdict(), "lines": list(finding.lines)} for finding in self.findings],
            "facts": self.facts,
            "error": None if self.refused is None else str(self.refused),
        }


def refuse(kind: LineKind, error: DataError) -> None:
    """Record a line that cannot be used, or raise its error if nothing collects such lines.

    Args:
        kind: one of `KINDS`.
        error: about the line.

    Raises:
        DataError: the error.
    """
    report = _ACTIVE.get()
    if report is None or error.line is None:
        raise error
    file, line = error.file or error.argument, error.line
    if (file, line) in report._bad:
        return
    report._bad.add((file, line))
    skipped = kind in report.skip
    report.add(file, kind, "left out" if skipped else "refused", [line], "" if skipped else error.got)
    if not skipped and report.refused is None:
        report.refused = error


def refused(line: int, *files: object) -> bool:
    """Whether a line of one of these files was refused already, so that nothing else is said about it."""
    report = _ACTIVE.get()
    return report is not None and bool(report._bad) and any((str(file), line) in report._bad for file in files)


def collecting() -> bool:
    """Whether lines that cannot be used are collected."""
    return _ACTIVE.get() is not None


def leaves_out(kind: LineKind, file: str, lines: Sequence[int], example: str = "") -> bool:
    """Record lines that are odd, and return whether they are to be left out.

    Args:
        kind: one of `KINDS`.
        file: where they are.
        lines: their numbers; none for no record.
        example: what the first one holds.
    """
    report = _ACTIVE.get()
    if report is None or not lines:
        return False
    skipped = kind in report.skip
    report.add(file, kind, "left out" if skipped else "kept", lines, example)
    return skipped


def skips(kind: LineKind) -> bool:
    """Whether lines of a kind are left out."""
    report = _ACTIVE.get()
    return report is not None and kind in report.skip


def say(fact: str) -> None:
    """Record something else about the data, if anything collects it."""
    report = _ACTIVE.get()
    if report is not None:
        report.facts.append(fact)


def expect_some_left() -> None:
    """Raise the error about the first line that cannot be used, where no other line is left."""
    report = _ACTIVE.get()
    if report is not None and report.refused is not None:
        raise report.refused
