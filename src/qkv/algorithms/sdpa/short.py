"""Softmax attention over dot products for short sequences: one compiled pass per batch item and head, for `sdpa`.

PyTorch's kernel computes products of tiles so small that most of its time is call overhead, and its backward pass in
half-precision types takes ten times as long again; the full-matrix alternative copies the scores, and queries, keys and
values by head. Here the inputs are read in place from their projections, the matrices of an item stay in the L1 cache,
masked pairs are not computed, and the backward pass recomputes the weights. A sink is one more term of each row's sum;
its gradient is −w_sink Σ_j w_j (g·v_j), summed over rows. The result is exact: it is the same softmax over all visible
keys.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.algorithms.sdpa import few_queries
from qkv.algorithms.sdpa.few_queries import by_head, together
from qkv.compiled import available
from qkv.compiled.strided import as_strided_array
from qkv.engine.autograd import second_derivative
from qkv.engine.backend import DirectCall, Result
from qkv.engine.problem import Call, Cost, Problem
from qkv.linalg.matmul import mkl_favored
from qkv.masks.lower import Visibility
from qkv.normalizers.dense import Softmax
from qkv.scores.base import Score
from qkv.shapes import Shape
from qkv.values.parameters import readable

LONGEST = 256
"""The largest number of queries or keys; beyond it, an item's matrices exceed the L2 cache."""
WIDEST = 128
"""The widest query or value, for the same reason."""
_LARGEST = torch.finfo(torch.float32).max
"""Replaces a sink of +inf, which takes the whole weight of its row, and the row state that results."""
EACH = 5e-5
"""Microseconds of one thread per element of the query and per key, forward."""
LEAST = 32
"""Batch × heads that always suffices: below it the call overhead may cancel the gain, and small jobs need no Numba."""
LONG = 96
"""Fewest keys for which skipping masked pairs pays on processors where MKL's products are fast."""
MUCH = 1 << 24
"""Multiplications of one product that suffice even for fewer items, if there are two for each thread: PyTorch's kernel
takes a millisecond of one thread for as many."""


def fits(problem: Problem) -> bool:
    """Return whether this pass supports a problem that `sdpa` accepts, and is worth using for it."""
    # This comes first: the size checks below would specialize a traced program to these sizes.
    return (
        not torch.compiler.is_compiling()
        and not problem.transformed
        and problem.device == "cpu"
        and problem.dtype in (torch.float32, torch.bfloat16)
        and problem.mask in ("all", "causal", "keys", "bounds")
        and problem.bias == "none"
        and (problem.gradient or problem.queries > few_queries.MOST)
        and max(problem.queries, problem.keys) <= LONGEST
        and max(problem.width, problem.value_width) <= WIDEST
        and _enough(problem)
        and available.has_register_kernels()
    )


def _enough(problem: Problem) -> bool:
    """Return whether there is enough work, in enough items, for each thread to gain."""
    if not problem.sink and mkl_favored() and not _leaves_out(problem):
        return False
    if problem.rows >= LEAST:
        return True
    much = problem.rows * problem.queries * problem.keys * (problem.width + problem.value_width) // 2
    return much >= MUCH and problem.rows >= 2 * torch.get_num_threads()


def _leaves_out(problem: Problem) -> bool:
    """Return whether this pass is faster even where MKL is fast.

    It skips masked pairs, PyTorch's kernel reads the mask as a matrix of numbers, and the backward pass is faster.
    """
    long = problem.keys >= LONG
    if problem.mask == "causal":
        return long
    if problem.gradient:
        return problem.rows >= LEAST and (long or problem.mask != "all")
    return long and problem.mask != "all"


def serves(problem: Problem, call: Call) -> bool:
    """Return whether this pass can compute a call: it fits the problem, and the tensors' memory can be read."""
    return (
        fits(problem)
        and torch._C._get_tracing_state() is None
        and all(map(readable, (call.query, call.key, call.value)))
    )


