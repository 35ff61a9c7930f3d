"""Attention over short sequences, in one compiled call that reads the tensors as they are.

A call of a few dozen keys takes as long as its operators take to start, so here is one: the kernel gets addresses,
strides and sizes, and computes guards, scores, normalizer, dropout and output of each item while its matrices are in
the L1 and L2 caches (`qkv.algorithms.rowwise.short_kernel`). Distances are subtracted, so that no digits cancel. Masked
pairs are not computed where a row sees a range of keys. The backward pass is one call too and recomputes the weights; a
sink's gradient is −w_sink Σ_j w_j (g·v_j), summed over rows. What sizes, strides and numbers decide is bound once.
"""

from collections.abc import Callable, Sequence
from math import isinf
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.algorithms.rowwise import short_kernel
from qkv.algorithms.sdpa.flash import refuses_mechanism
from qkv.compiled import available, thread_pool
from qkv.compiled.kernels import Kernel
from qkv.compiled.strided import memory_of
from qkv.engine.algorithm import Algorithm, Result, Work
from qkv.engine.autograd import differentiable_by
from qkv.engine.derivatives import Constants, Terms, differentiable_gradients
from qkv.engine.dropout import threshold
from qkv.engine.mechanism import Mechanism, full_rank, normalizer_parts
from qkv.engine.problem import Call, Problem
from qkv.engine.ties import first_equals
from qkv.engine.work import memory_traffic, pairs_of, passes, product_operations
from qkv.masks.lower import Visibility
from qkv.normalizers.dense import Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax
from qkv.normalizers.steep import is_steep
from qkv.scores.base import HALVES, Operands
from qkv.scores.pointwise import number_of
from qkv.shapes import Shape

LONGEST = 256
"""The largest number of queries or keys; beyond it, an item's matrices exceed the L2 cache."""
WIDEST = 128
"""The widest query or value, for the same reason."""
_LARGEST = torch.finfo(torch.float32).max
"""Replaces a sink of +inf, which takes the whole weight of its row, and the row state that results."""
_MICROSECONDS = {"dot": 5e-5, "distance": 5e-5, "relu_sum": 5e-5, "tanh_sum": 8e-4}
"""Microseconds of one thread per element of the query and per key, forward, by core, on a fast processor.

A Zen 3 beside busy processes takes four times as long for all cores but `tanh_sum`, and for a backward pass five times
as long: a pass that is counted as 200 µs takes a millisecond there."""
_CORES = {core: code for code, core in enumerate(_MICROSECONDS)}
_SHAPES = ("Linear", "NegativeHalf", "GaussianShape", "BoxcarShape", "EpanechnikovShape", "Softcap", "Leaky")
"""In the order of their numbers in the kernels, as `_CORES`."""
_RULES = {"softmax": 0, "sum": 1, "mean": 2, "identity": 3, "sigmoid": 5, "hard": 6, "sparsemax": 7, "entmax": 7}
_LAYOUTS = 64
"""For how many layouts of tensors a bound call keeps the tables."""


_ROWS = 8
"""How many rows are computed at a time."""


