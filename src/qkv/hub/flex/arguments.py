"""The checks of `flex_attention`, with the exceptions that PyTorch raises, and messages that say what to do."""

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from qkv.errors import ArgumentError, ConfigError, DtypeError, MaskError, ShapeError, UnsupportedError
from qkv.shapes import show
from qkv.values.parameters import expect_floats, expect_real

_BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE")
_ONE_BLOCK = 1 << 30
"""The block size of a mask that was made without sizes."""


class SlicedMaskError(MaskError, RuntimeError):
    """A sliced block mask, whose mask function still counts from the beginning."""


class DeviceError(DtypeError, ValueError, RuntimeError):
    """Tensors, or a block mask, on different devices."""


def check_functions(score_mod: object, post_mod: object, kernel_options: object, return_aux: object) -> None:
    """Check the types of the functions and options.

    Raises:
        ArgumentError: one is of another kind.
    """
    for name, function in (("score_mod", score_mod), ("post_mod", post_mod)):
        if function is not None and not callable(function):
            expected = "a function (score, batch, head, query index, key index) -> score, or None"
            hint = "Omit it for none; a bias is a function that adds it."
            raise ArgumentError(name, expected, type(function).__name__, hint)
    if kernel_options is not None and not isinstance(kernel_options, Mapping):
        hint = "It is checked and ignored here: omit it."
        raise ArgumentError("kernel_options", "a table", type(kernel_options).__name__, hint)
    if return_aux is not None and not hasattr(return_aux, "max_scores"):
        hint = "Import AuxRequest from torch.nn.attention.flex_attention."
        raise ArgumentError("return_aux", "an AuxRequest", type(return_aux).__name__, hint)


def check_scale(scale: object) -> None:
    """Check the factor of the dot products.

    Raises:
        ArgumentError, DtypeError: it is not a number.
    """
    if isinstance(scale, bool) or not isinstance(scale, Real | Tensor | torch.SymFloat | torch.SymInt | None):
        hint = "None stands for 1/√D."
        raise ArgumentError("scale", "a number or None", repr(scale)[:80], hint)
    if isinstance(scale, Tensor):
        expect_real("scale", scale)


def check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Any,
    enable_gqa: bool,
    kernel_options: Mapping[str, Any] | None,
    twice: bool,
) -> None:
    """Raise what PyTorch would, if the arguments do not fit together.

    Args:
        query, key, value, block_mask, enable_gqa, kernel_options: of `flex_attention`.
        twice: whether both `return_lse` and `return_aux` ask for log-sum-exps.
    """
    tensors = {"query": query, "key": key, "value": value}
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise DtypeError(name, "a torch.Tensor", type(x).__name__, "Use torch.as_tensor.")
        if x.device != query.device:
            hint = f"Use {name}.to(query.device)."
            raise DeviceError(name, f"device {query.device}, that of query", f"{x.device}", hint)
        expect_floats(name, x)
        if x.ndim != 4:
            hint = "Add dimensions of size 1, as in x[None]; qkv.attention takes any number of leading dimensions."
            raise UnsupportedError(name, "four dimensions, (B, H, N, width)", f"shape {show(tuple(x.shape))}", hint)
    _check_sizes(query, key, value, enable_gqa)
    if block_mask is not None and not callable(block_mask):
        _check_block_mask(query, key, block_mask)
    elif query.shape[0] != key.shape[0] and block_mask is None:
        hint = "A batch of queries may share keys of batch 1 only with a block mask of the queries' batch."
        raise ShapeError("key", f"batch {query.shape[0]}, that of query", f"{key.shape[0]} and block_mask=None", hint)
    _check_options(kernel_options)
    if twice:
        hint = "Use return_aux=AuxRequest(lse=True) alone."
        raise ConfigError("return_lse", "False beside return_aux", "True", hint)


