"""What one query would attend to if something were different, compared with what it does attend to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from qkv.biases import Bias
from qkv.errors import ConfigError, UnsupportedError, nearest
from qkv.scores.base import Score
from qkv.scores.free import Learned
from qkv.view.answers.answer import as_numbers
from qkv.view.answers.head import AttendedRow, Head, default_normalizer, head_of
from qkv.view.answers.mechanisms import checked, chosen_mask, chosen_normalizer, chosen_score
from qkv.view.scene import Scene

MOST = 128
"""Maximum number of keys whose weights are returned."""
NAMES = ("layer", "head", "query", "vector", "temperature", "score", "normalizer", "mask", "bandwidth")


def whatif(scene: Scene, body: object) -> dict[str, Any]:
    """Answer what-if.

    Args:
        scene: the scene.
        body: layer, head and query, and the changes: `vector` (another query), `temperature` (divides the scores),
            `score`, `normalizer`, `mask` (a name and numbers), `bandwidth` (of a kernel).

    Returns:
        weights and output before and after, their difference, and an `error` if the change is meaningless.

    Raises:
        ConfigError: the request is malformed.
    """
    request = expect_fields(body, NAMES)
    layer = index_of(request, "layer", len(scene.layers))
    head = head_of(scene.layers[layer], index_of(request, "head", scene.layers[layer].heads))
    query = index_of(request, "query", head.shape[0])
    before = head.attend(query)
    try:
        after = _changed(head, query, request).attend(query)
    except UnsupportedError as error:
        return _difference(before, before) | {"error": str(error)}
    return _difference(before, after)


def expect_fields(body: object, names: Sequence[str]) -> dict[str, Any]:
    """Return the body of a request, which may have some fields."""
    if not isinstance(body, dict):
        raise ConfigError("the request", "an object", type(body).__name__, 'Example: {"layer": 0, …}.')
    for name in body:
        if name not in names:
            raise ConfigError(ascii(name[:40]), "a known field", "an unknown one", nearest(name[:40], names))
    return body


def index_of(request: dict[str, Any], name: str, count: int) -> int:
    """Return a number of a request, from 0."""
    value = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        raise ConfigError(name, f"an integer from 0 to {count - 1}", ascii(value)[:40], "Count from 0.")
    return value


def _changed(head: Head, query: int, request: dict[str, Any]) -> Head:
    """Return the head with all requested changes."""
    own = {"score": head.score, "normalizer": head.normalizer, "mask": head.mask, "bias": head.bias}
    changed = mechanism_of(request, own, head.shape[1])
    return replace(head, query=_with_vector(head.query, query, request.get("vector")), state=None, **changed)


def mechanism_of(request: Mapping[str, Any], own: Mapping[str, Any], keys: int = 1 << 20) -> dict[str, Any]:
    """Return a mechanism with the changes of a request.

    Args:
        request: score, normalizer, mask, bandwidth and temperature, if they change.
        own: score, normalizer, mask and bias before.
        keys: the number of keys, which bounds the numbers of a mask.

    Returns:
        Score, normalizer, mask and bias.

    Raises:
        ConfigError: the request is malformed.
        UnsupportedError: the change is meaningless.
    """
    score = _with_bandwidth(chosen_score(request.get("score"), own["score"]), request.get("bandwidth"))
    alike = score.non_negative == own["score"].non_negative
    normalizer = own["normalizer"] if alike and own["normalizer"] is not None else default_normalizer(score)
    changed = {
        "score": score,
        "normalizer": chosen_normalizer(request.get("normalizer")) or normalizer,
        "mask": chosen_mask(request.get("mask"), own["mask"], keys),
        "bias": own["bias"],
    }
    return _with_temperature(changed, request.get("temperature"))


def _with_vector(queries: Tensor, query: int, vector: object) -> Tensor:
    if vector is None:
        return queries
    width = queries.shape[-1]
    if not isinstance(vector, list) or len(vector) != width:
        got = f"{len(vector)} of them" if isinstance(vector, list) else type(vector).__name__
        raise ConfigError("vector", f"{width} numbers", got, "Give one number per dimension of the query.")
    changed = queries.clone()
    changed[query] = torch.tensor([checked("vector", value, -1e30, 1e30) for value in vector], device="cpu").to(queries)
    return changed


def _with_bandwidth(score: Score, bandwidth: object) -> Score:
    if bandwidth is None:
        return score
    number = checked("bandwidth", bandwidth, 1e-6, 1e6)
    if not hasattr(score, "bandwidth"):
        hint = "Choose a kernel as the score first."
        raise UnsupportedError("bandwidth", "a distance score", type(score).__name__, hint)
    return replace(score, bandwidth=number)  # type: ignore[type-var]


def _with_temperature(mechanism: dict[str, Any], temperature: object) -> dict[str, Any]:
    if temperature is None:
        return mechanism
    number = checked("temperature", temperature, 1e-3, 1e3)
    if number == 1:
        return mechanism
    if mechanism["normalizer"].needs_non_negative:
        hint = "Change the bandwidth instead, or normalize by softmax."
        raise UnsupportedError("temperature", "scores that are not normalized by their sum", "a kernel", hint)
    bias = mechanism["bias"]
    if isinstance(bias, Bias):
        hint = "Change the mask or the score instead."
        raise UnsupportedError("temperature", "no position bias", type(bias).__name__, hint)
    divided = Learned(_DividedScore(mechanism["score"], number))
    return mechanism | {"score": divided, "bias": None if bias is None else bias / number}


@final
@dataclass(frozen=True, eq=False)
class _DividedScore:
    """Return s/t."""

    score: Score
    temperature: float

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.score(query, key) / self.temperature


def _difference(before: AttendedRow, after: AttendedRow) -> dict[str, Any]:
    scale = torch.maximum(before.weights.abs(), after.weights.abs())
    keys = scale.topk(min(MOST, len(scale))).indices.sort().values
    return {
        "places": keys.tolist(),
        "length": len(scale),
        "before": _as_json(before, keys),
        "after": _as_json(after, keys),
        "difference": {
            "weights": as_numbers((after.weights - before.weights)[keys]),
            "output": as_numbers(after.output - before.output),
        },
    }


def _as_json(attended: AttendedRow, keys: Tensor) -> dict[str, Any]:
    weights = attended.weights.double()
    remainder = float(weights.sum() - weights[keys].sum()) if len(keys) < len(weights) else 0.0
    return {
        "weights": as_numbers(weights[keys]),
        "output": as_numbers(attended.output),
        "rest": remainder if math.isfinite(remainder) else None,
        "sum": as_numbers(weights.sum())[0],
    }
