"""Tensors that are no plain dense numbers, and every argument of every public function that they can be put into."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import qkv
from qkv import biases, masks, scores
from qkv.nn.multihead import MultiHeadAttention
from qkv.normalizers import Entmax, Sigmoid, Softmax

HEADS, QUERIES, KEYS, WIDTH = 2, 4, 4, 4
_SIZES = (1, HEADS, QUERIES, WIDTH)


class Logging(Tensor):
    """A subclass with a `__torch_function__` of its own, as units and named tensors have."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as PyTorch does."""
        return super().__torch_function__(func, types, args, kwargs or {})


@final
class Opaque:
    """What has a shape and a dtype, but is no tensor."""

    def __init__(self, x: Tensor) -> None:
        self.shape, self.dtype, self.device, self.ndim = x.shape, x.dtype, x.device, x.ndim


def _nested(x: Tensor, layout: torch.layout) -> Tensor:
    shorter = x if x.ndim < 2 else x[..., :-1, :] if x.ndim == 2 else x[..., :1, :, :].squeeze(-3)
    same = x if x.ndim == shorter.ndim else x[..., 0, :, :]
    return torch.nested.nested_tensor([same, shorter], layout=layout)


def _blocks(x: Tensor) -> tuple[int, int]:
    return (2 if x.shape[-2] % 2 == 0 else 1, 2 if x.shape[-1] % 2 == 0 else 1)


def _quantized(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.quantize_per_tensor(x.float(), 0.1, 0, dtype)


def _in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "jagged": lambda x: _nested(x, torch.jagged),
    "nested": lambda x: _nested(x, torch.strided),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "sparse columns": lambda x: x.to_sparse_csc(),
    "sparse blocks by row": lambda x: x.to_sparse_bsr(_blocks(x)),
    "sparse blocks by column": lambda x: x.to_sparse_bsc(_blocks(x)),
    "mkldnn": lambda x: x.float().to_mkldnn(),
    "quantized": lambda x: _quantized(x, torch.qint8),
    "quantized, unsigned": lambda x: _quantized(x, torch.quint8),
    "quantized per channel": lambda x: torch.quantize_per_channel(
        x.float(), torch.full(x.shape[:1], 0.1), torch.zeros(x.shape[:1], dtype=torch.int64), 0, torch.qint8
    ),
    **{
        f"{dtype}".removeprefix("torch."): (lambda x, dtype=dtype: x.to(dtype))
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu)
    },
    "float4": lambda x: torch.zeros(x.shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "complex": lambda x: x.to(torch.complex64),
    "complex halves": lambda x: x.to(torch.complex32),
    "other device": lambda x: x.to("meta"),
    "array": lambda x: x.float().numpy(),
    "list": lambda x: x.tolist(),
    "text": lambda x: "0.5",
    "opaque": Opaque,
}
"""What no argument can be; a scalar can be a plain number."""

NOT_FLOATS: dict[str, Callable[[Tensor], object]] = {
    **{
        f"{dtype}".removeprefix("torch."): (lambda x, dtype=dtype: x.to(dtype))
        for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.uint16, torch.bool)
    },
}
"""What no floating-point argument can be."""

SERVED: dict[str, Callable[[Tensor], Tensor]] = {
    "subclass": lambda x: x.as_subclass(Logging),
    "parameter": lambda x: nn.Parameter(x, requires_grad=x.is_floating_point()),
    "buffer": nn.Buffer,
    "negated": lambda x: torch._neg_view(-x) if x.is_floating_point() else x,
    "a part of complex numbers": lambda x: torch.complex(x, x).conj().real if x.is_floating_point() else x,
    "imaginary": lambda x: torch.complex(x, -x).conj().imag if x.is_floating_point() else x,
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2] if x.ndim else x,
    "turned": lambda x: x.mT.contiguous().mT if x.ndim > 1 else x,
    "inference": _in_inference,
}
"""What is computed with as with the same numbers in a plain tensor."""


Run = Callable[[Any], Any]


