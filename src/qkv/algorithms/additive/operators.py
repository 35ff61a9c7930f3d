"""The additive kernels as differentiable PyTorch functions: eager, and as registered operators under tracing."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.engine.autograd import differentiable_by, operator_arguments
from qkv.engine.derivatives import Constants, Terms, differentiable_gradients, second_gradients, visibility_of
from qkv.engine.key_ranges import Drop, KeyRanges, Weighting, first_diagonal, key_ranges
from qkv.engine.mechanism import Mechanism
from qkv.masks.lower import Visibility
from qkv.scores.pointwise import Linear

if TYPE_CHECKING:
    from qkv.algorithms.additive.factored import Factors


class Items(NamedTuple):
    """The tensors, flat over leading dimensions; an `_index` holds each item's index into shared data, None for 0.

    Attributes:
        query, key, value: (N, Q, A), (N, K, A), (N, K, V).
        vector: (C, A); vector_index (N).
        bias: (S, 1 or Q, K), or the diagonals of a relative bias, (S, 1, Q + K − 1); bias_index (N).
        shift: (N, Q), added to the scores of a sigmoid.
        first, last: int32 (P, Q), the bounds of each row; bounds_index (N).
        dense: bool (M, 1 or Q, K); dense_index (N).
        seed: the seed of dropout, int64.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    vector: Tensor
    bias: Tensor | None
    shift: Tensor | None
    vector_index: Tensor | None
    first: Tensor | None
    last: Tensor | None
    bounds_index: Tensor | None
    dense: Tensor | None
    dense_index: Tensor | None
    bias_index: Tensor | None
    seed: Tensor | None


LEARNED = 6
"""How many of the items, counted from the first, may have gradients."""
_NO_GRADIENTS = (None,) * (len(Items._fields) - LEARNED)

Results = tuple[Tensor, Tensor, Tensor, Tensor]
"""Output (N, Q, V), lse (N, Q), which is empty unless requested, and the largest score and sum of each row, (N, Q)."""


class Kernels(NamedTuple):
    """The additive attention kernels of one device type.

    Attributes:
        forward: takes items, rule, dropout, and whether the lse is requested; returns what the backward pass needs
            besides tensors, and the results.
        backward: takes items, that, the results without the lse, the gradients of output and lse, and whether bias and
            memory (keys and values) need gradients; returns the gradients of the items that may learn.
    """

    forward: Callable[[Items, Any, float, bool], tuple[Any, Results]]
    backward: Callable[..., tuple[Tensor | None, ...]]


def apply(items: Items, rule: str, dropout: float, state: bool, kernels: Kernels) -> tuple[Tensor, Tensor]:
    """Return output (N, Q, V) and lse (N, Q), differentiable; the lse is empty unless a softmax's state is requested.

    Args:
        items: the tensors.
        rule: the normalizer.
        dropout: the probability of dropping a weight.
        state: whether the lse is requested.
        kernels: what computes it.
    """
    if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in items[:LEARNED])):
        return kernels.forward(items, rule, dropout, state)[1][:2]
    output, lse = _Additive.apply(kernels, rule, dropout, state, *items)  # type: ignore[no-untyped-call]
    return output, lse


def apply_compiled(items: Items, rule: str, dropout: float, state: bool) -> tuple[Tensor, Tensor]:
    """Return output and lse as `apply` does, by the registered operator, which a compiled graph holds."""
    output, lse, _, _ = tanh_forward(*items, rule, dropout)
    return output, lse


class _Prepared(NamedTuple):
    """What forward and backward pass compute with, besides the tensors."""

    factors: "Factors"
    weighting: Weighting


def as_array(x: Tensor | None) -> Any:
    """Return a tensor as a contiguous NumPy array, which shares its memory where it can; None for None."""
    return None if x is None else x.detach().contiguous().resolve_neg().numpy()


