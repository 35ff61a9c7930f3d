"""What was recorded of a model: for each layer its calls, and what can be asked of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.decode.hypothesis import Hypothesis
from qkv.errors import ConfigError, ShapeError, error_message, nearest
from qkv.recording.around import Around
from qkv.recording.calls import Call
from qkv.recording.lineage import Lineage
from qkv.recording.scenes import Part, scene_of
from qkv.view.scene import Scene

if TYPE_CHECKING:
    from qkv.view.server.serve import Serving


@final
@dataclass(frozen=True, eq=False)
class Trace:
    """What was recorded.

    Args:
        calls: by the name of the layer, its path in the model, in order.
        heads: the heads to show; None for all.
        lineage: where the rows of the batch came from.
        surroundings: the projections around each layer, where it has some.
        tokens: of each sequence of the row that is looked at, where they are known; a file keeps them.
        title: a line above pictures.
    """

    calls: Mapping[str, list[Call]] = field(default_factory=dict)
    heads: tuple[int, ...] | None = None
    lineage: Lineage = field(default_factory=Lineage)
    surroundings: Mapping[str, Around] = field(default_factory=dict)
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = "attention"

    @property
    def layers(self) -> list[str]:
        """The names of the recorded layers."""
        return list(self.calls)

    def weights(self, layer: str) -> Tensor:
        """The weights of a layer, queries of all its calls one after another.

        A decoder that attends once per step has called the layer once per target token: the steps are gathered. Where
        keys grew from step to step, as in self-attention with a cache, keys that were not there yet have weight 0.

        Args:
            layer: its path in the model.

        Returns:
            (..., Q, K), Q counted over the calls; of the heads asked for.

        Raises:
            ConfigError: the layer was not recorded, or was not run; or it lacks a head.
            ShapeError: rows left the batch between calls.
        """
        parts = [self._of_heads(call.weights(), layer) for call in self._calls(layer)]
        if len({part.shape[:-2] for part in parts}) > 1:
            expected, got = "the same rows in all calls", "rows that left the batch"
            raise ShapeError(error_message(layer, expected, got, "Ask for one row: trace.alignment(layer, row)."))
        return _joined(parts)

    def alignment(self, layer: str, row: int = 0, *, reading: int = -1, hypothesis: Hypothesis | None = None) -> Tensor:
        """What one row of a batch attended to, step by step, also while other rows leave or are reordered.

        Args:
            layer: its path in the model.
            row: counted in the batch as it was read.
            reading: which batch, where several were read one after another; the last by default.
            hypothesis: which one, where a beam search had several of the row.

        Returns:
            (T, S): the mean over the heads asked for.

        Raises:
            ConfigError: the layer was not recorded, or was not run; or it lacks a head.
            ShapeError: there is no such row, or it was there more than once, as in a beam.
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
        """Everything recorded of one row, for the viewer.

        Layers that look from one sequence at another have the sequences "target" and "source"; so have those beside
        them in the model. Where there is no such layer the one sequence is "text".

        Args:
            row: counted in the batch as it was read.
            tokens: of each sequence, padding left out or not; None for the trace's own; positions are numbered where
                there are none.
            title: a line above it; None for the trace's own.
            reading: which batch, where several were read one after another; the last by default.
            hypothesis: which one, where a beam search had several of the row.
            notes: for each token of a sequence "unknown", "copied" or "".

        Returns:
            The scene; layers that were not run are not in it.

        Raises:
            ShapeError: there is no such row; tokens that are not one for each position.
            ConfigError: nothing was recorded.
        """
        run = [layer for layer in self.calls if self.calls[layer]]
        if not run:
            hint = "Run the model inside the `with` block."
            raise ConfigError(error_message("trace", "a layer that was run", "none", hint))
        parts = {layer: self._parts(layer, row, reading, hypothesis) for layer in run}
        named = self.tokens if tokens is None else tokens
        return scene_of(parts, self.surroundings, named, notes or {}, self.title if title is None else title)

    def described(self, tokens: Mapping[str, Sequence[str]], title: str = "attention") -> "Trace":
        """The same with the tokens of the row that is looked at, and a title; `save` keeps both."""
        return replace(self, tokens={name: tuple(some) for name, some in tokens.items()}, title=title)

    def save(self, path: str | Path, row: int = 0) -> None:
        """Save what was recorded, or a look at it, by the suffix of the path.

        Args:
            path: `.safetensors` for all of it, which `qkv.recording.read` gives back; `.html` for the viewer as one
                page without a server; `.svg` or `.png` for a picture of the last layer.
            row: of the batch, for a page or picture.

        Raises:
            ConfigError: another suffix, or a place that cannot be written.
            UnsupportedError: a score that is a function of the caller's own, into a file; a tensor that was changed
                since.
        """
        from qkv.recording import files, showing

        place = Path(path)
        match place.suffix:
            case ".safetensors":
                files.write(self, place)
            case ".html":
                showing.write_page(self.scene(row), place)
            case ".svg" | ".png":
                showing.write_picture(self.scene(row), place)
            case suffix:
                valid = (".safetensors", ".html", ".svg", ".png")
                expected = f"a file name that ends in {', '.join(valid)}"
                raise ConfigError(error_message("path", expected, repr(str(path)), nearest(suffix, valid)))

    def show(self, row: int = 0, *, port: int = 0, browser: bool = True) -> "Serving":
        """Open one row in the viewer.

        Args:
            row: counted in the batch as it was read.
            port: on 127.0.0.1; 0 for any free one.
            browser: whether to open the browser.

        Returns:
            The running viewer: its `url`, `wait()` and `close()`.

        Raises:
            UnsupportedError: the viewer's libraries are not installed.
            ConfigError: the port is taken, or nothing was recorded.
        """
        from qkv.recording import showing

        return showing.serve(self.scene(row), port, browser)

    def _repr_html_(self) -> str:
        """What a notebook shows: the first row, where that is small; otherwise how to open it."""
        from qkv.recording import showing

        return showing.notebook(self.scene())

    def _parts(self, layer: str, row: int, reading: int, hypothesis: Hypothesis | None) -> list[Part]:
        """The calls in which a row took part, and its place in each."""
        calls = self._calls(layer)
        wanted = self.lineage.reading(calls[-1].moment) + 1 + reading if reading < 0 else reading
        calls = [call for call in calls if self.lineage.reading(call.moment) == wanted]
        path = None
        if hypothesis is not None and hypothesis.row is not None:
            steps = len(hypothesis.log_probabilities)
            # What ran once, before the first step, has the rows of the source.
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
        """Where a row of the batch stood at a moment."""
        rows = self.lineage.rows(moment)
        if rows is None:
            return row if row >= 0 else None
        places = [place for place, root in enumerate(rows) if root == row]
        if path is not None:
            place = path.get(moment, row)
            if place not in places:
                hint = "Give the row of the batch that it was found for."
                raise ShapeError(error_message("hypothesis", f"one of row {row}", "one of another row", hint))
            return place
        if len(places) > 1:
            hint = "Say which of the beam: hypothesis=found."
            got = f"row {row}, {len(places)} times"
            raise ShapeError(error_message("row", "a row that is in the batch once", got, hint))
        return places[0] if places else None

    def _calls(self, layer: str) -> list[Call]:
        if not self.calls.get(layer):
            hint = "Run the model inside the `with` block." if layer in self.calls else nearest(layer, self.calls)
            raise ConfigError(error_message("layer", "a recorded layer that was run", repr(layer), hint))
        return self.calls[layer]

    def _of_heads(self, weights: Tensor, layer: str) -> Tensor:
        if self.heads is None:
            return weights
        count = weights.shape[-3] if weights.ndim > 3 else 0
        if not all(0 <= head < count for head in self.heads):
            expected = f"heads from 0 to {count - 1} of {layer}" if count else f"None: {layer} has no heads"
            raise ConfigError(error_message("heads", expected, str(self.heads), "None shows all there are."))
        return weights[..., list(self.heads), :, :]


def _apart(call: Call, place: int, rows: Sequence[int] | None) -> tuple[Call, int]:
    """The call of one row and its item there: of a beam, W rows that share a source are W queries of one item."""
    items = call.query.shape[0]
    if rows is None or not 0 < items < len(rows) or len(rows) % items:
        return call, place
    width = len(rows) // items
    return call.of_query(place % width, place // width), place // width


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One after another along the queries, keys that were not there yet with weight 0."""
    keys = max(part.shape[-1] for part in parts)
    return torch.cat([F.pad(part, (0, keys - part.shape[-1])) for part in parts], -2)
