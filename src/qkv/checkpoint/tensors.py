"""Named tensors as safetensors bytes; tensors that share memory are stored once."""

from collections.abc import Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from qkv.errors import CheckpointError, error_message

_AGAIN = "The file was altered: copy the checkpoint again from its source."


def pack(tensors: Mapping[str, Tensor], what: str) -> tuple[bytes, dict[str, str]]:
    """Serialize named tensors as safetensors bytes, the same bytes for the same values.

    Args:
        tensors: name to tensor, any shapes, strides and devices.
        what: its name in messages.

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
        raise CheckpointError(error_message(what, "tensors supported by safetensors", str(error), hint)) from error


def unpack(data: bytes, tied: Mapping[str, str], what: str) -> dict[str, Tensor]:
    """Parse the output of `pack`.

    Args:
        data: safetensors bytes.
        tied: the names that are aliases of another tensor.
        what: its name in messages, as a path.

    Returns:
        Name to tensor, on the CPU; tied names give the same tensor object.

    Raises:
        CheckpointError: it is not safetensors, or an alias has no target.
    """
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(error_message(what, "safetensors", str(error)[:200], _AGAIN)) from error
    for name, home in tied.items():
        if name in tensors or home not in tensors:
            raise CheckpointError(
                error_message(what, f"a tensor {home!r}, of which {name!r} is an alias", "none", _AGAIN)
            )
    return tensors | {name: tensors[home] for name, home in tied.items()}


def _apart(tensor: Tensor, memories: set[int]) -> Tensor:
    # Different views of one memory are stored separately: all but the first are copied.
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
        raise CheckpointError(error_message(what, "names supported by safetensors", repr(name), hint))


def _identity(name: str, tensor: Tensor) -> object:
    if tensor.numel() == 0:
        return name
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
