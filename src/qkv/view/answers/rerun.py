"""What the whole model would answer if heads were changed, compared with what it answers."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from qkv.errors import UnsupportedError, expect_name
from qkv.view.answers.whatif import expect_fields, index_of, mechanism_of
from qkv.view.scene import ModelAnswer, Scene

MOST = 200
"""Maximum number of rows that are returned, those that move most."""
_TOP = 3
NAMES = ("layer", "head", "scope", "output", "temperature", "score", "normalizer", "mask", "bandwidth")


def rerun(scene: Scene, before: ModelAnswer, body: object) -> dict[str, Any]:
    """Answer a request about the whole model.

    Args:
        scene: the scene, whose model is at hand.
        before: what the model answers without changes.
        body: layer and head; scope: "head", "layer" or "model"; output: "zero" or "mean", or the changes of the
            mechanism that `whatif` takes.

    Returns:
        The answers before and after; and for each row its label, the likeliest options before and after with their
        probabilities, and how much probability moved between options (total variation).

    Raises:
        ConfigError: the request is malformed.
        UnsupportedError: the change is meaningless.
    """
    assert scene.rerun is not None
    request = expect_fields(body, NAMES)
    layer = index_of(request, "layer", len(scene.layers))
    head = index_of(request, "head", scene.layers[layer].heads)
    scope = expect_name("scope", request.get("scope"), ("head", "layer", "model"))
    output = request.get("output")
    change: Any = partial(mechanism_of, request)
    if output is not None:
        change = expect_name("output", output, ("zero", "mean"))
    layers = scene.layers if scope == "model" else scene.layers[layer : layer + 1]
    heads = {each.name: [head] if scope == "head" else list(range(each.heads)) for each in layers}
    with torch.no_grad():
        after = scene.rerun({name: dict.fromkeys(numbers, change) for name, numbers in heads.items()})
    return compared(before, after)


def compared(before: ModelAnswer, after: ModelAnswer) -> dict[str, Any]:
    """Compare two answers about the same rows.

    Example:
        >>> one = ModelAnswer("yes", ("label",), torch.tensor([[0.75, 0.25]]), ("yes", "no").__getitem__)
        >>> other = ModelAnswer("no", ("label",), torch.tensor([[0.25, 0.75]]), ("yes", "no").__getitem__)
        >>> found = compared(one, other)
        >>> found["rows"][0]["moved"], found["rows"][0]["before"][0], found["rows"][0]["after"][0]
        (0.5, {'name': 'yes', 'before': 0.75, 'after': 0.25}, {'name': 'no', 'before': 0.25, 'after': 0.75})
    """
    old, new = before.probabilities.double(), after.probabilities.double()
    if old.shape != new.shape:
        got, hint = f"{tuple(new.shape)}", "Give the viewer another text."
        raise UnsupportedError("the model", f"as many rows and options as before, {tuple(old.shape)}", got, hint)
    moved = (new - old).abs().sum(-1) / 2
    kept = moved.nan_to_num(2).topk(min(MOST, len(moved))).indices.sort().values.tolist()
    name = before.name

    def options(row: int, order: torch.Tensor) -> Sequence[Mapping[str, Any]]:
        at = order.nan_to_num(0).topk(min(_TOP, order.shape[-1])).indices.tolist()
        return [{"name": name(i), "before": float(old[row, i]), "after": float(new[row, i])} for i in at]

    rows = [
        {
            "label": before.labels[row],
            "moved": float(moved[row]),
            "before": options(row, old[row]),
            "after": options(row, new[row]),
        }
        for row in kept
    ]
    return {"before": before.text, "after": after.text, "rows": rows, "omitted": len(moved) - len(kept)}


def unchanged(scene: Scene) -> ModelAnswer:
    """Return what the model answers without changes.

    Raises:
        UnsupportedError: the model is not at hand.
    """
    if scene.rerun is None:
        hint = "Open a run that writes text or labels, with `qkv view RUN`; a recorded trace has no model."
        raise UnsupportedError("the whole model", "a scene of a model that can run again", "none", hint)
    with torch.no_grad():
        return scene.rerun({})
