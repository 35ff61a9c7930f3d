"""Scores of dot products in as few operators as possible, with scale, soft cap, bias and the shift of a sigmoid."""

from collections.abc import Callable
from math import frexp

import torch
from torch import Tensor

from qkv.engine.problem import Call, Problem
from qkv.engine.ties import first_equals, shared
from qkv.scores.pointwise import Linear, Softcap


def bind(problem: Problem, call: Call) -> Callable[[Call], Tensor] | None:
    """Return a function that computes scale·q·k, the soft cap, the bias and, if `shifts` says so, that of a sigmoid.

    Args:
        problem: the problem.
        call: one of the calls that the function is for: they have the same sizes, and the same numbers in their scores.

    Returns:
        A function from a call to its scores (..., Q, K), in new memory; None if only the equation serves: for other
        scores than dot products, traced calls, or half precision (which is cast first). The shapes of query and key do
        not decide: zeroing hidden keys may expand them, and the same call would have other bits with and without.
    """
    supported = (
        problem.core == "dot"
        and type(problem.pointwise) in (Linear, Softcap)
        and problem.mode in ("eager", "wrapped")
        and not problem.constant
        and problem.dtype in (torch.float32, torch.float64)
        and problem.device == "cpu"
    )
    if not supported:
        return None
    query, key, scale, _ = call.score.prepare(call.query, call.key)
    if isinstance(scale, Tensor):
        return None
    prepared = query is not call.query or key is not call.key
    cap = problem.pointwise.cap if isinstance(problem.pointwise, Softcap) else None
    factor = scale if cap is None else scale / cap
    # Scaling the query by a power of two is exact, and it is smaller than the matrix.
    query_factor = factor if factor <= 1 and frexp(factor)[0] == 0.5 else 1.0
    hard, biased, shifted = problem.normalizer == "hard", call.bias is not None, shifts(problem)

    def scores(call: Call) -> Tensor:
        query, key = call.score.prepare(call.query, call.key)[:2] if prepared else (call.query, call.key)
        s_QK = (query if query_factor == 1 else query * query_factor) @ key.mT
        if query_factor != factor:
            s_QK.mul_(factor)
        if cap is not None:
            s_QK = cap * torch.tanh(s_QK) if s_QK.requires_grad else s_QK.tanh_().mul_(cap)
        if hard:
            s_QK = shared(s_QK, first_equals(call.key, call.visibility))
        bias = call.bias_tensor if biased else None
        if bias is not None:
            s_QK = _plus(s_QK, bias)
        if shifted:
            s_QK = _plus(s_QK, call.normalizer.shift(problem.keys))  # type: ignore[attr-defined]
        return s_QK

    return scores


def _plus(s_QK: Tensor, added: Tensor | float) -> Tensor:
    """Add to scores of our own in place, unless what is added has leading dimensions that they lack."""
    if isinstance(added, Tensor) and torch.broadcast_shapes(s_QK.shape, added.shape) != s_QK.shape:
        return s_QK + added
    return s_QK.add_(added)


def shifts(problem: Problem) -> bool:
    """Return whether the scores hold the shift of a sigmoid, which without a mask is the same for all rows."""
    return problem.normalizer == "sigmoid" and problem.mask == "all"