def cost(problem: Problem) -> Cost:
    """Return the cost of two products forward and five backward, and of one pass over the rows of each.

    Fitted to processor time of one thread and halved, as the predicted times of other backends are half of theirs at
    such sizes.
    """
    pairs = problem.rows * problem.queries * problem.keys
    operations = 2 * pairs * (problem.width + problem.value_width) * (3.5 if problem.gradient else 1)
    numbers = problem.rows * (problem.queries + problem.keys) * (problem.width + problem.value_width)
    time = (50 if problem.gradient else 14) + operations / 800_000 + numbers * (0.8 if problem.gradient else 0.3) / 1000
    return Cost(int(operations), 4 * LONGEST * (2 * LONGEST + 5 * WIDEST), time)


def run(problem: Problem, call: Call, query: Tensor, key: Tensor, scale: float) -> Result:
    """Compute softmax attention.

    Args:
        problem, call: the problem and its inputs; keys and values that every query masks may hold any number.
        query: (..., Q, F), operands of dot products.
        key: (..., K, F).
        scale: factor of the dot products.
    """
    query, key, value = (by_head(x, problem.leading) for x in (query, key, call.value))
    sight, sink = _sight(problem, call.visibility), _sink(problem, call)
    if problem.gradient:
        output, lse = _Short.apply(query, key, value, sink, sight, scale), None  # type: ignore[no-untyped-call]
    else:
        output, lse = _forward(query, key, value, sink, sight, scale, problem.state)
    if output.shape[:-2] != problem.leading:
        output = output.reshape(*problem.leading, *output.shape[2:])
    if lse is None:
        return Result(output, None)
    lse = lse.view(*problem.leading, problem.queries)
    return Result(output, torch.where(lse >= _LARGEST, torch.inf, lse) if problem.sink else lse)


def direct(problem: Problem) -> DirectCall | None:
    """Return a direct call of the pass for four-dimensional inputs under the masks `all` and `causal`, else None."""
    if problem.mask == "all":
        last = np.full(1, problem.keys, np.int32)
        sight = _Sight(np.zeros(1, np.int32), last, (0, 0, 0))
    else:
        last = np.minimum(np.arange(1, problem.queries + 1), problem.keys).astype(np.int32)
        sight = _Sight(np.zeros(problem.queries, np.int32), last, (0, 0, 1))
    return partial(_direct, sight, problem.gradient) if len(problem.leading) == 2 and not problem.state else None


def _direct(sight: "_Sight", gradient: bool, query: Tensor, key: Tensor, value: Tensor, score: Score) -> Tensor:
    query, key, scale = score.prepare(query, key).with_number()
    dtype, wider = value.dtype, query.dtype != value.dtype
    value = value.to(query.dtype) if wider else value
    if gradient:
        output: Tensor = _Short.apply(query, key, value, None, sight, scale)  # type: ignore[no-untyped-call]
    else:
        output = _forward(query, key, value, None, sight, scale, False)[0]
    return output.to(dtype) if wider else output


class _Sight(NamedTuple):
    """The key range of each query, its first key and the one past its last, and the strides of both over (B, H, Q)."""

    first: NDArray[np.int32]
    last: NDArray[np.int32]
    strides: tuple[int, ...]


def _sight(problem: Problem, visibility: Visibility) -> _Sight:
    first, last = (None, None) if visibility.bounds is None else visibility.bounds
    first = torch.zeros(1, dtype=torch.int32, device="cpu") if first is None else first
    last = torch.full((1,), problem.keys, dtype=torch.int32, device="cpu") if last is None else last
    # Both get one shape, so that they have the same strides.
    ends = [x.contiguous() for x in (first + torch.zeros_like(last), last + torch.zeros_like(first))]
    rows = [by_head(x.expand(*x.shape[:-1], problem.queries), problem.leading, 1) for x in ends]
    return _Sight(_flat(rows[0]), _flat(rows[1]), rows[0].stride())


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


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, sight: _Sight, scale: float
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, sink)
        ctx.sight, ctx.scale = sight, scale
        return _forward(query, key, value, sink, sight, scale, False)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        given = grad, ctx.sight, ctx.scale, *ctx.saved_tensors
        found = _ShortBackward.apply(*given) if torch.is_grad_enabled() else _backward(*given)  # type: ignore[no-untyped-call]
        return (*found, None, None)


