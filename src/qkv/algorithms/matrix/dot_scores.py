"""Scores of dot products in one operation of PyTorch, which also applies scale and bias."""

from math import frexp

import torch
from torch import Tensor

from qkv.engine.problem import Call, Problem
from qkv.normalizers.dense import Sigmoid
from qkv.scores.pointwise import Linear, Softcap
from qkv.shapes import Shape


def scores(problem: Problem, call: Call) -> Tensor | None:
    """Compute scale·q·k + bias, or + the shift of a sigmoid, in one operation; then the soft cap.

    Args:
        problem, call: the problem and its tensors.

    Returns:
        The scores (..., Q, K), in new memory; None if one operation cannot compute them: for other scores than dot
        products, traced calls, half precision (which is cast first), or operands that broadcast.
    """
    supported = (
        problem.core == "dot"
        and isinstance(problem.pointwise, (Linear, Softcap))
        and problem.mode in ("eager", "wrapped")
        and not problem.constant
        # Scaling inside the product would round equal products apart, and so break ties.
        and problem.normalizer != "hard"
        and problem.dtype in (torch.float32, torch.float64)
        and problem.device == "cpu"
        and len(problem.leading) > 0
    )
    if not supported:
        return None
    query, key, scale, _ = call.score.prepare(call.query, call.key)
    if isinstance(scale, Tensor) or not query.shape[:-2] == key.shape[:-2] == problem.leading:
        return None
    plain = call.bias is None and not isinstance(call.normalizer, Sigmoid)
    if isinstance(problem.pointwise, Softcap):
        # A bias is added after the tanh, so this serves no bias.
        return _capped(query, key, scale, problem.pointwise.cap) if plain else None
    if plain:
        return _product(query, key, scale, None)
    added = _added(problem, call)
    return None if added is None else _product(query, key, scale, added)


def _capped(query: Tensor, key: Tensor, scale: float, cap: float) -> Tensor:
    """Compute c·tanh(scale·q·k/c)."""
    s_QK = _product(query, key, scale / cap, None)
    return cap * torch.tanh(s_QK) if s_QK.requires_grad else s_QK.tanh_().mul_(cap)


def _added(problem: Problem, call: Call) -> Tensor | float | None:
    """Return what is added to the products, broadcasting to (items, Q, K); None if a matrix would have to be copied."""
    leading, normalizer = problem.leading, call.normalizer
    if isinstance(normalizer, Sigmoid):
        if call.bias is not None:
            return None
        shift = normalizer.shift(problem.keys)
        return _flat(shift.to(problem.dtype), leading) if isinstance(shift, Tensor) else shift
    bias = call.bias_tensor
    assert bias is not None
    if bias.ndim <= 2:
        return bias
    per_item = bias.shape[:-2].numel() == torch.Size(leading).numel()
    return _flat(bias, leading) if per_item else None


def _flat(x: Tensor, leading: Shape) -> Tensor:
    """Reshape (..., h, c) to (items, h, c); leave a scalar as it is."""
    return x if x.ndim == 0 else x.expand(*leading, *x.shape[-2:]).flatten(0, len(leading) - 1)


def _product(query: Tensor, key: Tensor, scale: float, added: Tensor | float | None) -> Tensor:
    one = query.ndim == 3
    query_flat, key_flat = (query, key.mT) if one else (query.flatten(0, -3), key.flatten(0, -3).mT)
    if isinstance(added, Tensor):
        products = torch.baddbmm(added, query_flat, key_flat, alpha=scale)
    elif scale <= 1 and frexp(scale)[0] == 0.5:
        # Scaling the query by a power of two is exact, and it is smaller than the matrix.
        products = torch.bmm(query_flat if scale == 1 else query_flat * scale, key_flat)
    else:
        products = torch.bmm(query_flat, key_flat).mul_(scale)
    if isinstance(added, float):
        products = products.add_(added)
    return products if one else products.view(*query.shape[:-1], key.shape[-2])
