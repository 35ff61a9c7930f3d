"""Reading trace files; nothing is ever unpickled, and all of their contents are validated."""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.json_values import is_version
from qkv.checkpoint.tensors import read_header, read_tensors
from qkv.engine.describe import Arguments, describe
from qkv.errors import CheckpointError, DataError, OutOfMemoryError, QkvError
from qkv.files import FREE, open_file, room_for
from qkv.normalizers.row_state import RowState
from qkv.recording.calls import LastInputs, RecordedCall
from qkv.recording.lineage import Lineage, Moment
from qkv.recording.passes import Pass, Setup
from qkv.recording.projections import LayerProjections, Projection
from qkv.recording.saved_mechanisms import ValueReader, brief
from qkv.recording.trace import KEY, VERSION, Trace
from qkv.scores.products import ScaledDot
from qkv.strict_json import parse_json
from qkv.view.scene import OPTIONS


def read(path: str | Path) -> Trace:
    """Load a saved trace.

    Args:
        path: the file.

    Returns:
        The trace.

    Raises:
        DataError: the file is missing or is not a trace; nothing in it is executed, whatever it contains.

    Example:
        >>> import tempfile
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> from qkv.recording.recorder import record
        >>> model = MultiHeadAttention(8, 2)
        >>> with record(model) as trace:
        ...     output = model(torch.randn(1, 3, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trace.save(Path(folder) / "trace.safetensors")
        ...     again = read(Path(folder) / "trace.safetensors")
        >>> torch.equal(again.weights("attention"), trace.weights("attention"))
        True
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            metadata = read_header(file, size, str(path)).metadata
            file.seek(0)
            tensors = read_tensors(file, size, str(path))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except CheckpointError as error:  # the reader is that of checkpoints; this is not a checkpoint
        raise _unreadable(path, error.got[:200]) from error
    reader = ValueReader(tensors, str(path))
    try:
        return _trace(parse_json(metadata[KEY], finite=False), reader)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, QkvError):
            raise
        raise reader.wrong("a trace", f"{type(error).__name__}: {error}") from error


def _unreadable(path: str | Path, got: str) -> DataError:
    hint = "Give a file written by trace.save."
    return DataError(str(path), "a trace in safetensors", got, hint)


def _trace(plain: Any, reader: ValueReader) -> Trace:
    version = plain.get("version") if isinstance(plain, dict) else None
    if not is_version(version, 1) and not is_version(version, VERSION):
        raise reader.wrong(f"a trace of version 1 or {VERSION}", repr(plain)[:60])
    around = {
        str(layer): _projections(reader.value(layer_plain), reader) for layer, layer_plain in plain["around"].items()
    }
    tokens = {str(name): _texts(texts, reader) for name, texts in plain["tokens"].items()}
    heads = plain["heads"]
    if heads is not None and not (isinstance(heads, list) and all(type(head) is int for head in heads)):
        raise reader.wrong("numbers of heads", brief(heads))
    layers = list(plain["calls"]) if version == 1 else list(_texts(plain["layers"], reader))
    groups = {} if version == 1 else plain["groups"]
    if not isinstance(groups, dict) or not all(isinstance(path, str) for path in groups.values()):
        raise reader.wrong("paths of models", brief(list(groups)))
    setup = Setup(layers, None if heads is None else tuple(heads), around, groups)
    passes = _passes_of_version_1(plain, setup, reader) if version == 1 else _passes(plain, setup, reader)
    return Trace(passes, setup, tokens, str(plain["title"]))


def _passes(plain: Mapping[str, Any], setup: Setup, reader: ValueReader) -> list[Pass]:
    lineages = [_lineage(moments, reader) for moments in plain["lineages"]]
    numbers = _lineage_of_each_call(plain, len(lineages), reader)
    calls = [_call(call, lineages[numbers[at]], reader) for at, call in enumerate(plain["calls"])]
    passes = []
    for pass_plain in plain["passes"]:
        counts = [pass_plain["thread"], pass_plain["step"]]
        counted = all(type(count) is int and count >= 0 for count in counts)
        if not counted or not set(pass_plain["calls"]) <= set(setup.layers):
            raise reader.wrong("the thread, the step and the layers of a pass", brief([*counts, *pass_plain["calls"]]))
        pass_calls = {layer: [calls[at] for at in indices] for layer, indices in pass_plain["calls"].items() if indices}
        if pass_calls:
            passes.append(
                Pass(pass_calls, lineages[pass_plain["lineage"]], pass_plain["thread"], pass_plain["step"], setup)
            )
    return passes


def _lineage_of_each_call(plain: Mapping[str, Any], lineages: int, reader: ValueReader) -> dict[int, int]:
    """Return the number of the lineage of each call, from the passes that hold it."""
    lineage_of: dict[int, int] = {}
    for pass_plain in plain["passes"]:
        number = pass_plain["lineage"]
        indices = [at for call_numbers in pass_plain["calls"].values() for at in call_numbers]
        inside = all(type(at) is int and 0 <= at < len(plain["calls"]) for at in indices)
        if type(number) is not int or not 0 <= number < lineages or not inside:
            raise reader.wrong("calls and rows of a pass that the file holds", brief([number, *indices]))
        if any(lineage_of.setdefault(at, number) != number for at in indices):
            raise reader.wrong("calls with the rows of one batch", brief([number, *indices]))
    if len(lineage_of) < len(plain["calls"]):
        raise reader.wrong("calls that are part of a pass", f"{len(plain['calls']) - len(lineage_of)} others")
    return lineage_of


def _passes_of_version_1(plain: Mapping[str, Any], setup: Setup, reader: ValueReader) -> list[Pass]:
    """Return the calls of version 1, which has them in one list, by the batch that was read before."""
    lineage = _lineage(plain["moments"], reader)
    calls = {
        layer: [_call(call, lineage, reader) for call in layer_calls] for layer, layer_calls in plain["calls"].items()
    }
    starts = list(itertools.accumulate(moment.start for moment in lineage.moments))
    passes: dict[int, dict[str, list[RecordedCall]]] = {}
    for layer, layer_calls in calls.items():
        for call in layer_calls:
            reading = starts[call.moment] if call.moment >= 0 else 0
            passes.setdefault(reading, {}).setdefault(layer, []).append(call)
    return [Pass(passes[reading], lineage, setup=setup) for reading in sorted(passes)]


def _lineage(moments: Any, reader: ValueReader) -> Lineage:
    lineage = Lineage([_moment(reader, *pair) for pair in moments])
    _check_rows(lineage, reader)
    return lineage


def _texts(texts: Any, reader: ValueReader) -> tuple[str, ...]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise reader.wrong("tokens as strings", repr(texts)[:60])
    return tuple(texts)


def _moment(reader: ValueReader, rows: Any, start: Any) -> Moment:
    moment = reader.value(rows)
    if not isinstance(moment, Tensor) or moment.ndim != 1 or moment.dtype != torch.int64 or not isinstance(start, bool):
        raise reader.wrong("rows of a batch", brief([moment, start]))
    return Moment(moment, start)


def _check_rows(lineage: Lineage, reader: ValueReader) -> None:
    """Check that rows continue existing rows."""
    count = 0
    for index, (rows, start) in enumerate(lineage.moments):
        inside = start or (index > 0 and (rows.numel() == 0 or (int(rows.min()) >= 0 and int(rows.max()) < count)))
        if not inside:
            raise reader.wrong("rows that continue existing rows", brief(rows[:4].tolist()))
        count = rows.numel()


def _call(plain: Mapping[str, Any], lineage: Lineage, reader: ValueReader) -> RecordedCall:
    query, key, value = reader.value(plain["tensors"])
    options, state = _options(plain["options"], reader), reader.value(plain["state"])
    moment, self_attention = _moment_and_kind(plain)
    inputs = None if plain["given"] is None else LastInputs(*reader.value(plain["given"]))
    unknown = set(options) - set(OPTIONS)
    moments = [moment, *([] if inputs is None else [inputs.moment])]
    if unknown or not all(type(at) is int and -1 <= at <= lineage.now for at in moments):
        raise reader.wrong("options and moments of a call", brief([*sorted(unknown), *moments]))
    fine = all(isinstance(tensor, Tensor) and tensor.ndim >= 2 for tensor in (inputs or ())[:3])
    if not fine or not (state is None or (isinstance(state, RowState) and isinstance(state.value, Tensor))):
        raise reader.wrong("input tensors of projections, and a row state", brief([*(inputs or ()), state]))
    defaults = {"score": ScaledDot(), "normalizer": None, "mask": None, "bias": None, "enable_gqa": False}
    arguments = {**defaults, **options}
    try:
        # Whatever the file says, it must be a valid call of attention.
        with room_for(reader.path, FREE):
            bound = describe(query, key, value, Arguments(dropout=0.0, generator=None, **arguments))
    except OutOfMemoryError:
        raise
    except (QkvError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        raise reader.wrong("a valid call of attention", str(error)) from error
    if state is not None:
        rows, tensors = (*bound.leading, bound.problem.queries), (state.value, state.winner)
        if not all(x is None or (isinstance(x, Tensor) and tuple(x.shape) == rows) for x in tensors):
            raise reader.wrong("a row state of these rows", brief(list(tensors)))
    start = plain.get("start")
    if start is not None and not (type(start) is int and start >= 0):
        raise reader.wrong("the position of a call", brief(start))
    return RecordedCall(query, key, value, options, state, moment, self_attention, inputs, start)


def _options(plain: Mapping[str, Any], reader: ValueReader) -> dict[str, Any]:
    return {name: reader.bias(part) if name == "bias" else reader.value(part) for name, part in plain.items()}


def _moment_and_kind(plain: Mapping[str, Any]) -> tuple[Any, bool]:
    return plain["moment"], plain["own"] is True


def _projections(layer_plain: Any, reader: ValueReader) -> LayerProjections:
    pairs = [Projection(*pair) for pair in layer_plain]
    if len(pairs) != len(LayerProjections._fields) or not all(
        x is None or isinstance(x, Tensor) for pair in pairs for x in pair
    ):
        raise reader.wrong("four projections", brief(pairs))
    return LayerProjections(*pairs)
