"""A cache of plans: a call with the same sizes, dtypes and mechanism as an earlier one need not be checked and planned.

All checks and choices depend on sizes, dtypes, the kinds of mechanism and the kind of the lowered mask, and on no value
of a tensor. With a few hundred rows, checking and planning take a tenth of a call or more; a lookup takes less. Only
calls that cannot differ in anything else are looked up: eager calls with plain tensors on the CPU and a mechanism of
this package.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.biases import Alibi, Bias, Relative
from qkv.engine.describe import (
    Arguments,
    bias_type,
    describe,
    draw_seed,
    in_log_space,
    normalizer_for,
    promoted_mechanism,
)
from qkv.engine.position_bias import PositionBias, position_bias
from qkv.engine.problem import Call
from qkv.engine.tracing import mode_of
from qkv.masks.base import Grid, as_mask
from qkv.masks.lower import Visibility, lower
from qkv.masks.patterns import Causal, expect_lengths
from qkv.normalizers.kinds import KINDS
from qkv.planner.plan import Plan, plan_for
from qkv.scores.base import Score
from qkv.scores.free import Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat
from qkv.shapes import Shape
from qkv.values.parameters import transformed
from qkv.values.pytree import tensors_in

MOST = 512
"""How many plans are stored at a time."""
LONGEST = 1024
"""The most queries or keys: stored masks stay small, and longer calls gain little from a lookup."""

CacheKey = tuple[Any, ...]
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_SCORES = (
    *(Dot, ScaledDot, Cosine, Bilinear, Additive, Concat, Uniform),
    *(SquaredDistance, Gaussian, Boxcar, Epanechnikov),
)
_OURS = frozenset({*_SCORES, *KINDS, Alibi, Relative, type(None)})
_NUMBERS = frozenset({int, float, str, bool, type(None)})


class PlannedCall(NamedTuple):
    """A call ready to run.

    Attributes:
        plan: the algorithms that compute it.
        call: its tensors.
        leading: the leading shape as the caller sees it.
    """

    plan: Plan
    call: Call
    leading: Shape


class CachedPlan(NamedTuple):
    """What calls with the same key have in common.

    Attributes:
        plan: the algorithms that compute them.
        visibility: the lowered mask, if it depends on the sizes alone.
    """

    plan: Plan
    visibility: Visibility | None


PLANS: dict[CacheKey, CachedPlan] = {}
"""The stored plans, by `cache_key`."""


def planned(query: Tensor, key: Tensor, value: Tensor, given: Arguments, backend: str) -> PlannedCall:
    """Check, describe and plan a call, or look up its plan.

    Args:
        query, key, value: as `qkv.attention` takes them.
        given: its other arguments.
        backend: the value of `backend=`.

    Raises:
        QkvError: as `qkv.attention`.
    """
    if torch.compiler.is_compiling():
        problem, call, leading = describe(query, key, value, given)
        return PlannedCall(plan_for(problem, backend), call, leading)
    visibility = _lowered(query, key, value, given.mask)
    lookup = cache_key(query, key, value, given, visibility, backend)
    cached = None if lookup is None else PLANS.get(lookup)
    if cached is None:
        problem, call, leading = describe(query, key, value, given)
        plan = plan_for(problem, backend)
        if lookup is not None:
            _store(lookup, plan, call, given)
        return PlannedCall(plan, call, leading)
    return PlannedCall(cached.plan, _call(query, key, value, given, cached, visibility), cached.plan.problem.leading)


def _call(
    query: Tensor, key: Tensor, value: Tensor, given: Arguments, cached: CachedPlan, visibility: Visibility | None
) -> Call:
    """Return the tensors of a call whose plan is cached."""
    assert isinstance(given.score, Score)
    normalizer = normalizer_for(given.normalizer, given.score)
    score, normalizer = in_log_space(given.score, normalizer, given.bias is not None)
    score, normalizer = promoted_mechanism(score, normalizer, query.dtype)
    if visibility is None:
        assert cached.visibility is not None, "a mask is lowered with its call, or with its plan"
        visibility = replace(cached.visibility, memo={})
    bias: Tensor | Bias | PositionBias | None = given.bias
    if isinstance(bias, Tensor) and bias.dtype != query.dtype:
        bias = bias.to(bias_type(query.dtype, bias.dtype))
    elif isinstance(bias, Bias):
        bias = position_bias(bias, visibility.grid, query.dtype)
    seed = draw_seed(given.dropout, given.generator, query.device) if given.dropout else None
    return Call(query, key, value, score, normalizer, visibility, bias, given.dropout, seed)


def _store(lookup: CacheKey, plan: Plan, call: Call, given: Arguments) -> None:
    if len(PLANS) >= MOST:
        PLANS.clear()
    fixed = given.mask is None or _plain_causal(given.mask)
    if fixed and any(x.is_inference() for x in call.visibility.bounds or () if x is not None):
        # A tensor made in inference mode cannot be used outside of it.
        return
    PLANS[lookup] = CachedPlan(plan, call.visibility if fixed else None)


def cache_key(
    query: Tensor, key: Tensor, value: Tensor, given: Arguments, visibility: Visibility | None, backend: str
) -> CacheKey | None:
    """Return everything that decides how a call is checked and computed; None if a call cannot be cached.

    Args:
        query, key, value: as `qkv.attention` takes them.
        given: its other arguments.
        visibility: the lowered mask; None for no mask and for a plain causal one.
        backend: the value of `backend=`.

    Example:
        >>> query, key, value = torch.randn(3, 2, 8, 5, 64).unbind()
        >>> given = Arguments(ScaledDot(), None, None, None, 0.0, None, False)
        >>> first = cache_key(query, key, value, given, None, "auto")
        >>> first == cache_key(query + 1, key, value, given, None, "auto")
        True
        >>> first == cache_key(query, key, value.half(), given, None, "auto")
        False
    """
    score, normalizer, mask, bias, dropout, _, grouped = given
    gradients = torch.is_grad_enabled()
    if (
        grouped
        or type(query) not in _PLAIN
        or type(key) not in _PLAIN
        or type(value) not in _PLAIN
        or not (query.is_cpu and key.is_cpu and value.is_cpu)
        or torch._C._len_torch_dispatch_stack()
        or transformed()
        or torch.is_autocast_enabled("cpu")
        or (gradients and (query.is_inference() or key.is_inference() or value.is_inference()))
        or (mask is not None and visibility is None and not _plain_causal(mask))
    ):
        return None
    shape, other = query.shape, key.shape
    if len(shape) < 2 or len(other) < 2 or not 0 < other[-2] <= LONGEST or not 0 < shape[-2] <= LONGEST:
        return None
    kind = None if visibility is None else visibility.kind
    needs = query.requires_grad, key.requires_grad, value.requires_grad
    parts = [backend, mask is None, kind, gradients, torch.get_num_threads(), shape, other, value.shape]
    parts += query.dtype, key.dtype, value.dtype, needs, type(dropout), dropout != 0
    complete = _add(parts, score) and _add(parts, normalizer) and (bias is None or _add_bias(parts, bias))
    return tuple(parts) if complete else None


def _plain_causal(mask: object) -> bool:
    return type(mask) is Causal and type(mask.offset) is int and mask.offset == 0 and mask.align == "start"


def _add(parts: list[Any], mechanism: object) -> bool:
    """Add a score, a normalizer or a bias: its type, its numbers, and the shapes and dtypes of its tensors."""
    kind: Any = type(mechanism)
    if kind not in _OURS:
        return False
    parts.append(kind)
    if mechanism is None:
        return True
    for name, x in vars(mechanism).items():
        if type(x) in _NUMBERS:
            parts.append(x)
        # A tensor that is not a parameter could change the problem.
        elif not (any(name == each[0] for each in kind.parameters) and _add_tensor(parts, x)):
            return False
    return True


def _add_bias(parts: list[Any], bias: Any) -> bool:
    return _add(parts, bias) if isinstance(bias, Bias) else _add_tensor(parts, bias)


def _add_tensor(parts: list[Any], x: Any) -> bool:
    if type(x) not in _PLAIN or not x.is_cpu or (x.is_inference() and torch.is_grad_enabled()):
        return False
    parts += (x.shape, x.dtype, x.requires_grad)
    return True


def _lowered(query: Tensor, key: Tensor, value: Tensor, given: object) -> Visibility | None:
    """Lower the mask of a call that may have a cached plan; None for no mask, a plain causal one, and other calls."""
    if given is None or _plain_causal(given):
        return None
    mask = as_mask(given)
    same_leading = query.ndim >= 2 and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    tensors = tensors_in(mask)
    plain = mode_of(query, key, *tensors) == "eager" and all(x.is_cpu and not x.is_inference() for x in tensors)
    if not (same_leading and plain):
        return None
    grid = Grid(tuple(query.shape[:-2]), query.shape[-2], key.shape[-2], query.device)
    expect_lengths(mask, grid)
    return lower(mask, grid)
