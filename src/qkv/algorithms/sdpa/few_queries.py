"""Softmax attention over dot products for few queries: one compiled pass over keys and values.

A decoding step reads its whole cache and does little arithmetic with it. PyTorch's kernel computes a separate matrix
product for the few numbers of each row; this pass reads each key and value once for all heads, in its stored layout,
and does not read masked keys at all. The result is exact: the pass evaluates the same softmax over the same keys.
"""

import numpy as np
import torch
from torch import Tensor

from qkv.algorithms.sdpa import few_queries_kernel
from qkv.algorithms.sdpa.flash import refuses_mechanism
from qkv.algorithms.sdpa.operands import by_head, contiguous_last_dim, products_of
from qkv.compiled import available, thread_pool
from qkv.compiled.strided import StridedArray, as_strided_array
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.problem import Call, Problem, first_reason
from qkv.engine.work import memory_traffic, pairs_of, product_operations

MOST = 8
"""The largest number of queries; with more of them PyTorch's tiled matrix products are faster."""
LEAST = 64
"""The smallest batch × heads: below it, the call overhead cancels the gain, and a short decoding process need not
load kernels."""
_MICROSECONDS = 5e-4
"""Microseconds of one thread per element of the query and key."""
_NO_MASK, _NO_LSE = np.empty(0, np.bool_), np.empty(0, np.float32)


def refuses(problem: Problem) -> str | None:
    """Return why this pass cannot compute a problem, or is no faster than PyTorch's kernel; None if it can."""
    # This comes first: the size checks below would specialize a traced program to these sizes.
    if problem.mode != "eager":
        return "compiled kernels serve eager calls"
    return first_reason(
        (problem.gradient, "it has no backward pass"),
        (problem.state, "it would round the row state to float32"),
        (problem.dtype != torch.float32, f"the dtype is {problem.dtype}, not float32"),
        (problem.bias != "none", "a bias is added to the scores"),
        (problem.sink, "the softmax has a sink"),
        (problem.queries > MOST, f"more than {MOST} queries: tiled matrix products are faster"),
        (problem.rows < LEAST, f"fewer than {LEAST} items: the call would cost more than it saves"),
    ) or refuses_mechanism(problem)


def work(problem: Problem) -> Work:
    """Count one read of the keys and values, and two products."""
    counts = {
        "operations": product_operations(problem),
        **memory_traffic(problem),
        "pairs": pairs_of(problem),
        "mask": pairs_of(problem) if problem.mask != "all" else 0,
    }
    return Work(product_operations(problem), 4 * pairs_of(problem), counts)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Compute softmax attention; keys and values that every query masks may hold any number."""
    query, key, value, scale = products_of(call)
    visible = call.visibility.matrix()
    query, key, value = (by_head(x, problem.leading) for x in (query, key, value))
    if visible is not None:
        visible = by_head(visible.expand(*visible.shape[:-2], problem.queries, problem.keys), problem.leading)
        if visible.shape[1] > 1 and visible.stride(1):
            # Each head has its own mask, so each head becomes a batch item of its own.
            query, key, value, visible = (x.reshape(-1, 1, *x.shape[2:]) for x in (query, key, value, visible))
    output = _attend(query, key, value, visible, scale)
    if output.shape[:-2] != problem.leading:
        output = output.reshape(*problem.leading, *output.shape[2:])
    return Result(output, None)


def _attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scale: float) -> Tensor:
    """Return the output (B, H, Q, V); the mask is (B, 1, Q, K), None if all keys are visible."""
    items, heads, queries, width = query.shape
    keys, value_width = value.shape[2:]
    q, k, v = (as_strided_array(contiguous_last_dim(x)) for x in (query, key, value))
    mask = None
    if visible is not None:
        mask = StridedArray(as_strided_array(visible).numbers, (visible.stride(0), *visible.stride()[2:]))
    output = query.new_empty(items, queries, heads, value_width)
    shape = items, heads, queries, keys, width, value_width
    sizes = np.array(attend_sizes(shape, q.strides, k.strides, v.strides, mask), np.uint64)
    numbers = q.numbers, k.numbers, v.numbers, _NO_MASK if mask is None else mask.numbers, output.view(-1).numpy()
    padded_keys = -keys // few_queries_kernel.ROUND * -few_queries_kernel.ROUND
    time = items * heads * queries * width * keys * _MICROSECONDS
    scratch = ((padded_keys,), np.uint64), ((heads, padded_keys), np.float32)
    arguments = sizes, np.float32(scale), *numbers, _NO_LSE
    thread_pool.run_in_chunks(few_queries_kernel.forward, np.float32, items * queries, time, arguments, scratch)
    return output.transpose(1, 2)


def attend_sizes(
    shape: tuple[int, int, int, int, int, int],
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
    mask: StridedArray | None,
) -> tuple[int, ...]:
    """Return the `sizes` of `few_queries_kernel.forward`.

    Args:
        shape: B, H, Q, K, F and V.
        query: its strides over B, H and Q; the last dimension is contiguous.
        key, value: likewise, over B, H and K.
        mask: with strides over B, Q and K; None if all keys are visible.
    """
    return (*shape[1:], *query, *key, *value, *((0, 0, 0) if mask is None else mask.strides))


FEW_QUERIES = Algorithm(
    "sdpa.few_queries",
    "sdpa",
    "one compiled pass over the keys of few queries",
    refuses,
    work,
    run,
    kernels=available.why_unavailable,
    reads_hidden_keys=False,
)