class _ShortBackward(torch.autograd.Function):
    """The gradients, as a function whose own derivative raises an error that names where second derivatives work."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        return _backward(*given)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise second_derivative("sdpa")


def _forward(
    query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, sight: _Sight, scale: float, state: bool
) -> tuple[Tensor, Tensor | None]:
    from qkv.algorithms.sdpa import short_kernel
    from qkv.linalg.small_matmul import ROWS

    query, key, value = (together(x) for x in (query, key, value))
    items, heads, queries, width = query.shape
    sizes = _sizes(query, key, value, sight)
    output = query.new_empty(items, queries, heads, value.shape[-1])
    lse = query.new_empty(items, heads, queries, dtype=torch.float32) if state else None
    states = np.empty(0, np.float32) if lse is None else _flat(lse)
    given = [*map(_flat, (query, key, value)), *sight[:2], _sinks(sink, items, heads), _flat(output), states]
    rows, keys, deep, broad = _whole(queries, key.shape[2], width, value.shape[-1])
    tables = rows * deep, keys * deep, keys * broad, keys * deep, ROWS * keys, ROWS * broad
    _share(short_kernel.forward[query.dtype.itemsize], query, key, EACH, (sizes, scale, *given), tables)
    return output.transpose(1, 2), lse


def _sinks(sink: Tensor | None, items: int, heads: int) -> NDArray[np.float32]:
    if sink is None:
        return np.full(items * heads, -np.inf, np.float32)
    found: NDArray[np.float32] = sink.detach().expand(items, heads).contiguous().view(-1).numpy()
    return found


def _backward(
    grad: Tensor,
    sight: _Sight,
    scale: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink: Tensor | None,
) -> tuple[Tensor | None, ...]:
    from qkv.algorithms.sdpa import short_kernel

    query, key, value, grad = (together(x) for x in (query, key, value, grad))
    sizes = np.concatenate((_sizes(query, key, value, sight), np.array(grad.stride()[:3], np.uint64)))
    found = [x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]) for x in (query, key, value)]
    of_sinks = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    sinks = _sinks(sink, *query.shape[:2])
    results, none = map(_flat, (*found, of_sinks)), np.empty(0, np.float32)
    given = *map(_flat, (query, key, value, grad)), *sight[:2], sinks, *results, none
    rows, keys, deep, broad = _whole(query.shape[2], key.shape[2], query.shape[3], value.shape[3])
    largest = max(rows, keys) * max(deep, broad)
    small = rows * deep, keys * deep, keys * broad, rows * broad, largest, keys * broad
    tables = *small, rows * keys, rows * keys, rows
    _share(short_kernel.backward[query.dtype.itemsize], query, key, 2 * EACH, (sizes, scale, *given), tables)
    return (*(x.transpose(1, 2) for x in found), None if sink is None else of_sinks.sum_to_size(sink.shape))


def _sizes(query: Tensor, key: Tensor, value: Tensor, sight: _Sight) -> NDArray[np.uint64]:
    """Return sizes and strides in the order that the kernels expect."""
    shape = query.shape[1], query.shape[2], key.shape[2], query.shape[3], value.shape[3]
    strides = *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *sight.strides
    return np.array([*shape, *strides], np.uint64)


def _share(kernel: Any, query: Tensor, key: Tensor, each: float, given: Sequence[Any], tables: Shape) -> None:
    """Distribute the items over threads, each with its own scratch; `each`: microseconds per query element and key."""
    from qkv.compiled import thread_pool
    from qkv.compiled.registers import ROUND
    from qkv.linalg.small_matmul import ROWS

    edges = -query.shape[2] // ROUND * -ROUND // ROWS
    scratch = *(((size,), np.float32) for size in tables), ((edges, 2), np.uint64)
    items = query.shape[0] * query.shape[1]
    # Items take equally long: with two chunks per thread a training step of a small GPT takes 4% less than with four.
    thread_pool.run_in_chunks(kernel, np.float32, items, each * query.numel() * key.shape[2], given, scratch, each=2)


def _whole(*sizes: int) -> tuple[int, ...]:
    from qkv.compiled.registers import ROUND

    return tuple(-size // ROUND * -ROUND for size in sizes)


def _flat(x: Tensor) -> NDArray[Any]:
    return as_strided_array(x).numbers
