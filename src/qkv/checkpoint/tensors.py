"""Named tensors as safetensors bytes; tensors that share memory are stored once."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from types import MappingProxyType
from typing import IO, Any, cast, final

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.checkpoint.json_values import JsonValue, decode_mapping
from qkv.errors import CheckpointError
from qkv.files import FREE, room_for

_COPY_AGAIN = "The file was altered: copy it again from its source."
_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100_000_000  # as in the library
_PIECE = 1 << 24
_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U64": torch.uint64,
        "U32": torch.uint32,
        "U16": torch.uint16,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }
)


def pack(tensors: Mapping[str, Tensor], file: str) -> tuple[bytes, dict[str, str]]:
    """Serialize named tensors as safetensors bytes, the same bytes for the same values.

    Args:
        tensors: name to tensor, any shapes, strides and devices.
        file: its name in messages.

    Returns:
        The bytes, and for each tensor that shares another one's memory the name under which that is stored.

    Raises:
        CheckpointError: a tensor cannot be stored (sparse, complex, without data).

    Example:
        >>> shared = torch.ones(2)
        >>> data, tied = pack({"embedding": shared, "output": shared}, "model")
        >>> tied
        {'output': 'embedding'}
        >>> sorted(unpack(data, tied, "model"))
        ['embedding', 'output']
    """
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    homes: dict[object, str] = {}
    memories: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name]
        _check(name, tensor, file)
        home = homes.setdefault(_identity(name, tensor), name)
        if home == name:
            stored[name] = _with_own_memory(tensor, memories)
        else:
            tied[name] = home
    try:
        return safetensors.torch.save(stored), tied
    except (SafetensorError, ValueError, KeyError) as error:
        hint = "Convert these tensors to a plain dense type, such as float32."
        raise CheckpointError(file, "tensors supported by safetensors", str(error), hint) from error


def unpack(data: bytes, tied: Mapping[str, str], file: str) -> dict[str, Tensor]:
    """Parse the output of `pack`.

    Args:
        data: safetensors bytes.
        tied: the names that are aliases of another tensor.
        file: its name in messages, as a path.

    Returns:
        Name to tensor, on the CPU; tied names give the same tensor object.

    Raises:
        CheckpointError: it is not safetensors, or an alias has no target.
    """
    return with_tied(read_tensors(BytesIO(data), len(data), file), tied, file)


def with_tied(tensors: dict[str, Tensor], tied: Mapping[str, str], file: str) -> dict[str, Tensor]:
    """Add the names that are aliases.

    Args:
        tensors: name to tensor.
        tied: the names that are aliases of another tensor.
        file: their file's name in messages.

    Returns:
        Name to tensor; tied names give the same tensor object.

    Raises:
        CheckpointError: an alias has no target.
    """
    for name, home in tied.items():
        if name in tensors or home not in tensors:
            raise CheckpointError(file, f"a tensor {home!r}, of which {name!r} is an alias", "none", _COPY_AGAIN)
    return tensors | {name: tensors[home] for name, home in tied.items()}


@final
@dataclass(frozen=True)
class Slot:
    """The type, shape and size of a tensor in its file.

    Args:
        dtype: its dtype.
        shape: its sizes.
        bytes: its size in the file.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    bytes: int


@final
@dataclass(frozen=True)
class Header:
    """What a safetensors file says about itself.

    Args:
        slots: the tensors, in the order of their bytes.
        metadata: other names and texts.
        bytes: the header as it is in the file, its length included.
    """

    slots: Mapping[str, Slot]
    metadata: Mapping[str, str]
    bytes: bytes


def read_header(stream: IO[bytes], size: int, file: str) -> Header:
    """Read the header of a safetensors file, and check that it describes the whole file.

    Args:
        stream: the file, at its start.
        size: its size in bytes.
        file: its name in messages, as a path.

    Returns:
        The header.

    Raises:
        CheckpointError: it is not safetensors.

    Source: the format's own description, https://github.com/huggingface/safetensors#format.

    Example:
        >>> data, _ = pack({"weight": torch.ones(2, 3)}, "model")
        >>> read_header(BytesIO(data), len(data), "model.safetensors").slots["weight"].shape
        (2, 3)
    """
    start = stream.read(_LENGTH.size)
    length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else size
    if length > min(_LONGEST_HEADER, size - _LENGTH.size):
        raise _wrong(file, f"a header of {length:,} bytes in a file of {size:,}")
    text = stream.read(length)
    table = decode_mapping(text.rstrip(b" "), file)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _wrong(file, "metadata that is not text")
    slots, offset = {}, 0
    for name, (begin, end, slot) in sorted(
        ((name, _slot(name, entry, file)) for name, entry in table.items()), key=lambda item: item[1][:2]
    ):
        if begin != offset:
            raise _wrong(file, f"{name[:80]!r} at byte {begin:,}, not {offset:,}")
        slots[name], offset = slot, end
    if offset != size - _LENGTH.size - length:
        raise _wrong(file, f"{size - _LENGTH.size - length:,} bytes of tensors, not {offset:,}")
    return Header(slots, cast("dict[str, str]", metadata), start + text)


