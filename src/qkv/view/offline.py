"""A scene as one self-contained page: the viewer's front end with embedded answers."""

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from qkv.errors import OutOfMemoryError, QkvError
from qkv.view.answers.answer import Numbers
from qkv.view.answers.desk import RequestHandler
from qkv.view.answers.listing import LISTED, PIECE
from qkv.view.answers.pooling import SIDE, levels
from qkv.view.bundle import one_file
from qkv.view.packing import Packing, multiple
from qkv.view.scene import Layer, Scene

BUDGET = 2 << 20
"""Maximum bytes of embedded answers, compressed."""
_FOLLOWED = "top=4&frontier=12"
_WHOLE = 1e15
_FEW = 64
"""Up to this many tokens, every step and every pair is embedded."""


class Page(NamedTuple):
    """A page, and how much it omits.

    Attributes:
        text: the page.
        carried: number of embedded answers.
        left_out: number of answers that did not fit; the page says so if one is requested.
    """

    text: str
    carried: int
    left_out: int


def page(scene: Scene, budget: int = BUDGET) -> Page:
    """Build a page that shows a scene without a server.

    Args:
        scene: the scene to show.
        budget: maximum bytes of answers, compressed; those visible first are embedded first.

    Returns:
        The page, and how much of the scene it contains.

    Example:
        >>> import torch
        >>> layer = Layer("one", "self", "text", "text", *torch.randn(3, 1, 2, 8))
        >>> made = page(Scene("two words", {"text": ("a", "</script>")}, (layer,)))
        >>> made.text.count("</script>"), made.left_out
        (2, 0)
    """
    desk = RequestHandler(scene, live=False)
    answers = Packing()
    left_out = 0
    try:
        for asked in _questions(scene):
            if answers.size > budget:
                left_out += 1
            elif (answer := _answer(desk, asked)) is not None:
                answers.add(f"api/{asked}", answer)
    finally:
        desk.close()
    return Page(one_file("saved.js", {"packed": answers.text()}), answers.count, left_out)


def _answer(desk: RequestHandler, asked: str) -> Any:
    """Return the desk's answer in the page's format; None if it is undefined, as the entropy of negative weights."""
    name, _, parameters = asked.partition("?")
    try:
        answer = desk.ask(name, parameters)
        if isinstance(answer, Numbers):
            return _grid(answer)
        return _REDUCED.get(name, _any)(answer.content)
    except OutOfMemoryError:  # nothing is left out without saying so
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
    stages = [{name: _shown(item) for name, item in stage.items()} for stage in content["stages"]]
    named = dict(zip((stage["name"] for stage in stages), zip(stages, content["stages"], strict=True), strict=True))
    (weights, w_K), (values, v_KV), (weighted, _) = (named[name] for name in ("weights", "values", "weighted values"))
    if weighted["shape"] == values["shape"] and len(w_K["values"]) == values["shape"][0]:
        weights["values"], values["values"] = _short(w_K["values"], 5), _short(v_KV["values"], 5)
        weighted["values"] = multiple(weights["values"], values["values"])
    return {**content, "stages": stages}


def _cell(content: Any) -> Any:
    """Return the equation of a cell with the four digits that it shows, and without numbers that are not shown: those
    in brackets beside the value itself.
    """
    lines = [
        {**line, "filled": "[" if line["value"] is not None and line["filled"].startswith("[") else line["filled"]}
        for line in _short(content["lines"], 4)
    ]
    return {"lines": lines, "weight": _short(content["weight"], 6)}


def _any(content: Any) -> Any:
    return _short(content, 6)


_REDUCED: Mapping[str, Callable[[Any], Any]] = MappingProxyType({"cell": _cell, "steps": _steps})
"""How answers are rounded: to more digits than the page shows, or to those that it shows."""


def _short(content: Any, digits: int) -> Any:
    """Round numbers to some significant digits."""
    return _rounded(content, lambda number: float(f"{number:.{digits}g}"))


def _shown(content: Any) -> Any:
    """Round numbers as `short` in `static/numbers.js` shows them."""

    def rounded(number: float) -> float:
        size = abs(number)
        return float(f"{number:.1e}" if size < 0.005 or size >= 10_000 else f"{number:.{0 if size >= 100 else 2}f}")

    return _rounded(content, rounded)


def _rounded(content: Any, number: Callable[[float], float]) -> Any:
    match content:
        case float():
            found = number(content) if math.isfinite(content) else content
            return int(found) if found == round(found) and abs(found) < _WHOLE else found
        case list():
            return [_rounded(item, number) for item in content]
        case dict():
            return {name: _rounded(item, number) for name, item in content.items()}
    return content


def _questions(scene: Scene) -> Iterator[str]:
    """List everything that the page can request, in order of first use."""
    yield "scene"
    for sequence, tokens in scene.sequences.items():
        for start in range(0, len(tokens) if len(tokens) > LISTED else 0, PIECE):
            yield f"tokens?sequence={quote(sequence)}&start={start}&stop={min(start + PIECE, len(tokens))}"
    yield "heads"
    heads = [(place, head) for place, layer in enumerate(scene.layers) for head in range(layer.heads)]
    for quantity, how in (("weight", "mean"), ("weight", "max"), ("contribution", "mean"), ("contribution", "max")):
        for layer, head in heads:
            yield f"progress?layer={layer}&head={head}&how={how}&quantity={quantity}"
            for tile in _tiles(scene.layers[layer]):
                yield f"tile?layer={layer}&head={head}&{tile}&how={how}&quantity={quantity}"
        if (quantity, how) == ("weight", "mean"):
            yield from _beside(scene, heads)
    for layer, head in heads:
        _, queries, keys = scene.layers[layer].shape
        for place in range(queries * keys if max(queries, keys) <= _FEW else 0):
            yield f"cell?layer={layer}&head={head}&query={place // keys}&key={place % keys}"


def _beside(scene: Scene, heads: list[tuple[int, int]]) -> Iterator[str]:
    """List tracks, graphs and steps."""
    for layer, head in heads:
        for level in reversed(range(levels(*scene.layers[layer].shape[1:]))):
            for what in ("entropy", "received", "peak"):
                yield f"track?layer={layer}&head={head}&what={what}&level={level}"
    for chain in dict.fromkeys(_chain(scene, layer) for layer in range(len(scene.layers))):
        count = scene.layers[chain[-1]].shape[1]
        for query in range(count if count <= _FEW else 0):
            yield f"graph?layers={'%2C'.join(map(str, chain))}&query={query}&{_FOLLOWED}"
    for layer, head in heads:
        queries = scene.layers[layer].shape[1]
        for query in range(queries if queries <= _FEW else 0):
            yield f"steps?layer={layer}&head={head}&query={query}"


def _tiles(layer: Layer) -> Iterator[str]:
    _, queries, keys = layer.shape
    for level in reversed(range(levels(queries, keys))):
        for row in range(-(-max(queries, 1) // (SIDE << level))):
            for column in range(-(-max(keys, 1) // (SIDE << level))):
                yield f"level={level}&row={row}&column={column}"


def _chain(scene: Scene, chosen: int) -> tuple[int, ...]:
    """Return the layers through which the page follows a token if one of them is selected."""
    own = [place for place, layer in enumerate(scene.layers) if layer.kind == "self"]
    sequence = scene.layers[chosen].queries
    if own and not any(scene.layers[place].queries == sequence for place in own):
        sequence = scene.layers[own[0]].queries
    return tuple(place for place in own if scene.layers[place].queries == sequence) or (chosen,)
