"""The map that a viewer shows first: the one that tells most about what belongs together."""

import math

import torch
from torch import Tensor

from qkv.view.answers.head import head_of
from qkv.view.answers.weights import HeadWeights
from qkv.view.scene import Layer, Scene

_ROWS = 64
"""Maximum number of evenly spaced rows that are measured."""
_CELLS = 1 << 22
"""Maximum number of weights of a layer in these rows; of very long rows fewer are measured."""


@torch.no_grad()
def first_shown(scene: Scene) -> tuple[int, int | None]:
    """Return the number of the layer that is shown first, and of its head; None for the mean over several.

    Without the scene's own choice it is the mean over the heads of the layer with the largest information, of those
    between two sequences if there are some; or the first one whose weights are not finite.
    """
    if scene.opening is not None:
        name, head = scene.opening
        number = [layer.name for layer in scene.layers].index(name)
        return number, 0 if scene.layers[number].heads == 1 else head
    crossing = [number for number, layer in enumerate(scene.layers) if layer.kind == "cross"]
    candidates = crossing or list(range(len(scene.layers)))
    if not candidates:
        return 0, 0
    best = candidates[0]
    if len(candidates) > 1:
        best = max(candidates, key=lambda number: _worth(scene.layers[number]))
    return best, 0 if scene.layers[best].heads == 1 else None


def _worth(layer: Layer) -> float:
    """Return the information of a layer, or infinity for weights that are not finite, which a reader must not miss."""
    rows = mean_rows(layer)
    return information(rows) if bool(rows.isfinite().all()) else math.inf


def mean_rows(layer: Layer) -> Tensor:
    """Return the mean weights over the heads of some evenly spaced queries, (n, K)."""
    heads, queries, keys = layer.shape
    count = min(_ROWS, queries, max(1, _CELLS // max(1, keys * heads)))
    rows = torch.linspace(0, max(0, queries - 1), count, device="cpu").round().long()
    total = torch.zeros(count, keys, dtype=torch.float64, device="cpu")
    for head in range(heads if keys and queries else 0):
        total += HeadWeights(head_of(layer, head)).rows(rows)(slice(None)).double().cpu()
    return total / max(1, heads)


def information(weights: Tensor) -> float:
    """Return how much a query tells about the key it attends to, in nats: H(mean of the rows) − mean of H(row).

    It is 0 if all queries attend alike, be it to everything or to the one period, and largest if each of n queries
    attends to a key of its own: log n. This is the mutual information of query and key if all queries are equally
    likely and the weights are probabilities; weights that are not (negative ones, NaN) give −1.

    Args:
        weights: (n, K).

    Example:
        >>> information(torch.eye(4)), information(torch.eye(4)[[0, 0, 0, 0]])
        (1.3862943611198906, 0.0)
    """
    sums = weights.double().sum(-1, keepdim=True)
    if not weights.numel() or not bool((weights >= 0).all()) or not bool(sums.isfinite().all()):
        return -1.0
    rows = weights.double()[sums[:, 0] > 0] / sums[sums[:, 0] > 0]
    if not len(rows):
        return 0.0
    entropy = torch.special.entr(rows).sum(-1).mean()
    return max(0.0, float(torch.special.entr(rows.mean(0)).sum() - entropy))
