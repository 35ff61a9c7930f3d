"""Named tensors as safetensors bytes; tensors that share their memory are stored once."""

from collections.abc import Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.errors import CheckpointError, error_message

_AGAIN = "It is not what was saved: get the checkpoint again from where it came."


def pack(tensors: Mapping[str, Tensor], what: str) -> tuple[bytes, dict[str, str]]:
    """Turn named tensors into safetensors bytes, the same bytes for the same values.

    Args:
        tensors: name to tensor, any shapes, strides and devices.
        what: the name that messages use.

    Returns:
        The bytes, and for each name whose tensor is another one's very memory the name that is stored.

    Raises:
        CheckpointError: a kind of tensor that cannot be stored (sparse, complex, without data).

    Example:
        >>> shared = torch.ones(2)
        >>> data, tied = pack({"embedding": shared, "output": shared}, "model")
        >>> tied
        {'output': 'embedding'}
        >>> sorted(unpack(data, tied, "model"))
        ['embedding', 'output']
    """
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    homes: dict[object, str] = {}
    memories: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name]
        _check(name, tensor, what)
        home = homes.setdefault(_identity(name, tensor), name)
        if home == name:
            kept[name] = _apart(tensor, memories)
        else:
            tied[name] = home
    try:
        return safetensors.torch.save(kept), tied
    except (SafetensorError, ValueError, KeyError) as error:
        hint = "Convert these tensors to a plain dense type, such as float32."
        raise CheckpointError(error_message(what, "tensors that safetensors can hold", str(error), hint)) from error


def unpack(data: bytes, tied: Mapping[str, str], what: str) -> dict[str, Tensor]:
    """Read what `pack` wrote.

    Args:
        data: safetensors bytes.
        tied: the names that stand for another one's tensor.
        what: the name that messages use, as a path.

    Returns:
        Name to tensor, on the CPU; tied names give the same tensor object.

    Raises:
        CheckpointError: not safetensors, or a tie that leads nowhere.
    """
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(error_message(what, "safetensors", str(error)[:200], _AGAIN)) from error
    for name, home in tied.items():
        if name in tensors or home not in tensors:
            raise CheckpointError(error_message(what, f"a tensor {home!r} that {name!r} stands for", "none", _AGAIN))
    return tensors | {name: tensors[home] for name, home in tied.items()}


def _apart(tensor: Tensor, memories: set[int]) -> Tensor:
    # Views of one memory that differ are stored apart: all but the first are copied.
    dense = tensor.detach().cpu().contiguous()
    memory = dense.untyped_storage().data_ptr()
    if memory in memories:
        return dense.clone()
    memories.add(memory)
    return dense


def _check(name: str, tensor: Tensor, what: str) -> None:
    dense = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized
    if not dense or tensor.is_complex():
        got = f"{name!r}: {tensor.dtype}, {tensor.layout}, on {tensor.device}"
        hint = "Convert it to a plain dense tensor of real numbers first."
        raise CheckpointError(error_message(what, "dense tensors with data", got, hint))
    if not name or name == "__metadata__":
        hint = "Rename the tensor."
        raise CheckpointError(error_message(what, "names that safetensors can hold", repr(name), hint))


def _identity(name: str, tensor: Tensor) -> object:
    if tensor.numel() == 0:
        return name
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