def read_tensors(
    stream: IO[bytes], size: int, file: str, on_read: Callable[[Any], object] = lambda piece: None
) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file; each byte is in memory once.

    Args:
        stream: the file, at its start.
        size: its size in bytes.
        file: its name in messages, as a path.
        on_read: called with every byte of the file, in order, to compute a digest.

    Returns:
        Name to tensor, on the CPU.

    Raises:
        CheckpointError: it is not safetensors.
        OutOfMemoryError: the tensors do not fit in memory.
    """
    header = read_header(stream, size, file)
    on_read(header.bytes)
    with room_for(file, FREE):
        return {name: _read_one(stream, slot, file, on_read) for name, slot in header.slots.items()}


def read_some(stream: IO[bytes], header: Header, names: Sequence[str], file: str) -> dict[str, Tensor]:
    """Read some tensors of a safetensors file.

    Args:
        stream: the file, which can seek.
        header: its header, as `read_header` found it.
        names: which ones.
        file: its name in messages, as a path.

    Returns:
        Name to tensor, on the CPU.

    Raises:
        CheckpointError: the file was shortened since.
        OutOfMemoryError: the tensors do not fit in memory.

    Example:
        >>> stream = BytesIO(pack({"bias": torch.zeros(2), "weight": torch.ones(2)}, "model")[0])
        >>> header = read_header(stream, len(stream.getvalue()), "model.safetensors")
        >>> read_some(stream, header, ["weight"], "model.safetensors")
        {'weight': tensor([1., 1.])}
    """
    tensors, start = {}, len(header.bytes)
    with room_for(file, FREE):
        for name, slot in header.slots.items():
            if name in names:
                stream.seek(start)
                tensors[name] = _read_one(stream, slot, file, lambda piece: None)
            start += slot.bytes
    return tensors


def _read_one(stream: IO[bytes], slot: Slot, file: str, on_read: Callable[[Any], object]) -> Tensor:
    numbers = torch.empty(slot.bytes, dtype=torch.uint8, device="cpu")
    remaining = numbers.numpy().data
    while remaining:
        count = stream.readinto(remaining[:_PIECE])  # type: ignore[attr-defined]
        if not count:
            raise _wrong(file, "a file that was shortened while it was read")
        on_read(remaining[:count])
        remaining = remaining[count:]
    return numbers.view(slot.dtype).reshape(slot.shape)


def _slot(name: str, entry: JsonValue, file: str) -> tuple[int, int, Slot]:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)], **rest} if not rest:
            sizes = [size for size in shape if type(size) is int and 0 <= size < 1 << 63]
            count = prod(sizes)
            is_valid = dtype in _DTYPES and len(sizes) == len(shape) and 0 <= begin <= end and count < 1 << 60
            if is_valid and count * _DTYPES[dtype].itemsize == end - begin:
                return begin, end, Slot(_DTYPES[dtype], tuple(sizes), end - begin)
    raise _wrong(file, f"{name[:80]!r}: {str(entry)[:120]}")


def _wrong(file: str, got: str) -> CheckpointError:
    return CheckpointError(file, "safetensors", got, _COPY_AGAIN)


def _with_own_memory(tensor: Tensor, memories: set[int]) -> Tensor:
    # Different views of one memory are stored separately: all but the first are copied.
    dense = tensor.detach().cpu().contiguous()
    memory = dense.untyped_storage().data_ptr()
    if memory in memories:
        return dense.clone()
    memories.add(memory)
    return dense


def _check(name: str, tensor: Tensor, file: str) -> None:
    dense = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized
    if not dense or tensor.is_complex():
        got = f"{name!r}: {tensor.dtype}, {tensor.layout}, on {tensor.device}"
        hint = "Convert it to a plain dense tensor of real numbers first."
        raise CheckpointError(file, "dense tensors with data", got, hint)
    if not name or name == "__metadata__":
        hint = "Rename the tensor."
        raise CheckpointError(file, "names supported by safetensors", repr(name), hint)


def _identity(name: str, tensor: Tensor) -> object:
    if tensor.numel() == 0:
        return name
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
