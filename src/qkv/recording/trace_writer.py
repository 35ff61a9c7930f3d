"""Writing trace files: tensors as safetensors, the rest as JSON in their metadata."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch

from qkv.checkpoint.disk import save_file
from qkv.recording.calls import RecordedCall
from qkv.recording.passes import Pass, Setup
from qkv.recording.values import Writer

KEY = "qkv.trace"
VERSION = 2


class Recorded(Protocol):
    """What a trace file holds: see `qkv.recording.trace.Trace`."""

    @property
    def passes(self) -> Sequence[Pass]:
        """The passes."""

    @property
    def setup(self) -> Setup:
        """What is known of the recorded model."""

    @property
    def tokens(self) -> Mapping[str, tuple[str, ...]]:
        """The tokens of each sequence."""

    @property
    def title(self) -> str:
        """The title of pictures."""


def write(trace: Recorded, path: str | Path) -> None:
    """Save a trace atomically.

    Args:
        trace: the trace.
        path: output file.

    Raises:
        UnsupportedError: a score is a user-defined function, or a tensor was changed since.
        ConfigError: the file cannot be written.
    """
    writer = Writer()
    # Passes may share calls, such as those of an encoder, and generations share their rows: each is written once.
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
        "calls": [_plain(call, writer) for call in calls.values()],
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


def _plain(call: RecordedCall, writer: Writer) -> dict[str, Any]:
    return {
        "tensors": writer.plain([call.query, call.key, call.value]),
        "options": writer.plain(call.options),
        "state": writer.plain(call.state),
        "moment": call.moment,
        "own": call.self_attention,
        "start": call.start,
        "given": writer.plain(call.inputs),
    }
