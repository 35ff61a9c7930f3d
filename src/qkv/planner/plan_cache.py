"""A cache of plans: a call with the same sizes, dtypes and mechanism as an earlier one need not be checked and planned.

All checks and choices depend on sizes, dtypes, the kinds of mechanism and the kind of the lowered mask, and on no value
of a tensor. With a few hundred rows, checking and planning take a tenth of a call or more; a lookup takes less. Only
calls that cannot differ in anything else are looked up: eager calls with plain tensors on the CPU and a mechanism of
this package.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from qkv import forks
from qkv.biases import Alibi, Bias, Relative
from qkv.engine.describe import (
    Arguments,
    bias_type,
    describe,
    draw_seed,
    grouped,
    in_log_space,
    normalizer_for,
    promoted_mechanism,
    with_grouped_parameters,
)
from qkv.engine.position_bias import PositionBias, position_bias
from qkv.engine.problem import Call
from qkv.errors import UnsupportedError
from qkv.masks.base import Grid, Mask, as_mask
from qkv.masks.lower import Visibility, lower
from qkv.masks.patterns import Lengths, expect_lengths, is_plain_causal
from qkv.normalizers.base import Normalizer
from qkv.normalizers.catalog import NORMALIZERS
from qkv.planner.plan import Plan, plan_for
from qkv.scores.base import Score
from qkv.scores.catalog import SCORES
from qkv.scores.products import SCALED_DOT
from qkv.shapes import Shape
from qkv.values.execution import PLAIN, undisturbed
from qkv.values.parameters import is_dense
from qkv.values.pytree import tensors_in
from qkv.values.sharded import computing

MOST = 512
"""How many plans are stored at a time."""
LONGEST = 1 << 14
"""The most queries or keys: a causal mask, which is stored as one number per query, stays small."""

CacheKey = tuple[Any, ...]
_KINDS: tuple[Any, ...] = (*SCORES.classes, *NORMALIZERS.classes, Alibi, Relative)
_TENSOR_FIELDS = {kind: frozenset(part.name for part in kind.parameters) for kind in _KINDS} | {type(None): frozenset()}
"""The parts of a mechanism that may have a key, each with the names of its fields that may be tensors."""
_NUMBERS = frozenset({int, float, str, bool, type(None)})


class CachedPlan(NamedTuple):
    """What calls with the same key have in common.

    Attributes:
        plan: the algorithms that compute them.
        leading: the leading shape as the caller sees it.
        groups: key heads, and query heads for each; None if heads are not grouped.
        by_strides: whether `bound` takes query, key and value of grouped heads as they are.
        visibility: the lowered mask, if it depends on the sizes alone.
        mechanism: returns the score and the normalizer of a call as algorithms take them.
        rest: what calls hold besides query, key and value; None if that differs between them.
        bound: computes a call, with every choice made that sizes and numbers decide.
    """

    plan: Plan
    leading: Shape
    groups: tuple[int, int] | None
    by_strides: bool
    visibility: Visibility | None
    mechanism: Callable[[Arguments], tuple[Score, Normalizer]]
    rest: tuple[Any, ...] | None
    bound: Callable[[Call], Tensor]


_TRACES_NOTHING = TorchVersion(torch.__version__) < "2.11"
PLANS: dict[CacheKey, CachedPlan] = {}
"""The stored plans, by `cache_key`."""
FEW = 64
"""The most lengths of a mask that is stored, and the most such masks: comparing takes less than lowering again."""
LENGTHS: dict[tuple[Any, ...], Visibility] = {}
"""The lowered masks of few lengths, by sizes and numbers."""


def attend(query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str) -> tuple[Tensor, Shape]:
    """Check, describe, plan and compute a call, or look up its plan and compute it.

    Args:
        query, key, value: as `qkv.attention` takes them.
        arguments: its other arguments.
        backend: the value of `backend=`.

    Returns:
        The output, with heads in groups where `enable_gqa` is on, and the leading shape as the caller sees it.

    Raises:
        QkvError: as `qkv.attention`.
    """
    if _TRACES_NOTHING and torch.compiler.is_compiling():
        hint = "torch.compile and torch.export of older versions do not trace qkv; calls that are not compiled work."
        raise UnsupportedError("torch.compile", "PyTorch 2.11 or newer", torch.__version__, hint)
    plain = _plain(query, key, value)
    masked = plain and arguments.mask is not None
    visibility = _lowered(query, key, value, arguments) if masked else None
    lookup = cache_key(query, key, value, arguments, visibility, backend) if plain else None
    cached = None if lookup is None else PLANS.get(lookup)
    call: Call | None = None
    if cached is None:
        divided = None if plain else computing(query, key, value)
        if divided is not None:
            output = divided.attend(query, key, value, arguments, backend, None)
            return output, tuple(output.shape[:-2])
        problem, call, leading = describe(query, key, value, arguments)
        plan = plan_for(problem, backend)
        # The first call runs as later ones do, so that all have the same bits.
        cached = None if lookup is None else _store(lookup, plan, call, (query, key, value), leading, arguments)
        if cached is None:
            return plan.output(call), leading
        if cached.by_strides:
            call = call._replace(query=query, key=key, value=value)
    if call is None and cached.rest is not None:
        call = Call(query, key, value, *cached.rest)
    elif call is None:
        call = _call(query, key, value, arguments, cached, visibility)
    if not forks.lost:
        return cached.bound(call), cached.leading
    call = call.in_groups() if cached.by_strides else call
    return cached.plan.run_outside_autocast(call).output, cached.leading


def _plain(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether a call may be looked up: eager, of plain tensors on the CPU, with nothing to cast or copy."""
    return (
        undisturbed()
        and type(query) in PLAIN
        and type(key) in PLAIN
        and type(value) in PLAIN
        and query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and query.layout is key.layout is value.layout is torch.strided
        and not (query.is_nested or key.is_nested or value.is_nested)
        and not torch.is_autocast_enabled("cpu")
        and not (torch.is_grad_enabled() and (query.is_inference() or key.is_inference() or value.is_inference()))
    )