@dataclass(frozen=True)
class Slot:
    """An argument of a call.

    Attributes:
        names: how errors may name it; one of these words.
        plain: a plain tensor that it can be.
        run: calls the function with this argument.
        literally: calls PyTorch's own; of tables that functions close over.
    """

    names: tuple[str, ...]
    plain: Tensor
    run: Run
    literally: Run = lambda x: None


def _tensors() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(_SIZES, generator=draw) for name in ("query", "key", "value")}


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "attention": qkv.attention,
    "attention_with_weights": qkv.attention_with_weights,
    "attention_with_state": qkv.attention_with_state,
    "explain": qkv.explain,
}


def _options() -> Iterator[tuple[str, tuple[str, ...], Tensor, Callable[[Any], dict[str, Any]]]]:
    """Yield name, names in errors, a plain tensor, and the options that a call gets with it."""
    one = torch.tensor(0.5)
    yield "mask", ("mask",), torch.eye(QUERIES, KEYS) > 0, lambda x: {"mask": x}
    yield "mask, dense", ("mask", "dense"), torch.ones(QUERIES, KEYS) > 0, lambda x: {"mask": masks.dense(x)}
    counts = torch.tensor([3])
    yield "mask, lengths", ("mask", "keys"), counts, lambda x: {"mask": masks.lengths(x)}
    yield "mask, both", ("mask", "keys"), counts, lambda x: {"mask": masks.causal() & masks.lengths(x)}
    yield "mask, queries", ("mask", "queries"), counts, lambda x: {"mask": masks.lengths(None, x)}
    yield "mask, span", ("mask", "last"), counts, lambda x: {"mask": masks.span(0, x)}
    yield "mask, causal", ("mask", "offset"), counts, lambda x: {"mask": masks.causal(x)}
    yield "mask, window", ("mask", "offset"), counts, lambda x: {"mask": masks.window(1, 1, offset=x)}
    ids = torch.tensor([[0, 0, 1, 1]])
    yield "mask, documents", ("mask", "documents"), ids, lambda x: {"mask": masks.documents(x)}
    yield "bias", ("bias",), torch.ones(QUERIES, KEYS), lambda x: {"bias": x}
    yield "bias, slopes", ("bias", "Alibi", "alibi"), torch.ones(HEADS), lambda x: {"bias": biases.alibi(x)}
    table = torch.arange(5.0)
    yield "bias, table", ("bias", "Relative", "relative"), table, lambda x: {"bias": biases.relative(x)}
    for kind in (scores.ScaledDot, scores.Cosine):
        yield f"{kind.__name__}(scale)", (kind.__name__,), one, lambda x, kind=kind: {"score": kind(x)}
    square, vector = torch.eye(WIDTH), torch.ones(WIDTH)
    yield "Bilinear(weight)", ("Bilinear",), square, lambda x: {"score": scores.Bilinear(x)}
    yield "Bilinear(scale)", ("Bilinear",), one, lambda x: {"score": scores.Bilinear(square, x)}
    yield "Additive(vector)", ("Additive",), vector, lambda x: {"score": scores.Additive(x)}
    yield "Additive(query_weight)", ("Additive",), square, lambda x: {"score": scores.Additive(vector, x, square)}
    yield "Additive(key_weight)", ("Additive",), square, lambda x: {"score": scores.Additive(vector, square, x)}
    yield "Concat(query_vector)", ("Concat",), vector, lambda x: {"score": scores.Concat(x, vector)}
    yield "Concat(key_vector)", ("Concat",), vector, lambda x: {"score": scores.Concat(vector, x)}
    for kernel in (scores.SquaredDistance, scores.Gaussian, scores.Boxcar, scores.Epanechnikov):
        name = kernel.__name__
        yield f"{name}(bandwidth)", (name,), one, lambda x, kernel=kernel: {"score": kernel(x)}
        yield f"{name}(bandwidth by head)", (name,), torch.ones(2), lambda x, kernel=kernel: {"score": kernel(x)}
    yield "Softmax(sink)", ("Softmax",), one, lambda x: {"normalizer": Softmax(x)}
    yield "Softmax(sink by head)", ("Softmax",), torch.ones(HEADS), lambda x: {"normalizer": Softmax(x)}
    yield "Entmax(alpha)", ("Entmax",), torch.tensor(1.5), lambda x: {"normalizer": Entmax(x)}
    yield "Sigmoid(bias)", ("Sigmoid",), one, lambda x: {"normalizer": Sigmoid(x)}


