"""Backend `linear`: weights that are plain dot products need no matrix, since (QKᵀ)V = Q(KᵀV).

A head of N keys, width F and value width V then takes 2N·F·V operations for KᵀV and as many for the product with Q,
instead of 2N²(F + V). Causal attention keeps a running KᵀV, chunk by chunk: inside a chunk the matrix is small.

Source: Katharopoulos et al. 2020, "Transformers are RNNs", eq. 6 and section 3.3 (causal); Wang et al. 2018, "Non-local
Neural Networks", section 3.2 (dot product).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.problem import Call, Problem, first_reason, is_not
from qkv.engine.work import memory_traffic
from qkv.scores.base import wide
from qkv.scores.pointwise import Linear

CHUNK = 128
"""Rows of a causal chunk: for usual widths of a head its matrix takes as long as the running sum."""


def refuses(problem: Problem) -> str | None:
    """Accept only dot products that are the weights themselves, and constant scores."""
    return first_reason(
        is_not(problem, "dot"),
        (not isinstance(problem.pointwise, Linear), f"the scores are {problem.pointwise}, not plain products"),
        (
            problem.normalizer not in ("mean", "identity") and not _weights_are_equal(problem),
            f"the normalizer is {problem.normalizer}: weights need a matrix",
        ),
        (problem.bias != "none", "a bias is added to the scores"),
        (problem.dropout, "dropout draws for each weight"),
        (problem.mask not in ("all", "causal", "keys"), f"a mask of the kind {problem.mask} differs by row"),
    )


def _weights_are_equal(problem: Problem) -> bool:
    """Return whether all scores are 1 and the weights of visible keys therefore equal, as for a mean."""
    return problem.constant and problem.normalizer in ("sum", "softmax") and not problem.sink


def work(problem: Problem) -> Work:
    """Count work that is linear in queries and keys."""
    span = problem.queries + problem.keys
    state = problem.value_width if problem.constant else problem.width * problem.value_width
    causal = problem.mask == "causal"
    inside = CHUNK * (problem.width + problem.value_width) * problem.queries if causal else 0
    operations = problem.rows * 2 * (span * state + inside)
    chunks = -(-problem.queries // CHUNK) if causal else 1
    memory = problem.rows * (chunks * state * 12 + (4 * CHUNK * problem.queries if causal else 0))
    counts = {"operations": operations, "items": problem.rows, "causal": 1 if causal else 0, **memory_traffic(problem)}
    return Work(operations * (3 if problem.gradient else 1), memory, counts)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Compute KᵀV first, then its product with the queries."""
    bound = bind(problem, call)
    if bound is not None:
        return Result(bound(call), None)
    shape = (*problem.leading, problem.queries, problem.value_width)
    query, key, scale, _ = call.score.prepare(call.query, call.key)
    query, key, value = wide(query), wide(key), wide(call.value)
    count = None if problem.normalizer == "identity" else call.visibility.count()
    factor = scale if count is None else scale / count.clamp(min=1).to(value.dtype)[..., None]
    if problem.mask == "causal":
        parts = (x.expand(*problem.leading, *x.shape[-2:]) for x in (query, key, value))
        output = _causal(*parts) * factor
    else:
        # Every row sees the same keys, so KᵀV is scaled once for all rows; the scale can have a wider type.
        output = query @ ((key.mT @ value) * factor).to(query.dtype)
    output = output.to(call.query.dtype).expand(shape)
    return Result(output, _state(problem, count, output) if problem.state else None)


def bind(problem: Problem, call: Call) -> Callable[[Call], Tensor] | None:
    """Return `run` for calls like this one if every row sees all keys and one number scales all; else None."""
    if problem.mask != "all" or problem.mode != "eager" or problem.state:
        return None
    shape, dtype = (*problem.leading, problem.queries, problem.value_width), problem.dtype
    if problem.constant and not problem.empty:
        total = torch.sum if problem.normalizer == "identity" else torch.mean

        def of_equal_weights(call: Call) -> Tensor:
            # Every row reads the same sum of values.
            return total(wide(call.value), -2, keepdim=True).to(dtype).expand(shape).contiguous()

        return of_equal_weights
    if isinstance(getattr(call.score, "scale", None), Tensor):
        return None
    count = 1 if problem.normalizer == "identity" else max(problem.keys, 1)

    def of_products(call: Call) -> Tensor:
        query, key, scale, _ = call.score.prepare(call.query, call.key)
        assert not isinstance(scale, Tensor)
        output = _of_all_keys(wide(query), wide(key), wide(call.value), scale / count)
        output = output if output.dtype == dtype else output.to(dtype)
        return output if output.shape == shape else output.expand(shape)

    return of_products


def _of_all_keys(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    """Compute factor·Q(KᵀV) in as few operators as possible."""
    if query.ndim == key.ndim == value.ndim == 3 and query.shape[0] == key.shape[0] == value.shape[0]:
        return torch.bmm(query, torch.bmm(key.mT, value).mul_(factor))
    return query @ (key.mT @ value).mul_(factor)


def _state(problem: Problem, count: Tensor | None, output: Tensor) -> Tensor:
    shape = (*problem.leading, problem.queries)
    if count is None:
        return output.new_zeros(shape, dtype=torch.float64)
    state = count.double().expand(shape)
    return 1 + state.log() if problem.normalizer == "softmax" else state


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute causal attention: earlier chunks by their running sum, each row's own chunk by a small matrix."""
    queries = query.shape[-2]
    chunks = -(-queries // CHUNK)
    q, k, v = (_chunked(x, chunks) for x in (query, key, value))
    # Sum earlier chunks instead of subtracting the own chunk from a total: 1e20 or Inf in a chunk would not cancel. The
    # running sum is float64, so that rounding over many chunks does not reach rows that see few keys.
    sums = k[..., :-1, :, :].mT @ v[..., :-1, :, :]
    before = F.pad(sums.cumsum(-3, dtype=torch.float64).to(sums.dtype), (0, 0, 0, 0, 1, 0))
    # tril() writes zeros even where the product with a later key is NaN.
    within = (q @ k.mT).tril()
    output = q @ before + within @ v
    return output.flatten(-3, -2)[..., :queries, :]


def _chunked(x: Tensor, chunks: int) -> Tensor:
    """Reshape (..., N, F) to (..., chunks, CHUNK, F), cut or padded with zeros."""
    x = x[..., : chunks * CHUNK, :]
    x = F.pad(x, (0, 0, 0, chunks * CHUNK - x.shape[-2]))
    return x.reshape(*x.shape[:-2], chunks, CHUNK, x.shape[-1])


LINEAR = Algorithm("matrix.linear", "linear", "values summed by key, then read by query", refuses, work, run, bind=bind)
