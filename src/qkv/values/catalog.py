"""Entries of a catalog: what a mechanism is called, its equation, and the numbers that people can set.

Nothing here imports PyTorch, so that the help of a command can list names. Classes are looked up when they are needed.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Generic, NamedTuple, TypeVar, final

T = TypeVar("T")
Fields = Mapping[str, Any]


class Equation(NamedTuple):
    """The right side of an equation, as text and as TeX.

    Example:
        >>> str(Equation("q·k/√D", r"q \\cdot k/\\sqrt D"))
        'q·k/√D'
    """

    plain: str
    tex: str

    def __str__(self) -> str:
        return self.plain


class Number(NamedTuple):
    """A number that people can set.

    Attributes:
        name: the field of the mechanism's class.
        default: what it is if it is not set.
        low, high, step: the range and step size of a slider.
        above: every valid number is greater.
    """

    name: str
    default: float
    low: float
    high: float
    step: float
    above: float


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Entry(Generic[T]):
    """A mechanism with a name.

    Args:
        name: as in settings, with underscores.
        package: the package that exports its class.
        kind: the name of the class.
        equation: of the general form.
        equation_with: the equation of a value with given fields, where they change it.
        aliases: other names in the literature, which flags and settings accept.
        fixed: fields that the name fixes.
        numbers: the numbers that people can set.
        tensors: the shapes of the tensors that its class needs, in the letters of `qkv.shapes`: D, E and A.
        kernel: whether it is a kernel of a distance, which is never negative: what regression smooths with.
        smoothing: of a kernel: its bandwidth relative to that of a Gaussian that smooths as much.
        javascript: the formula for pages that compute. A score is a function (q, k, p) of one query and one key; a
            normalizer is a function (s, p) from the scores of the visible keys to their weights. p has the fields of
            the class, for one head; `static/numeric.js` has functions that formulas share.
        note: what a table adds to the equation.
        source: the paper that it comes from.

    Example:
        >>> from qkv.scores.catalog import SCORES
        >>> SCORES["triangular"].make(bandwidth=2.0)
        Epanechnikov(bandwidth=2.0, power=1)
    """

    name: str
    package: str
    kind: str
    equation: Equation
    equation_with: Callable[[Fields], Equation] | None = None
    aliases: tuple[str, ...] = ()
    fixed: Fields = field(default_factory=dict)
    numbers: tuple[Number, ...] = ()
    tensors: Mapping[str, str] = field(default_factory=dict)
    kernel: bool = False
    smoothing: float = 1.0
    javascript: str = ""
    note: str = ""
    source: str = ""

    @property
    def cls(self) -> type[T]:
        """The class."""
        cls: type[T] = getattr(sys.modules[self.package], self.kind)
        return cls

    @property
    def only_numbers(self) -> bool:
        """Whether numbers are all that the class needs: no tensor and no function."""
        return all(part.default is not MISSING for part in fields(self.cls))  # type: ignore[arg-type]

    def number(self, name: str) -> Number | None:
        """Return a number by its name; None if this mechanism has none of that name."""
        return next((number for number in self.numbers if number.name == name), None)

    def make(self, **values: Any) -> T:
        """Build a value of the class, with the fields that the name fixes.

        Args:
            values: of other fields; the class's defaults for the rest.
        """
        return self.cls(**self.fixed, **values)

    def includes(self, value: object) -> bool:
        """Return whether a value is of this class and has the fixed fields."""
        return type(value) is self.cls and all(getattr(value, name) == fixed for name, fixed in self.fixed.items())


@final
class Catalog(Mapping[str, Entry[T]]):
    """Mechanisms by name, in the order in which they are shown.

    Args:
        entries: the mechanisms; of two with the same class the one with fixed fields is the special case.

    Example:
        >>> from qkv.scores.catalog import SCORES
        >>> SCORES.spelled("Bahdanau"), SCORES.spelled("softmax")
        ('additive', None)
    """

    def __init__(self, entries: Iterable[Entry[T]]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._names = {alias: name for name, entry in self._entries.items() for alias in (name, *entry.aliases)}

    def __getitem__(self, name: str) -> Entry[T]:
        return self._entries[name]

    def __iter__(self) -> Any:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def aliases(self) -> dict[str, str]:
        """The names of mechanisms by the other names of the literature."""
        return {alias: name for alias, name in self._names.items() if alias != name}

    @property
    def classes(self) -> tuple[type[T], ...]:
        """The classes, each once."""
        return tuple(dict.fromkeys(entry.cls for entry in self.values()))

    def described(self) -> str:
        """Return all names as flags spell them, each with its aliases, in one line.

        Example:
            >>> from qkv.normalizers.catalog import NORMALIZERS
            >>> NORMALIZERS.described()
            'softmax, sum, mean, hard, identity, sparsemax, entmax or sigmoid'
        """
        return listed(
            (f"{name} ({', '.join(entry.aliases)})" if entry.aliases else name for name, entry in self.items()), "or"
        )

    def spelled(self, name: str) -> str | None:
        """Return the name of a mechanism from any spelling: with dashes, in capitals, an alias; None if unknown."""
        return self._names.get(name.lower().replace("-", "_"))

    def of(self, value: object) -> Entry[T] | None:
        """Return the entry of a value, the most special one; None for a user-defined mechanism."""
        entries = [entry for entry in self.values() if entry.includes(value)]
        return max(entries, key=lambda entry: len(entry.fixed), default=None)

    def equation(self, value: object) -> Equation | None:
        """Return the equation of a value; None for a user-defined mechanism."""
        entry = self.of(value)
        if entry is None:
            return None
        return entry.equation if entry.equation_with is None else entry.equation_with(vars(value))


def listed(names: Iterable[str], last: str) -> str:
    """Write names in one line, as flags spell them.

    Example:
        >>> listed(["dot", "scaled_dot", "uniform"], "or")
        'dot, scaled-dot or uniform'
    """
    *most, end = map(as_flag, names)
    return f"{', '.join(most)} {last} {end}" if most else end


def as_flag(name: str) -> str:
    """Return the name of a mechanism as messages and flags spell it.

    Example:
        >>> as_flag("squared_distance")
        'squared-distance'
    """
    return name.replace("_", "-")
