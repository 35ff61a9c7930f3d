"""Backend `sdpa`: PyTorch's fused kernel, for softmax attention over dot products."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.algorithms.sdpa import few_queries, flash, short, softmax_sink
from qkv.algorithms.tiled import blocked
from qkv.engine.autograd import second_derivative
from qkv.engine.backend import Backend, DirectCall, Result
from qkv.engine.hidden_keys import zero_hidden_keys
from qkv.engine.problem import Call, Cost, Problem
from qkv.masks.base import Grid
from qkv.masks.lower import lower
from qkv.masks.patterns import Causal
from qkv.normalizers.dense import Softmax
from qkv.scores.base import Score
from qkv.scores.pointwise import Linear
from qkv.scores.widened import as_it_is
from qkv.shapes import Shape
from qkv.values.parameters import readable

DENSE_LIMIT = 1 << 22
"""The largest mask, in numbers over all batch items, that may be materialized as a matrix."""


def refuses(problem: Problem) -> str | None:
    """Return why the fused kernel cannot compute the problem without a slower path; None if it can."""
    if problem.transformed:
        return "PyTorch's kernel has no rule for vmap"
    return _refuses_mechanism(problem) or _refuses_call(problem)


def _refuses_mechanism(problem: Problem) -> str | None:
    if problem.device == "cpu" and not flash.KERNELS:
        return "this PyTorch has no kernel of that name for the CPU"
    if problem.core != "dot":
        return f"the core is {problem.core}, not dot"
    if not isinstance(problem.pointwise, Linear):
        return f"scores pass through {problem.pointwise}"
    if problem.normalizer != "softmax":
        return f"the normalizer is {problem.normalizer}, not softmax"
    return softmax_sink.refuses(problem) if problem.sink else None


def _refuses_call(problem: Problem) -> str | None:
    if problem.dropout:
        return "the fused CPU kernel refuses dropout"
    if problem.bias == "learned":
        return "a bias that needs a gradient leaves the fused kernel"
    if problem.state and (problem.device != "cpu" or problem.gradient):
        return "the row state is read from the CPU kernel only, and has no gradient"
    if 0 in (problem.rows, problem.queries, problem.keys, problem.width, problem.value_width):
        return "an axis is empty"
    if _written_out(problem) > DENSE_LIMIT:
        return f"the mask would be written out as a matrix of more than {DENSE_LIMIT} numbers"
    return None


def _written_out(problem: Problem) -> int:
    """Return the size of the mask as a matrix: it may differ between batch items, rarely between heads."""
    if problem.mask not in ("bounds", "predicate"):
        return 0
    heads = problem.leading[-1] if len(problem.leading) > 1 else 1
    return problem.rows // heads * problem.queries * problem.keys


def cost(problem: Problem) -> Cost:
    """Return the cost of two matrix products forward and five backward, with the narrower width padded.

    Scores stay in the CPU cache.
    """
    if short.fits(problem):
        return short.cost(problem)
    if _unseen(problem):
        return blocked.cost(problem)
    pairs = problem.rows * problem.queries * problem.keys
    operations = 4 * pairs * max(problem.width, problem.value_width) * (3.5 if problem.gradient else 1)
    # The kernel computes its products in blocks, which in the backward pass are slower than products of whole matrices.
    worth = 1.09 if problem.gradient and problem.dtype.itemsize > 2 else 1.0
    matrix = _written_out(problem)
    # Measured on CPU: the backward pass of half types costs 50 µs per batch item and head below 256 keys (float32: 6).
    slow = problem.gradient and problem.dtype.itemsize == 2 and problem.device == "cpu" and problem.keys < 256
    time = (
        (50 if problem.gradient else 14)
        + worth * operations / 150_000
        + matrix / 2000
        + (50 * problem.rows if slow else 0)
    )
    time += 2.5e-3 * problem.rows * problem.keys * problem.width if problem.gradient else 0
    return Cost(int(operations), 5 * matrix + 4 * problem.rows * problem.queries, time)


def _unseen(problem: Problem) -> bool:
    """Return whether the kernel would add a mask as −inf while its result cannot be checked: during graph compilation
    the numbers are not known yet, so NaN or +inf behind the mask would go unnoticed."""
    added = problem.mask not in ("all", "keys") and (problem.mask != "causal" or problem.bias != "none")
    return torch.compiler.is_compiling() and added


def run(problem: Problem, call: Call) -> Result:
    """Attend with the operands of the score; a compiled pass serves few queries and short sequences."""
    if _unseen(problem):
        return blocked.run(problem, call)
    own: Callable[[Problem, Call, Tensor, Tensor, float], Result] | None = None
    if few_queries.serves(problem, call):
        own = few_queries.run
    elif short.serves(problem, call):
        own = short.run
    # Those passes read only visible keys; all other paths need zeros in place of the hidden ones.
    call = call if own is not None else zero_hidden_keys(call)
    dtype = problem.dtype
    query, key, scale = call.score.prepare(call.query, call.key).with_number()
    attending = own or partial(attend, backend="sdpa", safe=partial(blocked.run, problem, call))
    if query.dtype == dtype:
        return attending(problem, call, query, key, scale)
    # Operands that the score computed are wider than half precision; all other tensors are converted to their type.
    problem, call = problem._replace(dtype=query.dtype), call._replace(value=call.value.to(query.dtype))
    with as_it_is(query):
        found = attending(problem, call, query, key, scale)
    return found._replace(output=found.output.to(dtype))


def direct(problem: Problem) -> DirectCall | None:
    """Return a direct call of the kernel if query, key and value already have the form that it requires, else None."""
    plain = (
        problem.bias == "none"
        and not problem.state
        and not problem.sink
        and len(problem.leading) == 2
        and problem.width == problem.value_width
        # A constant score has operands of width one.
        and not problem.constant
        and (problem.queries > few_queries.MOST or short.fits(problem))
    )
    if plain and short.fits(problem):
        return short.direct(problem)
    return partial(_direct, problem, flash.suspect(problem.keys, problem.dtype, False)) if plain else None


def _direct(problem: Problem, suspect: bool, query: Tensor, key: Tensor, value: Tensor, score: Score) -> Tensor:
    q, k, scale = score.prepare(query, key).with_number()
    wider = q.dtype != value.dtype
    output, lse = flash.forward(q, k, value.to(q.dtype) if wider else value, None, problem.mask == "causal", scale)
    if suspect and not flash.trusted(lse, problem.keys, False):
        return _in_stripes(problem, query, key, value, score)
    if problem.gradient:
        forbid_second_derivative(output, "sdpa")
    return output.to(value.dtype) if wider else output


def _in_stripes(problem: Problem, query: Tensor, key: Tensor, value: Tensor, score: Score) -> Tensor:
    grid = Grid(problem.leading, problem.queries, problem.keys, query.device)
    seen = lower(Causal() if problem.mask == "causal" else None, grid)
    return blocked.run(problem, Call(query, key, value, score, Softmax(), seen)).output


def tells(problem: Problem, call: Call) -> str:
    """Return which kernel computes the call, in words."""
    if few_queries.serves(problem, call):
        return "a compiled pass over the keys of few queries"
    return "a compiled pass over short sequences" if short.serves(problem, call) else "PyTorch's own"


def attend(
    problem: Problem,
    call: Call,
    query: Tensor,
    key: Tensor,
    scale: float,
    backend: str,
    safe: Callable[[], Result] | None = None,
) -> Result:
    """Reshape inputs to (batch, heads, length, width), merge masks and pad to one width, as PyTorch's kernel requires.

    Args:
        problem, call: the problem and its inputs.
        query: (..., Q, F), operands of dot products.
        key: (..., K, F).
        scale: factor of the dot products.
        backend: name of the calling backend, for error messages.
        safe: computes the result if non-finite numbers make the kernel's wrong; None if that cannot happen.
    """
    query, key, value = [_four_dimensional(x, problem.leading) for x in _one_width(query, key, call.value)]
    mask, causal = _mask(problem, call)
    lse = None
    if problem.sink:
        with torch.no_grad():
            output, lse = flash.forward(query, key, value, mask, causal, scale)
    elif problem.state or _readable(query):
        output, lse = flash.forward(query, key, value, mask, causal, scale)
    else:
        output = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale)
        # In a traced graph nothing can be checked afterwards: a row of NaN scores may have come out as an empty one.
        output = output.masked_fill(query.isnan().any(-1, keepdim=True), torch.nan)
    if safe is not None and lse is not None and _out_of_hand(problem, lse, mask is not None):
        return safe()
    if problem.sink:
        assert isinstance(call.normalizer, Softmax)
        assert call.normalizer.sink is not None
        assert lse is not None
        sink = _of_heads(call.normalizer.sink, problem)
        output, lse = softmax_sink.attend(query, key, value, sink, (output, lse), causal, scale)
    if problem.gradient and not torch.compiler.is_compiling():
        forbid_second_derivative(output, backend)
    return _finish(problem, call, output, lse if problem.state else None)


def _readable(x: Tensor) -> bool:
    """Return whether the kernel's numbers can be read; while a graph is traced, PyTorch's function is used instead."""
    return readable(x) and torch._C._get_tracing_state() is None


def _out_of_hand(problem: Problem, lse: Tensor, masked: bool) -> bool:
    suspect = flash.suspect(problem.keys, problem.dtype, masked) and _readable(lse)
    return suspect and not flash.trusted(lse, problem.keys, masked)


def _of_heads(sink: float | Tensor, problem: Problem) -> float | Tensor:
    """Reshape a sink as the leading dimensions were reshaped to two."""
    if not isinstance(sink, Tensor) or sink.ndim < 2 or len(problem.leading) == 2:
        return sink
    return sink.expand(problem.leading).reshape(-1, problem.leading[-1])


def forbid_second_derivative(output: Tensor, backend: str) -> None:
    """Make a second derivative of the kernel, which PyTorch lacks, raise an error that names where it is available."""
    node = output.grad_fn
    if node is not None and "ScaledDotProduct" in node.name():
        node.register_hook(partial(_once, backend))


def _once(
    backend: str, gradients: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return tuple(None if g is None else _Once.apply(g, backend) for g in gradients)  # type: ignore[no-untyped-call]


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated itself."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, backend: str) -> Tensor:
        ctx.backend = backend
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise second_derivative(ctx.backend)


def _one_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad the narrower of the two with zeros: they change no product, and PyTorch needs them to use its kernel."""
    lacking = query.shape[-1] - value.shape[-1]
    if lacking > 0:
        return query, key, F.pad(value, (0, lacking))
    if lacking < 0:
        return F.pad(query, (0, -lacking)), F.pad(key, (0, -lacking)), value
    return query, key, value


