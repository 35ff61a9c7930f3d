"""Softmax attention over dot products for few queries: one compiled pass over keys and values, for backend `sdpa`.

A decoding step reads its whole cache and does little arithmetic with it. PyTorch's kernel computes a separate matrix
product for the few numbers of each row; this pass reads each key and value once for all heads, in its stored layout,
and does not read masked keys at all. The result is exact: the pass evaluates the same softmax over the same keys.
"""

import torch
from torch import Tensor

from qkv.compiled import available
from qkv.compiled.strided import StridedArray, as_strided_array
from qkv.engine.backend import Result
from qkv.engine.problem import Call, Problem
from qkv.shapes import Shape
from qkv.values.parameters import readable

MOST = 8
"""The largest number of queries; with more of them PyTorch's tiled matrix products are faster."""
LEAST = 64
"""The smallest batch × heads: below it, the call overhead cancels the gain, and a short decoding process need not
load Numba."""


def serves(problem: Problem, call: Call) -> bool:
    """Return whether this pass computes a problem that `sdpa` accepts."""
    # This comes first: the size checks below would specialize a traced program to these sizes.
    return (
        not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and 0 < problem.queries <= MOST
        and problem.rows >= LEAST
        and problem.dtype == torch.float32
        and problem.bias == "none"
        and not problem.sink
        and not problem.gradient
        and all(map(readable, (call.query, call.key, call.value)))
        and available.why_unavailable() is None
    )


def run(problem: Problem, call: Call, query: Tensor, key: Tensor, scale: float) -> Result:
    """Attend.

    Args:
        problem, call: the problem and its inputs; keys and values that every query masks may hold any number.
        query: (..., Q, F), operands of dot products.
        key: (..., K, F).
        scale: factor of the dot products.
    """
    seen = call.visibility.matrix()
    query, key, value = (by_head(x, problem.leading) for x in (query, key, call.value))
    if seen is not None:
        seen = by_head(seen.expand(*seen.shape[:-2], problem.queries, problem.keys), problem.leading)
        if seen.shape[1] > 1 and seen.stride(1):
            # Each head has its own mask, so each head becomes a batch item of its own.
            query, key, value, seen = (x.reshape(-1, 1, *x.shape[2:]) for x in (query, key, value, seen))
    output, lse = _attend(query, key, value, seen, scale, problem.state)
    if output.shape[:-2] != problem.leading:
        output = output.reshape(*problem.leading, *output.shape[2:])
    return Result(output, None if lse is None else lse.view(*problem.leading, problem.queries))


def by_head(x: Tensor, leading: Shape, own: int = 2) -> Tensor:
    """Reshape (..., own dimensions) to (batch, heads, own dimensions), as a view if possible."""
    rest = x.shape[x.ndim - own :]
    if x.shape[:-own] != leading:
        x = x.expand(*leading, *rest)
    return x if len(leading) == 2 else x.reshape(-1, leading[-1] if leading else 1, *rest)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, scale: float, state: bool
) -> tuple[Tensor, Tensor | None]:
    from qkv.algorithms.sdpa.few_queries_parallel import attend

    items, heads, queries, width = query.shape
    keys, wide = value.shape[2:]
    q, k, v = (as_strided_array(together(x)) for x in (query, key, value))
    mask = None if seen is None else StridedArray(as_strided_array(seen).numbers, (seen.stride(0), *seen.stride()[2:]))
    output = query.new_empty(items, queries, heads, wide)
    lse = query.new_empty(items, heads, queries) if state else None
    states = None if lse is None else lse.view(-1).numpy()
    attend((items, heads, queries, keys, width, wide), scale, q, k, v, mask, output.view(-1).numpy(), states)
    return output.transpose(1, 2), lse


def together(x: Tensor) -> Tensor:
    """Return the same numbers with a contiguous last dimension and with any lazy negation resolved.

    Example:
        >>> together(torch.ones(2, 3).mT).stride(), together(torch._neg_view(torch.ones(1))).is_neg()
        ((2, 1), False)
    """
    if x.is_neg():
        x = x.resolve_neg()
    return x if x.stride(-1) == 1 else x.contiguous()