def refuses(problem: Problem) -> str | None:
    """Return why this pass cannot compute a problem; None if it can."""
    # This comes first: the size checks below would specialize a traced program to these sizes.
    if problem.mode != "eager":
        return "compiled kernels serve eager calls"
    shape = type(problem.pointwise).__name__
    reasons = (
        (problem.device != "cpu", "the kernels run on the CPU"),
        (problem.core not in _CORES, f"the core is {problem.core}"),
        (problem.core == "tanh_sum" and problem.queries < _ROWS, "additive plans steps of few queries once for all"),
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
    return next((reason for holds, reason in reasons if holds), None)


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
    padded = -(-problem.queries // _ROWS) * _ROWS
    return _MICROSECONDS[problem.core] * problem.rows * padded * problem.keys * problem.width * (1 + backward)


def _refuses_softmax_of_products(problem: Problem) -> str | None:
    same = refuses_mechanism(problem._replace(dropout=False)) is None
    return "sdpa.short computes a softmax of dot products" if same else refuses(problem)


def work(problem: Problem) -> Work:
    """Count two products forward and five backward, and one pass over the rows of each."""
    padded = problem._replace(queries=-(-problem.queries // _ROWS) * _ROWS)
    operations, pairs = product_operations(padded), pairs_of(padded)
    counts = {
        f"{'causal ' * (problem.mask == 'causal')}operations of {problem.core}": operations,
        f"pairs of {problem.normalizer}": pairs,
        "masked pairs": pairs if problem.mask == "dense" else 0,
        "biased pairs": pairs if problem.bias != "none" else 0,
        "pairs dropped": pairs if problem.dropout else 0,
        "items": problem.rows,
        "bounds": 1 if problem.mask not in ("all", "causal") else 0,
        "calls that prepare operands": 1 if problem.dtype in HALVES else 0,
        **memory_traffic(problem),
    }
    return Work(int(operations * passes(problem)), 4 * LONGEST * (2 * LONGEST + 5 * WIDEST), counts)


def _inspect(problem: Problem, call: Call) -> str | None:
    """Return why this pass cannot compute a call of a problem that it does not refuse; None if it can."""
    query, _, scale, _ = call.score.prepare(call.query, call.key)
    normalizer, parameter = call.normalizer, normalizer_parts(call.normalizer)[1]
    numbers = not isinstance(parameter, Tensor)
    steep = "entmax's alpha is so close to 1, or so large, that a row needs more than one threshold"
    reasons = (
        (isinstance(scale, Tensor) and problem.core == "distance", "the bandwidth is a tensor"),
        (query.dtype == torch.float64, "the bandwidth is near the limits of float32"),
        (not (numbers or isinstance(normalizer, Softmax)), "the parameter of the normalizer is a tensor"),
        (isinstance(normalizer, Entmax) and is_steep(normalizer.alpha), steep),
        (isinstance(normalizer, Sigmoid) and numbers and isinf(parameter or 0.0), "the bias is infinite"),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _declines(problem: Problem, reason: str | None) -> str | None:
    return reason


def bind(problem: Problem, call: Call) -> Callable[[Call], Tensor] | None:
    """Return a function that computes the output of calls like this one; None if their numbers must be inspected."""
    return None if _inspect(problem, call) else _Bound(problem, call).output


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
        query, key, value: (..., Q, F), (..., K, F), (..., K, V), float32 or bfloat16.
        sink: (...), float32; or the bias of a sigmoid.
        vector: (..., F), float32, of `tanh_sum`.
        bias: broadcasts to (..., Q, K), float32.
        first, last, mask: of the lowered mask, (..., Q) and (..., Q, K).
        scale: multiplies the products.
        drop: seed, threshold and the bits of 1/(1 − p) of dropout; empty for none.
        visibility, seed, dropout: as in `Call`, for gradients with a graph.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    sink: Tensor | None
    vector: Tensor | None
    bias: Tensor | None
    first: Tensor | None
    last: Tensor | None
    mask: Tensor | None
    scale: float
    drop: NDArray[np.uint64]
    visibility: Visibility
    seed: Tensor | None
    dropout: float


_LEARNED, _TENSORS = 6, 9
"""How many of the operands may have gradients, and how many are tensors."""
_NOTHING = np.zeros(0, np.uint64)
_KINDS = (
    *(("sink", torch.float32), ("vector", torch.float32), ("bias", torch.float32)),
    *(("first", torch.int32), ("last", torch.int32), ("mask", torch.bool)),
)


class _Pass(NamedTuple):
    """A kernel, its scratch, and roughly the microseconds of one thread that it takes."""

    kernel: Kernel
    scratch: tuple[tuple[Shape, Any], ...]
    microseconds: float

    def run(self, items: int, arguments: Sequence[Any]) -> None:
        """Run the kernel over all items: on the calling thread, unless that takes longer than to wake others."""
        if self.microseconds >= thread_pool.ALONE_BELOW:
            thread_pool.run_in_chunks(
                self.kernel, np.float32, items, self.microseconds, arguments, self.scratch, each=2
            )
            return
        floats, doubles, rows = self.scratch
        scratch = np.empty(*floats), np.empty(*doubles), np.empty(*rows)
        self.kernel.at(np.float32)(0, items, *arguments, *scratch)


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
        query, key, scale, vector = call.score.prepare(call.query, call.key)
        given = query is call.query and key is call.key and vector is None
        self._as_given = given and not isinstance(scale, Tensor)
        self._scale: float = 1.0 if isinstance(scale, Tensor) else scale
        self._dtype = query.dtype if self._as_given else torch.promote_types(query.dtype, torch.float32)
        self._converts = any(x.dtype != self._dtype for x in (query, key, call.value))
        self._name, parameter = normalizer_parts(call.normalizer)
        self._alpha = {"sparsemax": 2.0, "entmax": parameter}.get(self._name, 1.5)
        shape = type(problem.pointwise).__name__
        self._takes_sink = isinstance(call.normalizer, (Softmax, Sigmoid)) and parameter is not None
        simple = problem.mask == "all" and problem.bias == "none" and problem.core != "tanh_sum"
        self._plain = simple and not (problem.dropout or self._takes_sink)
        self._looks_up = problem.normalizer == "hard"
        # Equal keys have equal scores where the kernel computes them, and where all scores are equal.
        self._ties = key is not call.key and not problem.constant
        # The kernel reads no hidden keys, but the gradient of an operand that is computed from NaN is NaN.
        self._hides = problem.mask != "all" and (problem.gradient or self._looks_up)
        self._has_slope = problem.normalizer != "hard" and shape != "BoxcarShape"
        self._empty = np.empty(0, np.float32 if self._dtype == torch.float32 else np.uint16)
        self._items, self._leading = problem.rows, problem.leading
        self._output_shape = torch.Size((*problem.leading, problem.queries, problem.value_width))
        shapes: tuple[torch.Size, ...] = query.shape, key.shape, call.value.shape
        if not self._as_given:
            shapes = tuple(torch.Size((*problem.leading, *shape[-2:])) for shape in shapes)
        self._shapes = shapes
        self._sizes = problem.queries, problem.keys, query.shape[-1], problem.value_width
        self._layouts: dict[Any, _Layout] = {}
        codes = _CORES[problem.core], _SHAPES.index(shape), _RULES[problem.normalizer]
        self._numbers = *codes, self._scale, number_of(problem.pointwise), self._alpha
        size = self._dtype.itemsize
        self._passes = tuple(
            _Pass(kernel[size], self._scratch(backward), _microseconds(problem, backward))
            for backward, kernel in ((False, short_kernel.forward), (True, short_kernel.backward))
        )

    def _scratch(self, backward: bool) -> tuple[tuple[Shape, Any], ...]:
        """Return the shapes and types of a kernel's scratch."""
        queries, keys, width, value_width = (-size // 16 * -16 for size in self._sizes)
        numbers = (queries + keys + 2) * width + keys * value_width
        if backward:
            numbers += (queries + keys) * value_width + max(queries, keys) * max(width, value_width)
            numbers += 2 * (queries + 1) * keys
        else:
            numbers += keys * width + 8 * (keys + value_width)
        return ((numbers + 64,), np.float32), ((2 * keys + 2,), np.float64), ((queries + queries // 8, 2), np.uint64)

    def output(self, call: Call) -> Tensor:
        """Compute the output of a call."""
        operands = self.operands(call)
        if not self.problem.gradient:
            return self.converted(self.forward(operands)[0])
        # Under `hard`, queries and keys only select a value: their gradients are 0.
        scored = call.scored() if self._looks_up and not self._as_given else ()
        decide = [x for x in scored if isinstance(x, Tensor) and x.requires_grad]
        output: Tensor = _Short.apply(self, operands, *operands[:_LEARNED], *decide)  # type: ignore[no-untyped-call]
        return self.converted(output)

    def converted(self, output: Tensor) -> Tensor:
        """Return an output in the dtype of the query."""
        return output if self._dtype == self.problem.dtype else output.to(self.problem.dtype)

    def operands(self, call: Call) -> _Operands:
        """Return what the kernel reads of a call."""
        query, key, value, scale, vector = call.query, call.key, call.value, self._scale, None
        if not self._as_given:
            if self._hides:
                call = call.without_hidden_keys()
            prepared = _to_look_up(call, self._ties) if self._looks_up else call.score.prepare(call.query, call.key)
            (query, key, scale), value, vector = prepared.with_number(), call.value, prepared.vector
            assert scale == self._scale
            if self._converts:
                query, key, value = query.to(self._dtype), key.to(self._dtype), value.to(self._dtype)
            # Hidden keys may differ between the items that shared them.
            pairs = zip((query, key, value), self._shapes, strict=True)
            query, key, value = (x if x.shape == shape else x.expand(shape) for x, shape in pairs)
        if self._plain:
            return _Operands(query, key, value, *(None,) * 6, scale, _NOTHING, call.visibility, None, 0.0)
        first, last = call.visibility.bounds or (None, None)
        bias, mask = call.bias_tensor, call.visibility.dense
        bias = bias if bias is None or bias.dtype == torch.float32 else bias.float()
        drop = _NOTHING if call.seed is None else _drop(call.seed, call.dropout)
        tensors = query, key, value, self._sink(call), vector, bias, first, last, mask
        return _Operands(*tensors, scale, drop, call.visibility, call.seed, call.dropout)

    def _sink(self, call: Call) -> Tensor | None:
        """Return the sink of each item, or the bias of a sigmoid, broadcasting to the leading shape; None if none."""
        if not self._takes_sink:
            return None
        sink = torch.as_tensor(normalizer_parts(call.normalizer)[1], dtype=torch.float32, device="cpu")
        # The kernels read −inf as no sink.
        return torch.where(sink > _LARGEST, _LARGEST, sink)

    def forward(self, operands: _Operands) -> tuple[Tensor, Tensor | None]:
        """Return the output and, if requested, the row state."""
        tensors = self._checked(operands)
        layout = self._layout(tensors)
        output = torch.empty_strided(self._output_shape, layout.output, dtype=self._dtype, device="cpu")
        state = None
        if self.problem.state:
            state = torch.empty(self._output_shape[:-1], dtype=torch.float64, device="cpu")
        results = output.data_ptr(), 0 if state is None else state.data_ptr()
        self._passes[0].run(self._items, self._arguments(operands, tensors, layout, results))
        return output, state

    def backward(self, operands: _Operands, needed: Sequence[bool], grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the operands that are needed; those of query, key and value always."""
        tensors = self._checked(operands)
        grad = memory_of(grad, "grad", self._dtype, self._output_shape)
        gradients = [self._like(x) for x in operands[:3]]
        layout = self._layout(tensors, grad, *gradients)
        queries, keys, width, _ = self._sizes
        has_sink = operands.sink is not None and self.problem.normalizer == "softmax"
        parameters = (
            torch.empty(self._leading, dtype=torch.float64, device="cpu") if has_sink else None,
            grad.new_zeros(*self._leading, width, dtype=torch.float32) if needed[4] else None,
            grad.new_empty(*self._leading, queries, keys, dtype=torch.float32) if needed[5] else None,
        )
        d_sink, d_vector, d_bias = (0 if x is None else x.data_ptr() for x in parameters)
        results = (*(x.data_ptr() for x in (grad, *gradients)), d_sink, d_bias, d_vector)
        self._passes[1].run(self._items, self._arguments(operands, tensors, layout, results))
        if not self._has_slope:
            gradients[:2] = (x.zero_() for x in gradients[:2])
        return tuple(_summed(g, x) for g, x in zip((*gradients, *parameters), operands, strict=False))

    def _like(self, x: Tensor) -> Tensor:
        """Return memory for the gradient of a tensor, with all leading dimensions."""
        same = x.shape[:-2] == self._leading
        return torch.empty_like(x) if same else x.new_empty(*self._leading, *x.shape[-2:])

    def _checked(self, operands: _Operands) -> list[Tensor | None]:
        """Return the tensors, whose types, sizes and devices are those that the kernel will read."""
        dtype, (of_query, of_key, of_value) = self._dtype, self._shapes
        query = memory_of(operands[0], "query", dtype, of_query)
        key = memory_of(operands[1], "key", dtype, of_key)
        value = memory_of(operands[2], "value", dtype, of_value)
        if self._plain:
            return [query, key, value]
        return [
            *(query, key, value),
            *(
                x if x is None else memory_of(x, name, kind)
                for x, (name, kind) in zip(operands[3:9], _KINDS, strict=True)
            ),
        ]

    def _layout(self, tensors: list[Tensor | None], *results: Tensor) -> _Layout:
        """Return the table of sizes and strides of a call, which is made once for all calls with the same strides."""
        # The shapes of query, key, value and results are those of the problem; the others may broadcast in other ways.
        strides: Any = tuple([None if x is None else x.stride() for x in (*tensors, *results)])
        if not self._plain:
            strides = strides, tuple([None if x is None else x.shape for x in tensors[3:]])
        layout = self._layouts.get(strides)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[strides] = self._laid_out(tensors, results)
        return layout

    def _laid_out(self, tensors: list[Tensor | None], results: tuple[Tensor, ...]) -> _Layout:
        every = [*tensors, *[None] * (_TENSORS - len(tensors))]
        query, key, value, sink, vector, bias, first, last, mask = every
        assert query is not None
        output = self._output_strides(query)
        grad, *gradients = results or (None,) * 4
        table = [*(1, 1, *self._leading)[-2:], *self._sizes]
        for x in (query, key, value):
            table += self._strides(x, 2)
        table += self._strides(grad, 2) if grad is not None else self._over_items(self._output_shape, output, 2)
        for x in (first, last):
            table += [*self._strides(x, 1), 0]
        for x in (mask, bias):
            table += self._strides(x, 2)
        *of_vector, by = self._strides(vector, 1)
        table += [*self._strides(sink, 0), 0, 0, *of_vector, 0, by]
        for x in gradients:
            table += self._strides(x, 2)
        return _Layout(np.array(table, np.int64).view(np.uint64), output)

    def _strides(self, x: Tensor | None, last: int) -> list[int]:
        """Return the strides of a tensor over three leading dimensions and its last ones; 0 where it broadcasts."""
        return [0] * (3 + last) if x is None else self._over_items(x.shape, x.stride(), last)

    def _over_items(self, shape: Sequence[int], strides: Sequence[int], last: int) -> list[int]:
        missing = 3 + last - len(shape)
        return [0] * missing + [0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]

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
        query, key, value, *others = tensors
        addresses = query.data_ptr(), key.data_ptr(), value.data_ptr()  # type: ignore[union-attr]
        if self._plain:
            return layout.table, *self._numbers, *addresses, 0, 0, 0, 0, 0, 0, *results, _NOTHING, self._empty
        sink, vector, bias, *ranges = (0 if x is None else x.data_ptr() for x in others)
        rest = *ranges, bias, sink, vector
        return layout.table, *self._numbers, *addresses, *rest, *results, operands.drop, self._empty

    def with_graph(self, operands: _Operands, needed: Sequence[bool], grad: Tensor) -> list[Tensor | None]:
        """Return the gradients of the operands with a graph."""
        rank, problem = len(self._leading), self.problem
        query, key, value, sink, vector, bias = operands[:6]
        parameter = None if sink is None else full_rank(sink[..., None, None], rank + 2)
        if self._name == "entmax":
            parameter = torch.tensor(self._alpha, dtype=torch.float64, device="cpu")
        terms = Terms(
            query.expand(*self._leading, *query.shape[-2:]),
            full_rank(key, rank + 2),
            full_rank(value, rank + 2),
            vector=None if vector is None else full_rank(vector, rank + 1),
            parameter=parameter,
            bias=None if bias is None else full_rank(bias, rank + 2),
        )
        ties = first_equals(key) if problem.normalizer == "hard" else None
        factor, dropout = operands.scale, operands.dropout
        mechanism = Mechanism(problem.core, problem.pointwise, self._name, factor, dropout, False, self._leading)
        d_query, d_key, d_value, _, d_vector, d_sink, d_bias, *_ = differentiable_gradients(
            mechanism,
            operands.visibility,
            terms,
            [*needed[:3], False, needed[4], needed[3], needed[5]],
            (grad, None),
            Constants(operands.seed, None if ties is None else full_rank(ties, rank + 1)),
        )
        gradients = d_query, d_key, d_value, d_sink, d_vector, d_bias
        return [_summed(g, x) for g, x in zip(gradients, operands, strict=False)]


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


def _summed(gradient: Tensor | None, x: Any) -> Tensor | None:
    """Return the gradient of a tensor that was broadcast."""
    if gradient is None or x is None:
        return None
    gradient = gradient if gradient.shape == x.shape else gradient.sum_to_size(x.shape)
    return gradient if gradient.dtype == x.dtype else gradient.to(x.dtype)


def _gradients_with_graph(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients with a graph."""
    operands, zeros = _saved(ctx)
    return (None, None, *ctx.bound.with_graph(operands, ctx.needs_input_grad[2:], grad), *zeros)


def _saved(ctx: Any) -> tuple[_Operands, list[Tensor]]:
    """Return the operands of a forward pass, and zeros for each tensor that decides only which value is read."""
    tensors = ctx.saved_tensors
    operands = _Operands(*tensors[:_TENSORS], *ctx.others)
    return operands, [torch.zeros_like(x) for x in tensors[_TENSORS:]]


class _Short(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bound: _Bound, operands: _Operands, *inputs: Tensor | None) -> Tensor:
        # What the backward pass reads again is saved: PyTorch then detects changes in place.
        ctx.save_for_backward(*operands[:_TENSORS], *inputs[_LEARNED:])
        ctx.bound, ctx.others = bound, operands[_TENSORS:]
        return bound.forward(operands)[0]

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        operands, zeros = _saved(ctx)
        return (None, None, *ctx.bound.backward(operands, ctx.needs_input_grad[2:], grad), *zeros)


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
)
SHORT = Algorithm(
    "rowwise.short",
    "rowwise",
    "one compiled pass per short sequence and head",
    _refuses_softmax_of_products,
    work,
    run,
    _inspect,
    _declines,
    alone=_alone,
    kernels=available.why_no_register_kernels,
    reads_hidden_keys=False,
    bind=bind,
)
