"""A scene as one self-contained page, which computes its answers from what it holds of each layer."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.biases import Bias
from qkv.errors import ConfigError
from qkv.functional import attention
from qkv.normalizers.catalog import NORMALIZERS
from qkv.pictures import PAGE_MEGABYTES
from qkv.scores.catalog import SCORES
from qkv.scores.free import as_score
from qkv.scores.products import ScaledDot
from qkv.view.answers.answer import JsonValue
from qkv.view.answers.head import Head, default_normalizer, head_of, norms
from qkv.view.answers.listing import LISTED, PIECE
from qkv.view.answers.pooling import levels
from qkv.view.answers.pyramid import Pyramid
from qkv.view.answers.requests import RequestHandler
from qkv.view.answers.weights import HeadWeights
from qkv.view.bundle import one_file
from qkv.view.scene import Layer, Scene
from qkv.view.tensors import Tensors, deflated

_SAMPLE = 16
"""Rows by which it is estimated how well numbers can be compressed."""


class Page(NamedTuple):
    """A page, and what it lacks.

    Attributes:
        text: the page.
        missing: sentences that say what the page lacks, which the page shows too; "" if it holds everything.
    """

    text: str
    missing: str


_Held = dict[str, Any] | None
"""Tensors and what is said of them, as `recorded.js` reads them; None if there are none."""


@final
@dataclass(eq=False)
class _Part:
    """A part of a page.

    Attributes:
        size: bytes, estimated until the part is built.
        build: returns the part; None if there is no such part.
        built: the part.
    """

    size: float
    build: Callable[[], _Held]
    built: _Held = None

    def make(self) -> bool:
        """Build the part if it is not; return whether there is one."""
        if self.built is None:
            self.built = self.build()
            self.size = len(json.dumps(self.built)) + 1
        return self.built is not None


@final
@dataclass(frozen=True, eq=False)
class _Form:
    """A form in which a page can hold a layer.

    Attributes:
        layer: its number.
        level: of a table of weights; None for what all answers are computed from.
        part: the layer in this form.
        inputs: inputs of its projections, which other layers may share.
    """

    layer: int
    level: int | None
    part: _Part
    inputs: tuple[_Part, ...] = ()

    @property
    def size(self) -> float:
        """Bytes, if no other layer shares the inputs."""
        return self.part.size + sum(part.size for part in self.inputs)


def page(scene: Scene, megabytes: float = PAGE_MEGABYTES) -> Page:
    """Build a page that shows a scene without a server.

    Of each layer it holds the smallest of what all answers can be computed from: queries, keys and values, or the
    inputs and weights of their projections. A layer that does not fit, or whose score is a function without a formula,
    is held as a table of weights, if need be a coarse one. If float32 does not fit, numbers are float16.

    Args:
        scene: the scene to show.
        megabytes: maximum size of the page, in millions of bytes.

    Returns:
        The page, and what it lacks.

    Raises:
        ConfigError: the size is below 0, or NaN.

    Example:
        >>> layer = Layer("one", "self", "text", "text", *torch.randn(3, 1, 2, 8))
        >>> made = page(Scene("two words", {"text": ("a", "</script>")}, (layer,)))
        >>> made.text.count("</script>"), made.missing
        (2, '')
    """
    if not megabytes >= 0:
        raise ConfigError("size", "at least 0 MB", f"{megabytes}", "Omit it for the default.")
    handler = RequestHandler(scene)
    try:
        answers = {f"api/{path}": _answer(handler, path) for path in ("scene", "heads", *_pieces(scene))}
        content: dict[str, Any] = {"answers": deflated(json.dumps(answers).encode())}
        size_left = 1e6 * megabytes - len(one_file("saved.js", content))
        forms = _forms(scene.layers, torch.float32)
        chosen = _chosen(forms, handler.opening[0], size_left)
        if fits := _holds_all(scene, chosen):
            held = _held(forms, handler.opening[0], size_left)
        if not fits or not _holds_all(scene, held):
            held = _held(_forms(scene.layers, torch.float16), handler.opening[0], size_left)
    finally:
        handler.close()
    layers = [held[number].part.built if number in held else None for number in range(len(scene.layers))]
    inputs = [part.built for part in dict.fromkeys(part for form in held.values() for part in form.inputs)]
    missing = _missing(layers, inputs)
    levels_of = [None if layer is None else layer["level"] for layer in layers]
    content |= {"inputs": inputs, "layers": layers, "held": {"levels": levels_of, "missing": missing}}
    return Page(one_file("saved.js", content), missing)


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


def _held(forms: list[_Form], first: int, size_left: float) -> dict[int, _Form]:
    """Choose a form for each layer and build it; choose again while true sizes differ from those estimated."""
    while True:
        chosen = _chosen(forms, first, size_left)
        parts = [part for form in chosen.values() for part in (*form.inputs, form.part)]
        if all(part.built is not None for part in parts):
            return chosen
        for form in chosen.values():
            if not all(part.make() for part in (form.part, *form.inputs)):
                forms.remove(form)


def _chosen(forms: Sequence[_Form], first: int, size_left: float) -> dict[int, _Form]:
    """Choose a form for each layer: the smallest of all layers, which finer ones replace as long as all fit.

    The layer on which the page opens comes first.
    """
    chosen: dict[int, _Form] = {}
    smallest = {form.layer: form for form in sorted(forms, key=lambda form: -form.size)}

    def order(form: _Form) -> tuple[bool, bool, float]:
        return smallest[form.layer] is not form, form.layer != first or form.level is None, form.size

    for form in sorted(forms, key=order):
        others = chosen | {form.layer: form}
        inputs = dict.fromkeys(part for other in others.values() for part in other.inputs)
        size = sum(part.size for part in (*inputs, *(other.part for other in others.values())))
        if size <= size_left and not (form.layer in chosen and chosen[form.layer].level is None):
            chosen = others
    return chosen


def _holds_all(scene: Scene, chosen: Mapping[int, _Form]) -> bool:
    """Return whether each layer is chosen in its finest form."""
    return len(chosen) == len(scene.layers) and not any(form.level for form in chosen.values())


def _forms(layers: Sequence[Layer], dtype: torch.dtype) -> list[_Form]:
    """List the forms of all layers."""
    inputs: list[tuple[Tensor, _Part]] = []  # of projections; layers share them
    return [form for number, layer in enumerate(layers) for form in _forms_of(layer, number, inputs, dtype)]


def _forms_of(layer: Layer, number: int, inputs: list[tuple[Tensor, _Part]], dtype: torch.dtype) -> Iterator[_Form]:
    """List the forms of a layer."""
    heads, queries, keys = layer.shape
    if _formulas(Tensors(dtype), layer) is not None:
        results = 4 * heads * keys + (0 if layer.output is None else dtype.itemsize * queries * len(layer.output[0]))
        for sources in filter(None, (_vectors(layer), _projections(layer))):
            places = {name: _place(x, inputs, dtype) for name, x in sources.items() if name.endswith("_input")}
            own = [x for name, x in sources.items() if name not in places]
            build = partial(_computed, layer, sources, places, f"{number}.", dtype)
            part = _Part(4 / 3 * results + sum(x.numel() * _bytes_each(x, dtype) for x in own), build)
            yield _Form(number, None, part, tuple(inputs[place][1] for place in sorted({*places.values()})))
    each = _bytes_each(_some_rows(layer), dtype)
    for level in range(levels(queries, keys)):
        size = each * heads * -(-queries >> level) * -(-keys >> level)
        yield _Form(number, level, _Part(size, partial(_tables, layer, number, level, dtype)))


def _place(x: Tensor, inputs: list[tuple[Tensor, _Part]], dtype: torch.dtype) -> int:
    """Return the place of a tensor among the inputs, where it is put if it is new."""
    for place, (other, _) in enumerate(inputs):
        if x is other or (x.shape == other.shape and torch.equal(x, other)):
            return place
    inputs.append((x, _Part(x.numel() * _bytes_each(x, dtype), partial(_input, len(inputs), x, dtype))))
    return len(inputs) - 1


def _input(place: int, x: Tensor, dtype: torch.dtype) -> _Held:
    tensors = Tensors(dtype)
    tensors.add(f"input.{place}", x)
    return {"tensors": tensors.listed, "bytes": tensors.packed()}


def _some_rows(layer: Layer) -> Tensor:
    """Return some rows of the weights of a head, by which it is estimated how well all can be compressed."""
    heads, queries, keys = layer.shape
    if min(layer.shape) == 0:
        return torch.zeros(0, keys, device="cpu")
    count = min(_SAMPLE, queries, max(1, (1 << 20) // keys))
    rows = torch.linspace(0, queries - 1, count, device="cpu").round().long()
    return HeadWeights(head_of(layer, heads // 2)).rows(rows)(slice(None))


def _bytes_each(like: Tensor, dtype: torch.dtype) -> float:
    """Return about how many bytes a number takes in a page, by a sample."""
    sample = like.detach().reshape(-1, like.shape[-1] if like.ndim else 1)[:_SAMPLE]
    tensors = Tensors(dtype)
    tensors.add("", sample)
    return len(tensors.packed()) / max(1, sample.numel())


def _vectors(layer: Layer) -> dict[str, Tensor]:
    """Return queries, keys, values, and the inputs of the queries, which the steps show."""
    inputs = {} if layer.inputs is None else {"query_input": layer.inputs.query_input}
    return {"query": layer.query, "key": layer.key, "value": layer.value, **inputs}


def _projections(layer: Layer) -> dict[str, Tensor]:
    """Return the inputs and weights of the projections; nothing if there are none."""
    sources = {} if layer.inputs is None else {name: x for name, x in vars(layer.inputs).items() if x is not None}
    return sources if all(f"{side}_weight" in sources for side in ("query", "key", "value")) else {}


def _computed(
    layer: Layer, sources: Mapping[str, Tensor], places: Mapping[str, int], prefix: str, dtype: torch.dtype
) -> _Held:
    """Describe a layer by what its answers are computed from; None if its projections were changed afterwards.

    Args:
        layer: the layer.
        sources: what it is computed from, by name.
        places: those of the inputs among them.
        prefix: the beginning of the names of its tensors in the page.
        dtype: how numbers are stored.
    """
    tensors = Tensors(dtype, prefix)
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
        parts = {"weight": weight} | ({} if bias is None else {"bias": bias})
        described[side] = {name: tensors.add(f"{side}.{name}", part) for name, part in parts.items()}
        described[side]["input"] = {"tensor": f"input.{places[f'{side}_input']}"}
    if "query_input" in sources:
        described["inputs"] = {"tensor": f"input.{places['query_input']}"}
    described["norms"] = [tensors.add(f"norms.{head}", norms(layer, head).float()) for head in range(layer.heads)]
    if layer.output is not None:
        weight, bias = layer.output
        joined = attention(layer.query, layer.key, layer.value, **layer.options).transpose(0, 1).flatten(1)
        described["outputs"] = tensors.add("outputs", F.linear(joined.to(weight.dtype), weight, bias))
    return described | {"level": 0, "tensors": tensors.listed, "bytes": tensors.packed()}


def _gives(vectors: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether queries, keys or values are what a projection gives: no positions or norms were applied."""
    projected = F.linear(x.to(weight.dtype), weight, bias).detach()
    by_head = projected.unflatten(-1, (len(vectors), -1)).transpose(0, 1)
    return torch.allclose(by_head.float(), vectors.float(), rtol=1e-3, atol=1e-4)


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


