"""A recorded trace: the calls of each layer, and queries about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.decode.hypothesis import Hypothesis
from qkv.errors import ConfigError, ShapeError, error_message, nearest
from qkv.recording.around import Around
from qkv.recording.calls import Call
from qkv.recording.lineage import Lineage
from qkv.recording.origins import Reading
from qkv.recording.scenes import Part, scene_of, sides_of
from qkv.view.scene import Scene

if TYPE_CHECKING:
    from qkv.view.server.serve import Serving


class Tokenizer(Protocol):
    """What names token ids; the tokenizers of `transformers` do."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Return the tokens of some ids."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A recorded trace.

    Args:
        calls: by the name of the layer, its path in the model, in order.
        heads: the heads to show; None for all.
        lineage: where the rows of the batch came from.
        surroundings: the projections around each layer, if it has any.
        tokens: the tokens of each sequence of the displayed row, if known; files include them.
        title: title of pictures.
        groups: for layers of `transformers`, the path of the innermost model that contains them.
        readings: by the path of such a model, the token ids that it was given.
        tokenizer: names token ids.
    """

    calls: dict[str, list[Call]] = field(default_factory=dict)
    heads: tuple[int, ...] | None = None
    lineage: Lineage = field(default_factory=Lineage)
    surroundings: dict[str, Around] = field(default_factory=dict)
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = "attention"
    groups: dict[str, str] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        """Return one line: how many layers ran how often, without their tensors."""
        calls = sum(map(len, self.calls.values()))
        shown = shorten(", ".join(self.calls), 80, placeholder=" …")
        return f"Trace({self.title!r}: {calls:,} calls of {len(self.calls):,} layers: {shown})"

    @property
    def layers(self) -> list[str]:
        """The names of the recorded layers."""
        return list(self.calls)

    def weights(self, layer: str) -> Tensor:
        """Return the weights of a layer, with the queries of all its calls concatenated.

        A decoder calls the layer once per target token: the steps are concatenated. If keys grow from step to step, as
        in self-attention with a cache, keys that did not exist yet have weight 0.

        Args:
            layer: its path in the model.

        Returns:
            (..., Q, K), with Q over all calls, of the selected heads.

        Raises:
            ConfigError: the layer was not recorded or did not run, or it does not have one of the heads.
            ShapeError: rows left the batch between calls.
        """
        parts = [self._of_heads(call.weights(), layer) for call in self._calls(layer)]
        if len({part.shape[:-2] for part in parts}) > 1:
            expected, got = "the same rows in all calls", "rows that left the batch"
            raise ShapeError(error_message(layer, expected, got, "Request one row: trace.alignment(layer, row)."))
        return _joined(parts)

    def alignment(self, layer: str, row: int = 0, *, reading: int = -1, hypothesis: Hypothesis | None = None) -> Tensor:
        """Return the weights of one row of a batch, step by step, even as other rows leave or are reordered.

        Args:
            layer: its path in the model.
            row: index in the input batch.
            reading: index of the batch, if several were read; the last by default.
            hypothesis: the hypothesis, if a beam search had several for the row.

        Returns:
            (T, S): the mean over the selected heads.

        Raises:
            ConfigError: the layer was not recorded or did not run, or it does not have one of the heads.
            ShapeError: there is no such row, or it occurs more than once, as in a beam.
        """
        parts = self._parts(layer, row, reading, hypothesis)
        weights = _joined([self._of_heads(call.weights(), layer)[place] for call, place, _ in parts])
        return weights.flatten(0, -3).mean(0) if weights.ndim > 2 else weights

    def scene(
        self,
        row: int = 0,
        tokens: Mapping[str, Sequence[str]] | None = None,
        *,
        title: str | None = None,
        reading: int = -1,
        hypothesis: Hypothesis | None = None,
        notes: Mapping[str, Sequence[str]] | None = None,
    ) -> Scene:
        """Return everything recorded for one row, for the viewer.

        Cross-attention layers, and the layers around them in the model, have the sequences "target" and "source".
        Without such layers the only sequence is "text".

        Args:
            row: index in the input batch.
            tokens: tokens of each sequence, with or without padding; None for the trace's own; without tokens,
                positions are numbered.
            title: title of the scene; None for the trace's own.
            reading: index of the batch, if several were read; the last by default.
            hypothesis: the hypothesis, if a beam search had several for the row.
            notes: for each token of a sequence "unknown", "copied" or "".

        Returns:
            The scene, without layers that did not run.

        Raises:
            ShapeError: there is no such row, or the number of tokens differs from the number of positions.
            ConfigError: nothing was recorded.
        """
        run = [layer for layer in self.calls if self.calls[layer]]
        if not run:
            hint = "Run the model inside the `with` block."
            raise ConfigError(error_message("trace", "a layer that ran", "none", hint))
        parts = {layer: self._parts(layer, row, reading, hypothesis) for layer in run}
        sides = sides_of(parts, self.groups)
        named = (self.tokens or self._read(parts, sides)) if tokens is None else tokens
        title = self.title if title is None else title
        return scene_of(parts, sides, self.surroundings, named, notes or {}, title)

    def _read(
        self, parts: Mapping[str, Sequence[Part]], sides: Mapping[str, tuple[str, str]]
    ) -> dict[str, tuple[str, ...]]:
        """Return the tokens of the ids that the model was given, for the sequences where they are known."""
        found: dict[str, tuple[str, ...]] = {}
        for layer, some in parts.items():
            reading, name = self.readings.get(self.groups.get(layer, "")), sides[layer][0]
            if reading is None or self.tokenizer is None or name in found:
                continue
            places = {id(call): place for place, call in enumerate(self.calls[layer])}
            passes = [places.get(id(part.call), -1) for part in some]
            ids = reading.ids(passes, [part.place for part in some]) if len(places) == len(reading.passes) else None
            if ids is not None and len(ids) == sum(part.call.query.shape[-2] for part in some):
                found[name] = tuple(map(str, self.tokenizer.convert_ids_to_tokens(ids)))
        return found

    def described(self, tokens: Mapping[str, Sequence[str]], title: str = "attention") -> "Trace":
        """Return the trace with the tokens of the displayed row and a title; `save` includes both."""
        return replace(self, tokens={name: tuple(some) for name, some in tokens.items()}, title=title)

    def save(self, path: str | Path, row: int = 0) -> None:
        """Save the trace, a page or a picture, depending on the suffix of the path.

        Args:
            path: `.safetensors` for the whole trace, which `qkv.recording.read` loads; `.html` for the viewer as one
                page without a server; `.svg` or `.png` for a picture of the last layer.
            row: row of the batch, for a page or picture.

        Raises:
            ConfigError: the suffix is unknown, or the file cannot be written.
            UnsupportedError: a score is a user-defined function, which a trace file cannot store; or a tensor was
                changed since.
        """
        from qkv.recording import showing, storing

        place = Path(path)
        match place.suffix:
            case ".safetensors":
                storing.write(self._with_tokens(row), place)
            case ".html":
                showing.write_page(self.scene(row), place)
            case ".svg" | ".png":
                showing.write_picture(self.scene(row), place)
            case suffix:
                valid = (".safetensors", ".html", ".svg", ".png")
                expected = f"a file name that ends in {', '.join(valid)}"
                raise ConfigError(error_message("path", expected, repr(str(path)), nearest(suffix, valid)))

    def show(self, row: int = 0, *, port: int = 0, browser: bool = True) -> "Serving":
        """Open one row in the viewer: in a notebook inside the page, elsewhere in a browser. Its address is printed.

        Args:
            row: index in the input batch.
            port: port on 127.0.0.1; 0 for any free port.
            browser: whether to open a browser.

        Returns:
            The running viewer: its `url`, `wait()` and `close()`.

        Raises:
            UnsupportedError: the viewer's libraries are not installed.
            ConfigError: the port is in use, or nothing was recorded.
        """
        from qkv.recording import showing

        return showing.show(self.scene(row), port, browser)

    def _repr_html_(self) -> str:
        """Display the first row in a notebook if it is small; otherwise say how to open it."""
        from qkv.recording import showing

        return showing.notebook(self.scene())

    def _with_tokens(self, row: int) -> "Trace":
        """Return the trace with the tokens of a row, where the tokenizer knows them."""
        if self.tokens or self.tokenizer is None:
            return self
        parts = {layer: self._parts(layer, row, -1, None) for layer in self.calls if self.calls[layer]}
        return self.described(self._read(parts, sides_of(parts, self.groups)), self.title)

    def _parts(self, layer: str, row: int, reading: int, hypothesis: Hypothesis | None) -> list[Part]:
        """Return the calls that include a row, and its index in each."""
        calls = self._calls(layer)
        wanted = self.lineage.reading(calls[-1].moment) + 1 + reading if reading < 0 else reading
        calls = [call for call in calls if self.lineage.reading(call.moment) == wanted]
        path = None
        if hypothesis is not None and hypothesis.row is not None:
            steps = len(hypothesis.log_probabilities)
            # Modules that ran once, before the first step, have the rows of the source.
            path = self.lineage.path(calls[steps - 1].moment, hypothesis.row) if len(calls) >= steps else {}
            calls = calls[:steps]
        parts = []
        for call in calls:
            place = self._place(call.moment, row, path)
            if place is None:
                continue
            source = place if call.given is None else self._place(call.given.moment, row, path)
            one, item = _apart(call, place, self.lineage.rows(call.moment))
            if item < call.query.shape[0]:
                parts.append(Part(one, item, item if one is not call and call.own else source))
        if not parts:
            hint = "Rows count from 0, in the order of the batch."
            raise ShapeError(error_message("row", f"a row that ran through {layer}", str(row), hint))
        return parts

    def _place(self, moment: int, row: int, path: Mapping[int, int] | None) -> int | None:
        """Return the position of a row of the batch at a moment."""
        rows = self.lineage.rows(moment)
        if rows is None:
            return row if row >= 0 else None
        places = [place for place, root in enumerate(rows) if root == row]
        if path is not None:
            place = path.get(moment, row)
            if place not in places:
                hint = "Give the row of the batch to which the hypothesis belongs."
                raise ShapeError(error_message("hypothesis", f"one of row {row}", "one of a different row", hint))
            return place
        if len(places) > 1:
            hint = "Select one hypothesis of the beam, or one sample: hypothesis=found."
            got = f"row {row}, {len(places)} times"
            raise ShapeError(error_message("row", "a row that occurs once in the batch", got, hint))
        return places[0] if places else None

    def _calls(self, layer: str) -> list[Call]:
        if not self.calls.get(layer):
            hint = "Run the model inside the `with` block." if layer in self.calls else nearest(layer, self.calls)
            raise ConfigError(error_message("layer", "a recorded layer that ran", repr(layer), hint))
        return self.calls[layer]

    def _of_heads(self, weights: Tensor, layer: str) -> Tensor:
        if self.heads is None:
            return weights
        count = weights.shape[-3] if weights.ndim > 3 else 0
        if not all(0 <= head < count for head in self.heads):
            expected = f"heads from 0 to {count - 1} of {layer}" if count else f"None: {layer} has no heads"
            raise ConfigError(error_message("heads", expected, str(self.heads), "None shows all heads."))
        return weights[..., list(self.heads), :, :]


def _apart(call: Call, place: int, rows: Sequence[int] | None) -> tuple[Call, int]:
    """Return the call of one row and its item: in a beam, W rows that share a source are W queries of one item."""
    items = call.query.shape[0]
    if rows is None or not 0 < items < len(rows) or len(rows) % items:
        return call, place
    width = len(rows) // items
    return call.of_query(place % width, place // width), place // width


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the queries; keys that did not exist yet get weight 0."""
    keys = max(part.shape[-1] for part in parts)
    return torch.cat([F.pad(part, (0, keys - part.shape[-1])) for part in parts], -2)
