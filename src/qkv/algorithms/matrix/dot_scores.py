"""Scores of dot products whose scale and bias PyTorch's product takes with it, not a pass over the matrix each."""

from math import frexp

import torch
from torch import Tensor

from qkv.engine.problem import Call, Problem
from qkv.normalizers.dense import Sigmoid
from qkv.scores.pointwise import Linear, Softcap
from qkv.shapes import Shape


def scores(problem: Problem, call: Call) -> Tensor | None:
    """scale·q·k + bias in one operation, with what a sigmoid adds; then the soft cap.

    Args:
        problem, call: what is asked.

    Returns:
        The scores (..., Q, K) as the normalizer takes them, memory of their own; or None where they cannot be made so:
        other scores than dot products, traced calls, half precision (which is widened first), operands that broadcast.
    """
    served = (
        problem.core == "dot"
        and isinstance(problem.pointwise, (Linear, Softcap))
        and problem.mode in ("eager", "wrapped")
        and not problem.constant
        # Ties of equal products are broken by a scale that is rounded with them.
        and problem.normalizer != "hard"
        and problem.dtype in (torch.float32, torch.float64)
        and problem.device == "cpu"
        and len(problem.leading) > 0
    )
    if not served:
        return None
    query, key, scale, _ = call.score.prepare(call.query, call.key)
    if isinstance(scale, Tensor) or not query.shape[:-2] == key.shape[:-2] == problem.leading:
        return None
    plain = call.bias is None and not isinstance(call.normalizer, Sigmoid)
    if isinstance(problem.pointwise, Softcap):
        # What is added follows the tanh, so there must be nothing.
        return _capped(query, key, scale, problem.pointwise.cap) if plain else None
    if plain:
        return _product(query, key, scale, None)
    added = _added(problem, call)
    return None if added is None else _product(query, key, scale, added)


def _capped(query: Tensor, key: Tensor, scale: float, cap: float) -> Tensor:
    """c·tanh(scale·q·k/c)."""
    s_QK = _product(query, key, scale / cap, None)
    return cap * torch.tanh(s_QK) if s_QK.requires_grad else s_QK.tanh_().mul_(cap)


def _added(problem: Problem, call: Call) -> Tensor | None:
    """What is added to the products, of a shape that broadcasts to (items, Q, K) without a copy of a matrix."""
    leading, normalizer = problem.leading, call.normalizer
    if isinstance(normalizer, Sigmoid):
        shift = torch.as_tensor(normalizer.shift(problem.keys), dtype=problem.dtype, device=call.query.device)
        return None if call.bias is not None else _flat(shift, leading)
    bias = call.bias_tensor
    assert bias is not None
    if bias.ndim <= 2:
        return bias
    whole = bias.shape[:-2].numel() == torch.Size(leading).numel()
    return _flat(bias, leading) if whole else None


def _flat(x: Tensor, leading: Shape) -> Tensor:
    """(..., h, c) to (items, h, c); a number as it is."""
    return x if x.ndim == 0 else x.expand(*leading, *x.shape[-2:]).flatten(0, len(leading) - 1)


def _product(query: Tensor, key: Tensor, scale: float, added: Tensor | None) -> Tensor:
    query_flat, key_flat = query.flatten(0, -3), key.flatten(0, -3).mT
    if added is None and 0 < scale <= 1 and frexp(scale)[0] == 0.5:
        # `baddbmm` would fill the matrix with what it adds before it multiplies, even where that counts for nothing. A
        # power of two rounds no number of the query.
        flat = torch.bmm(query_flat if scale == 1 else query_flat * scale, key_flat)
    else:
        nothing = query.new_zeros(()) if added is None else added
        flat = torch.baddbmm(nothing, query_flat, key_flat, alpha=scale)
    return flat.view(*query.shape[:-1], key.shape[-2])