def _prepare(items: Items, rule: Any, dropout: float) -> _Prepared:
    from qkv.algorithms.additive import factored

    ranges = key_ranges_of(items)
    factors = factored.factor(as_array(items.query), as_array(items.key), as_array(items.vector), ranges)
    drop = None if items.seed is None else Drop(int(items.seed), dropout)
    return _Prepared(factors, Weighting(ranges, rule, as_array(items.shift), drop))


@lru_cache(maxsize=64)
def _all_visible_ranges(count: int, queries: int, keys: int, dtype: Any) -> KeyRanges:
    """Return key ranges for the case that all keys are visible and every item has the same vector."""
    return key_ranges(dtype, count, queries, keys)


def key_ranges_of(items: Items) -> KeyRanges:
    """Return the keys that each row may see, in the form that the kernels take."""
    (count, queries, _), keys = items.query.shape, items.key.shape[1]
    dtype = np.dtype(np.float32 if items.query.dtype == torch.float32 else np.float64)
    if items.bias is None and all(x is None for x in items[LEARNED:-1]):
        return _all_visible_ranges(count, queries, keys, dtype)
    owner = np.zeros((count, 5), np.int64)
    for column, index in enumerate((items.vector_index, items.bounds_index, items.dense_index, items.bias_index)):
        if index is not None:
            owner[:, column] = as_array(index)
    bias = np.zeros((0, 0, 0), dtype) if items.bias is None else as_array(items.bias)
    owner[:, 4] = first_diagonal(bias, queries, keys)
    return KeyRanges(
        np.zeros((1, queries), np.int32) if items.first is None else as_array(items.first),
        np.full((1, queries), keys, np.int32) if items.last is None else as_array(items.last),
        owner,
        np.zeros((0, 0, 0), np.bool_) if items.dense is None else as_array(items.dense),
        bias,
    )


def _forward(items: Items, rule: str, dropout: float, state: bool) -> tuple[_Prepared, Results]:
    from qkv.algorithms.additive import factored

    prepared = _prepare(items, rule, dropout)
    rows = factored.forward(prepared.factors, as_array(items.value), prepared.weighting)
    output, top, total = (torch.from_numpy(x) for x in rows)
    if rule != "softmax" or not state:
        return prepared, (output, output.new_empty(output.shape[0], 0, dtype=torch.float64), top, total)
    # In float64: rounded to float32, the state would change every weight that is computed from it.
    top64 = top.double()
    return prepared, (output, torch.where(top == -torch.inf, top64, top64 + total.double().log()), top, total)


def _backward(
    items: Items,
    prepared: _Prepared,
    rows: Sequence[Tensor],
    g_output: Tensor,
    g_lse: Tensor | None,
    requested: tuple[bool, bool],
) -> tuple[Tensor | None, ...]:
    from qkv.algorithms.additive import direct, factored

    g_lse = None if prepared.weighting.rule != "softmax" or g_lse is None else g_lse.to(g_output.dtype)
    gradients = factored.backward(
        prepared.factors,
        as_array(items.vector),
        as_array(items.value),
        prepared.weighting,
        direct.Rows(*map(as_array, rows)),
        direct.Upstream(as_array(g_output), as_array(g_lse), *requested),
    )
    return tuple(None if x is None else torch.from_numpy(x) for x in gradients)


ON_HOST = Kernels(_forward, _backward)


def _equation(
    items: Items, rule: str, dropout: float, state: bool
) -> tuple[Mechanism, Visibility, Terms, Constants, bool]:
    """Return the equation that the kernels compute, for derivatives by tiles; each item has its own vector and bias.

    The last result says whether the bias is given by its diagonals.
    """
    vector, first, last, dense, bias = (
        None if x is None else x if index is None else x[index]
        for x, index in (
            (items.vector, items.vector_index),
            (items.first, items.bounds_index),
            (items.last, items.bounds_index),
            (items.dense, items.dense_index),
            (items.bias, items.bias_index),
        )
    )
    diagonal = bias is not None and bias.shape[-1] > items.key.shape[-2]
    terms = Terms(
        items.query,
        items.key,
        items.value,
        vector=vector,
        # A sigmoid's own bias is in the shift.
        parameter=items.query.new_zeros(()) if rule == "sigmoid" else None,
        bias=None if diagonal else bias,
        diagonals=None if bias is None or not diagonal else bias.squeeze(-2),
        shift=items.shift,
    )
    mechanism = Mechanism("tanh_sum", Linear(), rule, 1.0, dropout, state, (len(items.query),))
    visibility = visibility_of(items.query, items.key, (first, last), dense)
    return mechanism, visibility, terms, Constants(items.seed), diagonal


