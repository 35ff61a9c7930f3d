"""Writing trace files: tensors as safetensors, the rest as JSON in their metadata."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch

from qkv.checkpoint.disk import replace_file
from qkv.errors import CheckpointError, ConfigError
from qkv.recording.around import Around
from qkv.recording.calls import Call
from qkv.recording.lineage import Lineage
from qkv.recording.values import Writer

KEY = "qkv.trace"
VERSION = 1


class Recorded(Protocol):
    """What a trace file holds: see `qkv.recording.trace.Trace`."""

    @property
    def calls(self) -> Mapping[str, Sequence[Call]]:
        """The calls by the name of the layer."""

    @property
    def heads(self) -> tuple[int, ...] | None:
        """The heads to show."""

    @property
    def lineage(self) -> Lineage:
        """Where the rows of the batch came from."""

    @property
    def surroundings(self) -> Mapping[str, Around]:
        """The projections around each layer."""

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
    for calls in trace.calls.values():
        for call in calls:
            call.check()
    plain = {
        "version": VERSION,
        "title": trace.title,
        "tokens": writer.plain(trace.tokens),
        "heads": writer.plain(trace.heads),
        "moments": [[writer.plain(moment.rows), moment.start] for moment in trace.lineage.moments],
        "around": writer.plain(trace.surroundings),
        "calls": {layer: [_plain(call, writer) for call in calls] for layer, calls in trace.calls.items()},
    }
    try:
        replace_file(Path(path), safetensors.torch.save(writer.tensors, {KEY: json.dumps(plain)}))
    except CheckpointError as error:  # the writer is that of checkpoints; this is not a checkpoint
        raise ConfigError(str(error)) from error


def _plain(call: Call, writer: Writer) -> dict[str, Any]:
    return {
        "tensors": writer.plain([call.query, call.key, call.value]),
        "options": writer.plain(call.options),
        "state": writer.plain(call.state),
        "moment": call.moment,
        "own": call.own,
        "given": writer.plain(call.given),
    }