def slots() -> dict[str, Slot]:
    """Return every argument of every public function that takes tensors."""
    tensors, every = _tensors(), dict[str, Slot]()
    for function, call in FUNCTIONS.items():
        for name, plain in tensors.items():
            # A tensor that is alone of its device or dtype is named, or another one that differs from it.
            every[f"{function}, {name}"] = Slot(
                ("query", "key", "value"), plain, lambda x, call=call, name=name: call(**{**tensors, name: x})
            )
        for name, words, plain, options in _options():
            every[f"{function}, {name}"] = Slot(
                words, plain, lambda x, call=call, options=options: call(**tensors, **options(x))
            )
    for name in ("query", "key"):
        every[f"attention_map, {name}"] = Slot(
            ("query", "key"),
            tensors[name],
            lambda x, name=name: qkv.attention_map(**{"query": tensors["query"], "key": tensors["key"], name: x})[...],
        )
    for name, words, plain, options in _options():
        every[f"attention_map, {name}"] = Slot(
            words,
            plain,
            lambda x, options=options: qkv.attention_map(tensors["query"], tensors["key"], **options(x))[...],
        )
    every |= _of_layers(tensors) | _of_flex(tensors)
    return every


def _of_layers(tensors: Mapping[str, Tensor]) -> dict[str, Slot]:
    torch.manual_seed(0)
    layer = MultiHeadAttention(WIDTH, HEADS)
    flat = {name: x[:, 0] for name, x in tensors.items()}
    every = {
        f"MultiHeadAttention, {name}": Slot((name,), x, lambda x, name=name: layer(**{**flat, name: x}))
        for name, x in flat.items()
    }
    every["MultiHeadAttention, alone"] = Slot(("query",), flat["query"], layer)
    for name, words, plain, options in _options():
        if name.startswith(("mask", "bias")):
            every[f"MultiHeadAttention, {name}"] = Slot(
                words, plain, lambda x, options=options: layer(**flat, **options(x))
            )
    return every


def _of_flex(tensors: Mapping[str, Tensor]) -> dict[str, Slot]:
    call = qkv.flex_attention
    every = {
        f"flex_attention, {name}": Slot(("query", "key", "value"), x, lambda x, name=name: call(**{**tensors, name: x}))
        for name, x in tensors.items()
    }
    square, row, one = torch.ones(QUERIES, KEYS), torch.ones(HEADS), torch.tensor(0.5)
    every["flex_attention, scale"] = Slot(("scale",), one, lambda x: call(**tensors, scale=x))
    functions: dict[str, tuple[Tensor, Callable[..., Any]]] = {
        "table of scores": (square, lambda x, s, b, h, i, j: s + x[i, j]),
        "table by head": (row, lambda x, s, b, h, i, j: s * x[h]),
    }
    for name, (plain, function) in functions.items():
        every[f"flex_attention, {name}"] = Slot(
            ("score_mod",),
            plain,
            lambda x, function=function: call(**tensors, score_mod=partial(function, x)),
            lambda x, function=function: flex_attention(**tensors, score_mod=partial(function, x)),
        )
    every["flex_attention, table of masks"] = Slot(
        ("mask_mod", "mask"),
        square > 0,
        lambda x: call(**tensors, block_mask=lambda b, h, i, j: x[i, j]),
        lambda x: create_block_mask(lambda b, h, i, j: x[i, j], None, None, QUERIES, KEYS, device="cpu"),
    )
    return every