def _by_terms(needs_grad: Sequence[bool], diagonal: bool) -> Sequence[bool]:
    """Return which of an equation's terms need a gradient, from which of the items do."""
    query, key, value, vector, bias, shift = needs_grad[:LEARNED]
    return (query, key, value, False, vector, False, bias and not diagonal, bias and diagonal, shift)


def _by_items(gradients: Sequence[Tensor | None], items: Items) -> tuple[Tensor | None, ...]:
    """Return the gradients of the items, from those of an equation's terms."""
    query, key, value, _, d_vector, _, d_bias, d_diagonals, shift = gradients
    d_bias = d_bias if d_diagonals is None else d_diagonals.unsqueeze(-2)
    d_vector = shared_sums(d_vector, items.vector, items.vector_index)
    d_bias = None if items.bias is None else shared_sums(d_bias, items.bias, items.bias_index)
    return (query, key, value, d_vector, d_bias, shift, *_NO_GRADIENTS)


def _gradients_with_graph(ctx: Any, g_output: Tensor | None, g_lse: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients with a graph."""
    items, has_state = Items(*ctx.saved_tensors[: len(Items._fields)]), ctx.rule == "softmax" and ctx.state
    mechanism, visibility, terms, constants, diagonal = _equation(items, ctx.rule, ctx.dropout, has_state)
    needs_grad = _by_terms(ctx.needs_input_grad[_SETTINGS:], diagonal)
    cotangents = (g_output, g_lse if has_state else None)
    gradients = differentiable_gradients(mechanism, visibility, terms, needs_grad, cotangents, constants)
    return (*(None,) * _SETTINGS, *_by_items(gradients, items))


def shared_sums(gradient: Tensor | None, x: Tensor, index: Tensor | None) -> Tensor | None:
    """Sum the gradients of the items that share one entry of `x`, by the index of each item."""
    if gradient is None or index is None:
        return gradient
    return torch.zeros_like(x).index_add(0, index, gradient)


_SETTINGS = 4
"""How many arguments of the autograd function precede the items."""


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, rule: str, dropout: float, state: bool, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.prepared, (output, lse, *rows) = kernels.forward(Items(*tensors), rule, dropout, state)  # type: ignore[arg-type]
        ctx.kernels, ctx.rule, ctx.dropout, ctx.state = kernels, rule, dropout, state
        ctx.save_for_backward(*tensors, output, *rows)
        ctx.set_materialize_grads(False)
        return output, lse

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, g_output: Tensor | None, g_lse: Tensor | None) -> tuple[Any, ...]:
        needs_grad = Items(*ctx.needs_input_grad[_SETTINGS:])
        requested = needs_grad.bias, needs_grad.key or needs_grad.value
        *tensors, output, top, total = ctx.saved_tensors
        g_output = torch.zeros_like(output) if g_output is None else g_output
        rows = output, top, total
        gradients = ctx.kernels.backward(Items(*tensors), ctx.prepared, rows, g_output, g_lse, requested)
        return (*(None,) * _SETTINGS, *_needed(gradients, needs_grad), *_NO_GRADIENTS)


def _needed(gradients: Sequence[Tensor | None], needs_grad: Sequence[Any]) -> list[Tensor | None]:
    return [g if needed else None for g, needed in zip(gradients, needs_grad[:LEARNED], strict=True)]


_FIRST_ITEM = 6
"""How many arguments of `tanh_backward` precede the items."""
_SCHEMA = f"{operator_arguments(Items)}, str rule, float dropout"


@torch.library.custom_op("qkv::tanh_sum", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)")
def tanh_forward(*args: Any) -> Results:
    """Return output (N, Q, V), lse (N, Q), and the lse's two parts for the backward pass."""
    items, rule, dropout = Items(*args[:-2]), *args[-2:]
    return _forward(items, rule, dropout, True)[1]


@tanh_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Results:
    items, queries, _ = query.shape
    top = query.new_empty(items, queries)
    lse = query.new_empty(items, queries if rest[-2] == "softmax" else 0, dtype=torch.float64)
    return query.new_empty(items, queries, value.shape[-1]), lse, top, torch.empty_like(top)


@torch.library.custom_op(
    "qkv::tanh_sum_backward",
    mutates_args=(),
    schema="(Tensor g_output, Tensor? g_lse, Tensor output, Tensor top, Tensor total, bool learns_bias, "
    f"{_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def tanh_backward(*args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value, vector, bias and shift; empty where there is none."""
    g_output, g_lse, *rows, learns_bias = args[:_FIRST_ITEM]
    items, rule, dropout = Items(*args[_FIRST_ITEM:-2]), *args[-2:]
    gradients = _backward(items, _prepare(items, rule, dropout), rows, g_output, g_lse, (learns_bias, True))
    return tuple(items.query.new_empty(0) if x is None else x for x in gradients)


@tanh_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    learns_bias, items = args[_FIRST_ITEM - 1], Items(*args[_FIRST_ITEM:-2])
    query, bias = items.query, items.bias
    d_bias = query.new_empty(0) if bias is None or not learns_bias else bias.new_empty(bias.shape)
    like = [x.new_empty(x.shape) for x in items[:4]]
    return (*like, d_bias, query.new_empty(query.shape[:2]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, _, top, total = output
    ctx.save_for_backward(*inputs[:-2], out, top, total)
    ctx.rest = inputs[-2:]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, g_output: Tensor | None, g_lse: Tensor | None, *_: Any) -> tuple[Any, ...]:
    *tensors, out, top, total = ctx.saved_tensors
    g_output = torch.zeros_like(out) if g_output is None else g_output
    needs_grad = Items(*ctx.needs_input_grad[:-2])
    gradients = tanh_backward(g_output, g_lse, out, top, total, needs_grad.bias, *tensors, *ctx.rest)
    return (*_needed(gradients, needs_grad), *_NO_GRADIENTS, None, None)


def _setup_backward_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    g_output, g_lse, *_ = inputs
    *items, ctx.rule, ctx.dropout = inputs[_FIRST_ITEM:]
    ctx.save_for_backward(g_output, g_lse, *items)
    ctx.set_materialize_grads(False)


def _second_gradients(ctx: Any, *upstream: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients of a loss on the gradients; output, top and total are functions of the items."""
    g_output, g_lse, *tensors = ctx.saved_tensors
    items, needs_grad = Items(*tensors), ctx.needs_input_grad
    has_state = ctx.rule == "softmax" and g_lse is not None
    mechanism, visibility, terms, constants, diagonal = _equation(items, ctx.rule, ctx.dropout, has_state)
    query, key, value, vector, bias, shift = upstream
    vector = vector if vector is None or items.vector_index is None else vector[items.vector_index]
    bias = bias if bias is None or items.bias_index is None else bias[items.bias_index]
    diagonals = None if bias is None or not diagonal else bias.squeeze(-2)
    of_terms, (of_output, of_lse) = second_gradients(
        mechanism,
        visibility,
        terms,
        (g_output, g_lse if has_state else None),
        (query, key, value, None, vector, None, None if diagonal else bias, diagonals, shift),
        (_by_terms(needs_grad[_FIRST_ITEM:], diagonal), (needs_grad[0], needs_grad[1] and has_state)),
        constants,
    )
    return of_output, of_lse, *(None,) * (_FIRST_ITEM - 2), *_by_items(of_terms, items), None, None


tanh_forward.register_autograd(_gradients, setup_context=_setup_context)
tanh_backward.register_autograd(_second_gradients, setup_context=_setup_backward_context)
