"""All heads at a glance: a thumbnail of each, and the numbers behind its labels."""

import base64
import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.view.answers.answer import numbers
from qkv.view.answers.head import Head, head_of
from qkv.view.answers.weights import HeadWeights
from qkv.view.scene import Scene

SIDE = 32
"""Cells along a side of a thumbnail."""
ROWS = 256
"""Maximum number of evenly spaced rows used to label a head."""
_CELLS = 1 << 22
"""Maximum number of weights in these rows; very long rows are fewer."""
THRESHOLDS = {"previous": 0.4, "first": 0.4, "diagonal": 0.4, "same": 0.4, "broad": 0.8}
"""Thresholds of the labels: a share of the weight; for broad, of the maximum entropy."""


@final
@dataclass(frozen=True, eq=False)
class _Sample:
    """Some rows of a head.

    Args:
        weights: (n, K), float64.
        rows: their indices.
        visible: number of keys each may see.
    """

    weights: Tensor
    rows: Tensor
    visible: Tensor


def heads(scene: Scene) -> list[dict[str, Any]]:
    """Every head of every layer: its thumbnail and its labels.

    A label's value is a mean over rows: of the weight on the key before the query's position (previous), on the first
    key, on the query's own position (diagonal), or on keys with the query's token (same); or of the entropy as a share
    of its maximum (broad). A head can have no label. Position labels apply to self-attention; for cross-attention,
    `diagonal` is the weight on the key at the query's relative position.
    """
    return [
        _labeled(scene, layer, head) for layer in range(len(scene.layers)) for head in range(scene.layers[layer].heads)
    ]


def _labeled(scene: Scene, layer: int, head: int) -> dict[str, Any]:
    recorded = scene.layers[layer]
    head_values = head_of(recorded, head)
    sample = _sample(head_values)
    values = _positions(sample, head_values, recorded.kind == "self")
    if recorded.queries == recorded.keys or recorded.kind == "cross":
        values["same"] = _mean_weight_on_same_token(
            sample, scene.sequences[recorded.queries], scene.sequences[recorded.keys]
        )
    labels = [
        {
            "name": name,
            "value": value if math.isfinite(value) else None,
            "threshold": THRESHOLDS[name],
            "holds": value >= THRESHOLDS[name],
        }
        for name, value in values.items()
    ]
    return {
        "layer": layer,
        "head": head,
        "thumbnail": base64.b64encode(numbers(_thumbnail(sample.weights)).content).decode(),
        "rows": len(sample.rows),
        "labels": labels,
    }


def _sample(head: Head) -> _Sample:
    queries, keys = head.shape
    count = min(ROWS, queries, max(1, _CELLS // max(1, keys))) if keys else 0
    rows = torch.linspace(0, max(0, queries - 1), count, device="cpu").round().long()
    weights = (
        HeadWeights(head).rows(rows)(slice(None)).double()
        if count
        else torch.zeros(0, keys, dtype=torch.float64, device="cpu")
    )
    return _Sample(weights, rows, _visible(head, rows))


def _visible(head: Head, rows: Tensor) -> Tensor:
    if head.mask is None:
        return torch.full((len(rows),), head.shape[1], device="cpu")
    return torch.stack([head.visible(int(row)).sum() for row in rows]) if len(rows) else torch.zeros(0, device="cpu")


def _positions(sample: _Sample, head: Head, self_attention: bool) -> dict[str, float]:
    queries, keys = head.shape
    columns = sample.rows if self_attention else (sample.rows * keys / max(1, queries)).long()
    values = {
        "first": _mean(sample.weights[:, 0]) if keys else 0.0,
        "diagonal": _mean(_mean_weight_on(sample, columns)),
    }
    if self_attention:
        later = sample.rows > 0
        values["previous"] = _mean(_mean_weight_on(sample, columns - 1)[later])
    if head.non_negative:
        several = sample.visible > 1
        entropy = -torch.special.xlogy(sample.weights, sample.weights).sum(-1)
        values["broad"] = _mean(entropy[several] / sample.visible[several].double().log())
    return values


def _mean_weight_on(sample: _Sample, keys: Tensor) -> Tensor:
    last = sample.weights.shape[1] - 1
    return (
        sample.weights.gather(1, keys.clamp(0, max(0, last))[:, None])[:, 0]
        if last >= 0
        else torch.zeros(0, device="cpu")
    )


def _mean_weight_on_same_token(sample: _Sample, queries: tuple[str, ...], keys: tuple[str, ...]) -> float:
    numbered = {token: number for number, token in enumerate(dict.fromkeys((*queries, *keys)))}
    of_keys = torch.tensor([numbered[token] for token in keys], dtype=torch.long, device="cpu")
    of_rows = torch.tensor([numbered[queries[int(row)]] for row in sample.rows], dtype=torch.long, device="cpu")
    return _mean((sample.weights * (of_rows[:, None] == of_keys)).sum(-1))


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0


def _thumbnail(weights: Tensor) -> Tensor:
    """Downsample the available rows to at most 32 × 32 means."""
    rows, columns = (min(SIDE, size) for size in weights.shape)
    return F.adaptive_avg_pool2d(weights[None], (rows, columns))[0] if weights.numel() else weights
