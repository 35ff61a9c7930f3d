"""Softmax attention over dot products for short sequences: one compiled pass per batch item and head.

PyTorch's kernel computes products of tiles so small that most of its time is call overhead, and its backward pass in
half-precision types takes ten times as long again; the full-matrix alternative copies the scores, and queries, keys and
values by head. Here the inputs are read in place from their projections, the matrices of an item stay in the L1 cache,
masked pairs are not computed, and the backward pass recomputes the weights. A sink is one more term of each row's sum;
its gradient is −w_sink Σ_j w_j (g·v_j), summed over rows. The result is exact: it is the same softmax over all visible
keys.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.algorithms.sdpa.flash import refuses_mechanism
from qkv.algorithms.sdpa.operands import by_head, contiguous_last_dim, products_of
from qkv.compiled import available
from qkv.compiled.strided import as_strided_array
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.autograd import differentiable_by
from qkv.engine.derivatives import Terms, differentiable_gradients, visibility_of
from qkv.engine.mechanism import Mechanism
from qkv.engine.problem import Call, Problem
from qkv.engine.work import memory_traffic, pairs_of, passes, product_operations
from qkv.masks.lower import Visibility
from qkv.normalizers.dense import Softmax
from qkv.scores.pointwise import Linear
from qkv.shapes import Shape

LONGEST = 256
"""The largest number of queries or keys; beyond it, an item's matrices exceed the L2 cache."""
WIDEST = 128
"""The widest query or value, for the same reason."""
_LARGEST = torch.finfo(torch.float32).max
"""Replaces a sink of +inf, which takes the whole weight of its row, and the row state that results."""
MICROSECONDS = 5e-5
"""Microseconds of one thread per element of the query and per key, forward."""
LEAST = 32
"""Batch × heads that suffices; below it, the call overhead may cancel the gain and small jobs need no kernels."""
MUCH = 1 << 24
"""Multiplications of one product that suffice even for fewer items, if there are two for each thread: PyTorch's kernel
takes a millisecond of one thread for as many."""


def refuses(problem: Problem) -> str | None:
    """Return why this pass cannot compute a problem, or is not worth its call overhead; None if it can."""
    # This comes first: the size checks below would specialize a traced program to these sizes.
    if problem.mode != "eager":
        return "compiled kernels serve eager calls"
    reasons = (
        (problem.dtype not in (torch.float32, torch.bfloat16), f"the dtype is {problem.dtype}"),
        (problem.mask not in ("all", "causal", "keys", "bounds"), f"the mask is {problem.mask}, not a range of keys"),
        (problem.bias != "none", "a bias is added to the scores"),
        (problem.state and problem.gradient, "the row state has no gradient"),
        (max(problem.queries, problem.keys) > LONGEST, f"more than {LONGEST} queries or keys"),
        (max(problem.width, problem.value_width) > WIDEST, f"wider than {WIDEST}"),
        (not _enough(problem), "too few items: the call would cost more than it saves"),
        (_reads_once(problem), "one query per item: PyTorch's kernel reads the keys as they are"),
    )
    return next((reason for holds, reason in reasons if holds), None) or refuses_mechanism(problem)


def _enough(problem: Problem) -> bool:
    """Return whether there is enough work, in enough items, for each thread to gain."""
    if problem.rows >= LEAST:
        return True
    multiplications = problem.rows * problem.queries * problem.keys * (problem.width + problem.value_width) // 2
    return multiplications >= MUCH and problem.rows >= 2 * problem.threads


def _reads_once(problem: Problem) -> bool:
    """Return whether each key meets one query only, and no mask spares any: eight rows at a time would do no good."""
    return problem.queries == 1 and problem.mask == "all" and not problem.sink


