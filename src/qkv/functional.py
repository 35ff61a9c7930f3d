"""Attention as a function: any score, normalizer and mask, on any backend."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from qkv.algorithms.matrix import reference
from qkv.argument_names import ATTENTION, explain_arguments
from qkv.biases import Bias
from qkv.engine.describe import Arguments, describe
from qkv.engine.problem import Call, Problem, hiding
from qkv.engine.returned_weights import product_of_weights, through_weights
from qkv.engine.winners import winners, with_positions
from qkv.errors import UnsupportedError
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.normalizers.kinds import KNOWN
from qkv.normalizers.row_state import RowState
from qkv.planner.out_of_memory import explain_out_of_memory
from qkv.planner.plan import Plan, plan_for
from qkv.planner.plan_cache import attend
from qkv.scores.base import Score
from qkv.scores.products import SCALED_DOT
from qkv.shapes import Shape
from qkv.values.checked import checked
from qkv.values.execution import readable
from qkv.values.sharded import ACTIVE, computing

P = ParamSpec("P")
R = TypeVar("R")


@explain_out_of_memory
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score = SCALED_DOT,
    normalizer: Normalizer | None = None,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Bias | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    enable_gqa: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Look up values by how well their keys answer each query: Σ_j w_ij v_j with w = normalize(score(q, k)).

    Args:
        query: (..., Q, D), for example (B, H, Q, D); the head dimension may be absent.
        key: (..., K, E); E = D unless the score translates between the two.
        value: (..., K, V).
        score: how well a key answers a query: a value of `qkv.scores`, or a function (query, key) -> (..., Q, K).
        normalizer: from scores to weights: a value of `qkv.normalizers`; None for the score's own: `Sum()` for
            kernels, `Softmax()` for the rest.
        mask: which keys a query may see: a value of `qkv.masks`, or a bool tensor that broadcasts to (..., Q, K).
            True means may attend. A row that may see nothing gives output 0.
        bias: added to the scores before the mask: a floating-point tensor that broadcasts to (..., Q, K), or a value of
            `qkv.biases` that follows from positions and never becomes a matrix.
        dropout: the probability with which a weight is dropped; the others are divided by 1 − dropout.
        generator: draws the seed of dropout; None for PyTorch's own.
        enable_gqa: query has H heads, key and value have G, where G divides H (grouped-query attention).
        backend: "auto" for the fastest that is exact and linear in memory, or the name of one (see `explain`); name one
            for `torch.export` with a length that varies, as "auto" chooses by the sizes.

    Returns:
        The output, (..., Q, V), in the type of the query.

    Raises:
        ShapeError: sizes do not fit together.
        DtypeError: element types or devices differ.
        MaskError: the mask is not one, or does not fit.
        ConfigError: a number is outside its range.
        UnsupportedError: the combination has no meaning, or the requested backend cannot serve it.
        OutOfMemoryError: no memory is left; says what would take less.

    Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1; Bahdanau et al. 2015, eq. 5 and 6.

    Example:
        >>> import qkv
        >>> query, key, value = torch.randn(2, 8, 10, 64), torch.randn(2, 8, 20, 64), torch.randn(2, 8, 20, 32)
        >>> qkv.attention(query, key, value).shape
        torch.Size([2, 8, 10, 32])
        >>> mask = qkv.masks.lengths(torch.tensor([20, 13]))
        >>> qkv.attention(query, key, value, score=qkv.scores.Gaussian(bandwidth=8.0), mask=mask).shape
        torch.Size([2, 8, 10, 32])
    """
    arguments = Arguments(score, normalizer, mask, bias, dropout, generator, enable_gqa)
    if ACTIVE:
        sharded: Tensor = ACTIVE[-1].attend(query, key, value, arguments, backend, None)
        return sharded
    return attention_alone(query, key, value, arguments, backend)


def attention_alone(query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str) -> Tensor:
    """Compute `attention` over the keys that this process has, also in a shard, whose blocks are such calls.

    Args:
        query, key, value, backend: as `attention`.
        arguments: its other arguments.
    """
    output, leading = attend(query, key, value, arguments, backend)
    return _ungrouped(output, leading, 2) if output.ndim > len(leading) + 2 else output