def _four_dimensional(x: Tensor, leading: Shape) -> Tensor:
    """Reshape (..., N, F) to (batch, heads, N, F); broadcast dimensions are copied only if they cannot be views."""
    if x.shape[:-2] != leading:
        x = x.expand(*leading, *x.shape[-2:])
    if len(leading) == 2:
        return x
    if len(leading) == 1:
        return x.unsqueeze(0)
    heads = leading[-1] if leading else 1
    return x.reshape(-1, heads, *x.shape[-2:])


def _mask(problem: Problem, call: Call) -> tuple[Tensor | None, bool]:
    if problem.mask == "causal" and call.bias is None:
        return None, True
    seen = call.visibility.matrix()
    if call.bias is None:
        return (None if seen is None else _table(seen, problem)), False
    # With half-precision inputs PyTorch's kernel accepts a float32 bias, and adds it in float32.
    bias = call.bias if call.bias.dtype == torch.float32 else call.bias.to(problem.dtype)
    return _table(bias if seen is None else torch.where(seen, bias, -torch.inf), problem), False


def _table(table: Tensor, problem: Problem) -> Tensor:
    """Return the table as (..., Q or 1, K) of rank two or four."""
    table = table.expand(*table.shape[:-1], problem.keys)
    if table.ndim <= 2:
        return table.expand(1, -1) if table.ndim == 1 else table
    if len(problem.leading) <= 2:
        return table.unsqueeze(0) if table.ndim == 3 else table
    leading = problem.leading
    table = table.expand(*leading, *table.shape[-2:])
    return table.reshape(-1, leading[-1], *table.shape[-2:])


def _alive(bias: Tensor, seen: Tensor | None) -> Tensor:
    above = bias > -torch.inf
    return (above if seen is None else above & seen).any(-1)


def _finish(problem: Problem, call: Call, output: Tensor, lse: Tensor | None) -> Result:
    if output.shape[-1] != problem.value_width:
        output = output[..., : problem.value_width]
    if len(problem.leading) != 2:
        output = output.reshape(*problem.leading, problem.queries, problem.value_width)
    lse = None if lse is None else lse.reshape(*problem.leading, problem.queries)
    seeing = None if problem.mask == "causal" else call.visibility.rows_with_keys()
    if call.bias is not None and lse is not None:
        # A bias of -inf may mask a whole row, as a mask does.
        seeing = _alive(call.bias, call.visibility.matrix())
    if seeing is None:
        return Result(output, lse)
    # For rows without visible keys the kernel's output is undefined (its lse there is 0).
    output = torch.where(seeing[..., None], output, output.new_zeros(()))
    return Result(output, None if lse is None else torch.where(seeing, lse, -torch.inf))


BACKEND = Backend("sdpa", "PyTorch's fused kernel", refuses, cost, run, tells=tells, shields=True, direct=direct)
