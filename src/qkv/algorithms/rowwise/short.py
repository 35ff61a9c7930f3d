"""Attention over short sequences, in one compiled call that reads the tensors as they are.

A call of a few dozen keys takes as long as its operators take to start, so here is one: the kernel gets addresses,
strides and sizes, and computes guards, scores, normalizer, dropout and output of each item while its matrices are in
the L1 and L2 caches (`qkv.algorithms.rowwise.short_kernel`). Distances are subtracted, so that no digits cancel. Masked
pairs are not computed where a row sees a range of keys. The backward pass is one call too and recomputes the weights; a
sink's gradient is −w_sink Σ_j w_j (g·v_j), summed over rows. What sizes, strides and numbers decide is bound once.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from math import isinf
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.algorithms.rowwise import short_kernel, weights_kernel
from qkv.algorithms.rowwise.row_passes import SHAPES
from qkv.algorithms.sdpa.flash import refuses_mechanism
from qkv.compiled import available, thread_pool
from qkv.compiled.kernels import Kernel
from qkv.compiled.strided import memory_of
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.autograd import differentiable_by
from qkv.engine.derivatives import Constants, Terms, differentiable_gradients
from qkv.engine.dropout import threshold
from qkv.engine.mechanism import Mechanism, full_rank, normalizer_parts
from qkv.engine.problem import Call, Problem, core_text, first_reason, without_hidden
from qkv.engine.ties import first_equals
from qkv.engine.work import memory_traffic, pairs_of, passes, product_operations
from qkv.masks.lower import BLOCK_ROWS, Visibility
from qkv.normalizers.dense import Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax
from qkv.normalizers.steep import is_steep
from qkv.scores.base import HALVES, Maps, Operands, wide
from qkv.scores.pointwise import number_of
from qkv.scores.products import unit
from qkv.shapes import Shape

LONGEST = 256
"""The largest number of queries or keys; beyond it, an item's matrices exceed the L2 cache."""
WIDEST = 128
"""The widest query or value, for the same reason."""
_LARGEST = torch.finfo(torch.float32).max
"""Replaces a sink of +inf, which takes the whole weight of its row, and the row state that results."""
_MICROSECONDS = {"dot": 2.5e-5, "distance": 2.5e-5, "relu_sum": 2.5e-5, "tanh_sum": 8e-4}
"""Microseconds of one thread per element of the query and per key, forward, by core, on a fast processor.

A Zen 3 beside busy processes takes four times as long for all cores but `tanh_sum`, and for a backward pass five times
as long: a pass that is counted as 200 µs takes a millisecond there."""
_CORES = {
    "dot": short_kernel.DOT,
    "distance": short_kernel.DISTANCE,
    "relu_sum": short_kernel.RELU_SUM,
    "tanh_sum": short_kernel.TANH_SUM,
    "cosine": short_kernel.COSINE,
}
_SHAPES = (*SHAPES, "Softcap", "Leaky")
"""In the order of their numbers in the kernels."""
_RULES = {
    "softmax": weights_kernel.SOFTMAX,
    "sum": weights_kernel.SUM,
    "mean": weights_kernel.MEAN,
    "identity": short_kernel.IDENTITY,
    "sigmoid": short_kernel.SIGMOID,
    "hard": short_kernel.HARD,
    "sparsemax": short_kernel.ENTMAX,
    "entmax": short_kernel.ENTMAX,
}
_REGISTER = 16
"""Numbers of a register, of which a row takes whole ones."""
_LAYOUTS = 64
"""For how many layouts of tensors a bound call keeps the tables."""


def refuses(problem: Problem) -> str | None:
    """Return why this pass cannot compute a problem; None if it can."""
    # This comes first: the size checks below would specialize a traced program to these sizes.
    if problem.mode != "eager":
        return "compiled kernels serve eager calls"
    shape = type(problem.pointwise).__name__
    return first_reason(
        (problem.device != "cpu", "the kernels run on the CPU"),
        (problem.core not in _MICROSECONDS, f"the scores are {core_text(problem.core)}"),
        (
            problem.core == "tanh_sum" and problem.queries < BLOCK_ROWS,
            "additive plans steps of few queries once for all",
        ),
        (shape not in _SHAPES, f"the scores are {problem.pointwise}"),
        (problem.normalizer not in _RULES, f"the normalizer is {problem.normalizer}"),
        (problem.dtype not in (torch.float32, torch.bfloat16), f"the dtype is {problem.dtype}"),
        (problem.mask == "predicate", "the mask is neither a range of keys nor a matrix"),
        (problem.positional, "the bias is a function of positions"),
        (problem.state and problem.gradient, "the row state has no gradient"),
        (max(problem.queries, problem.keys) > LONGEST, f"more than {LONGEST} queries or keys"),
        (max(problem.width, problem.value_width) > WIDEST, f"wider than {WIDEST}"),
        (len(problem.leading) > 3, "more than three leading dimensions"),
        (problem.empty, "an axis is empty"),
    )


