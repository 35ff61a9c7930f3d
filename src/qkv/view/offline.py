"""A scene as one self-contained page, which computes its answers from what it holds of each layer."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.biases import Bias
from qkv.functional import attention
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES
from qkv.scores.free import as_score
from qkv.scores.products import ScaledDot
from qkv.view.answers.answer import JsonValue
from qkv.view.answers.head import Head, default_normalizer, head_of, norms
from qkv.view.answers.listing import LISTED, PIECE
from qkv.view.answers.pooling import SIDE, levels
from qkv.view.answers.pyramid import STORED, TileIndex
from qkv.view.answers.requests import RequestHandler
from qkv.view.bundle import one_file
from qkv.view.scene import Layer, Scene
from qkv.view.tensors import Tensors, deflated

MEGABYTES = 4.0
"""Maximum size of a page, in millions of bytes."""
_SHRINKS = 0.85
"""To what vectors can be compressed at best."""
_TABLES_SHRINK = 0.2
"""To what tables of weights can be compressed at best; more may be possible, but to try takes time."""


class Page(NamedTuple):
    """A page, and what it lacks.

    Attributes:
        text: the page.
        missing: sentences that say what the page lacks, which the page shows too; "" if it holds everything.
    """

    text: str
    missing: str


class _Form(NamedTuple):
    """A form in which a page can hold a layer.

    Attributes:
        layer: its number.
        level: of a table of weights; None for what all answers are computed from.
        size: bytes before they are compressed.
        build: returns the layer as `recorded.js` reads it; None if it has no such form.
    """

    layer: int
    level: int | None
    size: int
    build: Callable[[], dict[str, Any] | None]

    @property
    def least(self) -> float:
        """Bytes if they can be compressed well."""
        return self.size * (_SHRINKS if self.level is None else _TABLES_SHRINK)


_Held = dict[str, Any] | None
"""A layer as `recorded.js` reads it; None if nothing of it is held."""


def page(scene: Scene, megabytes: float = MEGABYTES) -> Page:
    """Build a page that shows a scene without a server.

    Of each layer it holds the smallest of what all answers can be computed from: queries, keys and values, or the
    inputs and weights of their projections. A layer that does not fit, or whose score is a function without a formula,
    is held as a table of weights, if need be a coarse one. If float32 does not fit, numbers are float16.

    Args:
        scene: the scene to show.
        megabytes: maximum size of the page, in millions of bytes.

    Returns:
        The page, and what it lacks.

    Example:
        >>> layer = Layer("one", "self", "text", "text", *torch.randn(3, 1, 2, 8))
        >>> made = page(Scene("two words", {"text": ("a", "</script>")}, (layer,)))
        >>> made.text.count("</script>"), made.missing
        (2, '')
    """
    handler = RequestHandler(replace(scene, layers=tuple(map(_with_state, scene.layers))))
    try:
        answers = {f"api/{path}": _answer(handler, path) for path in ("scene", "heads", *_pieces(scene))}
        content: dict[str, Any] = {"answers": deflated(json.dumps(answers).encode())}
        size_left = round(1e6 * megabytes) - len(one_file("saved.js", content))
        forms = [[*_forms(handler, number, torch.float32)] for number in range(len(scene.layers))]
        rounded = sum(min(form.least for form in of_layer if form.level in (None, 0)) for of_layer in forms) > size_left
        held = [] if rounded else _held(handler, forms, size_left)
        if rounded or not all(_is_best(*pair) for pair in zip(forms, held, strict=True)):
            rounded = True
            forms = [[*_forms(handler, number, torch.float16)] for number in range(len(scene.layers))]
            held = _held(handler, forms, size_left)
    finally:
        handler.close()
    missing = _missing(held, rounded)
    levels_of = [None if layer is None else layer["level"] for layer in held]
    content |= {"layers": held, "held": {"levels": levels_of, "missing": missing}}
    return Page(one_file("saved.js", content), missing)


def _with_state(layer: Layer) -> Layer:
    """Return a layer whose row state is computed once, for all that is measured and drawn."""
    small = layer.shape[1] * layer.shape[2] <= STORED and min(layer.shape) > 0
    return replace(layer, state=layer.map().state) if layer.state is None and small else layer


def _answer(handler: RequestHandler, path: str) -> Any:
    name, _, parameters = path.partition("?")
    answer = handler.ask(name, parameters)
    assert isinstance(answer, JsonValue)
    return answer.content


def _pieces(scene: Scene) -> Iterator[str]:
    """List the requests for the tokens of long sequences."""
    for number, tokens in enumerate(scene.sequences.values()):
        for start in range(0, len(tokens) if len(tokens) > LISTED else 0, PIECE):
            yield f"tokens?sequence={number}&start={start}&stop={min(start + PIECE, len(tokens))}"


def _held(handler: RequestHandler, forms: Sequence[Sequence[_Form]], size_left: int) -> list[_Held]:
    """Choose a form for each layer: small forms first, which finer ones replace as long as all fit.

    The layer on which the page opens comes first.
    """
    first = handler.opening[0]
    ordered = sorted(
        (form for of_layer in forms for form in of_layer),
        key=lambda form: (form.layer != first or form.level is None, form.size),
    )
    held: list[_Held] = [None] * len(forms)
    sizes = [0] * len(forms)
    for form in ordered:
        left = size_left - sum(sizes) + sizes[form.layer]
        if _is_whole(held[form.layer]) or form.least > left:
            continue
        built = form.build()
        if built is not None and len(text := json.dumps(built)) <= left:
            held[form.layer], sizes[form.layer] = built, len(text)
    return held


def _is_whole(layer: _Held) -> bool:
    return layer is not None and "tables" not in layer


def _is_best(forms: Sequence[_Form], layer: _Held) -> bool:
    """Return whether a layer is held in its finest form."""
    computable = any(form.level is None for form in forms)
    return _is_whole(layer) if computable else layer is not None and layer["level"] == 0


def _forms(handler: RequestHandler, number: int, dtype: torch.dtype) -> Iterator[_Form]:
    """List the forms of a layer."""
    layer = handler.scene.layers[number]
    heads, queries, keys = layer.shape
    most = float("inf")
    if _formulas(Tensors(dtype), layer) is not None:
        results = heads * keys + (0 if layer.output is None else queries * layer.output[0].shape[0])
        for sources in filter(None, (_vectors(layer), _projections(layer))):
            size = _in_base64(dtype.itemsize * (results + _numbers(sources.values())))
            most = min(most, size)
            yield _Form(number, None, size, partial(_computed, layer, sources, dtype))
    for level in range(levels(queries, keys)):
        size = _in_base64(dtype.itemsize * heads * -(-queries >> level) * -(-keys >> level))
        if size < most:
            yield _Form(number, level, size, partial(_tables, handler, number, level, dtype))


def _in_base64(size: int) -> int:
    return -(-size // 3) * 4


def _numbers(tensors: Iterable[Tensor]) -> int:
    """Count the numbers of different tensors."""
    different: list[Tensor] = []
    for x in tensors:
        if not any(x.shape == other.shape and torch.equal(x, other) for other in different):
            different.append(x)
    return sum(x.numel() for x in different)


def _vectors(layer: Layer) -> dict[str, Tensor]:
    """Return queries, keys, values, and the inputs of the queries, which the steps show."""
    inputs = {} if layer.inputs is None else {"query_input": layer.inputs.query_input}
    return {"query": layer.query, "key": layer.key, "value": layer.value, **inputs}


def _projections(layer: Layer) -> dict[str, Tensor]:
    """Return the inputs and weights of the projections; nothing if there are none."""
    sources = {} if layer.inputs is None else {name: x for name, x in vars(layer.inputs).items() if x is not None}
    return sources if all(f"{side}_weight" in sources for side in ("query", "key", "value")) else {}


def _computed(layer: Layer, sources: dict[str, Tensor], dtype: torch.dtype) -> _Held:
    """Describe a layer by what its answers are computed from; None if its projections were changed afterwards."""
    tensors = Tensors(dtype)
    described = {
        "kind": layer.kind,
        "heads": layer.heads,
        "groups": layer.key.shape[0],
        **(_formulas(tensors, layer) or {}),
    }
    heads = [head_of(layer, head) for head in range(layer.heads)]
    if heads and (mask := heads[0].mask) is not None:
        masks = [_mask(tensors, f"mask.{number}", head) for number, head in enumerate(heads)]
        described["mask"] = {"name": mask.name, "heads": masks}
    if heads and heads[0].bias is not None:
        biases = [tensors.add(f"bias.{number}", _bias(head)) for number, head in enumerate(heads)]
        described["bias"] = {"name": "table", "heads": biases}
    for side in ("query", "key", "value"):
        vectors: Tensor = getattr(layer, side)
        if side in sources:
            described[side] = [tensors.add(f"{side}.{group}", x) for group, x in enumerate(vectors)]
            continue
        x, weight, bias = (sources.get(f"{side}_{name}") for name in ("input", "weight", "bias"))
        if x is None or weight is None or not _gives(vectors, x, weight, bias):
            return None
        parts = {"input": x, "weight": weight} | ({} if bias is None else {"bias": bias})
        described[side] = {name: tensors.add(f"{side}.{name}", part) for name, part in parts.items()}
    if "query_input" in sources:
        described["inputs"] = tensors.add("inputs", sources["query_input"])
    described["norms"] = [tensors.add(f"norms.{head}", norms(layer, head).float()) for head in range(layer.heads)]
    if layer.output is not None:
        weight, bias = layer.output
        joined = attention(layer.query, layer.key, layer.value, **layer.options).transpose(0, 1).flatten(1)
        described["outputs"] = tensors.add("outputs", F.linear(joined.to(weight.dtype), weight, bias))
    return described | {"level": 0, "tensors": tensors.listed, "bytes": tensors.packed()}


def _gives(vectors: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether queries, keys or values are what a projection gives: no positions or norms were applied."""
    projected = F.linear(x.to(weight.dtype), weight, bias).detach()
    return torch.allclose(projected.unflatten(-1, (len(vectors), -1)).transpose(0, 1), vectors, rtol=1e-3, atol=1e-4)


