"""The computation of the output of one query of one head, with the actual numbers; and of one weight."""

from functools import partial
from statistics import fmean
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.biases import Bias
from qkv.normalizers.base import Normalizer
from qkv.normalizers.steps import NormalizedRow, equation_of, weighing
from qkv.scores.base import Score
from qkv.scores.steps import steps as score_steps
from qkv.values.steps import Step
from qkv.view.answers.head import Head
from qkv.view.answers.rows import SceneRows, wide
from qkv.view.answers.stage import DisplayedKeys, as_json, line, number
from qkv.view.scene import Layer
from qkv.view.tokens import labels

DISPLAYED_KEYS = 64
"""Maximum number of keys whose numbers a stage shows."""
_MOVED = "After the model's own changes: positions, norms of heads, or a projection of the score."


class _ExplainedQuery(NamedTuple):
    """One query of one head, and its row."""

    layer: Layer
    head: Head
    number: int
    query: int
    output: Tensor
    row: NormalizedRow
    biases: Tensor | None


def steps(rows: SceneRows, layer: int, head: int, query: int) -> dict[str, Any]:
    """Return the stages from the input of one query to the output of its layer.

    The weights, the sum and later stages are the layer's own numbers; earlier ones are computed in float64.

    Args:
        rows: the rows of the scene.
        layer, head, query: indices.
    """
    explained = _explained(rows, layer, head, query)
    keys = _keys(rows, explained)
    outputs = [rows.attended(layer, head_number, query).output for head_number in range(explained.layer.heads)]
    weighing = _weight_stages(explained.head.normalizer, explained.row)
    stages = [*_inputs(explained), *_scores(explained), *weighing, *_outputs(explained, keys, outputs)]
    return {"stages": [as_json(step, keys) for step in stages]}


class _ExplainedKeys(NamedTuple):
    """The stages of the weights of some keys that follow each other.

    Attributes:
        name: layer, head, query and first key.
        row: the row of the query.
        stages: of its keys.
    """

    name: tuple[int, int, int, int]
    row: NormalizedRow
    stages: list[Step]


@final
class Cells:
    """The equations of single weights; the numbers of `DISPLAYED_KEYS` keys of a query are computed together.

    A page or a mouse pointer that requests one cell requests its neighbors next.

    Args:
        rows: the rows of the scene.
    """

    def __init__(self, rows: SceneRows) -> None:
        self._rows = rows
        self._latest: _ExplainedKeys | None = None

    def cell(self, layer: int, head: int | None, query: int, key: int) -> dict[str, Any]:
        """Return the equation of one weight, filled with its numbers.

        Args:
            layer, head, query, key: indices; no head for the mean, which is given with the weights of all heads.
        """
        if head is None:
            heads = range(self._rows.scene.layers[layer].heads)
            weights = [float(self._rows.attended(layer, each, query)[1][key]) for each in heads]
            named = zip(heads, weights, strict=True)
            lines = [{"equation": f"w of head {each}", "filled": "[", "value": weight} for each, weight in named]
            return {"lines": lines, "weight": fmean(weights)}
        column = key % DISPLAYED_KEYS
        explained = self._explained((layer, head, query, key - column))
        weight = float(explained.row.weights[key])
        if not bool(explained.row.visible[key]):
            lines = [{"equation": "w = 0", "filled": "the mask hides this key from this query", "value": 0.0}]
            return {"lines": lines, "weight": weight}
        return {"lines": [line(step, column) for step in explained.stages], "weight": weight}

    def _explained(self, name: tuple[int, int, int, int]) -> _ExplainedKeys:
        latest = self._latest
        if latest is None or latest.name != name:
            layer, head, query, first = name
            last = min(first + DISPLAYED_KEYS, self._rows.head(layer, head).shape[1])
            explained = _explained(self._rows, layer, head, query, torch.arange(first, last, device="cpu"))
            stages = [*_scores(explained), *_weight_stages(explained.head.normalizer, explained.row)]
            self._latest = latest = _ExplainedKeys(name, explained.row, stages)
        return latest


def _explained(rows: SceneRows, layer: int, head: int, query: int, keys: Tensor | None = None) -> _ExplainedQuery:
    output, weights = rows.attended(layer, head, query)
    if keys is None:
        keys = weights.abs().topk(min(DISPLAYED_KEYS, len(weights))).indices.sort().values
    s_K, biases, visible, threshold = rows.scored(layer, head, query)
    row = NormalizedRow(s_K, visible, weights, threshold, keys)
    return _ExplainedQuery(rows.scene.layers[layer], rows.head(layer, head), head, query, output, row, biases)


def _keys(rows: SceneRows, explained: _ExplainedQuery) -> DisplayedKeys:
    tokens = rows.scene.sequences[explained.layer.keys]
    key_labels = labels(tokens, explained.row.keys.tolist())
    return DisplayedKeys(explained.row.keys, key_labels, explained.head.shape[1])


