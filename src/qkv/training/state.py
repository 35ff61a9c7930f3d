"""The state of a training as the names and numbers of `trainer.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar, final, get_args, get_type_hints

from qkv.checkpoint.contents import figure_from_json_value, figure_to_json_value
from qkv.checkpoint.json_values import JsonValue
from qkv.errors import CheckpointError, ConfigError, nearest
from qkv.metrics.figure import Figure
from qkv.training.precision import ComputePrecision

T = TypeVar("T", int, float, str, list[Any])
Sums = Literal["sequence", "tree"]
_WHERE = "trainer.json"
_STORED = {"position": "place"}
"""Names of fields in checkpoints, where they differ."""
_OLDER: Mapping[str, JsonValue] = MappingProxyType({"sums": "sequence", "arithmetic": "", "ties": []})
"""What checkpoints of older versions lack."""


@final
@dataclass
class State:
    """The state of a training; weights, moments and generators are stored separately.

    Args:
        step: number of completed updates.
        epoch: from 0.
        position: that of the epoch's next batch; the number of batches done, if they are listed.
        tokens: units that the objective has counted so far.
        validated: step of the last validation.
        waited: number of validations since the best one.
        ranked: the figures of the best validation so far, in the order in which they are compared: the monitored one,
            then those that break a tie.
        best_step: its step.
        window_loss: loss summed since the last line of the log.
        window_count: number of units in that sum.
        precision: precision of the computation.
        threads: number of PyTorch threads; only the same number gives the same bits.
        arithmetic: the kernels, and the instructions of PyTorch's operators; "" in states of older versions.
        sums: the order in which gradients of an update's parts are added: "tree", with a seed for each part, so
            that any number of processes gives the same bits; or "sequence", as in runs with one part an
            update, and in those that older versions began.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    tokens: int = 0
    validated: int = 0
    waited: int = 0
    ranked: tuple[Figure, ...] = ()
    best_step: int = 0
    window_loss: float = 0.0
    window_count: int = 0
    precision: ComputePrecision = "float32"
    threads: int = 1
    arithmetic: str = ""
    sums: Sums = "sequence"

    @property
    def best(self) -> Figure | None:
        """The best value of the monitored figure so far."""
        return self.ranked[0] if self.ranked else None

    def judge(self, figures: tuple[Figure, ...], monitor: str | None) -> bool:
        """Record the figures of a validation.

        A figure that does not move, such as BLEU 0 or an accuracy of 100 %, chooses nothing: the next one then does.

        Args:
            figures: the results; can be empty.
            monitor: name of the figure to compare; the first one by default. The others break ties, in their order.

        Returns:
            Whether this is the best so far; without figures, the newest always is.

        Raises:
            ConfigError: no figure has the monitor's name.

        Example:
            >>> state, bleu = State(), Figure("bleu", 0.0, "")
            >>> [state.judge((bleu, Figure("chrf", value, "")), None) for value in (8.0, 92.0, 91.0)]
            [True, True, False]
        """
        self.validated = self.step
        if not figures:
            self.best_step = self.step
            return True
        monitored = _monitored(figures, monitor)
        ranked = (monitored, *(figure for figure in figures if figure is not monitored))
        better = _better(ranked, self.ranked)
        if better:
            self.ranked, self.best_step = ranked, self.step
        self.waited = 0 if better else self.waited + 1
        return better

    def to_json_value(self, batches: str) -> dict[str, JsonValue]:
        """Convert to names and numbers for a checkpoint.

        Args:
            batches: fingerprint of the epoch's list of batches.

        Returns:
            Names and numbers.
        """
        entries: dict[str, JsonValue] = {
            _STORED.get(name, name): getattr(self, name) for name in self.__dataclass_fields__ if name != "ranked"
        }
        best, *ties = map(figure_to_json_value, self.ranked) if self.ranked else [None]
        return entries | {"best": best, "ties": ties, "batches": batches}


def read_state(entries: Mapping[str, JsonValue]) -> State:
    """Parse and validate the output of `State.to_json_value`.

    Args:
        entries: its fields by name.

    Returns:
        The state.

    Raises:
        CheckpointError: a name is missing, or a value is outside its range.

    Example:
        >>> read_state(State(step=7).to_json_value("")) == State(step=7)
        True
    """
    entries = {**_OLDER, **entries}
    values: dict[str, Any] = {}
    for name, kind in get_type_hints(State).items():
        if name == "ranked":
            continue
        stored, choices = _STORED.get(name, name), get_args(kind)
        value = values[name] = _field(entries, stored, str if choices else kind)
        if choices and value not in choices:
            raise _damaged(stored, " or ".join(choices), value)
        if kind is int and not 0 <= value <= 2**53:
            raise _damaged(stored, "an integer of at least 0", value)
    best = [] if entries.get("best") is None else [entries["best"]]
    figures = [*best, *_field(entries, "ties", list)]
    values["ranked"] = tuple(figure_from_json_value(figure, f"{_WHERE}: best") for figure in figures)
    return State(**values)


def read_fingerprint(entries: Mapping[str, JsonValue]) -> str:
    """Read the fingerprint of the epoch's list of batches.

    Args:
        entries: those of `trainer.json`.

    Returns:
        The fingerprint.

    Raises:
        CheckpointError: it is missing.
    """
    return _field(entries, "batches", str)


def _monitored(figures: tuple[Figure, ...], monitor: str | None) -> Figure:
    for figure in figures:
        if monitor is None or figure.name == monitor:
            return figure
    names = [figure.name for figure in figures]
    expected = f"one of the figures {', '.join(names)}"
    raise ConfigError("monitor", expected, f'"{monitor}"', nearest(str(monitor), names))


def _better(ranked: Sequence[Figure], before: Sequence[Figure]) -> bool:
    """Compare the figures of two validations: the first ones that differ decide."""
    if not before:
        return ranked[0].better_than(None)
    earlier = {figure.name: figure for figure in before}
    for figure in ranked:
        other = earlier.get(figure.name)
        if other is not None and figure.value != other.value:
            return figure.better_than(other)
    return False


def _field(entries: Mapping[str, JsonValue], name: str, kind: type[T]) -> T:
    value = entries.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _damaged(name, f"a value of type {kind.__name__}", value)
    return value


def _damaged(name: str, expected: str, got: object) -> CheckpointError:
    return CheckpointError(f"{_WHERE}: {name}", expected, repr(got)[:80], "Use another checkpoint.")
