"""What a map can show in place of weights: rollout through the layers below, and gradient × attention."""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.errors import UnsupportedError
from qkv.introspect.attention_rollout import rollout
from qkv.view.answers.head import head_of
from qkv.view.scene import Layer, Scene

LONGEST = 2_048
"""Maximum length of a sequence whose rollout is computed for all positions at once."""
_MOST = 1 << 24
"""Maximum number of weights of a layer whose gradients are computed."""


def rollout_of(scene: Scene, number: int) -> Tensor:
    """Return how much of each input token is in each token that a layer gives, by `qkv.introspect.rollout`.

    The layers below are those of the same sequence. A layer between two sequences, which has no residual stream between
    them, passes on what the layers of the other sequence give it.

    Args:
        scene: the scene.
        number: of the layer.

    Returns:
        (Q, K), float64.

    Raises:
        UnsupportedError: a sequence is long, or weights can be negative.
    """
    layer = scene.layers[number]
    crosses = layer.kind == "cross"
    within = [each for each in scene.layers[: None if crosses else number + 1] if _is_within(each, layer.keys)]
    layers = [*within, layer] if crosses else within
    for each in layers:
        _expect_rollout(each)
    size = layer.shape[2]
    reached = rollout([each.map() for each in within], range(size)) if within else None
    if not crosses:
        assert reached is not None
        return reached
    mean: Tensor = layer.map().dense().double().mean(0).cpu()
    return mean if reached is None else mean @ reached


def _is_within(layer: Layer, sequence: str) -> bool:
    return layer.kind == "self" and layer.keys == sequence


def _expect_rollout(layer: Layer) -> None:
    if max(layer.shape[1:]) > LONGEST:
        hint = "`qkv.introspect.rollout` traces single positions at any length."
        raise UnsupportedError("rollout", f"at most {LONGEST:,} tokens", f"{max(layer.shape[1:]):,}", hint)
    if not all(head_of(layer, head).non_negative for head in range(layer.heads)):
        raise UnsupportedError("rollout", "non-negative weights", ascii(layer.name), "Use the weights instead.")


def gradients_of(scene: Scene, number: int, row: int | None) -> Tensor:
    """Return the weights of a layer, each times its gradient: how much it speaks for the answer of the model.

    The gradient is that of the logarithm of the probability of what the model finds likeliest.

    Args:
        scene: the scene.
        number: of the layer.
        row: the row of the answer; None for the sum over all of them.

    Returns:
        (H, Q, K).

    Raises:
        UnsupportedError: the model is not at hand, or the layer is large.
    """
    layer = scene.layers[number]
    heads, queries, keys = layer.shape
    if scene.rerun is None:
        hint = "Open a run that writes text or labels, with `qkv view RUN`; a recorded trace has no model."
        raise UnsupportedError("gradient × attention", "a scene of a model that can run again", "none", hint)
    if heads * queries * keys > _MOST:
        hint = "Give the viewer a shorter text."
        got = f"{heads * queries * keys:,}"
        raise UnsupportedError("gradient × attention", f"at most {_MOST:,} weights of a layer", got, hint)
    # At a factor of 1 + ε, the derivative by ε is the weight times its gradient.
    changes = torch.zeros(layer.shape, dtype=layer.query.dtype, device=layer.query.device, requires_grad=True)
    with torch.enable_grad():
        answer = scene.rerun({layer.name: {head: ("weights", _scaled(changes[head])) for head in range(heads)}})
        certain = answer.probabilities.amax(-1).log()
        gradients = torch.autograd.grad(certain.sum() if row is None else certain[row], changes)[0]
    return gradients.cpu()


def _scaled(changes: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that scales the weights of a head, also if each call has some of the queries.

    Later calls are those of another run, which reads the answer again.
    """
    first = 0

    def scaled(weights: Tensor) -> Tensor:
        nonlocal first
        start, first = first, first + weights.shape[-2]
        if first > len(changes):
            return weights
        return weights * (1 + changes[start:first, : weights.shape[-1]])

    return scaled
