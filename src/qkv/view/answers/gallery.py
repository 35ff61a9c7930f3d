"""All heads at a glance: a small picture of each, and the numbers behind its labels."""

import base64
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from qkv.view.answers.answer import numbers
from qkv.view.answers.head import Head, head_of
from qkv.view.answers.weights import Weights
from qkv.view.scene import Scene

SIDE = 32
"""Cells along a side of a picture."""
ROWS = 256
"""The most rows that a head is judged by, spread evenly; all of them where there are no more."""
THRESHOLDS = {"previous": 0.4, "first": 0.4, "diagonal": 0.4, "same": 0.4, "broad": 0.8}
"""From which value on a label holds: a share of the weight; for broad, of the largest possible entropy."""


@final
@dataclass(frozen=True, eq=False)
class _Sample:
    """Some rows of a head.

    Args:
        weights: (n, K), float64.
        rows: where they stand.
        visible: how many keys each may see.
    """

    weights: Tensor
    rows: Tensor
    visible: Tensor


def heads(scene: Scene) -> list[dict[str, Any]]:
    """Every head of every layer: its thumbnail and its labels.

    A label's value is the mean over the rows, of the weight on: the key before the query's own position (previous),
    the first key, the query's own position (diagonal), keys with the query's own token (same); or of the entropy as a
    share of the largest possible one (broad). No label may hold. Labels of positions make sense where a sequence looks
    at itself; between two sequences, `diagonal` is the weight on the key as far along as the query.
    """
    return [
        _judged(scene, layer, head) for layer in range(len(scene.layers)) for head in range(scene.layers[layer].heads)
    ]


def _judged(scene: Scene, layer: int, head: int) -> dict[str, Any]:
    found = scene.layers[layer]
    one = head_of(found, head)
    rows = torch.linspace(0, max(0, one.shape[0] - 1), min(ROWS, one.shape[0])).round().long()
    weights = (
        Weights(one).rows(rows)(slice(None)).double() if len(rows) and one.shape[1] else torch.zeros(0, one.shape[1])
    )
    sample = _Sample(weights, rows, _visible(one, rows))
    values = _positions(sample, one, found.kind == "self")
    if found.queries == found.keys or found.kind == "cross":
        values["same"] = _same(sample, scene.sequences[found.queries], scene.sequences[found.keys])
    labels = [
        {"name": name, "value": value, "threshold": THRESHOLDS[name], "holds": value >= THRESHOLDS[name]}
        for name, value in values.items()
    ]
    return {
        "layer": layer,
        "head": head,
        "thumbnail": base64.b64encode(numbers(_thumbnail(sample.weights)).content).decode(),
        "rows": len(rows),
        "labels": labels,
    }


def _visible(head: Head, rows: Tensor) -> Tensor:
    if head.mask is None:
        return torch.full((len(rows),), head.shape[1])
    return torch.stack([head.visible(int(row)).sum() for row in rows]) if len(rows) else torch.zeros(0)


def _positions(sample: _Sample, head: Head, self_attention: bool) -> dict[str, float]:
    queries, keys = head.shape
    own = sample.rows if self_attention else (sample.rows * keys / max(1, queries)).long()
    values = {"first": _mean(sample.weights[:, 0]) if keys else 0.0, "diagonal": _mean(_at(sample, own))}
    if self_attention:
        later = sample.rows > 0
        values["previous"] = _mean(_at(sample, own - 1)[later])
    if head.non_negative:
        several = sample.visible > 1
        entropy = -torch.special.xlogy(sample.weights, sample.weights).sum(-1)
        values["broad"] = _mean(entropy[several] / sample.visible[several].double().log())
    return values


def _at(sample: _Sample, keys: Tensor) -> Tensor:
    last = sample.weights.shape[1] - 1
    return sample.weights.gather(1, keys.clamp(0, max(0, last))[:, None])[:, 0] if last >= 0 else torch.zeros(0)


def _same(sample: _Sample, queries: tuple[str, ...], keys: tuple[str, ...]) -> float:
    numbered = {token: number for number, token in enumerate(dict.fromkeys((*queries, *keys)))}
    of_keys = torch.tensor([numbered[token] for token in keys], dtype=torch.long)
    of_rows = torch.tensor([numbered[queries[int(row)]] for row in sample.rows], dtype=torch.long)
    return _mean((sample.weights * (of_rows[:, None] == of_keys)).sum(-1))


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0


def _thumbnail(weights: Tensor) -> Tensor:
    """At most 32 × 32 means; those of the rows at hand."""
    down, across = (
        torch.arange(size) * SIDE // max(SIDE, size) if size > SIDE else torch.arange(size) for size in weights.shape
    )
    small = torch.zeros(min(SIDE, weights.shape[0]), min(SIDE, weights.shape[1]), dtype=torch.float64)
    counts = torch.zeros_like(small)
    places = (down[:, None].expand(weights.shape), across.expand(weights.shape))
    small.index_put_(places, weights, accumulate=True)
    counts.index_put_(places, torch.ones_like(weights), accumulate=True)
    return small / counts.clamp(min=1)
