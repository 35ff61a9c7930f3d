"""Backend `toeplitz`: dot products with a bias from positions under softmax, by PyTorch's fused kernel.

The bias of query i and key j is a function of j − i, so that a stripe of rows, the last first, reads it as a view of
one vector of Q + K − 1 numbers: row r begins one number after row r − 1. No matrix is ever made of it. Where a mask is
more than causal, each stripe's is written out, and made again in the backward pass. Where numbers got out of hand, for
which adding −inf is no mask, the whole is computed by `blocked`.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from qkv.algorithms.sdpa import flash_operators
from qkv.algorithms.sdpa.flash import forbid_second_derivative
from qkv.algorithms.tiled import user_scores
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.problem import Call, Problem
from qkv.engine.unchanged import Reads, tensors_of
from qkv.scores.free import Learned
from qkv.scores.positioned import Positioned
from qkv.scores.widened import as_it_is
from qkv.shapes import Shape
from qkv.values.positions import DIGITS

WRITTEN = 1 << 22
"""The most numbers of a stripe's mask where it is written out."""

ROWS = 256
"""The fewest rows of a stripe where it is not: an eighth of the queries is cut, so that causal masks skip keys."""


def refuses(problem: Problem) -> str | None:
    """Only fixed biases from positions, over plain dot products under softmax."""
    if problem.positioned is None:
        return "there is no bias from positions, or it needs a gradient, or scores are bent before it"
    if problem.positioned != "dot":
        return f"the core beneath the bias is {problem.positioned}, not dot"
    if problem.normalizer != "softmax" or problem.sink:
        return f"the normalizer is {problem.normalizer}{' with a sink' if problem.sink else ''}, not plain softmax"
    return _refuses_call(problem)


def _refuses_call(problem: Problem) -> str | None:
    if problem.mode != "eager":
        return "its views are made in eager mode alone"
    if problem.dropout:
        return "the fused CPU kernel refuses dropout"
    if problem.device != "cpu" or not flash_operators.KERNELS:
        return "the kernel that takes such views is the CPU's"
    if problem.state:
        return "the row state is not read here"
    if 0 in (problem.rows, problem.queries, problem.keys, problem.value_width) or problem.width == DIGITS:
        return "an axis is empty"
    return None


