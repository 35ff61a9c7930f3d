"""All heads at a glance: a thumbnail of each, and the numbers behind its labels."""

import base64
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.view.answers.answer import numbers
from qkv.view.answers.head import head_of
from qkv.view.answers.shares import shares_of
from qkv.view.answers.weights import HeadWeights
from qkv.view.scene import Scene

SIDE = 32
"""Cells along a side of a thumbnail."""
ROWS = 256
"""Maximum number of evenly spaced rows used to label a head."""
_CELLS = 1 << 22
"""Maximum number of weights in these rows; very long rows are fewer."""


def heads(scene: Scene) -> list[dict[str, Any]]:
    """Every head of every layer: its thumbnail and its labels, see `HeadShares`. A head can have no label."""
    return [
        _labeled(scene, layer, head) for layer in range(len(scene.layers)) for head in range(scene.layers[layer].heads)
    ]


def _labeled(scene: Scene, layer: int, head: int) -> dict[str, Any]:
    values = head_of(scene.layers[layer], head)
    queries, keys = values.shape
    count = min(ROWS, queries, max(1, _CELLS // max(1, keys))) if keys else 0
    rows = torch.linspace(0, max(0, queries - 1), count, device="cpu").round().long()
    found = shares_of(scene, layer, head, rows)
    values_of = found.labels(crossing=scene.layers[layer].kind == "cross")
    holding = {name for name, (value, threshold) in values_of.items() if value >= threshold}
    if holding & {"diagonal", "next", "previous"}:  # they say more
        holding.discard("local")
    labels = [
        {
            "name": name,
            "value": value if math.isfinite(value) else None,
            "threshold": threshold,
            "holds": name in holding,
        }
        for name, (value, threshold) in values_of.items()
    ]
    weights = HeadWeights(values).rows(rows)(slice(None)) if count else torch.zeros(0, keys, device="cpu")
    return {
        "layer": layer,
        "head": head,
        "thumbnail": base64.b64encode(numbers(_thumbnail(weights.double())).content).decode(),
        "rows": count,
        "labels": labels,
    }


def _thumbnail(weights: Tensor) -> Tensor:
    """Downsample the available rows to at most 32 × 32 means."""
    rows, columns = (min(SIDE, size) for size in weights.shape)
    return F.adaptive_avg_pool2d(weights[None], (rows, columns))[0] if weights.numel() else weights