def _refuses_other_products(problem: Problem) -> str | None:
    reason = refuses_mechanism(problem._replace(dropout=False)) or refuses(problem)
    return reason or (
        "one query per item: PyTorch's kernel reads the keys as they are" if _reads_once(problem) else None
    )


def _reads_once(problem: Problem) -> bool:
    """Return whether each key meets one query only, and no mask spares any: eight rows at a time would do no good."""
    once = problem.queries == 1 and problem.mask == "all" and not (problem.sink or problem.dropout)
    # PyTorch's kernel would wake its threads, even for one query.
    tiny = problem.threads > 1 and _microseconds(problem, problem.gradient) < thread_pool.TEAM_BELOW
    return once and not tiny


def _alone(problem: Problem) -> bool:
    """Return whether every pass runs on the calling thread."""
    return _microseconds(problem, problem.gradient) < thread_pool.ALONE_BELOW


def _microseconds(problem: Problem, backward: bool) -> float:
    """Return roughly how long a pass takes one thread."""
    padded = -(-problem.queries // BLOCK_ROWS) * BLOCK_ROWS
    pair = _MICROSECONDS[problem.core] * problem.width + _MICROSECONDS["dot"] * problem.value_width
    return pair * problem.rows * padded * problem.keys * (1 + backward)


def _refuses_softmax_of_products(problem: Problem) -> str | None:
    same = refuses_mechanism(problem._replace(dropout=False)) is None
    return "sdpa.short computes a softmax of dot products" if same else refuses(problem)


def work(problem: Problem) -> Work:
    """Count two products forward and five backward, and one pass over the rows of each.

    Keys that no row of a block sees cost nothing.
    """
    keys = problem.keys if problem.block is None else min(problem.keys, problem.block + _REGISTER)
    padded = problem._replace(queries=-(-problem.queries // BLOCK_ROWS) * BLOCK_ROWS, keys=keys)
    operations, pairs = product_operations(padded), pairs_of(padded)
    counts = {
        f"{'causal ' * (problem.mask == 'causal')}operations of {problem.core}": operations,
        f"pairs of {problem.normalizer}": pairs,
        "masked pairs": pairs if problem.mask == "dense" else 0,
        "biased pairs": pairs if problem.bias != "none" else 0,
        "pairs dropped": pairs if problem.dropout else 0,
        "items": problem.rows,
        "bounds": 1 if problem.mask not in ("all", "causal") else 0,
        "calls that convert operands": 1 if problem.dtype in HALVES else 0,
        **memory_traffic(problem),
    }
    return Work(int(operations * passes(problem)), 4 * LONGEST * (2 * LONGEST + 5 * WIDEST), counts)


def _inspect(problem: Problem, call: Call) -> str | None:
    """Return why this pass cannot compute a call of a problem that it does not refuse; None if it can."""
    query, _, scale, _ = call.score.prepare(call.query, call.key)
    normalizer, parameter = call.normalizer, normalizer_parts(call.normalizer)[1]
    numbers = not isinstance(parameter, Tensor)
    steep = "entmax's alpha is so close to 1, or so large, that a row needs more than one threshold"
    return first_reason(
        (isinstance(scale, Tensor) and problem.core == "distance", "the bandwidth is a tensor"),
        (query.dtype == torch.float64, "the bandwidth is near the limits of float32"),
        (not (numbers or isinstance(normalizer, Softmax)), "the parameter of the normalizer is a tensor"),
        (isinstance(normalizer, Entmax) and is_steep(normalizer.alpha), steep),
        (isinstance(normalizer, Sigmoid) and numbers and isinf(parameter or 0.0), "the bias is infinite"),
    )


def _declines(problem: Problem, reason: str | None) -> str | None:
    return reason


def bind(problem: Problem, call: Call) -> Callable[[Call], Tensor] | None:
    """Return a function that computes the output of calls like this one; None if their numbers must be inspected."""
    grouped = call if _heads_as_given(problem, call) is None else call.in_groups()
    return None if _inspect(problem, grouped) else _Bound(problem, call).output


def run(problem: Problem, call: Call, facts: str | None = None) -> Result:
    """Compute attention; keys and values that every query masks may hold any number."""
    bound = _Bound(problem, call)
    if not problem.state:
        return Result(bound.output(call), None)
    output, state = bound.forward(bound.operands(call))
    assert state is not None
    return Result(bound.converted(output), torch.where(state >= _LARGEST, torch.inf, state) if problem.sink else state)


class _Operands(NamedTuple):
    """The tensors that a kernel reads, of any strides, and what it needs besides.

    Attributes:
        query, key, value: (..., Q, D), (..., K, E), (..., K, V), float32 or bfloat16.
        sink: (...), float32; or the bias of a sigmoid.
        bias: broadcasts to (..., Q, K), float32.
        vector: (..., F), float32, of `tanh_sum`.
        query_weight, key_weight: (..., F, D) and (..., F, E), float32, or (..., D) and (..., E) for F = 1; what maps
            queries and keys to the core's operands.
        first, last, mask: of the lowered mask, (..., Q) and (..., Q, K).
        drop: seed, threshold and the bits of 1/(1 − p) of dropout; empty for none.
        visibility, seed, dropout: as in `Call`, for gradients with a graph.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    sink: Tensor | None
    bias: Tensor | None
    vector: Tensor | None
    query_weight: Tensor | None
    key_weight: Tensor | None
    first: Tensor | None
    last: Tensor | None
    mask: Tensor | None
    drop: NDArray[np.uint64]
    visibility: Visibility
    seed: Tensor | None
    dropout: float


_LEARNED, _TENSORS = 8, 11
"""How many of the operands may have gradients, and how many are tensors."""
_NOTHING = np.zeros(0, np.uint64)
_ABSENT = None, None, None, None, None, None, None, None
"""What a call without any of the operands that follow the values has in their place."""
_KERNEL_ORDER = ("first", "last", "mask", "bias", "sink", "vector", "query_weight", "key_weight")
"""The operands that follow the values, in the order of the kernels' arguments."""
_NO_ADDRESSES = [0] * len(_KERNEL_ORDER)
_DTYPES = {"first": torch.int32, "last": torch.int32, "mask": torch.bool}
"""Types of those that are not float32."""


class _Pass(NamedTuple):
    """A kernel, its machine code, its scratch, and roughly the microseconds of one thread that it takes."""

    kernel: Kernel
    code: Callable[..., Any]
    scratch: tuple[tuple[Shape, Any], ...]
    microseconds: float

    def run(self, items: int, arguments: Sequence[Any]) -> None:
        """Run the kernel over all items: on the calling thread, unless that takes longer than to wake others."""
        if self.microseconds >= thread_pool.ALONE_BELOW:
            thread_pool.run_in_chunks(
                self.kernel, np.float32, items, self.microseconds, arguments, self.scratch, each=2
            )
            return
        self.code(0, items, *arguments, *_scratch.of(self.scratch[0][0][0]))


@final
class _Scratch(threading.local):
    """The scratch that a thread reuses from call to call, as large as the largest call needed."""

    def __init__(self) -> None:
        self._floats = np.empty(0, np.float32)
        self._others = np.empty(4 * LONGEST + 1), np.empty((LONGEST + LONGEST // BLOCK_ROWS, 2), np.uint64)

    def of(self, numbers: int) -> tuple[NDArray[Any], ...]:
        """Return at least so many numbers, which begin a cache line, and what the kernels need besides."""
        if self._floats.size < numbers:
            # Registers that cross cache lines take an eighth of a call; PyTorch aligns every allocation.
            self._floats = torch.empty(numbers, dtype=torch.float32, device="cpu").numpy()
        return self._floats, *self._others


_scratch = _Scratch()


class _Layout(NamedTuple):
    """What the strides of a call decide: the kernel's table of sizes and strides, and the strides of the output."""

    table: NDArray[np.uint64]
    output: Shape


@final
class _Bound:
    """Computes the calls of one problem with one mechanism; the choices that they share are made once.

    Args:
        problem, call: a call that this pass computes.
    """

    def __init__(self, problem: Problem, call: Call) -> None:
        """Choose the kernel, its numbers and its scratch."""
        self.problem = problem
        heads = _heads_as_given(problem, call)
        call = call if heads is None else call.in_groups()
        maps = _maps(problem, call)
        prepared = call.score.prepare(call.query, call.key)
        self._mapped, self._unit = maps is not None, maps is not None and maps.unit
        scale = prepared.scale
        self._scale: float = 1.0 if isinstance(scale, Tensor) else scale
        same = self._mapped or problem.constant
        query, key = (call.query, call.key) if same else prepared[:2]
        given = query is call.query and key is call.key and (prepared.vector is None or self._mapped)
        self._as_given = given and not isinstance(scale, Tensor)
        self._dtype = query.dtype if self._as_given else torch.promote_types(query.dtype, torch.float32)
        self._converts = any(x.dtype != self._dtype for x in (query, key, call.value))
        self._empty = np.empty(0, np.float32 if self._dtype == torch.float32 else np.uint16)
        self._looks_up = problem.normalizer == "hard"
        # Equal keys have equal scores where the kernel computes them, and where all scores are equal.
        self._ties = key is not call.key
        # The kernel never reads masked keys, but PyTorch maps all of them, and a gradient through NaN is NaN.
        self._hides = problem.mask != "all" and (problem.gradient or self._looks_up)
        # The kernel finds rows that see nothing by ranges of keys alone.
        sees_matrix = problem.mask == "dense" and problem.gradient
        self._hides_queries = self._as_given and sees_matrix and not problem.constant
        by_strides = self._as_given and not self._hides_queries
        self._heads, self._regroups = (heads, False) if by_strides else (None, heads is not None)
        self._set_shapes(query, key, call.value)
        width = 0 if problem.constant else prepared.query.shape[-1]
        of_query, of_key = (shape[-1] for shape in self._shapes[:2])
        self._sizes = problem.queries, problem.keys, width, problem.value_width, of_query, of_key
        self._set_mechanism(call, maps)

    def _set_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Set the shapes of what the kernel reads and writes, heads split into groups or not."""
        problem, leading = self.problem, self.problem.leading
        shapes: tuple[torch.Size, ...] = query.shape, key.shape, value.shape
        if not self._as_given:
            shapes = tuple(torch.Size((*leading, *shape[-2:])) for shape in shapes)
        if self._hides_queries:
            shapes = torch.Size((*leading, *query.shape[-2:])), *shapes[1:]
        self._items, self._leading = problem.rows, leading
        if self._heads is not None:
            self._leading = torch.Size((*leading[:-2], leading[-2] * leading[-1]))
            shapes = tuple(torch.Size((*shape[:-4], shape[-4] * shape[-3], *shape[-2:])) for shape in shapes)
        # Nothing is computed of the operands of a constant score: they have no columns.
        self._columnless: tuple[Tensor, Tensor] | None = None
        if problem.constant:
            shapes = *(torch.Size((*shape[:-1], 0)) for shape in shapes[:2]), shapes[2]
            self._columnless = query.new_empty(shapes[0]), key.new_empty(shapes[1])
        self._shapes = shapes
        self._whole = tuple(shape[:-2] == self._leading for shape in shapes)
        self._output_shape = torch.Size((*self._leading, problem.queries, problem.value_width))
        self._layouts: dict[Any, _Layout] = {}

    def _set_mechanism(self, call: Call, maps: Maps | None) -> None:
        """Set the kernels, their numbers, and which operands follow the values."""
        problem = self.problem
        self._name, parameter = normalizer_parts(call.normalizer)
        self._alpha = {"sparsemax": 2.0, "entmax": parameter}.get(self._name, 1.5)
        # A constant is the boxcar of ones, which has no slope.
        shape = "BoxcarShape" if problem.constant else type(problem.pointwise).__name__
        self._has_slope = not self._looks_up and shape != "BoxcarShape"
        # The backward pass of `hard` needs only the position of the key that each row selects.
        self._saves_positions = self._looks_up and problem.gradient
        rule = short_kernel.POSITION if self._saves_positions else _RULES[problem.normalizer]
        codes = _CORES["cosine" if self._unit else problem.core], _SHAPES.index(shape), rule
        self._numbers = *codes, self._scale, number_of(problem.pointwise), self._alpha
        self._takes_sink = isinstance(call.normalizer, (Softmax, Sigmoid)) and parameter is not None
        sides = [maps is not None and weight is not None for weight in (maps or (None, None))[:2]]
        self._masked = problem.mask != "all"
        present = *(self._masked,) * 3, problem.bias != "none", self._takes_sink, problem.core == "tanh_sum", *sides
        self._slots = tuple(
            (_Operands._fields.index(name), place, name, _DTYPES.get(name, torch.float32))
            for place, name in enumerate(_KERNEL_ORDER)
            if present[place]
        )
        self.learned, self.saved = (_LEARNED, _TENSORS) if self._slots else (3, 3)
        padded = tuple(-size // 16 * -16 for size in self._sizes)
        queries, keys = padded[:2]
        others = ((queries + 3 * keys + 1,), np.float64), ((queries + queries // 8, 2), np.uint64)
        passes, self._parts = [], []
        parts_of: Callable[..., tuple[int, ...]] = short_kernel.scratch_parts
        for backward, kernels in enumerate((short_kernel.forward, short_kernel.backward)):
            ends = np.cumsum([0, *parts_of(*padded, *sides, bool(backward))]).tolist()
            self._parts.append(ends)
            scratch = ((ends[-1],), np.float32), *others
            kernel = kernels[self._dtype.itemsize]
            passes.append(_Pass(kernel, kernel.at(np.float32), scratch, _microseconds(problem, bool(backward))))
        self._passes = tuple(passes)

    def output(self, call: Call) -> Tensor:
        """Compute the output of a call."""
        operands = self.operands(call)
        if not self.problem.gradient:
            return self.converted(self.forward(operands)[0])
        # Under `hard`, queries and keys only select a value: their gradients are 0.
        selects = self._looks_up and (self._columnless is not None or not self._as_given)
        scored = call.scored() if selects else ()
        decide = [x for x in scored if isinstance(x, Tensor) and x.requires_grad]
        learned = operands[: self.learned]
        output: Tensor = _Short.apply(self, operands, *learned, *decide)  # type: ignore[no-untyped-call]
        return self.converted(output)

    def converted(self, output: Tensor) -> Tensor:
        """Return an output in the dtype of the query."""
        return output if self._dtype == self.problem.dtype else output.to(self.problem.dtype)

    def operands(self, call: Call) -> _Operands:
        """Return what the kernel reads of a call."""
        if self._regroups:
            call = call.in_groups()
        query, key, value, vector, of_query, of_key = call.query, call.key, call.value, None, None, None
        if self._columnless is not None:
            query, key = self._columnless
        elif self._mapped:
            maps = call.score.maps
            assert maps is not None
            of_query, of_key, vector = _float(maps.query), _float(maps.key), _float(maps.vector)
        elif not self._as_given:
            query, key, value, vector = self._prepared(call)
        if self._hides_queries:
            query = call.without_hidden_keys(keys=False).query.expand(self._shapes[0])
        if not (self._slots or self.problem.dropout):
            return _Operands(query, key, value, *_ABSENT, _NOTHING, call.visibility, None, 0.0)
        visibility, seed = call.visibility, call.seed
        drop = _NOTHING if seed is None else _drop(seed, call.dropout)
        sink = self._sink(call) if self._takes_sink else None
        learned = query, key, value, sink, _float(call.bias_tensor), vector, of_query, of_key
        (first, last), mask = visibility.bounds or (None, None), visibility.dense
        return _Operands(*learned, first, last, mask, drop, visibility, seed, call.dropout)

    def _prepared(self, call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return query, key and value as the core takes them, and the vector of `tanh_sum`."""
        if self._hides:
            call = call.without_hidden_keys()
        prepared = _to_look_up(call, self._ties) if self._looks_up else call.score.prepare(call.query, call.key)
        query, key, scale = prepared.with_number()
        assert scale == self._scale
        operands = query, key, call.value
        if self._converts:
            operands = query.to(self._dtype), key.to(self._dtype), call.value.to(self._dtype)
        # Hidden keys may differ between the items that shared them.
        pairs = zip(operands, self._shapes, strict=True)
        query, key, value = (x if x.shape == shape else x.expand(shape) for x, shape in pairs)
        return query, key, value, prepared.vector

    def _sink(self, call: Call) -> Tensor:
        """Return the sink of a softmax or the bias of a sigmoid, which broadcasts to the leading shape."""
        sink = torch.as_tensor(normalizer_parts(call.normalizer)[1], dtype=torch.float32, device="cpu")
        # The kernels read −inf as no sink.
        return torch.where(sink > _LARGEST, _LARGEST, sink)

    def forward(self, operands: _Operands) -> tuple[Tensor, Tensor | None]:
        """Return the output and the row state; None unless the caller or a backward pass of `hard` needs it."""
        tensors = self._checked(operands)
        layout = self._layout(tensors)
        output = torch.empty_strided(self._output_shape, layout.output, dtype=self._dtype, device="cpu")
        state = None
        if self.problem.state or self._saves_positions:
            state = torch.empty(self._output_shape[:-1], dtype=torch.float64, device="cpu")
        results = output.data_ptr(), 0 if state is None else state.data_ptr()
        self._passes[0].run(self._items, self._arguments(operands, tensors, layout, results))
        return output, state

    def backward(
        self, operands: _Operands, state: Tensor | None, needed: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the operands that are needed; those of query, key and value always."""
        tensors = self._checked(operands)
        grad = memory_of(grad, "grad", self._dtype, self._output_shape)
        # A step has no slope, and the kernel writes no gradient of what it is computed from.
        if self._has_slope:
            gradients: list[Tensor | None] = [self._like(operands.query, 0), self._like(operands.key, 1)]
        else:
            gradients = [torch.zeros_like(operands.query), torch.zeros_like(operands.key)]
        gradients.append(self._like(operands.value, 2))
        if self._slots:
            gradients += self._gradients_of_slots(operands, needed, grad)
        layout = self._layout(tensors, grad, gradients)
        # Under `hard`, only the values have a gradient that is not 0.
        written = gradients[:3] if self._looks_up else gradients
        addresses = [0 if x is None else x.data_ptr() for x in written]
        addresses += [0] * (_LEARNED - len(addresses))
        results = 0 if state is None else state.data_ptr(), grad.data_ptr(), *addresses
        self._passes[1].run(self._items, self._arguments(operands, tensors, layout, results))
        if all(self._whole) and not self._slots:
            return tuple(gradients)
        return tuple(map(self._summed, gradients, operands))

    def _gradients_of_slots(self, operands: _Operands, needed: Sequence[bool], grad: Tensor) -> list[Tensor | None]:
        """Return memory for the gradients of the operands that follow the values."""
        queries, keys, width, *_ = self._sizes
        sink = vector = bias = None
        leading = self.problem.leading
        if operands.sink is not None and self.problem.normalizer == "softmax":
            sink = torch.empty(leading, dtype=torch.float64, device="cpu")
        if needed[5]:
            vector = grad.new_zeros(*leading, width, dtype=torch.float32)
        if needed[4] and operands.bias is not None:
            shape = *leading, queries, keys
            bias = torch.zeros_like(operands.bias) if self._looks_up else grad.new_empty(shape, dtype=torch.float32)
        weights = operands.query_weight, operands.key_weight
        return [sink, bias, vector, *(None if x is None else torch.zeros_like(x) for x in weights)]

    def _summed(self, gradient: Tensor | None, x: Any) -> Tensor | None:
        """Sum the gradient of a broadcast operand to its shape, and that of keys and values over each group's heads."""
        if gradient is None or x is None:
            return None
        if self._heads is not None and gradient.shape[:-2] == self._leading != x.shape[:-2]:
            gradient = gradient.unflatten(-3, self._heads).sum(-3)
        gradient = gradient if gradient.shape == x.shape else gradient.sum_to_size(x.shape)
        return gradient if gradient.dtype == x.dtype else gradient.to(x.dtype)

    def _like(self, x: Tensor, place: int) -> Tensor:
        """Return memory for the gradient of query, key or value, with all leading dimensions."""
        return torch.empty_like(x) if self._whole[place] else x.new_empty(*self._leading, *x.shape[-2:])

    def _checked(self, operands: _Operands) -> list[Tensor | None]:
        """Return the tensors, whose types, sizes and devices are those that the kernel will read."""
        dtype, (of_query, of_key, of_value) = self._dtype, self._shapes
        query = memory_of(operands[0], "query", dtype, of_query)
        key = memory_of(operands[1], "key", dtype, of_key)
        value = memory_of(operands[2], "value", dtype, of_value)
        tensors: list[Tensor | None] = [query, key, value]
        for index, _, name, kind in self._slots:
            x: Any = operands[index]
            tensors.append(x if x is None else memory_of(x, name, kind))
        return tensors

    def _layout(
        self, tensors: list[Tensor | None], grad: Tensor | None = None, gradients: Sequence[Tensor | None] = ()
    ) -> _Layout:
        """Return the table of sizes and strides of a call, which is made once for all calls with the same strides."""
        # The mechanism's shapes are those of the problem, and the strides of gradients follow from what they are
        # gradients of; masks may broadcast in several ways.
        table = [None if x is None else x.stride() for x in tensors]
        if grad is not None:
            table.append(grad.stride())
        if self._masked:
            table += [None if x is None else x.shape for x in tensors[3:6]]
        strides = tuple(table)
        layout = self._layouts.get(strides)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[strides] = self._laid_out(tensors, grad, gradients)
        return layout

    def _laid_out(
        self, tensors: list[Tensor | None], grad: Tensor | None, gradients: Sequence[Tensor | None]
    ) -> _Layout:
        query = tensors[0]
        assert query is not None
        output = self._output_strides(query)
        of_maps = gradients[6:] or (None, None)
        others = dict(zip((name for _, _, name, _ in self._slots), tensors[3:], strict=True))
        # The range of a row is a matrix of one column, and under a sum a matrix is one row.
        ends = {name: x[..., None] for name in ("first", "last") if (x := others.get(name)) is not None}
        matrix = 1 if self.problem.core == "relu_sum" else 2
        last = {"sink": 0, "vector": 1, "query_weight": matrix, "key_weight": matrix}
        out = self._of_heads(self._output_shape, output if grad is None else grad.stride())
        strides = [*(self._of_heads(x.shape, x.stride()) for x in tensors[:3] if x is not None), out]
        strides += [self._strides(ends.get(name, others.get(name)), last.get(name, 2)) for name in _KERNEL_ORDER]
        strides += [[0] * 5 if x is None else self._of_heads(x.shape, x.stride()) for x in gradients[:3] or [None] * 3]
        strides += [self._strides(x, matrix) for x in of_maps]
        parts = self._parts[grad is not None]
        table = [*(1, 1, *self.problem.leading)[-2:], *self._sizes, *chain(*strides), *parts]
        return _Layout(np.array(table, np.int64).view(np.uint64), output)

    def _strides(self, x: Tensor | None, last: int) -> list[int]:
        """Return the strides of a tensor over three leading dimensions, rows and columns; 0 where it broadcasts."""
        return [0] * 5 if x is None else self._over_items(x.shape, x.stride(), last)

    def _of_heads(self, shape: Sequence[int], strides: Sequence[int]) -> list[int]:
        """Return `_strides` of query, key, value or output, whose heads may be in groups."""
        if self._heads is not None:
            groups, repeats = self._heads
            # All query heads of a group read the same key head.
            split = (groups, repeats) if shape[-3] == groups * repeats else (shape[-3], 1)
            shape = *shape[:-3], *split, *shape[-2:]
            strides = *strides[:-3], strides[-3] * split[1], strides[-3], *strides[-2:]
        return self._over_items(shape, strides, 2)

    def _over_items(self, shape: Sequence[int], strides: Sequence[int], last: int) -> list[int]:
        steps = [0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]
        steps = [0] * (3 + last - len(steps)) + steps
        return steps[:3] + [0] * (2 - last) + steps[3:]

    def _output_strides(self, query: Tensor) -> Shape:
        """Return the strides of an output whose dimensions lie in memory as the query's do."""
        shape, order = self._output_shape, list(range(len(self._output_shape)))
        if query.shape[:-2] == self._leading and 0 not in query.stride():
            steps = query.stride()
            order = [*sorted(order[:-1], key=lambda i: -steps[i]), order[-1]]
        strides, step = [0] * len(shape), 1
        for i in reversed(order):
            strides[i], step = step, step * shape[i]
        return tuple(strides)

    def _arguments(
        self, operands: _Operands, tensors: list[Tensor | None], layout: _Layout, results: tuple[int, ...]
    ) -> tuple[Any, ...]:
        """Return the arguments of a kernel between its range of items and its scratch."""
        addresses = _NO_ADDRESSES
        if self._slots:
            addresses = [0] * len(_KERNEL_ORDER)
            for (_, place, _, _), x in zip(self._slots, tensors[3:], strict=True):
                addresses[place] = 0 if x is None else x.data_ptr()
        query, key, value = tensors[:3]
        operands_at = query.data_ptr(), key.data_ptr(), value.data_ptr()  # type: ignore[union-attr]
        return layout.table, *self._numbers, *operands_at, *addresses, *results, operands.drop, self._empty

    def with_graph(self, operands: _Operands, needed: Sequence[bool], grad: Tensor) -> list[Tensor | None]:
        """Return the gradients of the operands with a graph."""
        problem = self.problem
        leading, rank = problem.leading, len(problem.leading)
        query, key, value, sink, bias, vector = operands[:6]
        needed = [*needed, *[False] * (_LEARNED - len(needed))]
        if self._heads is not None:
            query, key, value = query.unflatten(-3, self._heads), key.unsqueeze(-3), value.unsqueeze(-3)
            grad = grad.unflatten(-3, self._heads)
        # Under a sum, a matrix is one row.
        rows = -2 if problem.core == "relu_sum" else None
        weights = [
            x if x is None or rows is None else x.unsqueeze(rows) for x in (operands.query_weight, operands.key_weight)
        ]
        if self._columnless is not None:
            query, key = (x.new_ones(*x.shape[:-1], 1) for x in (query, key))
        if self._mapped:
            # The products with matrices read every row, where the kernel reads those that are seen.
            query, key, value = without_hidden(operands.visibility, query, key, value)
        sources = (wide(query), wide(key)) if self._mapped else (query, key)
        if self._unit:
            query, key = map(unit, sources)
        else:
            query, key = (x if w is None else x @ w.mT for x, w in zip(sources, weights, strict=True))
        parameter = None if sink is None else full_rank(sink[..., None, None], rank + 2)
        if self._name == "entmax":
            parameter = torch.tensor(self._alpha, dtype=torch.float64, device="cpu")
        terms = Terms(
            query.expand(*leading, *query.shape[-2:]),
            full_rank(key, rank + 2),
            full_rank(value, rank + 2),
            vector=None if vector is None else full_rank(vector, rank + 1),
            parameter=parameter,
            bias=None if bias is None else full_rank(bias, rank + 2),
        )
        ties = first_equals(sources[1]) if problem.normalizer == "hard" else None
        factor, dropout = self._scale, operands.dropout
        mechanism = Mechanism(problem.core, problem.pointwise, self._name, factor, dropout, False, leading)
        sides = needed[0] or needed[6], needed[1] or needed[7]
        d_query, d_key, d_value, _, d_vector, d_sink, d_bias, *_ = differentiable_gradients(
            mechanism,
            operands.visibility,
            terms,
            [*sides, needed[2], False, needed[5], needed[3], needed[4]],
            (grad, None),
            Constants(operands.seed, None if ties is None else full_rank(ties, rank + 1)),
        )
        d_sides: list[Tensor | None] = [d_query, d_key]
        d_weights: list[Tensor | None] = [None, None]
        for side, weight in enumerate(weights):
            gradient = d_sides[side]
            if weight is not None and gradient is not None:
                d_sides[side], d_weight = gradient @ weight, gradient.mT @ sources[side]
                d_weights[side] = d_weight if rows is None else d_weight.squeeze(rows)
            if self._unit and gradient is not None:
                d_sides[side] = _through_unit(sources[side], gradient)
        gradients = [*d_sides, d_value, d_sink, d_bias, d_vector, *d_weights]
        if self._heads is not None:
            gradients[:3] = (
                x if x is None else x.expand(*leading, *x.shape[-2:]).flatten(-4, -3) for x in gradients[:3]
            )
        return [self._summed(g, x) for g, x in zip(gradients[: self.learned], operands, strict=False)]


def _maps(problem: Problem, call: Call) -> Maps | None:
    """Return the matrices that map queries and keys, if the kernel applies them: on one thread, and to narrow rows."""
    maps = call.score.maps
    if maps is None or isinstance(maps.scale, Tensor):
        return None
    narrow = max(call.query.shape[-1], call.key.shape[-1]) <= WIDEST
    return maps if maps.unit or (narrow and _alone(problem)) else None


def _heads_as_given(problem: Problem, call: Call) -> tuple[int, int] | None:
    """Return (G, H/G) if the call's heads are grouped but its tensors not yet split into groups, else None."""
    groups = call.visibility.groups
    return groups if groups is not None and call.query.ndim == len(problem.leading) + 1 else None


def _through_unit(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of x from that of x/‖x‖, with a graph."""
    with torch.enable_grad():
        source = x if x.requires_grad else x.detach().requires_grad_()
        slope: Tensor = torch.autograd.grad(unit(source), source, gradient, create_graph=True)[0]
    return slope


def _float(x: Tensor | None) -> Tensor | None:
    """Convert a tensor to float32; None stays None."""
    return x if x is None or x.dtype is torch.float32 else x.float()


def _to_look_up(call: Call, ties: bool) -> Operands:
    """Return detached operands, for scores of which only the order matters."""
    with torch.no_grad():
        operands = call.score.prepare(call.query, call.key)
        # Those of equal keys may differ in their last bits, and a tie must go to the first key.
        first = first_equals(call.key) if ties else None
        if first is None:
            return operands
        return operands._replace(key=operands.key.gather(-2, first[..., None].expand_as(operands.key)))


def _drop(seed: Tensor, dropout: float) -> NDArray[np.uint64]:
    """Return the seed, the threshold and the bits of 1/(1 − p) of dropout."""
    keep = np.array(1 / (1 - dropout)).view(np.uint64)
    return np.array([int(seed) % 2**64, threshold(dropout), int(keep)], np.uint64)


def _gradients_with_graph(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients with a graph."""
    operands, needed, zeros = _saved(ctx)
    return (None, None, *ctx.bound.with_graph(operands, needed, grad), *zeros)


def _saved(ctx: Any) -> tuple[_Operands, Sequence[bool], list[Tensor]]:
    """Return the operands of a forward pass, which need gradients, and the gradients of what only selects values."""
    tensors, bound = ctx.saved_tensors, ctx.bound
    operands = _Operands(*tensors[: bound.saved], *ctx.others)
    return operands, ctx.needs_input_grad[2 : 2 + bound.learned], [torch.zeros_like(x) for x in tensors[bound.saved :]]


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bound: _Bound, operands: _Operands, *inputs: Tensor | None) -> Tensor:
        # What the backward pass reads again is saved: PyTorch then detects changes in place.
        ctx.save_for_backward(*operands[: bound.saved], *inputs[bound.learned :])
        ctx.bound, ctx.others = bound, operands[bound.saved :]
        output, ctx.state = bound.forward(operands)
        return output

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        operands, needed, zeros = _saved(ctx)
        return (None, None, *ctx.bound.backward(operands, ctx.state, needed, grad), *zeros)


SHORT_PRODUCTS = Algorithm(
    "sdpa.short",
    "sdpa",
    "one compiled pass per short sequence and head",
    _refuses_other_products,
    work,
    run,
    alone=_alone,
    kernels=available.why_no_register_kernels,
    reads_hidden_keys=False,
    bind=bind,
    by_strides=True,
)
SHORT = replace(
    SHORT_PRODUCTS,
    name="rowwise.short",
    backend="rowwise",
    refuses=_refuses_softmax_of_products,
    inspect=_inspect,
    declines=_declines,
)
