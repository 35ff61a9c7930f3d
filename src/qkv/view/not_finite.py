"""Where a model diverged: the first number of a scene that is not finite."""

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.errors import brief, harmless
from qkv.view.scene import Layer, Scene


class NotFinite(NamedTuple):
    """The first number that is not finite.

    Attributes:
        layer, head: their numbers.
        place: position of the query, or of the key.
        side: "query", "key" or "value", or "weights" if its inputs are finite.
        text: a sentence that says it.
    """

    layer: int
    head: int
    place: int
    side: str
    text: str


@torch.no_grad()
def first_not_finite(scene: Scene) -> NotFinite | None:
    """Return where the first number is that is not finite, in the order of layers, then positions, then heads.

    Args:
        scene: the scene.

    Returns:
        The place; None if all numbers are finite.

    Example:
        >>> x = torch.zeros(3, 1, 2, 4)
        >>> x[0, 0, 1, 2] = torch.nan
        >>> layer = Layer("one", "self", "text", "text", *x)
        >>> first_not_finite(Scene("two words", {"text": ("a", "dog")}, (layer,))).text
        'The first number that is not finite is NaN, in layer one, head 0, query 1.'
    """
    for number, layer in enumerate(scene.layers):
        problem = _first_input(layer) or _first_row(layer)
        if problem is not None:
            side, head, index, description = problem
            where = f"{'row' if side == 'weights' else side} {index}"
            name = harmless(brief(layer.name))
            text = f"The first number that is not finite is {description}, in layer {name}, head {head}, {where}."
            return NotFinite(number, head, index, side, text)
    return None


def _first_input(layer: Layer) -> tuple[str, int, int, str] | None:
    """Return the first of queries, keys and values: its kind, head, position, and what it is."""
    problems = []
    for order, side in enumerate(("query", "key", "value")):
        tensor: Tensor = getattr(layer, side)
        # A sum is finite if all its terms are, unless it overflows: then each term is looked at.
        if tensor.is_floating_point() and not bool(tensor.double().sum().isfinite()):
            bad = ~tensor.isfinite().all(-1)
            if bool(bad.any()):
                index = int(bad.any(0).nonzero()[0])
                head = int(bad[:, index].nonzero()[0])
                numbers = tensor[head, index]
                description = _name(numbers[~numbers.isfinite()][0])
                problems.append((index, order, head * layer.heads // tensor.shape[0], side, description))
    if not problems:
        return None
    index, _, head, side, description = min(problems)
    return side, head, index, description


def _first_row(layer: Layer) -> tuple[str, int, int, str] | None:
    """Return the first row of weights whose scores overflowed though all inputs are finite."""
    if not layer.query.numel() or not layer.key.numel():
        return None
    size = layer.query.double().abs().amax() * layer.key.double().abs().amax() * layer.query.shape[-1]
    if layer.options.get("score") is None and size < torch.finfo(torch.float32).max:
        return None  # what no sum of products can exceed
    total = layer.map().statistics("total").total
    bad = None if total is None else ~total.isfinite()
    if total is None or bad is None or not bool(bad.any()):
        return None
    index = int(bad.any(0).nonzero()[0])
    head = int(bad[:, index].nonzero()[0])
    return "weights", head, index, _name(total[head, index])


def _name(number: Tensor) -> str:
    return "NaN" if bool(number.isnan()) else "∞" if number > 0 else "−∞"