def with_arguments_of(
    original: Callable[P, object],
) -> Callable[[Callable[[Tensor, Tensor, Tensor, Arguments, str], R]], Callable[P, R]]:
    """Give a function of tensors, other arguments and backend the parameters of `attention`, which stand there once."""
    signature = inspect.signature(original)
    defaults = {name: signature.parameters[name].default for name in Arguments._fields}

    def decorate(compute: Callable[[Tensor, Tensor, Tensor, Arguments, str], R]) -> Callable[P, R]:
        @functools.wraps(compute)
        def run(query: Tensor, key: Tensor, value: Tensor, *, backend: str = "auto", **options: Any) -> R:
            return compute(query, key, value, Arguments(**{**defaults, **options}), backend)

        result = compute.__annotations__["return"]
        run.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        run.__annotations__ = {**original.__annotations__, "return": result}
        return cast("Callable[P, R]", run)

    return decorate


def decoder_for(
    query: Tensor, key: Tensor, value: Tensor, score: Score, normalizer: Normalizer | None, mask: Mask | Tensor | None
) -> Callable[[Tensor], Tensor] | None:
    """Return a function that attends to fixed keys and values one query at a time, for decoding, without gradients.

    Args:
        query: the first, (..., Q, D); those that follow are like it.
        key, value, score, normalizer, mask: as `attention` takes them.

    Returns:
        A function query -> output, planned once; None if that would save no time, or if processes share the keys.

    Raises:
        QkvError: as `attention`.

    Example:
        >>> query, key, value = torch.randn(2, 1, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 3)
        >>> decoder_for(query, key, value, SCALED_DOT, None, None) is None
        True
    """
    if ACTIVE:
        return None
    problem, call, _ = describe(query, key, value, Arguments(score, normalizer, mask, None, 0.0, None, False))
    algorithm, call = plan_for(problem).prepared(call)
    return None if algorithm.prepare_loop is None else algorithm.prepare_loop(problem, call)


@explain_out_of_memory
@with_arguments_of(attention)
def attention_with_weights(
    query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str
) -> tuple[Tensor, Tensor]:
    """Compute attention and return its weights too; the output has the same bits as that of `attention`.

    The weights are Q×K numbers for each head, made on request. Where dropout is on, they are those that were applied.
    The graph of the output passes through them: a loss on the output has a gradient with respect to the weights, which
    is dL/dO · Vᵀ.

    Args:
        query, key, value, score, normalizer, mask, bias, dropout, generator, enable_gqa, backend: as `attention`.

    Returns:
        The output (..., Q, V), and the weights (..., Q, K).

    Raises:
        QkvError: as `attention`.

    Example:
        >>> import qkv
        >>> query, key, value = torch.randn(3, 5, 4).unbind()
        >>> output, weights = qkv.attention_with_weights(query, key, value)
        >>> torch.allclose(weights @ value, output, atol=1e-6), torch.allclose(weights.sum(-1), torch.ones(5))
        (True, True)
    """
    if ACTIVE:
        sharded: tuple[Tensor, Tensor] = ACTIVE[-1].attend(query, key, value, arguments, backend, "weights")
        return sharded
    return attention_with_weights_alone(query, key, value, arguments, backend)


def attention_with_weights_alone(
    query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str
) -> tuple[Tensor, Tensor]:
    """Compute `attention_with_weights` over the keys that this process has.

    Args:
        query, key, value, backend: as `attention`.
        arguments: its other arguments.
    """
    divided = computing(query, key, value)
    if divided is not None:
        both: tuple[Tensor, Tensor] = divided.attend(query, key, value, arguments, backend, "weights")
        return both
    problem, call, leading = describe(query, key, value, arguments)
    plan, hidden = plan_for(problem, backend), hiding(problem)(call)
    weights = reference.weights(problem, hidden)
    if plan.candidates[0] is reference.REFERENCE:
        output = reference.output(problem, hidden, weights)
    else:
        output = plan.output(call)
    weights = weights.to(call.query.dtype).expand(*problem.leading, *weights.shape[-2:])
    if arguments.enable_gqa:
        output, weights = _ungrouped(output, leading, 2), _ungrouped(weights, leading, 2)
    through = through_weights if problem.mode == "eager" else product_of_weights
    return through(output, weights, hidden.value.expand(*problem.leading, *call.value.shape[-2:])), weights