def _call(
    query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, cached: CachedPlan, visibility: Visibility | None
) -> Call:
    """Return the tensors of a call whose plan is cached."""
    score, normalizer = cached.mechanism(arguments)
    bias, dropout, generator = arguments.bias, arguments.dropout, arguments.generator
    lowered = visibility or cached.visibility
    assert lowered is not None, "a mask is lowered with its call, or with its plan"
    seed = draw_seed(dropout, generator, query.device) if dropout else None
    added = None if bias is None else _bias(bias, lowered.grid, query.dtype)
    call = Call(query, key, value, score, normalizer, lowered, added, dropout, seed)
    if cached.groups is None:
        return call
    return (with_grouped_parameters if cached.by_strides else grouped)(call, *cached.groups)


def _mechanism_of(arguments: Arguments, dtype: torch.dtype) -> Callable[[Arguments], tuple[Score, Normalizer]]:
    """Return a function that returns the score and the normalizer of calls with the same key as algorithms take them.

    What is done to their tensors depends on the key alone: mostly nothing.
    """

    def converted(arguments: Arguments) -> tuple[Score, Normalizer]:
        score: Score = arguments.score  # type: ignore[assignment]
        normalizer = normalizer_for(None, score) if arguments.normalizer is None else arguments.normalizer
        return promoted_mechanism(*in_log_space(score, normalizer, arguments.bias is not None), dtype)

    mechanism = score, normalizer = converted(arguments)
    if not tensors_in((arguments.score, arguments.normalizer)):
        return lambda _: mechanism
    if score is arguments.score and not tensors_in(normalizer):
        return lambda arguments: (arguments.score, normalizer)  # type: ignore[return-value]
    return converted


def _bias(bias: Tensor | Bias, grid: Grid, dtype: torch.dtype) -> Tensor | PositionBias:
    if isinstance(bias, Tensor):
        return bias if bias.dtype == dtype else bias.to(bias_type(dtype, bias.dtype))
    return position_bias(bias, grid, dtype)


def _store(
    lookup: CacheKey,
    plan: Plan,
    call: Call,
    tensors: tuple[Tensor, Tensor, Tensor],
    leading: Shape,
    arguments: Arguments,
) -> CachedPlan | None:
    """Store a plan and return it; None where it may not be stored."""
    if len(PLANS) >= MOST:
        PLANS.clear()
    fixed = arguments.mask is None or is_plain_causal(arguments.mask)
    if fixed and any(x.is_inference() for x in call.visibility.bounds or () if x is not None):
        # A tensor made in inference mode cannot be used outside of it.
        return None
    groups = call.visibility.groups
    varies = groups or arguments.bias is not None or arguments.dropout
    same = fixed and not varies and not tensors_in((arguments.score, arguments.normalizer))
    strided = None if groups is None else _bound_by_strides(plan, call, tensors)
    cached = CachedPlan(
        plan,
        leading,
        groups,
        strided is not None,
        call.visibility if fixed else None,
        _mechanism_of(arguments, call.query.dtype),
        call[3:] if same else None,
        plan.bound(call) if strided is None else strided,
    )
    PLANS[lookup] = cached
    return cached


def _bound_by_strides(
    plan: Plan, call: Call, tensors: tuple[Tensor, Tensor, Tensor]
) -> Callable[[Call], Tensor] | None:
    """Return what computes calls with grouped heads as the caller gave them; None if heads must be split first."""
    first, rank = plan.candidates[0], len(plan.problem.leading) + 1
    if first.bind is None or not first.by_strides or any(x.ndim != rank for x in tensors):
        return None
    query, key, value = tensors
    return first.bind(plan.problem, call._replace(query=query, key=key, value=value))


