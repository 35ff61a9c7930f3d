"""Requests about a scene: their names, their parameters, and their answers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast, final
from urllib.parse import parse_qsl

from qkv.errors import ConfigError, nearest, out_of_memory_text
from qkv.files import FREE, room_for
from qkv.view.answers.answer import Answer, JsonValue, as_json_numbers
from qkv.view.answers.gallery import heads
from qkv.view.answers.graph import DEEPEST, GraphRequest, graph
from qkv.view.answers.graph import MOST as LINKS
from qkv.view.answers.head import head_of
from qkv.view.answers.listing import PIECE, contents, token_range
from qkv.view.answers.maps import QUANTITIES, Maps, Quantity
from qkv.view.answers.mechanisms import mechanisms
from qkv.view.answers.opening import first_shown
from qkv.view.answers.pyramid import Pooling, Statistic, TileIndex
from qkv.view.answers.rerun import rerun, unchanged
from qkv.view.answers.rows import SceneRows
from qkv.view.answers.steps import Cells, steps
from qkv.view.answers.whatif import whatif
from qkv.view.scene import ModelAnswer, Scene

MEAN = "mean"
"""Stands for the number of a head where the map is the mean over all heads."""
_LEVELS = 32
_TILES = 1 << 20


@final
class RequestParameters:
    """The parameters of one request.

    Args:
        parameters: by name, as text.
        names: those that the request accepts.
        body: the parsed JSON body; None if there is none.

    Raises:
        ConfigError: a name is unknown.
    """

    def __init__(self, parameters: Mapping[str, str], names: Sequence[str], body: Any = None) -> None:
        for name in parameters:
            if name not in names:
                raise ConfigError(_excerpt(name), "a known parameter", "an unknown one", nearest(name, names))
        self._parameters = parameters
        self.body = body

    def text(self, name: str) -> str:
        """Return a required parameter."""
        if name not in self._parameters:
            raise ConfigError(name, "a parameter", "none", f"Add {name}=… to the request.")
        return self._parameters[name]

    def number(self, name: str, stop: int, start: int = 0) -> int:
        """Parse an integer from `start` up to, but not including, `stop`."""
        text = self.text(name)
        # Eight digits are more than any position needs, and int() of a million digits is slow.
        fits = text.isascii() and text.isdigit() and len(text) <= 8
        if not fits or not start <= int(text) < stop:
            raise ConfigError(name, f"an integer from {start} to {stop - 1}", _excerpt(text), "Count from 0.")
        return int(text)

    def numbers(self, name: str, stop: int, most: int) -> list[int]:
        """Parse one or several comma-separated integers below `stop`."""
        parts = self.text(name).split(",")
        if len(parts) > most:
            raise ConfigError(name, f"at most {most} of them", str(len(parts)), "Request fewer.")
        return [RequestParameters({name: part}, (name,)).number(name, stop) for part in parts]

    def choice(self, name: str, valid: Sequence[str]) -> str:
        """Parse one of several words."""
        text = self.text(name)
        if text not in valid:
            raise ConfigError(name, " or ".join(valid), _excerpt(text), nearest(text[:40], valid))
        return text


class RequestKind(NamedTuple):
    """A kind of request.

    Attributes:
        method: GET, or POST if it changes something or has a body.
        parameters: their names, in the order in which the page writes them.
        answer: function from the parameters to the answer.
    """

    method: str
    parameters: tuple[str, ...]
    answer: Callable[[RequestParameters], Answer]


@final
class RequestHandler:
    """Answers requests about a scene.

    Args:
        scene: the scene.

    Example:
        >>> import torch
        >>> from qkv.view.scene import Layer
        >>> layer = Layer("one", "self", "text", "text", *torch.randn(3, 4, 2, 8))
        >>> requests = RequestHandler(Scene("two words", {"text": ("a", "dog")}, (layer,)))
        >>> requests.ask("tile", "layer=0&head=3&level=0&row=0&column=0&how=mean&quantity=weight").rows
        2
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.maps = Maps(scene, self._on_background_error)
        self.rows = SceneRows(scene)
        self._cells = Cells(self.rows)
        self._heads: Answer | None = None
        self._unchanged: ModelAnswer | None = None
        self.questions: Mapping[str, RequestKind] = {
            "scene": RequestKind("GET", (), self._scene),
            "tokens": RequestKind("GET", ("sequence", "start", "stop"), self._tokens),
            "tile": RequestKind("GET", ("layer", "head", "level", "row", "column", "how", "quantity"), self._tile),
            "progress": RequestKind("GET", ("layer", "head", "how", "quantity"), self._progress),
            "cancel": RequestKind("POST", ("layer", "head"), self._cancel),
            "resume": RequestKind("POST", ("layer", "head"), self._resume),
            "track": RequestKind("GET", ("layer", "head", "what", "level"), self._track),
            "steps": RequestKind("GET", ("layer", "head", "query"), self._steps),
            "cell": RequestKind("GET", ("layer", "head", "query", "key"), self._cell),
            "graph": RequestKind("GET", ("layers", "query", "top", "frontier"), self._graph),
            "mechanisms": RequestKind("GET", ("layer", "head"), self._mechanisms),
            "whatif": RequestKind("POST", (), lambda request: JsonValue(whatif(self.scene, request.body))),
            "rerun": RequestKind("POST", (), self._rerun),
            "answer": RequestKind("GET", (), self._answer),
            "heads": RequestKind("GET", (), self._gallery),
        }

    @cached_property
    def opening(self) -> tuple[int, int | None]:
        """The layer and the head that are shown first; no head for the mean over all."""
        return first_shown(self.scene)

    def ask(self, name: str, parameters: str, body: Any = None) -> Answer:
        """Answer a request.

        Args:
            name: the kind of request.
            parameters: the query string of the URL.
            body: the parsed JSON body.

        Raises:
            LookupError: the kind is unknown.
            QkvError: a parameter is unknown, missing or out of range.
            OutOfMemoryError: memory ran out; the same request can be answered once there is some.
        """
        question = self.questions[name]
        with self.maps.background.paused(), room_for(name, FREE):
            answer = question.answer(_request(parameters, question.parameters, body))
        return JsonValue(as_json_numbers(answer.content)) if isinstance(answer, JsonValue) else answer

    def close(self) -> None:
        """Stop background work."""
        self.maps.background.close()

    def _on_background_error(self, error: Exception) -> None:
        reason = out_of_memory_text(error)
        log = logging.getLogger("qkv.view")
        if reason is None:
            log.error("exact levels could not be computed", exc_info=error)
        else:
            log.error("exact levels could not be computed: %s. %s", reason, FREE)

    def _scene(self, request: RequestParameters) -> Answer:
        return JsonValue(contents(self.scene, self.opening))

    def _tokens(self, request: RequestParameters) -> Answer:
        sequence = list(self.scene.sequences)[request.number("sequence", len(self.scene.sequences))]
        start = request.number("start", 1 << 26)
        stop = request.number("stop", start + PIECE + 1, start)
        return JsonValue(token_range(self.scene, sequence, start, stop))

    def _tile(self, request: RequestParameters) -> Answer:
        level, row = request.number("level", _LEVELS), request.number("row", _TILES)
        position = TileIndex(level, row, request.number("column", _TILES))
        return self.maps.tile(*self._map(request), position, self._pooling(request), self._quantity(request))

    def _progress(self, request: RequestParameters) -> Answer:
        self._pooling(request)
        return JsonValue(self.maps.progress(*self._map(request), self._quantity(request)))

    def _cancel(self, request: RequestParameters) -> Answer:
        self.maps.cancel(*self._map(request))
        return JsonValue({})

    def _resume(self, request: RequestParameters) -> Answer:
        self.maps.resume(*self._map(request))
        return JsonValue({})

    def _track(self, request: RequestParameters) -> Answer:
        statistic = cast("Statistic", request.choice("what", ("entropy", "received", "peak")))
        return self.maps.track(*self._map(request), statistic, request.number("level", _LEVELS))

    def _steps(self, request: RequestParameters) -> Answer:
        layer, head = self._head(request)
        return JsonValue(steps(self.rows, layer, head, request.number("query", self.scene.layers[layer].shape[1])))

    def _cell(self, request: RequestParameters) -> Answer:
        layer, head = self._map(request)
        _, queries, keys = self.scene.layers[layer].shape
        where = request.number("query", queries), request.number("key", keys)
        return JsonValue(self._cells.cell(layer, head, *where))

    def _graph(self, request: RequestParameters) -> Answer:
        layers = tuple(request.numbers("layers", len(self.scene.layers), DEEPEST))
        query = request.number("query", self.scene.layers[layers[-1]].shape[1])
        top, frontier = (request.number(name, LINKS + 1, 1) for name in ("top", "frontier"))
        return JsonValue(graph(self.rows, GraphRequest(layers, query, top, frontier)))

    def _mechanisms(self, request: RequestParameters) -> Answer:
        layer, head = self._head(request)
        return JsonValue(mechanisms(head_of(self.scene.layers[layer], head)))

    def _rerun(self, request: RequestParameters) -> Answer:
        return JsonValue(rerun(self.scene, self._answered(), request.body))

    def _answer(self, request: RequestParameters) -> Answer:
        answer = self._answered()
        return JsonValue({"text": answer.text, "labels": answer.labels})

    def _answered(self) -> ModelAnswer:
        if self._unchanged is None:
            self._unchanged = unchanged(self.scene)
        return self._unchanged

    def _gallery(self, request: RequestParameters) -> Answer:
        if self._heads is None:
            self._heads = JsonValue(heads(self.scene))
        return self._heads

    def _head(self, request: RequestParameters) -> tuple[int, int]:
        layer = request.number("layer", len(self.scene.layers))
        return layer, request.number("head", self.scene.layers[layer].heads)

    def _map(self, request: RequestParameters) -> tuple[int, int | None]:
        """Return the layer and head of a map; None for the mean over all heads."""
        if request.text("head") == MEAN:
            return request.number("layer", len(self.scene.layers)), None
        return self._head(request)

    @staticmethod
    def _pooling(request: RequestParameters) -> Pooling:
        return cast("Pooling", request.choice("how", ("mean", "max")))

    def _quantity(self, request: RequestParameters) -> Quantity:
        kind, dot, row = request.text("quantity").partition(".")
        if kind == "gradient" and dot:
            return f"gradient.{RequestParameters({'quantity': row}, ('quantity',)).number('quantity', self._rows())}"
        return request.choice("quantity", QUANTITIES)

    def _rows(self) -> int:
        return len(self._answered().labels)


def _request(parameters: str, names: tuple[str, ...], body: Any) -> RequestParameters:
    try:
        pairs = parse_qsl(parameters, keep_blank_values=True, strict_parsing=bool(parameters), max_num_fields=16)
    except ValueError as error:
        raise ConfigError("the request", "name=value pairs", str(error), "Join them with &.") from error
    if len(dict(pairs)) < len(pairs):
        raise ConfigError("the request", "each parameter once", "one of them repeated", "Remove one of them.")
    return RequestParameters(dict(pairs), names, body)


def _excerpt(text: str) -> str:
    """Quote the input in a message, shortened and with control characters escaped."""
    return ascii(text[:40]) + ("…" if len(text) > 40 else "")