def work(problem: Problem) -> Work:
    """Count the fused kernel's products, stripe by stripe, and the masks that are written out."""
    pairs = problem.rows * problem.queries * problem.keys
    operations = 4 * pairs * max(problem.width - DIGITS, problem.value_width)
    counts = {
        "operations": operations,
        "stripes": max(1, problem.queries // ROWS),
        "mask": 0 if problem.mask in ("all", "causal") else pairs,
    }
    memory = 4 * (problem.queries + problem.keys) * problem.rows + 4 * WRITTEN
    return Work(operations * (7 if problem.gradient else 2) // 2, memory, counts)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Stripe by stripe, rows in reverse."""
    query, key, scale, shifts = _operands(problem, call)
    with nullcontext() if query.dtype == problem.dtype else as_it_is(query):
        return _run(problem, call, query, key, scale, shifts)


def _run(problem: Problem, call: Call, query: Tensor, key: Tensor, scale: float, shifts: Tensor) -> Result:
    # Operands that were computed are wider than half precision.
    value = call.value.to(query.dtype)
    query, key, value = (_four_dimensional(x, problem.leading) for x in _one_width(query, key, value))
    plain = problem.mask in ("all", "causal") and bool(shifts.isfinite().all())
    if problem.mask == "causal":
        ahead = torch.arange(1 - problem.queries, problem.keys, dtype=torch.int64, device=shifts.device) > 0
        shifts = shifts.masked_fill(ahead, -torch.inf)
    outputs, states, reads = [], [], Reads(tensors_of(call))
    for rows, stop in _stripes(problem, plain):
        inputs = (query[..., rows, :].flip(-2), key[..., :stop, :], value[..., :stop, :])
        table = _view(problem, shifts, rows, stop)
        if plain:
            output, lse = _attend(*inputs, table, scale, problem)
        elif problem.gradient:
            given = problem, call, rows, inputs, table, scale
            output, lse = checkpoint(_hidden, *given, use_reentrant=False)
        else:
            output, lse = _hidden(problem, call, rows, inputs, table, scale)
        outputs.append(output)
        states.append(lse)
    if not all(flash_operators.trusted(lse, problem.keys, True) for lse in states):
        return user_scores.run(problem, call)
    output = torch.cat(outputs, -2)[..., : problem.value_width].to(problem.dtype)
    reads.guard([output])
    return Result(output.reshape(*problem.leading, problem.queries, problem.value_width), None)


def _operands(problem: Problem, call: Call) -> tuple[Tensor, Tensor, float, Tensor]:
    """Queries and keys without their positions, the scale, and the bias of each j − i, (batch, heads, Q + K − 1)."""
    assert isinstance(call.score, Learned)
    module = call.score.module
    assert isinstance(module, Positioned)
    operands = module.score.prepare(call.query[..., :-DIGITS], call.key[..., :-DIGITS])
    device = call.query.device
    origin = torch.zeros(1, 1, dtype=torch.int64, device=device)
    places = torch.arange(1 - problem.queries, problem.keys, dtype=torch.int64, device=device)
    shifts = module.bias(origin, places).squeeze(-2)
    shifts = shifts.to(torch.float64 if call.query.dtype == torch.float64 else torch.float32).detach()
    if shifts.ndim > 2:
        shifts = shifts.expand(*problem.leading, shifts.shape[-1]).reshape(-1, problem.leading[-1], shifts.shape[-1])
    shifts = shifts.reshape((1,) * (3 - shifts.ndim) + tuple(shifts.shape))
    return *operands.with_number(), shifts


def _one_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros beside the narrower of the two: without them PyTorch leaves its kernel."""
    lacking = query.shape[-1] - value.shape[-1]
    wider = (0, max(0, -lacking))
    return F.pad(query, wider), F.pad(key, wider), F.pad(value, (0, max(0, lacking)))


def _four_dimensional(x: Tensor, leading: Shape) -> Tensor:
    """(..., N, F) to (batch, heads, N, F)."""
    x = x.expand(*leading, *x.shape[-2:])
    return x.reshape(-1, leading[-1] if leading else 1, *x.shape[-2:])


def _stripes(problem: Problem, plain: bool) -> Iterator[tuple[slice, int]]:
    """Rows, and the first key that none of them sees."""
    height = max(ROWS, problem.queries // 8) if plain else max(1, WRITTEN // (problem.rows * problem.keys))
    for start in range(0, problem.queries, height):
        end = min(start + height, problem.queries)
        yield slice(start, end), min(end, problem.keys) if problem.mask == "causal" else problem.keys


def _view(problem: Problem, shifts: Tensor, rows: slice, stop: int) -> Tensor:
    """The bias of some rows, the last first: windows of one vector."""
    return shifts[..., problem.queries - rows.stop : problem.queries - 1 - rows.start + stop].unfold(-1, stop, 1)


def _hidden(
    problem: Problem, call: Call, rows: slice, inputs: tuple[Tensor, Tensor, Tensor], table: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """A stripe whose mask is written out; a row that sees nothing gives 0, which the kernel leaves undefined."""
    seen = call.visibility.tile(rows, slice(0, table.shape[-1]))
    if seen is not None:
        seen = seen.expand(*seen.shape[:-2], rows.stop - rows.start, table.shape[-1])
        if seen.ndim > 2:
            seen = _four_dimensional(seen, problem.leading)
        table = torch.where(seen.flip(-2), table, -torch.inf)
    output, lse = _attend(*inputs, table, scale, problem)
    alive = (table > -torch.inf).any(-1, keepdim=True).flip(-2)
    return torch.where(alive, output, output.new_zeros(())), lse


def _attend(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: float, problem: Problem
) -> tuple[Tensor, Tensor]:
    """PyTorch's kernel on a stripe, its rows put in order again; its row state is left as it is."""
    output, lse = flash_operators.forward(query, key, value, table, False, scale)
    if problem.gradient:
        forbid_second_derivative(output, "toeplitz")
    return output.flip(-2), lse


TOEPLITZ = Algorithm(
    "sdpa.toeplitz",
    "toeplitz",
    "PyTorch's fused kernel, the bias a view of one vector",
    refuses,
    work,
    run,
)
