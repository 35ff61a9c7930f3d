"""A recorded trace: its passes, and questions about them."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal, final

from torch import Tensor

from qkv.checkpoint.disk import save_file
from qkv.decode.protocol import Hypothesis
from qkv.errors import ConfigError, expect_name
from qkv.files import expect_suffix
from qkv.introspect.statistics import Statistics
from qkv.pictures import PAGE_MEGABYTES
from qkv.recording.calls import RecordedCall
from qkv.recording.passes import Pass, Setup
from qkv.recording.saved_mechanisms import Writer
from qkv.view.answers.shares import HeadShares, shares_of
from qkv.view.scene import Scene

if TYPE_CHECKING:
    from qkv.view.server.serve import Serving

KEY = "qkv.trace"
"""The key of a trace file's metadata: tensors are stored as safetensors, the rest as JSON under this key."""
VERSION = 2


@final
@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A recorded trace: a list of passes.

    A pass is what the model ran over one batch from its first position on: one forward pass, or all those of a
    generation with a cache. Without a cache each step of a generation is a pass. `weights`, `alignment` and `scene`
    are those of the last pass of the thread that opened the recording; if it ran none, of the only other one.

    Args:
        passes: the passes, in the order in which they ended.
        setup: what is known of the recorded model.
        tokens: the tokens of each sequence of the displayed row, if known; files include them.
        title: title of pictures.

    Example:
        >>> import torch
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> from qkv.recording.recorder import record
        >>> model = MultiHeadAttention(8, 2)
        >>> with record(model) as trace:
        ...     for length in (12, 7):
        ...         output = model(torch.randn(1, length, 8))
        >>> trace.weights("attention").shape, [one.weights("attention").shape[-1] for one in trace.passes]
        (torch.Size([1, 2, 7, 7]), [12, 7])
    """

    passes: list[Pass] = field(default_factory=list)
    setup: Setup = field(default_factory=Setup)
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = "attention"

    def __repr__(self) -> str:
        """Return one line: how many passes of which layers, without their tensors."""
        count, layers = len(self.passes), len(self.layers)
        names = shorten(", ".join(self.layers), 80, placeholder=" …")
        return f"Trace({self.title!r}: {count:,} pass{'es' * (count != 1)} of {layers:,} layers: {names})"

    @property
    def layers(self) -> list[str]:
        """The names of the recorded layers."""
        return list(self.setup.layers)

    @property
    def calls(self) -> dict[str, list[RecordedCall]]:
        """The calls of each layer in the pass that `weights` shows by default, in order."""
        calls = self.choose().calls if self.passes else {}
        return {layer: list(calls.get(layer, ())) for layer in self.layers}

    def choose(self, reading: int | None = None, hypothesis: Hypothesis | None = None) -> Pass:
        """Return a pass.

        Args:
            reading: its index in `passes`; None for the last one of the thread that opened the recording, or if it ran
                none, of the only other thread.
            hypothesis: a hypothesis of a generation; without a cache it selects the pass of its last step.

        Raises:
            ConfigError: nothing was recorded, there is no such pass, or several threads ran.
        """
        if not self.passes:
            hint = "Run the model inside the `with` block."
            raise ConfigError("trace", "a layer that ran", "none", hint)
        if reading is not None:
            count = len(self.passes)
            if not -count <= reading < count:
                hint = "See trace.passes."
                raise ConfigError("reading", f"a pass from 0 to {count - 1}", str(reading), hint)
            selected = self.passes[reading]
        else:
            selected = self._last()
        steps = 0 if hypothesis is None else len(hypothesis.log_probabilities)
        if not selected.step or not steps:
            return selected
        of_step = (item for item in self.passes if item.lineage is selected.lineage and item.step == steps - 1)
        return next(of_step, selected)

    def _choose_or_empty(self, reading: int | None, hypothesis: Hypothesis | None = None) -> Pass:
        """Return a pass; an empty one if nothing was recorded, which names the layer that is asked for."""
        return self.choose(reading, hypothesis) if self.passes else Pass(setup=self.setup)

    def _last(self) -> Pass:
        threads = list(dict.fromkeys(item.thread for item in self.passes))
        if 0 not in threads and len(threads) > 1:
            got = f"{len(self.passes)} passes of {len(threads)} other threads"
            hint = "Choose one by reading=, an index in trace.passes."
            raise ConfigError("trace", "a pass of the thread that opened the recording", got, hint)
        thread = 0 if 0 in threads else threads[0]
        return next(item for item in reversed(self.passes) if item.thread == thread)

    def selected(self, layers: Sequence[str]) -> "Trace":
        """Return the trace of some of its layers.

        Raises:
            ConfigError: a layer was not recorded.
        """
        for layer in layers:
            expect_name("layers", layer, self.layers, "recorded layers")
        setup = replace(self.setup, layers=[layer for layer in self.layers if layer in layers])
        passes = [
            replace(item, calls={layer: item.calls[layer] for layer in item.calls if layer in layers}, setup=setup)
            for item in self.passes
        ]
        return replace(self, passes=[item for item in passes if item.calls], setup=setup)

    def weights(self, layer: str, *, reading: int | None = None) -> Tensor:
        """Return the weights of a layer in one pass, with the queries of all its calls concatenated.

        A decoder calls the layer once per target token: the steps are concatenated. If keys grow from step to step, as
        in self-attention with a cache, keys that did not exist yet have weight 0.

        Args:
            layer: its path in the model.
            reading: index of the pass; see `choose`.

        Returns:
            (..., Q, K), with Q over all calls of the pass, of the selected heads.

        Raises:
            ConfigError: the layer was not recorded or did not run, or it does not have one of the heads.
            ShapeError: rows left the batch between calls.
        """
        return self._choose_or_empty(reading).weights(layer)

    def statistics(
        self, layer: str, *names: Literal["received", "entropy", "peak", "total"], topk: int = 0
    ) -> list[Statistics]:
        """Return statistics of a layer for every pass in which it ran, without storing any matrix of weights.

        A recording of a model that reads a data set has one pass for each batch.

        Args:
            layer: its path in the model.
            names: the statistics.
            topk: number of largest weights per row; 0 for none.

        Returns:
            One value for each pass, in the order of `passes`, as `AttentionMap.statistics` returns it, of the selected
            heads.

        Raises:
            ConfigError: the layer was not recorded or did not run, or a name is unknown.
            UnsupportedError: entropy of weights that can be negative.
            ShapeError: rows left the batch between the calls of a pass.

        Example:
            >>> import torch
            >>> from qkv.nn.multihead import MultiHeadAttention
            >>> from qkv.recording.recorder import record
            >>> model = MultiHeadAttention(8, 2)
            >>> with record(model) as trace:
            ...     for batch in torch.randn(3, 4, 5, 8):
            ...         output = model(batch)
            >>> entropies = [one.entropy for one in trace.statistics("attention", "entropy")]
            >>> torch.cat(entropies).shape  # of each text, head and query
            torch.Size([12, 2, 5])
        """
        ran = [item for item in self.passes if layer in item.layers]
        return [item.statistics(layer, *names, topk=topk) for item in ran or [self._choose_or_empty(None)]]

    def alignment(
        self, layer: str, row: int = 0, *, reading: int | None = None, hypothesis: Hypothesis | None = None
    ) -> Tensor:
        """Return the weights of one row of a batch, step by step, even as other rows leave or are reordered.

        Args:
            layer: its path in the model.
            row: index in the input batch.
            reading: index of the pass; see `choose`.
            hypothesis: the hypothesis, if a beam search had several for the row.

        Returns:
            (T, S): the mean over the selected heads.

        Raises:
            ConfigError: the layer was not recorded or did not run, or it does not have one of the heads.
            ShapeError: there is no such row, or it occurs more than once, as in a beam.
        """
        return self._choose_or_empty(reading, hypothesis).alignment(layer, row, hypothesis=hypothesis)

    def scene(
        self,
        row: int = 0,
        tokens: Mapping[str, Sequence[str]] | None = None,
        *,
        title: str | None = None,
        reading: int | None = None,
        hypothesis: Hypothesis | None = None,
        notes: Mapping[str, Sequence[str]] | None = None,
    ) -> Scene:
        """Return everything recorded for one row of one pass, for the viewer.

        Cross-attention layers, and the layers around them in the model, have the sequences "target" and "source".
        Without such layers the only sequence is "text".

        Args:
            row: index in the input batch.
            tokens: tokens of each sequence, with or without padding; None for the trace's own; without tokens,
                positions are numbered.
            title: title of the scene; None for the trace's own.
            reading: index of the pass; see `choose`.
            hypothesis: the hypothesis, if a beam search had several for the row.
            notes: for each token of a sequence "unknown", "copied" or "".

        Returns:
            The scene, without layers that did not run.

        Raises:
            ShapeError: there is no such row, or the number of tokens differs from the number of positions.
            ConfigError: nothing was recorded.
        """
        selected = self.choose(reading, hypothesis)
        named = (self.tokens or None) if tokens is None else tokens
        title = self.title if title is None else title
        return selected.scene(row, named, title=title, hypothesis=hypothesis, notes=notes)

    def shares(self, row: int = 0, *, reading: int | None = None) -> list[HeadShares]:
        """Return where the weights of every head lie: on the position before, the first key, punctuation, and so on.

        Args:
            row: index in the input batch.
            reading: index of the pass; see `choose`.

        Returns:
            One row of numbers for each head, means over all queries, in memory that grows with the length of the text;
            `pandas.DataFrame(trace.shares())` is a table of them.

        Raises:
            ShapeError: there is no such row.
            ConfigError: nothing was recorded.

        Example:
            >>> import torch
            >>> from qkv.nn.multihead import MultiHeadAttention
            >>> from qkv.recording.recorder import record
            >>> model = MultiHeadAttention(8, 2)
            >>> with record(model) as trace:
            ...     output = model(torch.zeros(1, 4, 8))
            >>> [(head.head, head.first, head.broad) for head in trace.shares()]
            [(0, 0.25, 1.0), (1, 0.25, 1.0)]
        """
        scene = self.scene(row, reading=reading)
        return [
            shares_of(scene, layer, head) for layer, parts in enumerate(scene.layers) for head in range(parts.heads)
        ]

    def described(self, tokens: Mapping[str, Sequence[str]], title: str = "attention") -> "Trace":
        """Return the trace with the tokens of the displayed row and a title; `save` includes both."""
        return replace(self, tokens={name: tuple(sequence) for name, sequence in tokens.items()}, title=title)

    def save(
        self,
        path: str | Path,
        row: int = 0,
        *,
        layer: str | None = None,
        head: int | None = None,
        title: str = "",
        size: float = PAGE_MEGABYTES,
    ) -> None:
        """Save the trace, a page or a picture, depending on the suffix of the path.

        Args:
            path: `.safetensors` for the whole trace, which `qkv.recording.read` loads; `.html` for the viewer as one
                page without a server; `.svg`, `.png` or `.pdf` for a picture of one map, with the pieces of words
                joined and special tokens left out; of long texts a cell is the mean of several tokens.
            row: row of the batch, for a page or picture.
            layer: the layer of a picture; None for the one on which the viewer opens.
            head: its head; None for the mean over heads.
            title: stands above a picture.
            size: maximum size of a page, in millions of bytes; the page says what it lacks.

        Raises:
            ConfigError: the suffix is unknown, there is no such layer or head, or the file cannot be written.
            UnsupportedError: a score is a user-defined function, which a trace file cannot store; or a tensor was
                changed since.
        """
        from qkv.view import showing

        file = Path(path)
        match expect_suffix("path", file, (".safetensors", ".html", ".svg", ".png", ".pdf")):
            case ".safetensors":
                _write(self._with_tokens(row), file)
            case ".html":
                showing.write_page(self.scene(row), file, size)
            case _:
                showing.write_picture(self.scene(row), file, layer=layer, head=head, title=title)

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
        from qkv.view import showing

        return showing.show(self.scene(row), port, browser)

    def _repr_html_(self) -> str:
        """Display the first row in a notebook if it is small; otherwise say how to open it."""
        from qkv.view import showing

        return showing.notebook(self.scene())

    def _with_tokens(self, row: int) -> "Trace":
        """Return the trace with the tokens of a row, where they are known."""
        if self.tokens or not self.passes or not (self.setup.tokenizer or self.setup.configs):
            return self
        selected = self.choose()
        return self.described(selected.tokens(selected.parts(row)), self.title)


def _write(trace: Trace, path: str | Path) -> None:
    """Save a trace atomically.

    Args:
        trace: the trace.
        path: output file.

    Raises:
        UnsupportedError: a score is a user-defined function, or a tensor was changed since.
        ConfigError: the file cannot be written.
    """
    import safetensors.torch

    writer = Writer()
    # Forward passes may share calls, such as an encoder's, and generations share rows; each is written only once.
    calls = {
        id(call): call
        for trace_pass in trace.passes
        for layer_calls in trace_pass.calls.values()
        for call in layer_calls
    }
    lineages = {id(trace_pass.lineage): trace_pass.lineage for trace_pass in trace.passes}
    for call in calls.values():
        call.check()
    call_numbers, lineage_numbers = (dict(zip(items, itertools.count(), strict=False)) for items in (calls, lineages))
    plain = {
        "version": VERSION,
        "title": trace.title,
        "tokens": writer.plain(trace.tokens),
        "heads": writer.plain(trace.setup.heads),
        "layers": list(trace.setup.layers),
        "groups": dict(trace.setup.groups),
        "around": writer.plain(trace.setup.surroundings),
        "lineages": [
            [[writer.plain(moment.rows), moment.start] for moment in lineage.moments] for lineage in lineages.values()
        ],
        "calls": [_plain_call(call, writer) for call in calls.values()],
        "passes": [
            {
                "thread": trace_pass.thread,
                "step": trace_pass.step,
                "lineage": lineage_numbers[id(trace_pass.lineage)],
                "calls": {
                    layer: [call_numbers[id(call)] for call in layer_calls]
                    for layer, layer_calls in trace_pass.calls.items()
                },
            }
            for trace_pass in trace.passes
        ],
    }
    save_file(Path(path), safetensors.torch.save(writer.tensors, {KEY: json.dumps(plain)}))


def _plain_call(call: RecordedCall, writer: Writer) -> dict[str, Any]:
    return {
        "tensors": writer.plain([call.query, call.key, call.value]),
        "options": writer.plain(call.options),
        "state": writer.plain(call.state),
        "moment": call.moment,
        "own": call.self_attention,
        "start": call.start,
        "given": writer.plain(call.inputs),
    }
