"""How much each head of a model matters to a number: the number with the head changed, minus the number without."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.checkpoint.disk import save_file
from qkv.errors import ConfigError, TrainingError
from qkv.files import expect_suffix
from qkv.notebooks import picture
from qkv.recording.checks import check_arguments
from qkv.recording.patching import Change, patch
from qkv.recording.recorder import record
from qkv.view.layer_names import short_names

_EXCERPT = 80


class HeadEffect(NamedTuple):
    """The effect of one head.

    Attributes:
        layer: the name of its layer.
        head: its number.
        effect: the metric with the head changed, minus the metric.
    """

    layer: str
    head: int
    effect: float


@final
@dataclass(frozen=True, eq=False)
class Effects:
    """The effect of every head of a model on a metric.

    Attributes:
        metric: the metric of the model as it is.
        layers: the names of the layers, in the order in which they run.
        values: by layer and head, the metric with the head changed, minus `metric`: (L, H), float64, NaN where a layer
            has fewer heads.

    Example:
        >>> effects = Effects(2.0, ("encoder.0", "encoder.1"), torch.tensor([[0.5, -0.25], [0.0, 1.0]]).double())
        >>> effects.largest(1)
        [HeadEffect(layer='encoder.1', head=1, effect=1.0)]
        >>> effects
        metric 2; with a head changed, it moves by
                       0          1
        layer 0       +0.5      -0.25
        layer 1         +0         +1
    """

    metric: float
    layers: tuple[str, ...]
    values: Tensor

    def rows(self) -> list[HeadEffect]:
        """Return one row for each head, layer by layer."""
        return [
            HeadEffect(layer, head, effect)
            for layer, of_layer in zip(self.layers, self.values.tolist(), strict=True)
            for head, effect in enumerate(of_layer)
            if not math.isnan(effect)
        ]

    def largest(self, count: int = 10) -> list[HeadEffect]:
        """Return the heads that move the metric most, in either direction."""
        return sorted(self.rows(), key=lambda row: -abs(row.effect))[:count]

    def save(self, path: str | Path) -> None:
        """Save the table, or draw it.

        Args:
            path: `.tsv` for a table of layer, head and effect; `.png`, `.svg` or `.pdf` for a heat map.

        Raises:
            ConfigError: the suffix is unknown, or the file cannot be written.
        """
        file = Path(path)
        suffix = expect_suffix("path", file, (".tsv", ".png", ".svg", ".pdf"))
        if suffix == ".tsv":
            lines = ["layer\thead\teffect", *(f"{row.layer}\t{row.head}\t{row.effect!r}" for row in self.rows())]
            save_file(file, "".join(f"{line}\n" for line in lines).encode())
            return
        save_file(file, self._drawn(suffix[1:]))

    def __repr__(self) -> str:
        """Return the table, with short names of layers."""
        names = short_names(self.layers)
        width = max(map(len, names), default=0)
        numbers = [["" if math.isnan(x) else f"{x:+.4g}" for x in row] for row in self.values.tolist()]
        head = "".join(f"{head:11}" for head in range(self.values.shape[1]))
        rows = [f"{name:{width}}{''.join(f'{x:>11}' for x in row)}" for name, row in zip(names, numbers, strict=True)]
        title = f"metric {self.metric:.6g}; with a head changed, it moves by"
        return "\n".join([title, " " * width + head, *rows])

    def _repr_html_(self) -> str:
        """Display the heat map in a notebook."""
        title = f"<p>metric {self.metric:.6g}; with a head changed, it moves by</p>"
        return title + picture(self._drawn("svg"), escape(repr(self)))

    def _drawn(self, kind: str) -> bytes:
        from qkv.view.head_grid import drawn

        return drawn(self.values, short_names(self.layers), kind, "change of the metric")


def effects(
    model: nn.Module,
    batch: Any,
    metric: Callable[[Any], Tensor | float],
    *,
    change: Change = "zero",
    layers: Sequence[str] | None = None,
) -> Effects:
    """Return how much a number moves if each head of a model is changed, one head at a time.

    The model runs once, and then once for each head, in evaluation mode and without gradients.

    Args:
        model: any module that `qkv.patch` can change.
        batch: what the model takes: a tensor, a tuple of arguments, or a mapping of names to arguments, such as a
            tokenizer of `transformers` returns.
        metric: takes what the model returns, and returns a number: a loss, or the logit of one answer minus that of
            another.
        change: what happens to the head, as for `qkv.patch`: "zero"; `("mean", trace)` leaves less to chance, as a head
            that always returns the same is a bias to which the model is used.
        layers: the layers, or modules that contain some; None for all.

    Returns:
        The effect of each head.

    Raises:
        ConfigError: the batch is none of these, or the metric returned no number; and as for `qkv.patch`.
        TrainingError: the metric is NaN.
        UnsupportedError: as for `qkv.patch`.

    Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.2.

    Example:
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> model, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
        >>> found = effects(model, x, lambda output: output.square().mean())
        >>> found.layers, found.values.shape
        (('attention',), torch.Size([1, 2]))
    """
    check_arguments(model, layers, None)
    positional, named = _arguments(batch)

    def measure() -> float:
        return _number(metric(model(*positional, **named)))

    with _evaluating(model), torch.no_grad():
        with record(model, layers) as trace:
            before = measure()
        calls = {layer: calls[0] for layer, calls in trace.calls.items() if calls}
        heads = {layer: call.query.shape[-3] if call.query.ndim > 3 else 1 for layer, call in calls.items()}
        del trace, calls
        values = torch.full((len(heads), max(heads.values())), math.nan, dtype=torch.float64, device="cpu")
        for row, (layer, count) in enumerate(heads.items()):
            for head in range(count):
                with patch(model, {layer: {head: change}}):
                    values[row, head] = measure() - before
    return Effects(before, tuple(heads), values)


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments of the model."""
    match batch:
        case Tensor():
            return (batch,), {}
        case Mapping():
            return (), {str(name): x for name, x in batch.items()}
        case tuple() | list():
            return tuple(batch), {}
    hint = "Give what model(...) takes: x, (x, lengths) or {'input_ids': ids}."
    raise ConfigError("batch", "a tensor, a tuple of arguments or a mapping", repr(batch)[:_EXCERPT], hint)


def _number(result: object) -> float:
    """Return the number that a metric returned."""
    if isinstance(result, Tensor) and result.numel() == 1:
        result = result.item()
    if not isinstance(result, int | float):
        got = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else repr(result)[:_EXCERPT]
        raise ConfigError("metric", "a function that returns a number", got, "Average, or select one number.")
    if math.isnan(result):
        raise TrainingError("metric", "a number", "NaN", "Check the model on this batch.")
    return float(result)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, which draws no dropout, and back at the end."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True
