"""The steps from the scores of one query to its weights."""

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.normalizers.base import Normalizer
from qkv.normalizers.catalog import NORMALIZERS
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.values.steps import Filled, Part, Step


class NormalizedRow(NamedTuple):
    """The whole row of one query, and the displayed keys.

    Attributes:
        scores: including bias and masked keys, (K), float64.
        visible: bool, (K).
        weights: those of the layer, (K).
        threshold: τ from the row state, if the normalizer has one.
        keys: the displayed keys.
    """

    scores: Tensor
    visible: Tensor
    weights: Tensor
    threshold: float
    keys: Tensor

    def visible_scores(self) -> Tensor:
        """Return the scores of visible keys."""
        return self.scores[self.visible]

    def at_displayed_keys(self, values: Tensor) -> Tensor:
        """Return values of the row (K) at the displayed keys, NaN for masked ones."""
        return torch.where(self.visible, values, torch.nan)[self.keys]

    def score(self, i: int) -> Tensor:
        """Return the score of a displayed key."""
        return self.scores[self.keys[i]]


class Weighing(NamedTuple):
    """The steps before the weights, and the numbers of the last equation.

    Attributes:
        steps: the steps.
        text: the right side of the equation of a weight, with `{}` for each number.
        parts: its numbers: one for all keys, or one for each key of the row, (K).
    """

    steps: list[Step]
    text: str = ""
    parts: tuple[Tensor | float, ...] = ()

    def filled(self, row: NormalizedRow, i: int) -> Filled:
        """Return the equation of the weight of a displayed key with its numbers."""
        return self.text, tuple(_at(part, row.keys[i]) for part in self.parts)


def _at(part: Tensor | float, key: Tensor) -> Part:
    return part[key] if isinstance(part, Tensor) and part.ndim else part


def equation_of(normalizer: Normalizer) -> str:
    """Return the equation of a normalizer.

    Example:
        >>> equation_of(Softmax())
        'w = exp(s)/Σexp(s)'
    """
    return f"w = {NORMALIZERS.equation(normalizer) or 'normalize(s)'}"


@singledispatch
def weighing(normalizer: Normalizer, row: NormalizedRow) -> Weighing:
    """Return the steps from the scores of a row to its weights, for a row that sees a key.

    A normalizer has none unless `weighing.register` names them.

    Args:
        normalizer: with the parameters of one head.
        row: its scores and weights.

    Returns:
        The steps.

    Example:
        >>> scores = torch.tensor([1.0, 3.0], dtype=torch.float64)
        >>> row = NormalizedRow(scores, torch.ones(2, dtype=torch.bool), scores / 4, 0.0, torch.arange(2))
        >>> weighing(Sum(), row).filled(row, 1)
        ('{}/{}', (tensor(3., dtype=torch.float64), tensor(4., dtype=torch.float64)))
    """
    return Weighing([])


@weighing.register
def _(normalizer: Softmax, row: NormalizedRow) -> Weighing:
    sink = None if normalizer.sink is None else float(normalizer.sink)
    top = max(float(row.visible_scores().max()), -torch.inf if sink is None else sink)
    e = torch.exp(row.scores - top)
    of_sink = 0.0 if sink is None else float(torch.exp(torch.tensor(sink - top, dtype=torch.float64, device="cpu")))
    total = e[row.visible].sum() + of_sink
    below = "" if sink is None else " + exp(sink − m)"
    steps = [
        Step("largest score", "m", "m = max s", "number", torch.tensor(top, device="cpu")),
        Step(
            *("exponentials", "e", "e = exp(s − m)", "row", row.at_displayed_keys(e)),
            filled=lambda i: ("exp({} − {})", (row.score(i), top)),
        ),
        Step("their sum", "Z", f"Z = Σ e{below}", "number", total),
    ]
    return Weighing(steps, "{}/{}", (e, total))


@weighing.register
def _(normalizer: Sum, row: NormalizedRow) -> Weighing:
    total = row.visible_scores().sum()
    return Weighing([Step("sum", "Z", "Z = Σ s", "number", total)], "{}/{}", (row.scores, total))


@weighing.register
def _(normalizer: Mean, row: NormalizedRow) -> Weighing:
    count = row.visible.sum()
    return Weighing([Step("visible keys", "n", "n", "number", count)], f"{{}}/{int(count)}", (row.scores,))


@weighing.register
def _(normalizer: Identity, row: NormalizedRow) -> Weighing:
    return Weighing([], "{}", (row.scores,))


@weighing.register
def _(normalizer: Hard, row: NormalizedRow) -> Weighing:
    top = row.visible_scores().max()
    return Weighing([Step("largest score", "m", "m = max s", "number", top)], "is {} the first {}?", (row.scores, top))


@weighing.register
def _(normalizer: Sigmoid, row: NormalizedRow) -> Weighing:
    count = row.visible.sum().double()
    bias = (
        -count.log()
        if normalizer.bias is None
        else torch.as_tensor(float(normalizer.bias), dtype=torch.float64, device=count.device)
    )
    moved = row.scores + bias
    steps = [
        Step("bias", "b", "b = −log n" if normalizer.bias is None else "b", "number", bias),
        Step(
            *("moved", "z", "z = s + b", "row", row.at_displayed_keys(moved)),
            filled=lambda i: ("{} + {}", (row.score(i), bias)),
        ),
    ]
    return Weighing(steps, "σ({})", (moved,))


@weighing.register
def _(normalizer: Sparsemax, row: NormalizedRow) -> Weighing:
    return _above_threshold(2.0, row)


@weighing.register
def _(normalizer: Entmax, row: NormalizedRow) -> Weighing:
    return _above_threshold(float(normalizer.alpha), row)


def _above_threshold(alpha: float, row: NormalizedRow) -> Weighing:
    """max(0, (α−1)s − τ)^(1/(α−1)); sparsemax is α = 2."""
    x, tau = row.scores * (alpha - 1), row.threshold
    support = int((row.weights != 0).sum())
    steps = []
    if alpha != 2:
        factor = f"{alpha - 1:.4g}"
        steps.append(
            Step(
                *("stretched", "x", f"x = {factor}·s", "row", row.at_displayed_keys(x)),
                filled=lambda i: (f"{factor} × {{}}", (row.score(i),)),
            )
        )
    note = f"It makes the weights sum to one; {support} of {int(row.visible.sum()):,} keys lie above it."
    symbol = "s" if alpha == 2 else "x"
    threshold = f"τ: Σ w = 1 with w of {symbol} − τ"
    steps.append(Step("threshold", "τ", threshold, "number", torch.tensor(tau, device="cpu"), note))
    above = f"{symbol} − τ"
    steps.append(Step("above the threshold", above, above, "row", row.at_displayed_keys(x - tau)))
    power = "" if alpha == 2 else f"^{1 / (alpha - 1):.4g}"
    return Weighing(steps, f"max(0, {{}}){power}", (x - tau,))
