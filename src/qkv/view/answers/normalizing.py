"""The steps from the scores of one query to its weights, for each normalizer."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax
from qkv.view.answers.equations import normalizer_equation
from qkv.view.answers.stage import Stage, number


class NormalizedRow(NamedTuple):
    """The whole row of one query, and the displayed keys.

    Attributes:
        scores: including bias and masked keys, (K), float64.
        visible: bool, (K).
        weights: those of the layer, (K).
        threshold: τ from the row state, if the normalizer has one.
        places: the displayed keys.
    """

    scores: Tensor
    visible: Tensor
    weights: Tensor
    threshold: float
    places: Tensor

    def seen(self) -> Tensor:
        """The scores of visible keys."""
        return self.scores[self.visible]

    def shown(self, values: Tensor) -> Tensor:
        """The scores of displayed keys, NaN for masked ones."""
        return torch.where(self.visible, values, torch.nan)[self.places]


def weight_stages(normalizer: Normalizer, row: NormalizedRow) -> list[Stage]:
    """Return the stages from scores to weights; the last stage is the layer's own weights.

    Args:
        normalizer: the normalizer of one head.
        row: its scores and weights.

    Returns:
        The stages.
    """
    stages, filled = _STAGES[type(normalizer).__name__](normalizer, row) if len(row.seen()) else ([], None)
    note = "" if len(row.seen()) else "All keys are masked for this query: all weights are 0."
    weights = row.weights.double()[row.places]
    equation = normalizer_equation(normalizer)
    return [*stages, Stage("weights", "w", equation, "row", weights, note, filled, of_weights=True)]


Steps = tuple[list[Stage], Callable[[int], str] | None]


def _of(row: NormalizedRow) -> Callable[[int], str]:
    return lambda at: number(row.scores[row.places[at]])


def _softmax(normalizer: Normalizer, row: NormalizedRow) -> Steps:
    assert isinstance(normalizer, Softmax)
    s = _of(row)
    sink = None if normalizer.sink is None else float(normalizer.sink)
    top = max(float(row.seen().max()), -torch.inf if sink is None else sink)
    e = torch.exp(row.scores - top)
    own = 0.0 if sink is None else float(torch.exp(torch.tensor(sink - top, dtype=torch.float64)))
    total = e[row.visible].sum() + own
    below = "" if sink is None else " + exp(sink − m)"
    stages = [
        Stage("largest score", "m", "m = max s", "number", torch.tensor(top)),
        Stage(
            "exponentials",
            "e",
            "e = exp(s − m)",
            "row",
            row.shown(e),
            filled=lambda at: f"exp({s(at)} − {number(top)})",
        ),
        Stage("their sum", "Z", f"Z = Σ e{below}", "number", total),
    ]
    return stages, lambda at: f"{number(e[row.places[at]])}/{number(total)}"


def _sum(normalizer: Normalizer, row: NormalizedRow) -> Steps:
    s, total = _of(row), row.seen().sum()
    return [Stage("sum", "Z", "Z = Σ s", "number", total)], lambda at: f"{s(at)}/{number(total)}"


def _mean(normalizer: Normalizer, row: NormalizedRow) -> Steps:
    s, count = _of(row), row.visible.sum()
    return [Stage("visible keys", "n", "n", "number", count)], lambda at: f"{s(at)}/{int(count)}"


def _identity(normalizer: Normalizer, row: NormalizedRow) -> Steps:
    return [], _of(row)


def _hard(normalizer: Normalizer, row: NormalizedRow) -> Steps:
    top = row.seen().max()
    return [
        Stage("largest score", "m", "m = max s", "number", top)
    ], lambda at: f"is {_of(row)(at)} the first {number(top)}?"


def _sigmoid(normalizer: Normalizer, row: NormalizedRow) -> Steps:
    assert isinstance(normalizer, Sigmoid)
    count = row.visible.sum().double()
    bias = -count.log() if normalizer.bias is None else torch.as_tensor(float(normalizer.bias), dtype=torch.float64)
    shown = number(bias)
    equation = "b = −log n" if normalizer.bias is None else "b"
    moved = row.scores + bias
    stages = [
        Stage("bias", "b", equation, "number", bias),
        Stage("moved", "z", "z = s + b", "row", row.shown(moved), filled=lambda at: f"{_of(row)(at)} + {shown}"),
    ]
    return stages, lambda at: f"σ({number(moved[row.places[at]])})"


def _threshold(normalizer: Normalizer, row: NormalizedRow) -> Steps:
    """max(0, (α−1)s − τ)^(1/(α−1)); sparsemax is α = 2."""
    alpha = float(normalizer.alpha) if isinstance(normalizer, Entmax) else 2.0
    x, tau = row.scores * (alpha - 1), row.threshold
    support = int((row.weights != 0).sum())
    stages = []
    if alpha != 2:
        factor = number(alpha - 1)
        scaled = Stage(
            "stretched", "x", f"x = {factor}·s", "row", row.shown(x), filled=lambda at: f"{factor} × {_of(row)(at)}"
        )
        stages.append(scaled)
    note = f"It makes the weights sum to one; {support} of {int(row.visible.sum()):,} keys lie above it."
    symbol = "s" if alpha == 2 else "x"
    stages.append(Stage("threshold", "τ", f"τ: Σ w = 1 with w of {symbol} − τ", "number", torch.tensor(tau), note))
    over = Stage("above the threshold", f"{symbol} − τ", f"{symbol} − τ", "row", row.shown(x - tau))
    power = "" if alpha == 2 else f"^{number(1 / (alpha - 1))}"
    return [*stages, over], lambda at: f"max(0, {number(x[row.places[at]] - tau)}){power}"


_STAGES: dict[str, Callable[[Normalizer, NormalizedRow], Steps]] = {
    "Softmax": _softmax,
    "Sum": _sum,
    "Mean": _mean,
    "Identity": _identity,
    "Hard": _hard,
    "Sigmoid": _sigmoid,
    "Sparsemax": _threshold,
    "Entmax": _threshold,
}