@explain_out_of_memory
@with_arguments_of(attention)
def attention_with_state(
    query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str
) -> tuple[Tensor, RowState]:
    """Compute attention and return the state of each row too (for softmax: the log-sum-exp).

    With the row state, results over disjoint sets of keys can be merged by `qkv.merge`, and any weight can be
    computed from its query and key alone.

    Args:
        query, key, value, score, normalizer, mask, bias, dropout, generator, enable_gqa, backend: as `attention`.

    Returns:
        The output (..., Q, V), and the row state, whose value is (..., Q), float64.

    Raises:
        QkvError: as `attention`.

    Example:
        >>> import qkv
        >>> query, key, value = torch.zeros(3, 5, 4).unbind()
        >>> qkv.attention_with_state(query, key, value)[1].lse
        tensor([1.6094, 1.6094, 1.6094, 1.6094, 1.6094], dtype=torch.float64)
    """
    if ACTIVE:
        sharded: tuple[Tensor, RowState] = ACTIVE[-1].attend(query, key, value, arguments, backend, "state")
        return sharded
    return attention_with_state_alone(query, key, value, arguments, backend)


def attention_with_state_alone(
    query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str, rounded: bool = False
) -> tuple[Tensor, RowState]:
    """Compute `attention_with_state` over the keys that this process has.

    Args:
        query, key, value, backend: as `attention`.
        arguments: its other arguments.
        rounded: whether the state may be one that PyTorch's kernel has rounded to float32: it takes no time, and the
            output has the bits of `attention`.
    """
    divided = computing(query, key, value)
    if divided is not None:
        both: tuple[Tensor, RowState] = divided.attend(query, key, value, arguments, backend, "state")
        return both
    problem, call, leading = describe(query, key, value, arguments, True)
    if problem.normalizer not in KNOWN:
        hint = "What state its rows need is not known; attention_with_weights gives the weights themselves."
        raise UnsupportedError("normalizer", "a value of qkv.normalizers", problem.normalizer, hint)
    # Values that spell the positions of their keys tell which key won; dropout would change what they spell.
    spelled = problem.normalizer == "hard" and not problem.dropout
    if spelled:
        problem, call, leading = describe(query, key, with_positions(value), arguments, True)
    output, state = plan_for(problem._replace(rounded_state=rounded), backend).run(call)
    assert state is not None
    if arguments.enable_gqa:
        output, state = _ungrouped(output, leading, 2), _ungrouped(state, leading, 1)
    if not spelled:
        signed = problem.normalizer == "sum" and _may_cancel(problem, call)
        return output, RowState(problem.normalizer, state, sink=problem.sink, signed=signed)  # type: ignore[arg-type]
    width = value.shape[-1]
    return output[..., :width], RowState("hard", state, winners(output[..., width:].nan_to_num()).long(), key.shape[-2])


def _may_cancel(problem: Problem, call: Call) -> bool:
    """Return whether a bias may make scores negative that are never negative without one."""
    if not isinstance(call.bias, Tensor):
        return False
    smallest = 1 if problem.constant else 0
    return not readable(call.bias) or bool((call.bias < -smallest).any())


@checked
@explain_arguments(ATTENTION)
@with_arguments_of(attention)
def explain(query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str) -> Plan:
    """Describe how `attention` would compute a call: which backend, why, at what cost, and why not the others.

    Args:
        query, key, value, score, normalizer, mask, bias, dropout, generator, enable_gqa, backend: as `attention`.

    Returns:
        The plan: a table when printed, a value when asked.

    Raises:
        QkvError: as `attention`.

    Example:
        >>> import qkv
        >>> query, key, value = torch.randn(3, 1, 8, 1024, 64).unbind()
        >>> qkv.explain(query, key, value, mask=qkv.masks.causal()).backend
        'sdpa'
    """
    if ACTIVE:
        hint = "Call qkv.distributed.explain."
        raise UnsupportedError("explain", "a call of one process", "a call inside of a shard", hint)
    # With its own generator, as looking at a plan must not change what is drawn next.
    problem, call, _ = describe(query, key, value, arguments._replace(generator=torch.Generator()))
    return plan_for(problem, backend).inspected(call)


def _ungrouped(x: Tensor, leading: Shape, size: int) -> Tensor:
    """Merge heads that are laid out as (G, H/G) into H."""
    return x.reshape(*leading, *x.shape[x.ndim - size :])
