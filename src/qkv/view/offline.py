"""A scene as one self-contained page: the viewer's front end with embedded answers."""

import base64
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from qkv.errors import OutOfMemoryError, QkvError
from qkv.view.answers.answer import Numbers
from qkv.view.answers.listing import LISTED, PIECE
from qkv.view.answers.pooling import SIDE, levels
from qkv.view.answers.requests import MEAN, RequestHandler
from qkv.view.bundle import one_file
from qkv.view.packing import Packing, multiple
from qkv.view.scene import Layer, Scene

BUDGET = 2 << 20
"""Maximum bytes of embedded answers, compressed."""
_FOLLOWED = "top=4&frontier=12"
_EXACT_INTEGERS = 1e15
_Name = TypeVar("_Name", tuple[int, int], tuple[int, int | None])
_FEW = 64
"""Up to this many tokens, every step and every pair is embedded."""


class Page(NamedTuple):
    """A page, and how much it omits.

    Attributes:
        text: the page.
        carried: number of embedded answers.
        left_out: number of answers that did not fit.
        missing: a sentence that says what the page lacks, which the page shows too; "" if it holds everything.
    """

    text: str
    carried: int
    left_out: int
    missing: str


_Part = tuple[str, int, int | None, int]
"""A kind of answers, the layer, the head or None for the mean over heads, and the level of a map."""


class _Question(NamedTuple):
    """Something that the page can request.

    Attributes:
        path: the request.
        part: what it belongs to: a part of a head, such as its map at a level, that is useful only as a whole.
        size: how many bytes its answer takes at least.
    """

    path: str
    part: _Part | None = None
    size: int = 0


def page(scene: Scene, budget: int = BUDGET) -> Page:
    """Build a page that shows a scene without a server.

    The map on which the page opens is embedded first, then all maps, those of few cells first: of a large map the
    levels that are zoomed out. Steps, contributions and cells follow.

    Args:
        scene: the scene to show.
        budget: maximum bytes of answers, compressed.

    Returns:
        The page, and how much of the scene it contains.

    Example:
        >>> import torch
        >>> layer = Layer("one", "self", "text", "text", *torch.randn(3, 1, 2, 8))
        >>> made = page(Scene("two words", {"text": ("a", "</script>")}, (layer,)))
        >>> made.text.count("</script>"), made.left_out, made.missing
        (2, 0, '')
    """
    handler = RequestHandler(scene, live=False)
    answers = Packing()
    left_out, requested, embedded = 0, Counter[_Part](), Counter[_Part]()
    try:
        for question in dict.fromkeys(_questions(scene, handler.opening)):
            requested.update([question.part] if question.part else [])
            if answers.size > budget or answers.size + question.size > budget:
                left_out += 1
                continue
            answer = _answer(handler, question.path)
            if answer is not None:
                answers.add(f"api/{question.path}", answer)
            embedded.update([question.part] if question.part else [])
    finally:
        handler.close()
    complete = {part for part, count in requested.items() if embedded[part] == count}
    finest = [
        [_finest(scene, complete, *name) for name in _maps_of(scene, layer)] for layer in range(len(scene.layers))
    ]
    missing = _missing(scene, finest, complete) if left_out else ""
    content = {"packed": answers.text(), "held": {"maps": finest, "missing": missing}}
    return Page(one_file("saved.js", content), answers.count, left_out, missing)


def _maps_of(scene: Scene, layer: int) -> list[tuple[int, int | None]]:
    """List the maps of a layer: of its heads and, last, of the mean over several."""
    heads = scene.layers[layer].heads
    return [*((layer, head) for head in range(heads)), *([(layer, None)] if heads > 1 else [])]


def _finest(scene: Scene, complete: Collection[_Part], layer: int, head: int | None) -> int | None:
    """Return the finest level of a map that is embedded as a whole; None for none."""
    count = levels(*scene.layers[layer].shape[1:])
    return next((level for level in range(count) if ("weight mean", layer, head, level) in complete), None)


def _missing(scene: Scene, finest: Sequence[Sequence[int | None]], complete: Collection[_Part]) -> str:
    """Return a sentence that says what a page lacks."""
    maps = [level for heads in finest for level in heads]
    total, none = len(maps), maps.count(None)
    coarse = total - none - maps.count(0)
    heads = [(layer, head) for layer, layer_info in enumerate(scene.layers) for head in range(layer_info.heads)]
    parts = []
    if coarse:
        parts.append(f"{coarse:,} of {total:,} maps only zoomed out")
    if none:
        parts.append(f"{none:,} of {total:,} maps not at all")
    for name, parts_of in (("steps", ("steps",)), ("cells", ("cells",)), ("contributions", ("contribution mean",))):
        lacking = sum(not any((kind, *head, 0) in complete for kind in parts_of) for head in heads)
        if lacking:
            parts.append(f"no {name} of {lacking:,} of {len(heads):,} heads")
    if not parts:
        parts.append("some details")
    return f"This saved page lacks parts that did not fit: {', '.join(parts)}. The running viewer, qkv view, has all."