def work(problem: Problem) -> Work:
    """Count two products forward and five backward over the visible pairs, and one pass over the rows of each."""
    # Rows are computed eight at a time.
    padded = problem._replace(queries=-(-problem.queries // 8) * 8)
    operations = product_operations(padded)
    counts = {
        "causal operations" if problem.mask == "causal" else "operations": operations,
        "pairs": pairs_of(padded),
        "items": problem.rows,
        "bounds": 1 if problem.mask not in ("all", "causal") else 0,
        **memory_traffic(problem),
    }
    return Work(int(operations * passes(problem)), 4 * LONGEST * (2 * LONGEST + 5 * WIDEST), counts)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Compute softmax attention; keys and values that every query masks may hold any number."""
    query, key, value, scale = products_of(call)
    query, key, value = (by_head(x, problem.leading) for x in (query, key, value))
    ranges, sink = _ranges_of(problem, call.visibility), _sink(problem, call)
    if problem.gradient:
        output, lse = _Short.apply(query, key, value, sink, ranges, scale), None  # type: ignore[no-untyped-call]
    else:
        output, lse = _forward(query, key, value, sink, ranges, scale, problem.state)
    if output.shape[:-2] != problem.leading:
        output = output.reshape(*problem.leading, *output.shape[2:])
    output = output if output.dtype == problem.dtype else output.to(problem.dtype)
    if lse is None:
        return Result(output, None)
    lse = lse.view(*problem.leading, problem.queries)
    return Result(output, torch.where(lse >= _LARGEST, torch.inf, lse) if problem.sink else lse)


class _Ranges(NamedTuple):
    """The key range of each query, its first key and the one past its last, and the strides of both over (B, H, Q)."""

    first: NDArray[np.int32]
    last: NDArray[np.int32]
    strides: tuple[int, ...]


def _ranges_of(problem: Problem, visibility: Visibility) -> _Ranges:
    first, last = (None, None) if visibility.bounds is None else visibility.bounds
    if first is None and (last is None or problem.mask == "causal"):
        return _plain_ranges(problem.mask == "causal", problem.queries, problem.keys)
    first = torch.zeros(1, dtype=torch.int32, device="cpu") if first is None else first
    last = torch.full((1,), problem.keys, dtype=torch.int32, device="cpu") if last is None else last
    # Both get one shape, so that they have the same strides.
    ends = [x.contiguous() for x in (first + torch.zeros_like(last), last + torch.zeros_like(first))]
    first, last = (by_head(x.expand(*x.shape[:-1], problem.queries), problem.leading, 1) for x in ends)
    return _Ranges(_flat(first), _flat(last), first.stride())


@lru_cache(maxsize=256)
def _plain_ranges(causal: bool, queries: int, keys: int) -> _Ranges:
    """Return the ranges without a mask or with a causal one, which are the same for every item."""
    if not causal:
        return _Ranges(np.zeros(1, np.int32), np.full(1, keys, np.int32), (0, 0, 0))
    last = np.minimum(np.arange(1, queries + 1), keys).astype(np.int32)
    return _Ranges(np.zeros(queries, np.int32), last, (0, 0, 1))


def _sink(problem: Problem, call: Call) -> Tensor | None:
    """Return the sink of each item, (1 or B, 1 or H), or None."""
    if not problem.sink:
        return None
    assert isinstance(call.normalizer, Softmax)
    # The kernels read −inf as no sink.
    sink = torch.as_tensor(call.normalizer.sink, dtype=torch.float32, device="cpu")
    sink = torch.where(sink > _LARGEST, _LARGEST, sink)
    if len(problem.leading) > 1 and sink.ndim > 1:
        sink = sink.expand(problem.leading).reshape(-1, problem.leading[-1])
    return sink.reshape(*(1,) * (2 - sink.ndim), *sink.shape)


def _gradients_with_graph(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients with a graph."""
    query, key, value, sink = ctx.saved_tensors
    first, last, strides = ctx.ranges
    first, last = (torch.from_numpy(x).as_strided(query.shape[:-1], strides) for x in (first, last))
    mechanism = Mechanism("dot", Linear(), "softmax", ctx.scale, 0.0, False, tuple(query.shape[:-2]))
    terms = Terms(query, key, value, parameter=None if sink is None else sink[..., None, None])
    needs_grad = [*ctx.needs_input_grad[:3], False, False, sink is not None and ctx.needs_input_grad[3]]
    visible = visibility_of(query, key, (first, last))
    *gradients, _, _, d_sink = differentiable_gradients(mechanism, visible, terms, needs_grad, (grad, None))
    return (*gradients, None if d_sink is None else d_sink[..., 0, 0], None, None)


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, ranges: _Ranges, scale: float
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, sink)
        ctx.ranges, ctx.scale = ranges, scale
        return _forward(query, key, value, sink, ranges, scale, False)[0]

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (*_backward(grad, ctx.ranges, ctx.scale, *ctx.saved_tensors), None, None)


def _forward(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, ranges: _Ranges, scale: float, state: bool
) -> tuple[Tensor, Tensor | None]:
    from qkv.algorithms.sdpa import short_kernel
    from qkv.linalg.small_matmul import ROWS

    query, key, value = (contiguous_last_dim(x) for x in (query, key, value))
    items, heads, queries, width = query.shape
    sizes = _sizes(query, key, value, ranges)
    output = query.new_empty(items, queries, heads, value.shape[-1])
    lse = query.new_empty(items, heads, queries, dtype=torch.float64) if state else None
    states = np.empty(0, np.float64) if lse is None else _flat(lse)
    arrays = [*map(_flat, (query, key, value)), *ranges[:2], _sinks(sink, items, heads), _flat(output), states]
    padded_rows, keys, padded_width, padded_value_width = _padded(queries, key.shape[2], width, value.shape[-1])
    scratch_sizes = (
        padded_rows * padded_width,
        keys * padded_width,
        keys * padded_value_width,
        keys * padded_width,
        ROWS * keys,
        ROWS * padded_value_width,
    )
    _run_kernel(
        short_kernel.forward[query.dtype.itemsize], query, key, MICROSECONDS, (sizes, scale, *arrays), scratch_sizes
    )
    return output.transpose(1, 2), lse


def _sinks(sink: Tensor | None, items: int, heads: int) -> NDArray[np.float32]:
    if sink is None:
        return np.full(items * heads, -np.inf, np.float32)
    array: NDArray[np.float32] = sink.detach().expand(items, heads).contiguous().view(-1).numpy()
    return array


def _backward(
    grad: Tensor,
    ranges: _Ranges,
    scale: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink: Tensor | None,
) -> tuple[Tensor | None, ...]:
    from qkv.algorithms.sdpa import short_kernel

    query, key, value, grad = (contiguous_last_dim(x) for x in (query, key, value, grad))
    sizes = np.concatenate((_sizes(query, key, value, ranges), np.array(grad.stride()[:3], np.uint64)))
    gradients = [x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in (query, key, value)]
    d_sink = torch.empty(query.shape[:2], dtype=torch.float64, device=query.device)
    sinks = _sinks(sink, *query.shape[:2])
    results, none = map(_flat, (*gradients, d_sink)), np.empty(0, np.float64)
    arrays = *map(_flat, (query, key, value, grad)), *ranges[:2], sinks, *results, none
    padded_rows, keys, padded_width, padded_value_width = _padded(
        query.shape[2], key.shape[2], query.shape[3], value.shape[3]
    )
    largest = max(padded_rows, keys) * max(padded_width, padded_value_width)
    input_sizes = (
        padded_rows * padded_width,
        keys * padded_width,
        keys * padded_value_width,
        padded_rows * padded_value_width,
        largest,
        keys * padded_value_width,
    )
    scratch_sizes = *input_sizes, padded_rows * keys, padded_rows * keys
    kernel = short_kernel.backward[query.dtype.itemsize]
    _run_kernel(kernel, query, key, 2 * MICROSECONDS, (sizes, scale, *arrays), scratch_sizes, (padded_rows,))
    g_sink = None if sink is None else d_sink.sum_to_size(sink.shape).to(sink.dtype)
    return (*(x.transpose(1, 2) for x in gradients), g_sink)


def _sizes(query: Tensor, key: Tensor, value: Tensor, ranges: _Ranges) -> NDArray[np.uint64]:
    """Return sizes and strides in the order that the kernels expect."""
    shape = query.shape[1], query.shape[2], key.shape[2], query.shape[3], value.shape[3]
    strides = *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *ranges.strides
    return np.array([*shape, *strides], np.uint64)


def _run_kernel(
    kernel: Any,
    query: Tensor,
    key: Tensor,
    microseconds: float,
    arguments: Sequence[Any],
    scratch_sizes: Shape,
    wide: Shape = (),
) -> None:
    """Run a kernel over all items on several threads.

    Args:
        kernel: forward or backward.
        query, key: its operands.
        microseconds: microseconds of one thread per query element and key.
        arguments: those besides the range of items and scratch.
        scratch_sizes, wide: the sizes of its float32 scratch, and of its float64 scratch.
    """
    from qkv.compiled import thread_pool
    from qkv.compiled.registers import ROUND
    from qkv.linalg.small_matmul import ROWS

    blocks = -query.shape[2] // ROUND * -ROUND // ROWS
    floats, doubles = (((size,), np.float32) for size in scratch_sizes), (((size,), np.float64) for size in wide)
    scratch = *floats, *doubles, ((blocks, 2), np.uint64)
    items = query.shape[0] * query.shape[1]
    # Items take equally long: with two chunks per thread a training step of a small GPT takes 4% less than with four.
    thread_pool.run_in_chunks(
        kernel, np.float32, items, microseconds * query.numel() * key.shape[2], arguments, scratch, each=2
    )


def _padded(*sizes: int) -> tuple[int, ...]:
    from qkv.compiled.registers import ROUND

    return tuple(-size // ROUND * -ROUND for size in sizes)


def _flat(x: Tensor) -> NDArray[Any]:
    return as_strided_array(x).numbers


SHORT = Algorithm(
    "sdpa.short",
    "sdpa",
    "one compiled pass per short sequence and head",
    refuses,
    work,
    run,
    kernels=available.why_no_register_kernels,
    reads_hidden_keys=False,
)