def _formulas(tensors: Tensors, layer: Layer) -> dict[str, Any] | None:
    """Describe the score and the normalizer of a layer; None if a page has no formula for one of them."""
    score = as_score(layer.options.get("score") or ScaledDot())
    normalizer = layer.options.get("normalizer") or default_normalizer(score)
    sizes = layer.heads, layer.key.shape[0]
    described = {
        "score": tensors.part("score", SCORES, score, *sizes),
        "normalizer": tensors.part("normalizer", NORMALIZERS, normalizer, *sizes),
    }
    return None if None in described.values() else described


def _mask(tensors: Tensors, name: str, head: Head) -> dict[str, Any]:
    """Describe which keys each query of a head may see: the first and the last of them, or a table."""
    queries, keys = head.shape
    bounds = head.bounds()
    if bounds is None:
        return {"table": tensors.add(f"{name}.table", torch.stack([head.visible(q) for q in range(queries)]).float())}
    sides = {"first": bounds.first, "last": bounds.last}
    return {
        side: tensors.add(f"{name}.{side}", bound.expand(queries).clamp(0, keys).float())
        for side, bound in sides.items()
        if bound is not None
    }


def _bias(head: Head) -> Tensor:
    """Return what is added to the scores of a head, (Q, K)."""
    bias = head.bias
    if isinstance(bias, Bias):
        rows, columns = (torch.arange(size, device="cpu") for size in head.shape)
        bias = bias.tile(rows[:, None], columns)
    assert bias is not None
    return bias.detach().expand(head.shape)