def _answer(handler: RequestHandler, request: str) -> Any:
    """Return the answer in the page's format; None if it is undefined, as the entropy of negative weights."""
    name, _, parameters = request.partition("?")
    try:
        answer = handler.ask(name, parameters)
        if isinstance(answer, Numbers):
            return _grid(answer)
        return _REDUCED.get(name, _to_six_digits)(answer.content)
    except OutOfMemoryError:  # an answer that is left out must be reported
        raise
    except QkvError:
        return None


def _grid(answer: Numbers) -> Any:
    return {
        "shape": [answer.rows, answer.columns],
        "state": answer.state,
        "range": [answer.low, answer.high],
        "base64": base64.b64encode(answer.content).decode(),
    }


def _steps(content: Any) -> Any:
    """Return the steps with their numbers as they are shown. The weighted values, which differ from query to query, are
    replaced by the weights and the values they come from.
    """
    stages = [{name: _round_as_displayed(item) for name, item in stage.items()} for stage in content["stages"]]
    named = dict(zip((stage["name"] for stage in stages), zip(stages, content["stages"], strict=True), strict=True))
    (weights, w_K), (values, v_KV), (weighted, _) = (named[name] for name in ("weights", "values", "weighted values"))
    if weighted["shape"] == values["shape"] and len(w_K["values"]) == values["shape"][0]:
        weights["values"], values["values"] = (
            _rounded_to_digits(w_K["values"], 5),
            _rounded_to_digits(v_KV["values"], 5),
        )
        weighted["values"] = multiple(weights["values"], values["values"])
    return {**content, "stages": stages}


def _cell(content: Any) -> Any:
    """Return the equation of a cell with the four digits that it shows, and without numbers that are not shown: those
    in brackets beside the value itself.
    """
    lines = [
        {**line, "filled": "[" if line["value"] is not None and line["filled"].startswith("[") else line["filled"]}
        for line in _rounded_to_digits(content["lines"], 4)
    ]
    return {"lines": lines, "weight": _rounded_to_digits(content["weight"], 6)}


def _to_six_digits(content: Any) -> Any:
    return _rounded_to_digits(content, 6)


_REDUCED: Mapping[str, Callable[[Any], Any]] = MappingProxyType({"cell": _cell, "steps": _steps})
"""How answers are rounded: to more digits than the page shows, or to those that it shows."""


def _rounded_to_digits(content: Any, digits: int) -> Any:
    """Round numbers to some significant digits."""
    return _rounded(content, lambda number: float(f"{number:.{digits}g}"))


def _round_as_displayed(content: Any) -> Any:
    """Round numbers as `short` in `static/numbers.js` shows them."""

    def rounded(number: float) -> float:
        size = abs(number)
        return float(f"{number:.1e}" if size < 0.005 or size >= 10_000 else f"{number:.{0 if size >= 100 else 2}f}")

    return _rounded(content, rounded)


def _rounded(content: Any, number: Callable[[float], float]) -> Any:
    if isinstance(content, float):
        rounded = number(content) if math.isfinite(content) else content
        return int(rounded) if rounded == round(rounded) and abs(rounded) < _EXACT_INTEGERS else rounded
    if isinstance(content, list):
        return [_rounded(item, number) for item in content]
    if isinstance(content, dict):
        return {name: _rounded(item, number) for name, item in content.items()}
    return content