def cache_key(
    query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, visibility: Visibility | None, backend: str
) -> CacheKey | None:
    """Return everything that decides how an eager call of plain tensors is checked and computed; None if it has no key.

    Args:
        query, key, value: as `qkv.attention` takes them.
        arguments: its other arguments.
        visibility: the lowered mask; None for no mask and for a plain causal one.
        backend: the value of `backend=`.

    Example:
        >>> from qkv.scores.products import ScaledDot
        >>> query, key, value = torch.randn(3, 2, 8, 5, 64).unbind()
        >>> arguments = Arguments(ScaledDot(), None, None, None, 0.0, None, False)
        >>> first = cache_key(query, key, value, arguments, None, "auto")
        >>> first == cache_key(query + 1, key, value, arguments, None, "auto")
        True
        >>> first == cache_key(query, key, value.half(), arguments, None, "auto")
        False
    """
    score, normalizer, mask, bias, dropout, generator, enable_gqa = arguments
    if mask is not None and visibility is None and not is_plain_causal(mask):
        return None
    shape, other = query.shape, key.shape
    if len(shape) < 2 or len(other) < 2 or not 0 < other[-2] <= LONGEST or not 0 < shape[-2] <= LONGEST:
        return None
    # Nearly every plain call has the default mechanism, whose key is known.
    default = score is SCALED_DOT and normalizer is None and bias is None
    mechanism = _DEFAULT if default else _mechanism_key(score, normalizer, bias)
    if mechanism is None:
        return None
    masked = mask is not None, *((None, None) if visibility is None else (visibility.kind, visibility.block))
    sizes = shape, other, value.shape, query.dtype, key.dtype, value.dtype
    needs = query.requires_grad, key.requires_grad, value.requires_grad, torch.is_grad_enabled()
    drops = type(dropout), dropout != 0, type(generator)
    return backend, sizes, needs, masked, torch.get_num_threads(), drops, enable_gqa, mechanism


def _mechanism_key(score: object, normalizer: object, bias: object) -> tuple[Any, ...] | None:
    """Return what a score, a normalizer and a bias add to a key; None if they forbid one."""
    parts: list[Any] = []
    complete = _add(parts, score) and _add(parts, normalizer) and (bias is None or _add_bias(parts, bias))
    return tuple(parts) if complete else None


def _add(parts: list[Any], mechanism: object) -> bool:
    """Add a score, a normalizer or a bias: its type, its numbers, and the shapes and dtypes of its tensors."""
    kind = type(mechanism)
    parameters = _TENSOR_FIELDS.get(kind)
    if parameters is None:
        return False
    parts.append(kind)
    if mechanism is None:
        return True
    for name, x in vars(mechanism).items():
        if type(x) in _NUMBERS:
            parts.append(x)
        # A tensor that is not a parameter could change the problem.
        elif name not in parameters or not _add_tensor(parts, x):
            return False
    return True


def _add_bias(parts: list[Any], bias: Any) -> bool:
    return _add_tensor(parts, bias) if isinstance(bias, Tensor) else _add(parts, bias)


def _add_tensor(parts: list[Any], x: Any) -> bool:
    if not _may_be_read(x):
        return False
    parts += (x.shape, x.dtype, x.requires_grad)
    return True


_DEFAULT = _mechanism_key(SCALED_DOT, None, None)
"""What the mechanism of a call that names none adds to a key."""


def _may_be_read(x: Any) -> bool:
    """Return whether a tensor of a mechanism or a mask is plain, dense, on the CPU, and may be saved for backward."""
    return type(x) in PLAIN and x.is_cpu and is_dense(x) and not (x.is_inference() and torch.is_grad_enabled())


def _lowered(query: Tensor, key: Tensor, value: Tensor, arguments: Arguments) -> Visibility | None:
    """Lower the mask of a call that may have a cached plan; None for a plain causal one, and for other calls."""
    if is_plain_causal(arguments.mask):
        return None
    mask = as_mask(arguments.mask)
    item_dims = 3 if arguments.enable_gqa else 2
    if query.ndim < item_dims or not query.shape[:-item_dims] == key.shape[:-item_dims] == value.shape[:-item_dims]:
        return None
    grid = Grid.of(query, key)
    lengths = _lengths(mask, grid)
    if lengths is not None and lengths in LENGTHS:
        return LENGTHS[lengths]
    if not all(map(_may_be_read, tensors_in(mask))):
        return None
    if lengths is None:
        return _checked_and_lowered(mask, grid)
    if len(LENGTHS) >= FEW:
        LENGTHS.clear()
    # Of a copy: the caller may change the tensor.
    lowered = LENGTHS[lengths] = _checked_and_lowered(Lengths(mask.keys.clone()), grid)  # type: ignore[attr-defined]
    return lowered


def _lengths(mask: Mask, grid: Grid) -> tuple[Any, ...] | None:
    """Return all that a mask of a few lengths of keys depends on, their numbers included; None for other masks."""
    if type(mask) is not Lengths or mask.queries is not None or not isinstance(mask.keys, Tensor):
        return None
    keys = mask.keys
    if keys.numel() > FEW or not _may_be_read(keys) or torch.is_inference_mode_enabled():
        return None
    return grid, keys.shape, keys.dtype, *(keys if keys.ndim == 1 else keys.flatten()).tolist()


def _checked_and_lowered(mask: Mask, grid: Grid) -> Visibility:
    for part, part_grid in mask.inside(grid):
        expect_lengths(part, part_grid)
    return lower(mask, grid, readable=True)
