"""Turn the arguments of a call into a problem and its tensors, with all checks, alignment and defaults."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from qkv.biases import Bias
from qkv.engine.position_bias import PositionBias, position_bias
from qkv.engine.problem import BiasKind, Call, Mapped, Problem
from qkv.errors import ConfigError, DtypeError, MaskError, ShapeError, UnsupportedError
from qkv.masks.base import Grid, Mask, as_mask
from qkv.masks.lower import lower
from qkv.masks.patterns import PATTERNS, expect_lengths
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Softmax, Sum
from qkv.normalizers.kinds import KNOWN, as_normalizer, kind_of
from qkv.scores.base import HALVES, Maps, Score, equation
from qkv.scores.catalog import SCORES
from qkv.scores.free import Learned, Uniform, as_score
from qkv.scores.kernels import Gaussian, SquaredDistance
from qkv.shapes import Shape, broadcast, broadcasts_to, show
from qkv.values.catalog import listed
from qkv.values.execution import mode_of, tangents_possible
from qkv.values.parameters import (
    DENSE,
    Owner,
    Parameter,
    check_parameters,
    expect_floats,
    expect_real,
    group,
    is_dense,
    layout_of,
    promoted,
    regroup,
    repeat_key_heads,
    with_floats,
)
from qkv.values.plain_modules import is_watched
from qkv.values.pytree import parts_of, tensors_in

T = TypeVar("T")
_SOFTMAX, _SUM = Softmax(), Sum()


class DescribedCall(NamedTuple):
    """A call ready to be computed.

    Attributes:
        problem: the description of the call, without tensors.
        call: its tensors.
        leading: the leading shape as the caller sees it.
    """

    problem: Problem
    call: Call
    leading: Shape


class Arguments(NamedTuple):
    """The arguments of a call besides query, key and value."""

    score: object
    normalizer: Normalizer | None
    mask: Mask | Tensor | None
    bias: Tensor | Bias | None
    dropout: float
    generator: torch.Generator | None
    enable_gqa: bool


def describe(query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, state: bool = False) -> DescribedCall:
    """Check the arguments of a call, align them, and describe the problem.

    Keys that no query may see are left unchanged here; `Call.without_hidden_keys` zeroes them.

    Raises:
        ShapeError, DtypeError, MaskError, ConfigError, UnsupportedError: an argument does not fit; see the message.
    """
    _check_tensors(query, key, value)
    query, key, value = _autocast(query, key, value)
    score = as_score(arguments.score)
    normalizer = normalizer_for(arguments.normalizer, score)
    if isinstance(arguments.bias, Owner):
        watched = is_watched(arguments.bias)
        bias = arguments.bias(query.shape[-2], key.shape[-2]) if watched else arguments.bias.value()
        arguments = arguments._replace(bias=bias)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        query, key, value = _savable(query), _savable(key), _savable(value)
        arguments = arguments._replace(bias=_savable(arguments.bias))
        score, normalizer = _with_savable(score, score.parameters), _with_savable(normalizer, normalizer.parameters)
    groups = _groups(query, key, value) if _is_on("enable_gqa", arguments.enable_gqa) else None
    leading = _leading(query, key, value, groups)
    key_leading = leading if groups is None else (*leading[:-1], groups[0])
    for owner in (score, normalizer):
        if owner.parameters:
            check_parameters(owner, owner.parameters, leading, key_leading, query.device)
    score, normalizer = promoted_mechanism(score, normalizer, query.dtype)
    score.check(tuple(query.shape), tuple(key.shape))
    # After the checks, whose messages name the score that the caller gave.
    score, normalizer = in_log_space(score, normalizer, arguments.bias is not None)
    grid = Grid(leading, query.shape[-2], key.shape[-2], query.device)
    mask = None if arguments.mask is None else as_mask(arguments.mask)
    if mask is not None:
        _check_mask_layout(mask)
        _check_mask_device(mask, grid)
    if mask is not None and mode_of(query, key, value) == "eager":
        expect_lengths(mask, grid)
    visibility = lower(mask, grid, query.is_cpu and mode_of(query, key, value, *tensors_in(mask)) == "eager")
    bias = None if arguments.bias is None else _bias(arguments.bias, grid, query, normalizer, key_leading)
    if kind_of(normalizer) not in KNOWN and score.core != "tile":
        # Only the normalizer's equation is known, so whole rows are computed, as for a user-defined score.
        repeated = score if groups is None else repeat_key_heads(score, score.parameters, groups[1])
        score = Learned(partial(equation, repeated))
    if groups is not None and score.core == "tile":
        # A user-defined score expects the caller's head layout.
        key, value = (x.repeat_interleave(groups[1], -3) for x in (key, value))
        groups = None
    seed = draw_seed(arguments.dropout, arguments.generator, query.device)
    call = Call(query, key, value, score, normalizer, visibility, bias, arguments.dropout, seed)
    if groups is not None:
        call = grouped(call, *groups)
    problem = _describe(call, leading if groups is None else (*leading[:-1], *groups), state)
    return DescribedCall(problem, call, leading)


def in_log_space(score: Score, normalizer: Normalizer, biased: bool) -> tuple[Score, Normalizer]:
    """Return a softmax of squared distances for a Gaussian under its sum: the same weights, which never underflow.

    exp(−d²/2h²)/Σexp(−d²/2h²) is 0/0 in float32 where every key is farther than 14.4 bandwidths from a query; the
    softmax of −d²/2h² subtracts the largest exponent first. Everything that is computed of a call follows: output,
    weights, row state and gradients, in every backend. A bias is added to the Gaussians themselves, which stay then.

    Example:
        >>> from qkv.scores.kernels import Gaussian
        >>> in_log_space(Gaussian(2.0), Sum(), biased=False)
        (SquaredDistance(bandwidth=2.0), Softmax(sink=None))
    """
    if type(score) is Gaussian and type(normalizer) is Sum and not biased:
        return SquaredDistance(score.bandwidth), _SOFTMAX
    return score, normalizer


def promoted_mechanism(score: Score, normalizer: Normalizer, dtype: torch.dtype) -> tuple[Score, Normalizer]:
    """Return score and normalizer with parameters in at least the type that a call of this dtype computes in."""
    if score.parameters:
        score = promoted(score, score.parameters, dtype)
    if normalizer.parameters:
        normalizer = promoted(normalizer, normalizer.parameters, dtype)
    return score, normalizer


def _savable(x: T) -> T:
    """Return the tensor, or a clone if it was made in inference mode: autograd cannot save inference tensors."""
    return x.clone() if isinstance(x, Tensor) and x.is_inference() else x  # type: ignore[return-value]


def _with_savable(owner: T, parameters: Sequence[Parameter]) -> T:
    """Return the value with parameters that autograd can save."""
    tensors = {parameter.name: getattr(owner, parameter.name) for parameter in parameters}
    changes = {name: saved for name, x in tensors.items() if (saved := _savable(x)) is not x}
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    valid = (
        isinstance(query, Tensor)
        and isinstance(key, Tensor)
        and isinstance(value, Tensor)
        and query.dtype == key.dtype == value.dtype
        and query.is_floating_point()
        and query.dtype.itemsize > 1
        and all(map(is_dense, (query, key, value)))
        and query.device == key.device == value.device
        and min(query.ndim, key.ndim, value.ndim) >= 2
        and key.shape[-2] == value.shape[-2]
    )
    if not valid:
        _raise_tensor_error(query, key, value)


def _raise_tensor_error(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        expect_floats(name, x)
        if x.device != query.device:
            hint = f"Use {name}.to(query.device)."
            raise DtypeError(name, f"device {query.device}, that of query", f"{x.device}", hint)
        # Autocast casts everything except float64 to one dtype.
        cast = autocasts(x.device.type) and torch.float64 not in (x.dtype, query.dtype)
        if x.dtype != query.dtype and not cast:
            hint = f"Use {name}.to(query.dtype)."
            raise DtypeError(name, f"dtype {query.dtype}, that of query", f"{x.dtype}", hint)
    if key.shape[-2] != value.shape[-2]:
        got = f"{value.shape[-2]} in shape {show(tuple(value.shape))}"
        hint = "Every key needs its value: the second-to-last dimensions must be equal."
        raise ShapeError("value", f"{key.shape[-2]} rows, as many as key", got, hint)


def _autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast to the autocast dtype, except float64, as PyTorch's own attention does."""
    kind = query.device.type
    if not autocasts(kind) or query.dtype == torch.float64:
        return query, key, value
    dtype = torch.get_autocast_dtype(kind)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def autocasts(kind: str) -> bool:
    """Return whether autocast is on for a kind of device; PyTorch raises an error for one that has none."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def normalizer_for(requested: Normalizer | None, score: Score) -> Normalizer:
    """Return the normalizer of a call: the score's default for None.

    Raises:
        ConfigError, UnsupportedError: it is not a normalizer, or it is a sum and the score may be negative.
    """
    if requested is None:
        return _SUM if score.non_negative else _SOFTMAX
    normalizer = as_normalizer(requested)
    if normalizer.needs_non_negative and not score.summable:
        kernels = listed((cls.__name__ for cls in SCORES.classes if cls.non_negative), "or")
        hint = f"Use Softmax(), or a score that is never negative: {kernels}."
        got = f"{type(score).__name__}, which may be negative"
        raise UnsupportedError("normalizer", "a score that is never negative, for Sum()", got, hint)
    return normalizer


def _is_on(argument: str, on: object) -> bool:
    """Return a switch as a bool; raise for anything but True, False, 1 and 0."""
    if isinstance(on, (bool, torch.SymBool)):
        return bool(on)  # under tracing, a comparison of sizes
    if not (isinstance(on, (int, np.bool_)) and on in (True, False)):
        got = f"{on!r:.60}" if isinstance(on, (str, float, list)) else type(on).__name__
        raise ConfigError(argument, "True or False", got, "Nothing else turns it on or off.")
    return bool(on)


def _groups(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int]:
    """Return the number of key/value heads, and of query heads for each of them."""
    if min(query.ndim, key.ndim, value.ndim) < 3:
        shapes = ", ".join(show(tuple(x.shape)) for x in (query, key, value))
        hint = "Grouped-query attention needs (..., H, Q, D), (..., G, K, E) and (..., G, K, V)."
        raise ShapeError("enable_gqa", "a head dimension in query, key and value", shapes, hint)
    heads, groups = query.shape[-3], key.shape[-3]
    if value.shape[-3] != groups or groups == 0 or heads % groups:
        got = f"{heads} query heads, {groups} key heads and {value.shape[-3]} value heads"
        hint = "Key and value need one number of heads, a divisor of the query's."
        raise ShapeError("key", "heads that divide the query's heads", got, hint)
    return groups, heads // groups


def _leading(query: Tensor, key: Tensor, value: Tensor, groups: tuple[int, int] | None) -> Shape:
    """Return the leading shape that query, key and value broadcast to."""
    query_leading: Shape = query.shape[:-2]
    if groups is None and query_leading == key.shape[:-2] == value.shape[:-2]:
        return tuple(query_leading)
    drop = 2 if groups is None else 3
    shapes = [tuple(x.shape[: x.ndim - drop]) for x in (query, key, value)]
    leading = shapes[0] if shapes[0] == shapes[1] == shapes[2] else broadcast(*shapes)
    if leading is None:
        got = ", ".join(show(tuple(x.shape)) for x in (query, key, value))
        hint = "For fewer key/value heads than query heads pass enable_gqa=True; else expand the smaller one."
        raise ShapeError("key", "leading dimensions that broadcast with query and value", got, hint)
    return leading if groups is None else (*leading, query.shape[-3])


def _check_mask_layout(mask: Mask) -> None:
    for x in tensors_in(mask):
        if not is_dense(x):
            hint = "Use .to_dense(); qkv.masks.lengths(...) masks padded sequences of several lengths."
            raise MaskError("mask", DENSE, layout_of(x), hint)


def _check_mask_device(mask: Mask, grid: Grid) -> None:
    for part in parts_of(mask) if isinstance(mask, PATTERNS) else ():
        if isinstance(part, Tensor) and part.device != grid.device:
            hint = "Make the mask from tensors that are there: mask.to(query.device), lengths.to(query.device)."
            raise MaskError("mask", f"device {grid.device}, that of query", f"{part.device}", hint)
    for inner, inner_grid in mask.inside(grid):
        _check_mask_device(inner, inner_grid)


def _bias(
    bias: Tensor | Bias, grid: Grid, query: Tensor, normalizer: Normalizer, key_leading: Shape
) -> Tensor | PositionBias:
    if isinstance(bias, Bias):
        if normalizer.needs_non_negative:
            hint = "Use Softmax() over scores and biases, for example SquaredDistance() in place of Gaussian()."
            raise UnsupportedError("normalizer", "one that takes any number, beside a bias", "Sum()", hint)
        check_parameters(bias, bias.parameters, grid.leading, key_leading, grid.device)
        return position_bias(with_floats(bias, bias.parameters, query.dtype), grid, query.dtype)
    if isinstance(bias, Tensor) and not bias.is_complex():
        expect_real("bias", bias)
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        got = f"dtype {bias.dtype}" if isinstance(bias, Tensor) else type(bias).__name__
        hint = "A bias is added to the scores; a bool tensor is a mask: pass mask=."
        raise DtypeError("bias", "a floating-point tensor", got, hint)
    if bias.device != query.device:
        hint = "Use bias.to(query.device)."
        raise DtypeError("bias", f"device {query.device}, that of query", f"{bias.device}", hint)
    shape = (*grid.leading, grid.queries, grid.keys)
    if not broadcasts_to(tuple(bias.shape), shape):
        got = f"shape {show(tuple(bias.shape))}"
        hint = "A bias per head has the shape (H, Q, K) or (H, 1, 1)."
        raise ShapeError("bias", f"a shape that broadcasts to (..., Q, K) = {show(shape)}", got, hint)
    return bias.to(bias_type(query.dtype, bias.dtype))


def bias_type(query: torch.dtype, bias: torch.dtype) -> torch.dtype:
    """Return the dtype in which a bias is added: the query's, or float32 for a wider bias of half-precision queries.

    Example:
        >>> bias_type(torch.float32, torch.float64), bias_type(torch.float16, torch.float32)
        (torch.float32, torch.float32)
    """
    return torch.float32 if query in HALVES and bias != query else query


def grouped(call: Call, groups: int, repeats: int) -> Call:
    """Reshape heads to (G, H/G): keys and values then broadcast over their group instead of being copied.

    Args:
        call: its tensors with H heads, keys and values with G; its visibility may be grouped already.
        groups, repeats: G and H/G.
    """
    return with_grouped_parameters(call, groups, repeats).in_groups()


def with_grouped_parameters(call: Call, groups: int, repeats: int) -> Call:
    """Group the heads of everything but query, key and value, for algorithms that read heads by strides."""
    query, key, value, score, normalizer, visibility, bias, dropout, seed = call
    if bias is not None:
        bias = bias.group(groups, repeats) if isinstance(bias, PositionBias) else regroup(bias, 2, groups, repeats)
    return Call(
        query,
        key,
        value,
        group(score, score.parameters, groups, repeats),
        group(normalizer, normalizer.parameters, groups, repeats),
        visibility if visibility.groups else visibility.group(groups, repeats),
        bias,
        dropout,
        seed,
    )


def draw_seed(dropout: float, generator: torch.Generator | None, device: torch.device) -> Tensor | None:
    """Draw the seed of dropout, one int64; None without dropout.

    Raises:
        ConfigError: dropout is not a probability below 1, or the generator is not a `torch.Generator`.
    """
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        hint = "It is the probability with which a weight is dropped."
        raise ConfigError("dropout", "a number from 0 up to, but not including, 1", repr(dropout), hint)
    if generator is not None and not isinstance(generator, torch.Generator):
        got = type(generator).__name__
        raise ConfigError("generator", "a torch.Generator, or None", got, "Use torch.Generator().manual_seed(...).")
    if dropout == 0:
        return None
    drawn = torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device=generator.device if generator else "cpu")
    return drawn.to(device)


def _learns(bias: Tensor | PositionBias | None) -> bool:
    if isinstance(bias, PositionBias):
        return bias.kind in ("relative learned", "positions learned", "positions closure")
    return bias is not None and bias.requires_grad


def _bias_kind(bias: Tensor | PositionBias | None) -> BiasKind:
    if isinstance(bias, PositionBias):
        return bias.kind
    if bias is None:
        return "none"
    return "learned" if bias.requires_grad and torch.is_grad_enabled() else "fixed"


def _describe(call: Call, leading: Shape, state: bool) -> Problem:
    mode = mode_of(call.query, call.key, call.value)
    return Problem(
        core=call.score.core,
        pointwise=call.score.pointwise,
        normalizer=kind_of(call.normalizer),
        sink=isinstance(call.normalizer, Softmax) and call.normalizer.sink is not None,
        mask=call.visibility.kind,
        bias=_bias_kind(call.bias),
        dropout=call.seed is not None,
        gradient=torch.is_grad_enabled() and _wants_gradient(call),
        state=state,
        leading=leading,
        queries=call.query.shape[-2],
        keys=call.key.shape[-2],
        width=call.key.shape[-1],
        value_width=call.value.shape[-1],
        dtype=call.query.dtype,
        device=call.query.device.type,
        mode=mode,
        forward_mode=tangents_possible(),
        constant=isinstance(call.score, Uniform),
        mapped=_mapped(call.score.maps),
        block=call.visibility.block,
        threads=torch.get_num_threads() if mode == "eager" else 1,
        repeats=1 if call.visibility.groups is None else call.visibility.groups[1],
    )


def _mapped(maps: Maps | None) -> Mapped:
    if maps is None or (maps.query is None and maps.key is None and not maps.unit):
        return "none"
    return "norms" if maps.unit else "matrices"


def _wants_gradient(call: Call) -> bool:
    query, key, value, score, normalizer, _, bias, _, _ = call
    if query.requires_grad or key.requires_grad or value.requires_grad or _learns(bias):
        return True
    tensors = [getattr(score, parameter.name) for parameter in score.parameters]
    tensors += [getattr(normalizer, parameter.name) for parameter in normalizer.parameters]
    if any(isinstance(x, Tensor) and x.requires_grad for x in tensors):
        return True
    # The tensors that a user-defined function closes over are not visible here.
    return score.core == "tile"
