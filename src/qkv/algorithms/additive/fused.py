"""Backend `fused`: additive attention on the CPU by compiled loops, without the (Q, K, A) tensor.

The kernels work on a flat list of items, (N, Q, A), and normalize scores by `softmax`, `identity` or `sigmoid`. The
rest is composed here in PyTorch: a sink rescales the rows by their lse, a mean divides by the number of keys that a row
may see.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.algorithms.additive import operators
from qkv.algorithms.additive.few_queries import few
from qkv.compiled import available
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.mechanism import full_rank
from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call, Problem, first_reason, is_not
from qkv.engine.work import is_hidden, memory_traffic, pairs_of
from qkv.normalizers.dense import Sigmoid, Softmax
from qkv.shapes import Shape, broadcast
from qkv.values.parameters import finite, logaddexp, spread

_RULES = {"softmax": "softmax", "mean": "identity", "identity": "identity", "sigmoid": "sigmoid"}

DENSE_LIMIT = 1 << 24
"""Limit on the size, over all leading dimensions, of the matrix made of a mask that is not an interval of keys."""


def _refuses_factored(problem: Problem) -> str | None:
    if problem.mode != "compiled" and few(problem.queries, problem.keys):
        return "so few queries or keys that their factors would cost more than they save"
    return _refuses(problem)


def _refuses_direct(problem: Problem) -> str | None:
    if problem.mode == "compiled" or not few(problem.queries, problem.keys):
        return "enough queries and keys for factors to save time"
    return _refuses(problem)


def _refuses(problem: Problem) -> str | None:
    """Return why the compiled loops cannot compute a problem, None if they can."""
    return first_reason(
        is_not(problem, "tanh_sum"),
        (problem.normalizer not in _RULES, f"the normalizer is {problem.normalizer}: its rows must be sorted"),
        (problem.device != "cpu", "the kernels run on the CPU"),
        (problem.bias_by_tile, "the bias is made tile by tile"),
        (problem.mode in ("transformed", "wrapped"), "the kernels have no rule for vmap or tensor subclasses"),
        (
            problem.mask == "predicate" and pairs_of(problem) > DENSE_LIMIT,
            f"the mask would be materialized as a matrix of more than {DENSE_LIMIT} numbers",
        ),
        (problem.empty, "an axis is empty"),
    )


def work(problem: Problem) -> Work:
    """Count a multiply-add and a quarter of a division per pair and hidden feature, and two exponentials per row.

    With few queries there are no exponentials, but one tanh per pair and feature.
    """
    pairs = pairs_of(problem)
    linear = problem.rows * (problem.queries + problem.keys) * problem.width
    wide = 2 if problem.dtype == torch.float64 else 1
    counts = {
        "features": wide * pairs * problem.width,
        "values": wide * pairs * problem.value_width,
        "exponentials": wide * linear,
        "masked pairs": pairs if is_hidden(problem) else 0,
        "pairs dropped": pairs if problem.dropout else 0,
        "sinks": 1 if problem.sink else 0,
        **memory_traffic(problem),
    }
    operations = 4 * pairs * (problem.width + problem.value_width // 2) * (3 if problem.gradient else 1)
    return Work(operations, 4 * wide * 8 * linear, counts)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Flatten the leading dimensions, call the kernels, and compose sink and mean around them."""
    by_kernels = partial(operators.apply, kernels=operators.ON_HOST)
    return composed(problem, call, operators.apply_compiled if problem.mode == "compiled" else by_kernels)


def composed(
    problem: Problem,
    call: Call,
    apply: Callable[[operators.Items, str, float, bool], tuple[Tensor, Tensor]],
    reads_all: bool = False,
) -> Result:
    """Compute a call by kernels that take items, a rule, dropout, and whether they return the lse.

    Args:
        problem, call: as an algorithm takes them.
        apply: returns output (N, Q, V) and lse (N, Q).
        reads_all: whether the kernels read hidden keys too, which are zeroed then, however few the queries.
    """
    leading, dtype = problem.leading, call.query.dtype
    count = None
    if problem.normalizer in ("mean", "sigmoid"):
        count = call.visibility.count()
    items = _items(problem, call, count, reads_all)
    needs_lse = problem.state or problem.sink
    output, lse = apply(items, _RULES[problem.normalizer], call.dropout, needs_lse)
    if len(leading) != 1:
        output = output.view(*leading, *output.shape[-2:])
    if problem.normalizer == "mean" and count is not None:
        output = output / count.clamp(min=1).unsqueeze(-1)
    if problem.normalizer == "softmax" and needs_lse:
        output, lse = _with_sink(call, output, lse.view(*leading, problem.queries))
    state = _state(problem, lse, count) if problem.state else None
    return Result(output.to(dtype), state)


