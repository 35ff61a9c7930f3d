"""What arguments of other libraries are called here."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import ParamSpec, TypeVar

import torch

from qkv.errors import ArgumentError, QkvError, nearest

P = ParamSpec("P")
R = TypeVar("R")

_CAUSAL = "Pass mask=qkv.masks.causal()."
_MASK = "Pass a bool tensor as mask= (True: may attend), a float tensor as bias=."
_SCALE = "Pass score=qkv.scores.ScaledDot(scale=...)."
_FLEX = "qkv.flex_attention takes it."
_HEADS = "Heads are a dimension of the tensors: (B, H, N, D)."
ATTENTION: Mapping[str, str] = MappingProxyType(
    {
        "is_causal": _CAUSAL,
        "causal": _CAUSAL,
        "attn_mask": _MASK,
        "attention_mask": _MASK,
        "attn_bias": "Pass bias=.",
        "key_padding_mask": "Pass mask=qkv.masks.lengths(...), or mask=~key_padding_mask[:, None, None, :].",
        "scale": _SCALE,
        "scaling": _SCALE,
        "softmax_scale": _SCALE,
        "softcap": "Pass score=qkv.scores.ScaledDot(softcap=...).",
        "alibi_slopes": "Pass bias=qkv.biases.alibi(slopes).",
        "window_size": "Pass mask=qkv.masks.window(left, right).",
        "sliding_window": "Pass mask=qkv.masks.window(left, right).",
        "s_aux": "Pass normalizer=qkv.normalizers.Softmax(sink=...).",
        "dropout_p": "Pass dropout=.",
        "need_weights": "Call qkv.attention_with_weights.",
        "return_lse": "Call qkv.attention_with_state.",
        "score_mod": _FLEX,
        "block_mask": _FLEX,
        "embed_dim": "The width is that of the tensors; qkv.nn.MultiHeadAttention has projections.",
        "num_heads": _HEADS,
        "n_heads": _HEADS,
    }
)
"""Arguments of other attention functions, and what to pass to `qkv.attention`."""
LAYER: Mapping[str, str] = MappingProxyType(
    {
        "embed_dim": "Pass width=.",
        "num_heads": "Pass heads=.",
        "kdim": "Pass key_width=.",
        "vdim": "Pass value_width=.",
        "batch_first": "The batch comes first; qkv.nn.TorchMultiheadAttention takes both orders.",
        "add_bias_kv": "Pass extra_key=True.",
        "add_zero_attn": "A key with score 0 and value 0 is normalizer=qkv.normalizers.Softmax(sink=0.0).",
        "num_key_value_heads": "Pass key_heads=.",
        "n_heads": "Pass heads=.",
        "d_model": "Pass width=.",
        "head_dim": "Pass head_width=.",
        "dropout_p": "Pass dropout=.",
        "is_causal": "Pass mask=qkv.masks.causal() in each call.",
        "device": "Call .to(device) on the layer.",
        "dtype": "Call .to(dtype) on the layer.",
    }
)
"""Arguments of other multi-head attention layers, and what to pass to `qkv.nn.MultiHeadAttention`."""
_RECORD = "Record it: with qkv.record(layer) as trace."
CALL: Mapping[str, str] = MappingProxyType(
    {
        "is_causal": _CAUSAL,
        "causal": _CAUSAL,
        "attn_mask": _MASK,
        "attention_mask": _MASK,
        "attn_bias": "Pass bias=.",
        "key_padding_mask": ATTENTION["key_padding_mask"],
        "need_weights": _RECORD,
        "average_attn_weights": _RECORD,
        "output_attentions": _RECORD,
        "scale": "Create the layer with score=qkv.scores.ScaledDot(scale=...).",
        "dropout_p": "Create the layer with dropout=.",
    }
)
"""Arguments of the calls of other multi-head attention layers, and what to pass to those of `MultiHeadAttention`."""


def unknown_argument(unknown: Iterable[str], valid: Iterable[str], others: Mapping[str, str]) -> ArgumentError | None:
    """Return the error for the first unknown argument, or None if all are known.

    Args:
        unknown: the names that were given.
        valid: the names that the function has.
        others: for names that other libraries use, one sentence that says what to do.

    Example:
        >>> print(unknown_argument(["mask", "is_causal"], ["mask", "bias"], ATTENTION))
        is_causal: expected an argument of this function; got 'is_causal'. Pass mask=qkv.masks.causal().
    """
    names = list(valid)
    name = next((name for name in unknown if name not in names), None)
    if name is None:
        return None
    hint = others.get(name) or nearest(name, [valid for valid in names if valid != "self"])
    return ArgumentError(name, "an argument of this function", repr(name), hint)


def explain_arguments(others: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that an unknown argument raises an error that says what it is called here.

    Args:
        others: as for `unknown_argument`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        valid = inspect.signature(function).parameters

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                unknown = None if isinstance(error, QkvError) else unknown_argument(kwargs, valid, others)
                if unknown is None:
                    raise
                raise unknown from None

        return run

    return decorate