def _check_sizes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    (batch, heads, _, width), (batch_of_keys, groups, keys, width_of_keys) = query.shape, key.shape
    if width_of_keys != width:
        hint = "Query and key need one width."
        raise ShapeError("key", f"width {width}, that of query", f"width {width_of_keys}", hint)
    if value.shape[:3] != (batch_of_keys, groups, keys):
        hint = "Every key needs its value."
        got = f"shape {show(tuple(value.shape))}"
        raise ShapeError("value", f"the shape {show((batch_of_keys, groups, keys))} of key", got, hint)
    if batch_of_keys not in (batch, 1):
        hint = "The batch of key and value is that of query, or 1."
        raise ShapeError("key", f"batch {batch} or 1", f"batch {batch_of_keys}", hint)
    if not enable_gqa and heads != groups:
        hint = "For grouped-query attention pass enable_gqa=True."
        raise ShapeError("key", f"{heads} heads, as many as query", f"{groups}", hint)
    if enable_gqa and (groups == 0 or heads % groups):
        hint = "Grouped-query attention needs heads of key and value that divide those of query."
        raise ShapeError("key", f"heads that divide {heads}, the query's", f"{groups}", hint)


def _check_block_mask(query: Tensor, key: Tensor, block_mask: Any) -> None:
    if not hasattr(block_mask, "mask_mod") or not hasattr(block_mask, "kv_num_blocks"):
        hint = "Make one with torch.nn.attention.flex_attention.create_block_mask, or pass its mask_mod."
        got = type(block_mask).__name__
        raise MaskError("block_mask", "a BlockMask, a function of four indices, or None", got, hint)
    if getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        hint = "Set its mask_mod from the block mask that was sliced, shifted by the offset of the slice."
        raise SlicedMaskError("block_mask", "a mask_mod of its own", "that of a sliced BlockMask", hint)
    if query.shape[0] != key.shape[0] and block_mask.kv_num_blocks.shape[0] != query.shape[0]:
        hint = "A batch of queries may share keys of batch 1 only with a block mask of the queries' batch."
        got = f"batch {block_mask.kv_num_blocks.shape[0]}"
        raise ShapeError("block_mask", f"batch {query.shape[0]}, that of query", got, hint)
    if block_mask.kv_num_blocks.device != query.device:
        hint = "Use block_mask.to(query.device)."
        got = f"{block_mask.kv_num_blocks.device}"
        raise DeviceError("block_mask", f"device {query.device}, that of query", got, hint)
    sizes, block_sizes = (query.shape[-2], key.shape[-2]), tuple(block_mask.shape[-2:])
    if tuple(block_mask.BLOCK_SIZE) != (_ONE_BLOCK, _ONE_BLOCK) and block_sizes != sizes:
        hint = "Make a block mask of these lengths, or crop this one with block_mask._adjust(q_len, kv_len)."
        raise ShapeError("block_mask", f"lengths {show(sizes)}", f"{show(block_sizes)}", hint)


def _check_options(kernel_options: Mapping[str, Any] | None) -> None:
    backend = (kernel_options or {}).get("BACKEND", "AUTO")
    if backend not in _BACKENDS:
        hint = "It is checked and ignored here: qkv chooses its own algorithms."
        raise ConfigError("kernel_options", f"BACKEND in {', '.join(_BACKENDS)}", repr(backend), hint)


def mask_mod(block_mask: Any) -> Callable[..., Tensor] | None:
    """Return the mask function of a block mask; None without one."""
    if block_mask is None:
        return None
    function: Callable[..., Tensor] = block_mask if callable(block_mask) else block_mask.mask_mod
    return function


def one_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value in the query's dtype; under autocast they are cast as by PyTorch's attention."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind) and query.dtype != torch.float64:
        query = query.to(torch.get_autocast_dtype(kind))
    return query, key.to(query.dtype), value.to(query.dtype)


def laid_out_like(output: Tensor, query: Tensor) -> Tensor:
    """Return the output with its dimensions in memory in the order of the query's, as PyTorch's.

    Example:
        >>> query = torch.zeros(2, 5, 3, 4).transpose(1, 2)
        >>> laid_out_like(torch.zeros(2, 3, 5, 4), query).stride()
        (60, 4, 12, 1)
    """
    strides = query.stride()
    # By comparisons, because PyTorch's compiler sorts no strides of sizes that vary.
    rank = [sum(bool(y > x) or (j < i and bool(y == x)) for j, y in enumerate(strides)) for i, x in enumerate(strides)]
    return output.permute([rank.index(i) for i in range(4)]).contiguous().permute(rank)
