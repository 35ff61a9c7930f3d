"""Rivals: for each case, a function to time, or the reason why a library has none."""

import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from benchmarks.engine.cases import FORWARD, Case
from benchmarks.engine.mechanisms import BANDWIDTH, Equation
from torch import Tensor
from torch.nn import functional as F

Offer = Equation | str
"""A function (query, key, value, *parameters) -> output, or the reason why a library has none."""

FULL, COMPILED, FUSED, FLEX, KEOPS, KERAS = "full tensor", "torch.compile", "SDPA", "FlexAttention", "KeOps", "Keras"


def offer(rival: str, case: Case, mechanism: str, what: str, dropout: float) -> Offer:
    """Return a rival's function for a case.

    Args:
        rival: its name in `RIVALS`.
        case: the problem.
        mechanism: its name.
        what: `FORWARD` or `BOTH`.
        dropout: the fraction of weights dropped: 0 while results are compared.
    """
    return RIVALS[rival](case, mechanism, what, dropout)


def _full(case: Case, mechanism: str, what: str, dropout: float) -> Offer:
    return case.full(dropout)[0]


def _compiled(case: Case, mechanism: str, what: str, dropout: float) -> Offer:
    _, how = case.full()
    if how != "whole":
        return f"the full tensor does not fit: {how}"
    torch.compiler.reset()
    equation = partial(case.mechanism.full, dropout=dropout) if dropout else case.mechanism.full
    return torch.compile(equation, dynamic=False)


def _fused(case: Case, mechanism: str, what: str, dropout: float) -> Offer:
    sdpa = F.scaled_dot_product_attention
    offers: dict[str, Equation] = {
        "scaled_dot": sdpa,
        "causal": lambda q, k, v, _: sdpa(q, k, v, is_causal=True),
        "dropout": lambda q, k, v: sdpa(q, k, v, dropout_p=dropout),
        "learned_bias": lambda q, k, v, bias: sdpa(q, k, v, attn_mask=bias.expand(*q.shape[:-1], k.shape[-2])),
    }
    return offers.get(mechanism, "it only computes softmax over scaled dot products")


def _flex(case: Case, mechanism: str, what: str, dropout: float) -> Offer:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if what != FORWARD:
        return "it has no backward pass on the CPU"
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    if mechanism == "scaled_dot":
        return partial(compiled)
    if mechanism == "softcap":
        return lambda q, k, v: compiled(q, k, v, score_mod=lambda s, b, h, i, j: 10 * torch.tanh(s / 10))
    if mechanism == "causal":
        queries, keys = case.size.queries, case.size.keys
        blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, queries, keys, device="cpu")
        return lambda q, k, v, _: compiled(q, k, v, block_mask=blocks)
    return "it only supports elementwise changes of scaled dot products under softmax"


@cache
def _keops() -> Any:
    """`LazyTensor`, or None if KeOps is not installed."""
    if importlib.util.find_spec("pykeops") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pykeops.torch import LazyTensor
    return LazyTensor


def _symbolic(case: Case, mechanism: str, what: str, dropout: float) -> Offer:
    if mechanism not in _FORMULAS:
        return "this benchmark has no formula for it"
    if _keops() is None:
        return "pykeops is not installed: pip install '.[bench]'"
    return _FORMULAS[mechanism]


def _pairs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, Any, Any]:
    lazy = _keops()
    a, b, c = (lazy(x.contiguous()) for x in (q[..., :, None, :], k[..., None, :, :], v[..., None, :, :]))
    return a, b, c