def _inputs(explained: _ExplainedQuery) -> list[Step]:
    layer, head, keys = explained.layer, explained.head, explained.row.keys
    q = head.query[explained.query]
    stages = []
    equation, note = "q", "As passed to the attention."
    if layer.inputs is not None:
        x = layer.inputs.query_input[explained.query].detach()
        stages.append(Step("input", "x", "x", "vector", x))
        weight, bias = layer.inputs.query_weight, layer.inputs.query_bias
        if weight is not None:
            projected = _rows_of_head(_linear(x, weight, bias), explained)
            equation, note = ("q = W x" if bias is None else "q = W x + b"), ""
            if projected.shape != q.shape or not _is_close(projected, q):
                stages.append(Step("projected", "W x", equation, "vector", projected))
                equation, note = (
                    "q",
                    _MOVED,
                )
    return [
        *stages,
        Step("query", "q", equation, "vector", q, note),
        Step("keys", "k", "k", "matrix", head.key[keys]),
        Step("values", "v", "v", "matrix", head.value[keys]),
    ]


def _rows_of_head(projected: Tensor, explained: _ExplainedQuery) -> Tensor:
    width = len(projected) // explained.layer.heads
    return projected[explained.number * width : (explained.number + 1) * width]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # Under autocast the two have different types.
    return F.linear(x.to(weight.dtype), weight.detach(), None if bias is None else bias.detach())


def _is_close(projected: Tensor, q: Tensor) -> bool:
    """Return whether a projected input equals the recorded query, up to rounding in the type of the query."""
    rounding = 2 * torch.finfo(q.dtype).eps
    relative, absolute = max(1e-3, rounding), max(1e-4, rounding * float(q.abs().max()))
    return torch.allclose(projected.to(q.dtype), q, rtol=relative, atol=absolute)


def _scores(explained: _ExplainedQuery) -> list[Step]:
    head, row = explained.head, explained.row
    stages = _score_stages(head.score, head.query[explained.query], head.key[row.keys])
    if explained.biases is not None:
        before, added = stages[-1].values, explained.biases[row.keys]
        equation = f"s = s + b, b: {head.bias.name if isinstance(head.bias, Bias) else 'a matrix'}"
        filled = lambda at: f"{number(before[at])} + {number(added[at])}"  # noqa: E731
        stages.append(Step("bias", "s", equation, "row", before + added, filled=filled))
    if head.mask is not None:
        visible_keys = int(row.visible.sum())
        note = f"{visible_keys:,} of {len(row.visible):,} keys are visible to this query."
        stages.append(Step("mask", "s", "s, where the mask allows it", "row", row.at_displayed_keys(row.scores), note))
    return stages


def _score_stages(score: Score, query: Tensor, keys: Tensor) -> list[Step]:
    """Return the stages of the score of one query with some keys; the last stage is the score.

    Args:
        score: the score of one head.
        query: (D).
        keys: (n, E).

    Returns:
        The stages.

    Example:
        >>> from qkv.scores.products import ScaledDot
        >>> [stage.symbol for stage in _score_stages(ScaledDot(), torch.ones(4), torch.ones(2, 4))]
        ['q·k', 's']
    """
    return list(score_steps(score, wide(score, query), wide(score, keys)))


def _weight_stages(normalizer: Normalizer, row: NormalizedRow) -> list[Step]:
    """Return the stages from scores to weights; the last stage is the layer's own weights.

    Args:
        normalizer: the normalizer of one head.
        row: its scores and weights.

    Returns:
        The stages.
    """
    weights = row.weights.double()[row.keys]
    equation = equation_of(normalizer)
    if not len(row.visible_scores()):
        note = "All keys are masked for this query: all weights are 0."
        return [Step("weights", "w", equation, "row", weights, note, of_weights=True)]
    before = weighing(normalizer, row)
    stages = list(before.steps)
    filled = partial(before.filled, row) if before.text else None
    return [*stages, Step("weights", "w", equation, "row", weights, filled=filled, of_weights=True)]


def _outputs(explained: _ExplainedQuery, keys: DisplayedKeys, outputs: list[Tensor]) -> list[Step]:
    head, row = explained.head, explained.row
    weighted = row.weights[row.keys, None] * head.value[row.keys]
    names = keys.labels
    if len(row.keys) < keys.length:
        weighted = torch.cat([weighted, (explained.output - weighted.sum(0))[None]])
        names = (*names, "all others")
    stages = [
        Step("weighted values", "w v", "w v", "matrix", weighted, labels=names),
        Step("sum", "o", "o = Σ w v", "vector", explained.output),
    ]
    if explained.layer.heads > 1 or explained.layer.output is not None:
        joined = torch.cat(outputs)
        stages.append(Step("concatenated heads", "[o₁ … o_H]", "[o₁; …; o_H]", "vector", joined))
        if explained.layer.output is not None:
            weight, bias = explained.layer.output
            y = _linear(joined, weight, bias)
            equation = "y = W [o₁; …; o_H]" + ("" if bias is None else " + b")
            stages.append(Step("output projection", "y", equation, "vector", y))
    return stages