def _items(problem: Problem, call: Call, count: Tensor | None, reads_all: bool = False) -> operators.Items:
    keys = reads_all or not _reads_only_seen_keys(problem, call)
    call, leading = call.without_hidden_keys(keys), problem.leading
    query, key, _, vector = call.score.prepare(call.query, call.key)
    assert vector is not None
    dtype = _compute_dtype(problem.dtype)
    dense = call.visibility.matrix() if problem.mask == "predicate" else call.visibility.dense
    vectors, vector_index = _shared(vector.to(dtype), leading, 1)
    bias, bias_index = _shared(_bias(problem, call, dtype), leading, 2)
    return operators.Items(
        _flat(query.to(dtype), leading),
        _flat(key.to(dtype), leading),
        _flat(call.value.to(dtype), leading),
        vectors,  # type: ignore[arg-type]
        bias,
        _shift(problem, call, count, dtype),
        vector_index,
        *_bounds(problem, call),
        *_shared(None if dense is None else _over_keys(dense, problem), leading, 2),
        bias_index,
        call.seed,
    )


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def prepare_loop(problem: Problem, call: Call) -> Callable[[Tensor], Tensor] | None:
    """Return a step function for a plain softmax of few queries over projected keys, with one leading dimension."""
    plain = problem.mask in ("all", "keys", "bounds") and problem.normalizer == "softmax" and problem.bias == "none"
    more = problem.sink or problem.state or problem.dropout
    projects = any(getattr(call.score, p.name) is not None for p in call.score.parameters if p.name != "vector")
    if not plain or more or projects or len(problem.leading) != 1:
        return None
    from qkv.algorithms.additive import decoding

    steps, dtype = decoding.Steps(_items(problem, call, None)), _compute_dtype(problem.dtype)
    return lambda query: steps(query.to(dtype)).to(problem.dtype)


def _reads_only_seen_keys(problem: Problem, call: Call) -> bool:
    """Return whether hidden keys are never read: few queries under bounds, whose kernels read only each row's own keys.

    Otherwise a whole tile of keys is read at once, and the gradient of a projection is a sum over all keys.
    """
    projected = any(p.of_key and getattr(call.score, p.name) is not None for p in call.score.parameters)
    return not (
        projected
        or problem.mode == "compiled"
        or problem.mask not in ("causal", "keys", "bounds")
        or not few(problem.queries, problem.keys)
    )


def _flat(x: Tensor, leading: Shape) -> Tensor:
    """Reshape (..., N, F) to (items, N, F)."""
    if x.ndim == 3 and x.shape[:-2] == leading:
        # Avoid a view: it costs time in the backward pass too.
        return x
    return x.expand(*leading, *x.shape[-2:]).reshape(-1, *x.shape[-2:])


def _shared(x: Tensor | None, leading: Shape, last: int) -> tuple[Tensor | None, Tensor | None]:
    """Return shared data as (C, last dimensions), and each item's index into it, None if all share one entry."""
    if x is None:
        return None, None
    x = full_rank(x, len(leading) + last)
    shared_leading = x.shape[: len(leading)]
    flat = x.reshape(-1, *x.shape[len(leading) :]) if len(leading) != 1 else x
    if flat.shape[0] == 1:
        return flat, None
    indices = torch.arange(flat.shape[0], device=x.device).view(shared_leading)
    return flat, indices.expand(leading).reshape(-1)


def _bounds(problem: Problem, call: Call) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the first and last visible key of each row, and each item's index into them."""
    first, last = call.visibility.bounds or (None, None)
    if first is None and last is None:
        return None, None, None
    first = torch.zeros_like(last) if first is None else first  # type: ignore[arg-type]
    last = torch.full_like(first, problem.keys) if last is None else last
    shape = broadcast(first.shape, last.shape) or ()
    first, last = (x.expand(*shape[:-1], problem.queries) for x in (first, last))
    flat_first, indices = _shared(first, problem.leading, 1)
    return flat_first, _shared(last, problem.leading, 1)[0], indices


def _bias(problem: Problem, call: Call, dtype: torch.dtype) -> Tensor | None:
    if isinstance(call.bias, PositionBias):
        return call.bias.diagonals().to(dtype).unsqueeze(-2)
    return None if call.bias is None else _over_keys(call.bias.to(dtype), problem)


def _over_keys(table: Tensor, problem: Problem) -> Tensor:
    """Expand to (..., 1 or Q, K): the kernels require an entry for every key."""
    table = full_rank(table, max(table.ndim, 2))
    return table.expand(*table.shape[:-1], problem.keys)


def _shift(problem: Problem, call: Call, count: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the shift that a sigmoid adds to its scores, (items, Q)."""
    if not isinstance(call.normalizer, Sigmoid):
        return None
    bias = call.normalizer.bias
    if bias is None:
        assert count is not None
        shift = -count.clamp(min=1).to(dtype).log()
    else:
        shift = torch.as_tensor(spread(bias, by=1), dtype=dtype, device="cpu")
    return shift.expand(*problem.leading, problem.queries).reshape(-1, problem.queries)


def _with_sink(call: Call, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a sink, which is one more key without a value: it scales the row by σ(lse − sink)."""
    sink = call.normalizer.sink if isinstance(call.normalizer, Softmax) else None
    if sink is None:
        return output, lse
    sink = torch.as_tensor(spread(sink, by=1), dtype=lse.dtype, device=lse.device)
    # The gradient of log σ(x) is σ(−x), exact where 1 − σ(x) would cancel.
    factor = F.logsigmoid(lse - finite(sink)).exp()
    return output * factor.to(output.dtype).unsqueeze(-1), logaddexp(lse, sink.expand_as(lse))


def _state(problem: Problem, lse: Tensor, count: Tensor | None) -> Tensor:
    if problem.normalizer == "softmax":
        return lse
    rows = (*problem.leading, problem.queries)
    return lse.new_zeros(rows) if count is None else count.to(lse.dtype).expand(rows)


FACTORED = Algorithm(
    "additive.factored",
    "fused",
    "compiled loops over the factored tanh",
    _refuses_factored,
    work,
    run,
    kernels=available.why_unavailable,
    reads_hidden_keys=False,
)
DIRECT = replace(
    FACTORED,
    name="additive.direct",
    summary="compiled loops that compute each tanh",
    refuses=_refuses_direct,
    prepare_loop=prepare_loop,
)
