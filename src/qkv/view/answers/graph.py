"""One token followed down the layers: which tokens its attention came from, and what was left out."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.errors import ConfigError, UnsupportedError, error_message
from qkv.view.answers.head import head_of
from qkv.view.scene import Scene

MOST = 64
"""The most links of a token, and the most tokens followed at a time."""
DEEPEST = 128
"""The most layers followed at a time."""


class Followed(NamedTuple):
    """What is followed.

    Attributes:
        layers: from the bottom to the top.
        query: the token at the top.
        top: how many links of each token.
        frontier: how many tokens of each layer are followed further.
    """

    layers: tuple[int, ...]
    query: int
    top: int
    frontier: int


def graph(scene: Scene, followed: Followed) -> dict[str, Any]:
    """Follow a token from the top layer down; weights are the mean over the heads.

    The token starts with a mass of 1. It goes to the keys in proportion to their weights; of each token the strongest
    links are kept, and of what they reach the heaviest tokens are followed. The mass that gets lost is told for each
    layer.

    Raises:
        ConfigError: layers that do not follow upon each other.
        UnsupportedError: weights that may be negative, which have no mass.
    """
    _check(scene, followed)
    depth = len(followed.layers)
    masses = {followed.query: 1.0}
    nodes = [{"layer": depth, "token": followed.query, "mass": 1.0}]
    links: list[dict[str, Any]] = []
    discarded = [0.0] * depth
    for level in reversed(range(depth)):
        reached: dict[int, float] = {}
        total = 0.0
        for token, mass in masses.items():
            weights = _mean(scene, followed.layers[level], token)
            total += mass * float(weights.sum())
            for key, weight in _strongest(weights, followed.top):
                links.append({"layer": level, "from": key, "to": token, "weight": weight})
                reached[key] = reached.get(key, 0.0) + mass * weight
        masses = dict(sorted(reached.items(), key=lambda pair: -pair[1])[: followed.frontier])
        links = [link for link in links if link["layer"] != level or link["from"] in masses]
        discarded[level] = max(0.0, total - sum(masses.values()))
        nodes += [{"layer": level, "token": token, "mass": mass} for token, mass in masses.items()]
    tops = [scene.layers[followed.layers[-1]].queries]
    sequences = [scene.layers[layer].keys for layer in followed.layers] + tops
    return {"nodes": nodes, "links": links, "discarded": discarded, "sequences": sequences}


def _check(scene: Scene, followed: Followed) -> None:
    for below, above in zip(followed.layers, followed.layers[1:], strict=False):
        wanted, got = scene.layers[above].keys, scene.layers[below].queries
        if wanted != got:
            expected = f"a layer whose queries are {wanted!a} below {scene.layers[above].name!a}"
            hint = "List layers from bottom to top, each looking at what the one below made."
            raise ConfigError(error_message("layers", expected, ascii(scene.layers[below].name), hint))


def _mean(scene: Scene, number: int, query: int) -> Tensor:
    layer = scene.layers[number]
    heads = [head_of(layer, head) for head in range(layer.heads)]
    if not all(head.non_negative for head in heads):
        hint = "Look at its map instead."
        raise UnsupportedError(error_message("layers", "weights that are not negative", ascii(layer.name), hint))
    return torch.stack([head.attend(query)[1] for head in heads]).double().mean(0)


def _strongest(weights: Tensor, count: int) -> list[tuple[int, float]]:
    found = weights.topk(min(count, len(weights)))
    pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    return [(key, weight) for key, weight in pairs if weight > 0]
