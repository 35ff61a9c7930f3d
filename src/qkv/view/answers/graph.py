"""One token followed down the layers: which tokens its attention came from, and how much is omitted."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.errors import ConfigError, UnsupportedError
from qkv.view.answers.rows import SceneRows
from qkv.view.scene import Scene

MOST = 64
"""Maximum links per token, and maximum tokens followed per layer."""
DEEPEST = 128
"""Maximum number of layers."""


class GraphRequest(NamedTuple):
    """What to follow.

    Attributes:
        layers: from the bottom to the top.
        query: the token at the top.
        top: number of links per token.
        frontier: number of tokens per layer that are followed further.
    """

    layers: tuple[int, ...]
    query: int
    top: int
    frontier: int


def graph(rows: SceneRows, request: GraphRequest) -> dict[str, Any]:
    """Follow a token from the top layer down; weights are averaged over the heads.

    The token starts with a mass of 1, which is distributed over the keys in proportion to their weights. Only the
    strongest links of each token are kept, and only the heaviest tokens they reach are followed. The discarded mass is
    returned for each layer.

    Raises:
        ConfigError: the layers are not consecutive.
        UnsupportedError: weights can be negative, so they are not a mass.
    """
    scene = rows.scene
    _check(scene, request)
    depth = len(request.layers)
    masses = {request.query: 1.0}
    nodes = [{"layer": depth, "token": request.query, "mass": 1.0}]
    links: list[dict[str, Any]] = []
    discarded = [0.0] * depth
    for level in reversed(range(depth)):
        reached: dict[int, float] = {}
        total = 0.0
        for token, mass in masses.items():
            weights = _mean(rows, request.layers[level], token)
            total += mass * float(weights.sum())
            for key, weight in _strongest(weights, request.top):
                links.append({"layer": level, "from": key, "to": token, "weight": weight})
                reached[key] = reached.get(key, 0.0) + mass * weight
        masses = dict(sorted(reached.items(), key=lambda pair: -pair[1])[: request.frontier])
        links = [link for link in links if link["layer"] != level or link["from"] in masses]
        discarded[level] = max(0.0, total - sum(masses.values()))
        nodes += [{"layer": level, "token": token, "mass": mass} for token, mass in masses.items()]
    return {"nodes": nodes, "links": links, "discarded": discarded}


def _check(scene: Scene, request: GraphRequest) -> None:
    for below, above in zip(request.layers, request.layers[1:], strict=False):
        allowed, got = scene.layers[above].keys, scene.layers[below].queries
        if allowed != got:
            expected = f"a layer whose queries are {allowed!a} below {scene.layers[above].name!a}"
            hint = "List layers from bottom to top, each attending to the output of the one below."
            raise ConfigError("layers", expected, ascii(scene.layers[below].name), hint)


def _mean(rows: SceneRows, number: int, query: int) -> Tensor:
    layer = rows.scene.layers[number]
    if not all(rows.head(number, head).non_negative for head in range(layer.heads)):
        hint = "Use its map instead."
        raise UnsupportedError("layers", "non-negative weights", ascii(layer.name), hint)
    return torch.stack([rows.attended(number, head, query).weights for head in range(layer.heads)]).double().mean(0)


def _strongest(weights: Tensor, count: int) -> list[tuple[int, float]]:
    strongest = weights.topk(min(count, len(weights)))
    pairs = zip(strongest.indices.tolist(), strongest.values.tolist(), strict=True)
    return [(key, weight) for key, weight in pairs if weight > 0]