def _questions(scene: Scene, opened: tuple[int, int | None]) -> Iterator[_Question]:
    """List everything that the page can request, in order of first use; some of it twice."""
    yield _Question("scene")
    for number, tokens in enumerate(scene.sequences.values()):
        for start in range(0, len(tokens) if len(tokens) > LISTED else 0, PIECE):
            stop = min(start + PIECE, len(tokens))
            yield _Question(f"tokens?sequence={number}&start={start}&stop={stop}")
    heads = [(index, head) for index, layer in enumerate(scene.layers) for head in range(layer.heads)]
    ordered = _from_layer(opened[0], heads)
    drawn = _from_layer(opened[0], (name for layer in range(len(scene.layers)) for name in _maps_of(scene, layer)))
    if heads:
        yield from _map(scene, *opened, range(levels(*scene.layers[opened[0]].shape[1:])))
        yield from _steps_of(scene, opened[0], opened[1] or 0)
    yield _Question("heads")
    smallest = sorted(drawn, key=lambda layer_head: prod(scene.layers[layer_head[0]].shape[1:]))
    maps = [(layer, head, level) for layer, head in drawn for level in range(levels(*scene.layers[layer].shape[1:]))]
    for layer, head, level in sorted(
        maps, key=lambda layer_head_level: _cells(scene.layers[layer_head_level[0]], layer_head_level[2])
    ):
        yield from _map(scene, layer, head, range(level, level + 1))
    yield from _later_questions(scene, opened[0], ordered, smallest)


def _from_layer(first: int, names: Iterable[_Name]) -> list[_Name]:
    """Return names of heads or maps, those of one layer first."""
    return sorted(names, key=lambda name: name[0] != first)


def _later_questions(
    scene: Scene, first: int, ordered: Sequence[tuple[int, int]], smallest: Sequence[tuple[int, int | None]]
) -> Iterator[_Question]:
    """List the requests for graphs, steps, the remaining maps, and single cells."""
    for chain in dict.fromkeys(_followed_layers(scene, layer) for layer in range(len(scene.layers))):
        count = scene.layers[chain[-1]].shape[1]
        for query in range(count if count <= _FEW else 0):
            yield _Question(f"graph?layers={'%2C'.join(map(str, chain))}&query={query}&{_FOLLOWED}")
    for layer, head in ordered:
        yield from _steps_of(scene, layer, head)
    for map_kind in ("weight max", "contribution mean", "contribution max"):
        for layer, map_head in smallest:
            yield from _map(scene, layer, map_head, range(levels(*scene.layers[layer].shape[1:])), map_kind)
    for layer, map_head in _from_layer(first, sorted(smallest, key=lambda name: name[0])):
        _, queries, keys = scene.layers[layer].shape
        for index in range(queries * keys if max(queries, keys) <= _FEW else 0):
            path = f"cell?layer={layer}&head={_shown(map_head)}&query={index // keys}&key={index % keys}"
            yield _Question(path, ("cells", layer, map_head, 0))


def _shown(head: int | None) -> str:
    return MEAN if head is None else str(head)


def _map(
    scene: Scene, layer: int, head: int | None, map_levels: range, map_kind: str = "weight mean"
) -> Iterator[_Question]:
    """List the tiles and tracks of a map at some levels, the coarsest first."""
    quantity, pooling = map_kind.split()
    name = f"layer={layer}&head={_shown(head)}"
    _, queries, keys = scene.layers[layer].shape
    yield _Question(f"progress?{name}&how={pooling}&quantity={quantity}")
    for level in reversed(map_levels):
        side = SIDE << level
        for row in range(-(-max(queries, 1) // side)):
            for column in range(-(-max(keys, 1) // side)):
                size = 5 * min(SIDE, -(-queries >> level)) * min(SIDE, -(-keys >> level))  # four bytes each, in base64
                tile = f"level={level}&row={row}&column={column}"
                path = f"tile?{name}&{tile}&how={pooling}&quantity={quantity}"
                yield _Question(path, (map_kind, layer, head, level), size)
        for track in ("entropy", "received", "peak") if map_kind == "weight mean" else ():
            yield _Question(f"track?{name}&what={track}&level={level}")


def _cells(layer: Layer, level: int) -> int:
    """Return how many cells a map has at a level."""
    return prod(-(-size // (1 << level)) for size in layer.shape[1:])


def _steps_of(scene: Scene, layer: int, head: int) -> Iterator[_Question]:
    queries = scene.layers[layer].shape[1]
    for query in range(queries if queries <= _FEW else 0):
        yield _Question(f"steps?layer={layer}&head={head}&query={query}", ("steps", layer, head, 0))


def _followed_layers(scene: Scene, selected_layer: int) -> tuple[int, ...]:
    """Return the layers through which the page follows a token if one of them is selected."""
    self_attention = [index for index, layer in enumerate(scene.layers) if layer.kind == "self"]
    sequence = scene.layers[selected_layer].queries
    if self_attention and not any(scene.layers[index].queries == sequence for index in self_attention):
        sequence = scene.layers[self_attention[0]].queries
    return tuple(index for index in self_attention if scene.layers[index].queries == sequence) or (selected_layer,)
