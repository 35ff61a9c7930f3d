"""Dot products under softmax where queries are few: one compiled pass over keys and values, for backend `sdpa`.

A decoder's step reads what it keeps and does little with it. PyTorch's kernel makes a matrix product of each row's few
numbers; here each key and value is read once, as it lies, for all heads, and what a mask hides is not read at all.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.backends import tanh_operators
from qkv.backends.base import Result
from qkv.parameters import readable
from qkv.problem import Call, Problem
from qkv.shapes import Shape

MOST = 8
"""The most queries; with more of them PyTorch's products of tiles pay."""
LEAST = 64
"""The fewest rows of heads: below, a call takes what it saves, and a process that decodes little needs no Numba."""


def serves(problem: Problem, call: Call) -> bool:
    """Whether this pass computes a problem that `sdpa` does not refuse."""
    # Asked first: a program that is traced must not be cut to the sizes that are asked about below.
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
        and tanh_operators.trouble() is None
    )


def run(problem: Problem, call: Call, query: Tensor, key: Tensor, scale: float) -> Result:
    """Attend.

    Args:
        problem, call: what is asked; what no one may see may hold anything.
        query: (..., Q, F), operands of dot products.
        key: (..., K, F).
        scale: multiplies the products.
    """
    seen = call.visibility.matrix()
    query, key, value = (_by_head(x, problem.leading) for x in (query, key, call.value))
    if seen is not None:
        seen = _by_head(seen.expand(*seen.shape[:-2], problem.queries, problem.keys), problem.leading)
        if seen.shape[1] > 1 and seen.stride(1):
            # Each head sees other keys: an item of its own.
            query, key, value, seen = (x.reshape(-1, 1, *x.shape[2:]) for x in (query, key, value, seen))
    output, lse = _attend(query, key, value, seen, scale, problem.state)
    if output.shape[:-2] != problem.leading:
        output = output.reshape(*problem.leading, *output.shape[2:])
    return Result(output, None if lse is None else lse.view(*problem.leading, problem.queries))


def _by_head(x: Tensor, leading: Shape) -> Tensor:
    """(..., N, F) to (batch, heads, N, F), a view where it can be one."""
    if x.shape[:-2] != leading:
        x = x.expand(*leading, *x.shape[-2:])
    return x if len(leading) == 2 else x.reshape(-1, leading[-1] if leading else 1, *x.shape[-2:])


def _attend(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, scale: float, state: bool
) -> tuple[Tensor, Tensor | None]:
    from qkv.kernels import dot_few, pool

    items, heads, queries, width = query.shape
    keys, wide = value.shape[2:]
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    strides = *query.stride()[:3], *key.stride()[:3], *value.stride()[:3]
    sight = (0, 0, 0) if seen is None else (seen.stride(0), *seen.stride()[2:])
    sizes = np.array([heads, queries, keys, width, wide, *strides, *sight], np.uint64)
    output = query.new_empty(items, queries, heads, wide)
    lse = query.new_empty(items, heads, queries) if state else None
    given = [_flat(x) for x in (query, key, value)]
    mask = np.empty(0, np.bool_) if seen is None else _flat(seen)
    out, states = output.view(-1).numpy(), np.empty(0, np.float32) if lse is None else lse.view(-1).numpy()
    code, room = dot_few.forward.at(np.float32), -keys // dot_few.ROUND * -dot_few.ROUND

    def work(chunk: int) -> None:
        scratch = np.empty(room, np.uint64), np.empty((heads, room), np.float32)
        code(*pool.share(chunk, chunks, items * queries), sizes, scale, *given, mask, out, states, *scratch)

    time = query.numel() * keys * 5e-4
    chunks = pool.chunks(time, items)
    pool.run(work, chunks, time)
    return output.transpose(1, 2), lse


def _flat(x: Tensor) -> NDArray[Any]:
    """From the first number to the last, as they lie."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    found: NDArray[Any] = x.detach().as_strided((last + 1,), (1,)).numpy()
    return found