def _tables(handler: RequestHandler, number: int, level: int, dtype: torch.dtype) -> _Held:
    """Describe a layer by its weights at a level."""
    layer, tensors, exact = handler.scene.layers[number], Tensors(dtype), True
    heads, queries, keys = layer.shape
    tables = []
    for head in range(heads):
        pyramid = handler.maps.pyramid(number, head, "weight")
        high, wide = pyramid.size(level)
        rows = []
        for row in range(-(-high // SIDE)):
            tiles = [pyramid.tile(TileIndex(level, row, column), "mean") for column in range(-(-wide // SIDE))]
            rows.append(torch.cat([tile for tile, _ in tiles], 1))
            exact &= all(of_tile for _, of_tile in tiles)
        tables.append(tensors.add(f"table.{head}", torch.cat(rows)))
    described = {"kind": layer.kind, "heads": heads, "groups": heads, "shape": [queries, keys], "tables": tables}
    described["norms"] = [tensors.add(f"norms.{head}", norms(layer, head).float()) for head in range(heads)]
    return described | {"level": level, "exact": exact, "tensors": tensors.listed, "bytes": tensors.packed()}


def _missing(held: Sequence[_Held], rounded: bool) -> str:
    """Return sentences that say what a page lacks."""
    counts = {
        "maps": sum(layer is None for layer in held),
        "details of maps": sum(layer is not None and layer["level"] > 0 for layer in held),
        "steps": sum(not _is_whole(layer) for layer in held),
    }
    parts = [f"the {what} of {count:,} of {len(held):,} layers" for what, count in counts.items() if count]
    lacks = f"This saved page lacks {', '.join(parts)}. The running viewer, qkv view, has all; a larger page has more."
    return " ".join([lacks] * bool(parts) + ["Numbers are rounded to three digits."] * rounded)