def _tables(layer: Layer, number: int, level: int, dtype: torch.dtype) -> _Held:
    """Describe a layer by its weights at a level."""
    tensors, exact = Tensors(dtype, f"{number}."), True
    heads, queries, keys = layer.shape
    tables = []
    for head in range(heads):
        table, of_table = Pyramid(HeadWeights(head_of(layer, head))).table(level)
        tables.append(tensors.add(f"table.{head}", table))
        exact &= of_table
    described = {"kind": layer.kind, "heads": heads, "groups": heads, "shape": [queries, keys], "tables": tables}
    described["norms"] = [tensors.add(f"norms.{head}", norms(layer, head).float()) for head in range(heads)]
    return described | {"level": level, "exact": exact, "tensors": tensors.listed, "bytes": tensors.packed()}


def _missing(held: Sequence[_Held], inputs: Sequence[_Held]) -> str:
    """Return sentences that say what a page lacks."""
    counts = {
        "maps": sum(layer is None for layer in held),
        "details of maps": sum(layer is not None and layer["level"] > 0 for layer in held),
        "steps": sum(layer is None or "tables" in layer for layer in held),
    }
    parts = [f"the {what} of {count:,} of {len(held):,} layers" for what, count in counts.items() if count]
    lacks = f"This saved page lacks {', '.join(parts)}. The running viewer, qkv view, has all; a larger page has more."
    tensors = [tensor for part in (*held, *inputs) if part is not None for tensor in part["tensors"].values()]
    rounded = any("half" in tensor for tensor in tensors)
    return " ".join([lacks] * bool(parts) + ["Numbers are rounded to three digits, or seven decimals."] * rounded)