def _lazy_dot(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b, c = _pairs(q * q.shape[-1] ** -0.5, k, v)
    output: Tensor = (a | b).sumsoftmaxweight(c, axis=q.ndim - 1)
    return output


def _lazy_additive(q: Tensor, k: Tensor, v: Tensor, vector: Tensor, *weights: Tensor) -> Tensor:
    if weights:
        q, k = q @ weights[0].mT, k @ weights[1].mT
    a, b, c = _pairs(q, k, v)
    hidden = 1 - 2 / (1 + (2 * (a + b)).exp())
    wide = vector.expand(*q.shape[:-2], 1, 1, -1).contiguous()
    output: Tensor = (hidden | _keops()(wide)).sumsoftmaxweight(c, axis=q.ndim - 1)
    return output


def _lazy_distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b, c = _pairs(q, k, v)
    output: Tensor = (a.sqdist(b) / (-2 * BANDWIDTH["gaussian"] ** 2)).sumsoftmaxweight(c, axis=q.ndim - 1)
    return output


def _lazy_kernel(shape: Callable[[Any], Any], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b, c = _pairs(q, k, v)
    weights, axis = shape(a.sqdist(b)), q.ndim - 1
    output: Tensor = (weights * c).sum(axis) / weights.sum(axis)
    return output


def _lazy_concat_mean(q: Tensor, k: Tensor, v: Tensor, query_vector: Tensor, key_vector: Tensor) -> Tensor:
    a, b, c = _pairs((q @ query_vector)[..., None], (k @ key_vector)[..., None], v)
    output: Tensor = ((a + b).relu() * c).sum(q.ndim - 1) / k.shape[-2]
    return output


def _lazy_mean(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b, c = _pairs(q, k, v)
    output: Tensor = ((a | b) * c).sum(q.ndim - 1) / k.shape[-2]
    return output


_FORMULAS: dict[str, Equation] = {
    "scaled_dot": _lazy_dot,
    "additive": _lazy_additive,
    "projected": _lazy_additive,
    "squared_distance": _lazy_distance,
    "gaussian": partial(_lazy_kernel, lambda x: (x / (-2 * BANDWIDTH["gaussian"] ** 2)).exp()),
    "boxcar": partial(_lazy_kernel, lambda x: (BANDWIDTH["boxcar"] ** 2 - x).step()),
    "epanechnikov": partial(_lazy_kernel, lambda x: (1 - x / BANDWIDTH["epanechnikov"] ** 2).relu()),
    "boxcar_line": partial(_lazy_kernel, lambda x: (0.25 - x).step()),
    "epanechnikov_line": partial(_lazy_kernel, lambda x: (1 - x / 0.25).relu()),
    "concat_mean": _lazy_concat_mean,
    "mean": _lazy_mean,
}


@cache
def _layers() -> Any:
    """Keras's layers on PyTorch; None if Keras is not installed, or was loaded with another backend."""
    if importlib.util.find_spec("keras") is None:
        return None
    os.environ["KERAS_BACKEND"] = "torch"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras
    return keras.layers if keras.backend.backend() == "torch" else None


def _keras(case: Case, mechanism: str, what: str, dropout: float) -> Offer:
    if mechanism not in ("scaled_dot", "causal", "additive", "projected"):
        return "Keras has no such layer"
    if _layers() is None:
        return "Keras is not installed with PyTorch as its backend"
    if mechanism in ("scaled_dot", "causal"):
        return partial(_keras_dot, _layers().Attention(), mechanism == "causal")
    layer = _layers().AdditiveAttention()
    layer.build([(None, None, case.size.width)] * 3)
    return partial(_keras_additive, layer)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])


def _keras_dot(layer: Any, causal: bool, q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    output: Tensor = layer([_flat(q * q.shape[-1] ** -0.5), _flat(v), _flat(k)], use_causal_mask=causal)
    return output.reshape(*q.shape[:-1], v.shape[-1])


def _keras_additive(layer: Any, q: Tensor, k: Tensor, v: Tensor, vector: Tensor, *weights: Tensor) -> Tensor:
    if weights:
        q, k = q @ weights[0].mT, k @ weights[1].mT
    # A layer's variable cannot be one of our leaves: the vector is passed through its `scale`.
    layer.scale = vector
    output: Tensor = layer([_flat(q), _flat(v), _flat(k)])
    return output.reshape(*q.shape[:-1], v.shape[-1])


RIVALS: dict[str, Callable[[Case, str, str, float], Offer]] = {
    FULL: _full,
    COMPILED: _compiled,
    FUSED: _fused,
    FLEX: _flex,
    KEOPS: _symbolic,
    KERAS: _keras,
}
