"""The largest weights of one query or one key."""

from typing import Any

import torch
from torch import Tensor

from qkv.view.answers.answer import plain
from qkv.view.answers.head import Head, head_of, norms
from qkv.view.answers.weights import HeadWeights
from qkv.view.scene import Scene

MOST = 4_096
"""Maximum number of listed entries."""


def row(scene: Scene, layer: int, head: int, query: int, top: int) -> dict[str, Any]:
    """Return the keys a query attends to, largest weights first.

    Returns:
        keys, weights, contributions, the remaining weight, and the entropy in nats (None if weights can be negative).
    """
    one = head_of(scene.layers[layer], head)
    weights = one.attend(query)[1].double()
    return _largest("keys", weights, norms(scene.layers[layer], head), top) | {"entropy": _entropy(one, weights)}


def column(scene: Scene, layer: int, head: int, key: int, top: int, weights: HeadWeights) -> dict[str, Any]:
    """Return the queries that attend to a key, largest weights first.

    Args:
        scene, layer, head, key, top: as for `row`.
        weights: the weights of that head.
    """
    rows = weights.head.shape[0]
    step = 4_096
    columns = slice(key, key + 1)
    weights_of_key = torch.cat(
        [weights.tile(slice(at, min(at + step, rows)), columns)[:, 0] for at in range(0, rows, step)]
    )
    length = norms(scene.layers[layer], head)[key]
    return _largest("queries", weights_of_key.double(), length.expand(rows), top) | {"entropy": None}


def _largest(name: str, weights: Tensor, lengths: Tensor, top: int) -> dict[str, Any]:
    order = weights.abs().topk(min(top, MOST, len(weights))).indices
    rest = weights.sum() - weights[order].sum()
    return {
        name: order.tolist(),
        "weights": plain(weights[order]),
        "contributions": plain(weights[order] * lengths[order]),
        "rest": plain(rest)[0],
    }


def _entropy(head: Head, weights: Tensor) -> float | None:
    if not head.non_negative:
        return None
    entropy: float | None = plain(-torch.special.xlogy(weights, weights).sum())[0]
    return entropy
