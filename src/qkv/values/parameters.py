"""Parameters of scores and normalizers: how they align with heads, and their valid range.

A parameter can be a number, a tensor, or a tensor per head: its head dimensions align from the right.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from qkv.errors import ConfigError, DtypeError, ShapeError
from qkv.shapes import Shape, align_right, show
from qkv.values.execution import readable

T = TypeVar("T")
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, Real)


class Owner(ABC):
    """A module that owns the parameters of a score, a normalizer or a bias, and builds its value."""

    @abstractmethod
    def value(self) -> object:
        """Build the value from the current parameters."""


class Parameter(NamedTuple):
    """The shape of a parameter: its number of dimensions, and whether it belongs to the keys."""

    name: str
    rank: int
    of_key: bool = False


def register(module: torch.nn.Module, value: object) -> tuple[str, ...]:
    """Register the learned parameters of a value with the module that holds it, for optimizers and checkpoints.

    Args:
        module: the layer.
        value: a score or a normalizer, of which a tensor may be a `torch.nn.Parameter`, or a function of tensors a
            `torch.nn.Module`; anything else is left alone.

    Returns:
        The names of the parameters, for `with_registered`.

    Example:
        >>> from qkv.scores.kernels import Gaussian
        >>> layer = torch.nn.Module()
        >>> register(layer, Gaussian(torch.nn.Parameter(torch.ones(())))), len(list(layer.parameters()))
        (('bandwidth',), 1)
    """
    if isinstance(value, torch.nn.Module):
        return ()
    function = getattr(value, "module", None)
    if isinstance(function, torch.nn.Module):
        module.register_module("function", function)
    tensors = {part.name: getattr(value, part.name) for part in getattr(value, "parameters", ())}
    learned = {name: x for name, x in tensors.items() if isinstance(x, torch.nn.Parameter)}
    for name, x in learned.items():
        module.register_parameter(name, x)
    return tuple(learned)


def with_registered(module: torch.nn.Module, value: T, names: tuple[str, ...]) -> T:
    """Return a value with the parameters that a module has now, such as those of `torch.func.functional_call`."""
    if not names:
        return value
    # The layer's value may have been replaced since.
    learned = [name for name in names if isinstance(getattr(value, name, None), torch.nn.Parameter)]
    return replace(value, **{name: getattr(module, name) for name in learned})  # type: ignore[type-var]


_AT_LEAST = {
    1: "at least one dimension, (..., width)",
    2: "at least two dimensions, (..., N, width)",
    3: "at least three dimensions, (B, N, width)",
}
"""What a tensor with too few dimensions was expected to have."""
DENSE = "a dense tensor, of the layout torch.strided"
"""What errors expect of any tensor."""


def is_dense(x: Tensor) -> bool:
    """Return whether a tensor is an array of numbers: not nested, sparse, or quantized.

    Example:
        >>> is_dense(torch.eye(2)), is_dense(torch.eye(2).to_sparse())
        (True, False)
    """
    return x.layout is torch.strided and not x.is_nested and not x.is_quantized


def layout_of(x: Tensor) -> str:
    """Return the layout of a tensor that is not dense, for an error.

    Example:
        >>> layout_of(torch.eye(2).to_sparse())
        'torch.sparse_coo'
    """
    return "nested" if x.is_nested else f"{x.dtype}" if x.is_quantized else f"{x.layout}"


def expect_real(argument: str, x: Tensor) -> None:
    """Raise DtypeError if a tensor is not dense, or not of real numbers that PyTorch computes with.

    Example:
        >>> expect_real("scale", torch.tensor(1j))
        Traceback (most recent call last):
        qkv.errors.DtypeError: scale: expected real numbers, of at least 16 bits if they are floating-point; ...
    """
    if not is_dense(x):
        raise DtypeError(argument, DENSE, layout_of(x), "Use .to_dense(), or .dequantize().")
    if x.is_complex() or (x.is_floating_point() and x.dtype.itemsize == 1):
        expected = "real numbers, of at least 16 bits if they are floating-point"
        hint = "Use .real or .abs()." if x.is_complex() else "Use .to(torch.bfloat16)."
        raise DtypeError(argument, expected, f"{x.dtype}", hint)


def expect_floats(name: str, x: Tensor, rank: int = 2) -> None:
    """Check that an argument is a dense floating-point tensor with at least `rank` dimensions.

    Raises:
        ShapeError, DtypeError: it is not.

    Example:
        >>> expect_floats("query", torch.zeros(3, 4, dtype=torch.int64))
        Traceback (most recent call last):
        qkv.errors.DtypeError: query: expected a floating-point dtype; got torch.int64. Use .float().
    """
    if not isinstance(x, Tensor):
        raise DtypeError(name, "a torch.Tensor", type(x).__name__, "Use torch.as_tensor.")
    if not is_dense(x):
        hint = "Use .to_dense(); sequences of several lengths are padded, and masked by qkv.masks.lengths(...)."
        raise DtypeError(name, DENSE, layout_of(x), "Use .dequantize()." if x.is_quantized else hint)
    if x.ndim < rank:
        hint = "The last two dimensions are positions and widths; add one with x[None]."
        raise ShapeError(name, _AT_LEAST[rank], show(tuple(x.shape)), hint)
    if not x.is_floating_point():
        raise DtypeError(name, "a floating-point dtype", f"{x.dtype}", "Use .float().")
    if x.dtype.itemsize == 1:
        hint = "Use .to(torch.bfloat16)."
        raise DtypeError(name, "a floating-point dtype of at least 16 bits", f"{x.dtype}", hint)


def check_parameters(
    owner: object, parameters: Sequence[Parameter], leading: Shape, key_leading: Shape, device: torch.device
) -> None:
    """Check the type, device and heads of each parameter: a tensor of numbers or, if its rank is 0, a number."""
    for name, rank, of_key in parameters:
        parameter = getattr(owner, name)
        if isinstance(parameter, Tensor):
            argument = f"{type(owner).__name__}({name})"
            expect_real(argument, parameter)
            align_right(parameter, rank, key_leading if of_key else leading, argument)
            # As everywhere in PyTorch, a CPU scalar tensor works with any device.
            if parameter.device != device and (parameter.ndim or parameter.device.type != "cpu"):
                hint = "Move it there with .to(query.device)."
                raise DtypeError(argument, f"device {device}, that of query", f"{parameter.device}", hint)
        elif parameter is None and getattr(type(owner), name, 0) is None:
            continue  # the default
        elif rank or not isinstance(parameter, _NUMBERS) or _is_huge(parameter):
            argument, got = f"{type(owner).__name__}({name})", f"{type(parameter).__name__} of more than 64 bits"
            got = got if _is_huge(parameter) else type(parameter).__name__
            expected = "a torch.Tensor" if rank else "a number or a torch.Tensor"
            raise DtypeError(argument, expected, got, "Use torch.as_tensor.")


def group(owner: T, parameters: Sequence[Parameter], groups: int, repeats: int) -> T:
    """Return the same value for query heads arranged as (groups, repeats), as grouped-query attention needs."""
    changes = {
        name: regroup(parameter, rank, groups, repeats, of_key)
        for name, rank, of_key in parameters
        if isinstance(parameter := getattr(owner, name), Tensor)
    }
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def regroup(parameter: Tensor, rank: int, groups: int, repeats: int, of_key: bool = False) -> Tensor:
    """Split the head dimension of a tensor, if it has one, into (groups, repeats).

    Example:
        >>> regroup(torch.zeros(8, 16), 1, groups=2, repeats=4).shape
        torch.Size([2, 4, 16])
        >>> regroup(torch.zeros(2, 16, 16), 2, groups=2, repeats=4, of_key=True).shape
        torch.Size([2, 1, 16, 16])
    """
    head = parameter.ndim - rank - 1
    if head < 0:
        return parameter
    if of_key or parameter.shape[head] == 1:
        return parameter.unsqueeze(head + 1)
    return parameter.reshape(*parameter.shape[:head], groups, repeats, *parameter.shape[head + 1 :])


def repeat_key_heads(owner: T, parameters: Sequence[Parameter], repeats: int) -> T:
    """Return the same value for keys whose heads were repeated, as grouped-query attention does."""
    changes = {}
    for name, rank, of_key in parameters:
        parameter = getattr(owner, name)
        if of_key and isinstance(parameter, Tensor) and parameter.ndim > rank and parameter.shape[-rank - 1] > 1:
            changes[name] = parameter.repeat_interleave(repeats, -rank - 1)
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def pick(x: Tensor, index: int, rank: int) -> Tensor:
    """Return one entry of the first of `rank` dimensions; the tensor itself if it has fewer, aligned from the right.

    A dimension of size 1 stands for all entries.

    Example:
        >>> table = torch.arange(6).reshape(2, 3)
        >>> pick(table, 1, 2), pick(table, 1, 3) is table
        (tensor([3, 4, 5]), True)
    """
    return x if x.ndim < rank else x[0 if x.shape[0] == 1 else index]


def item(owner: T, parameters: Sequence[Parameter], index: int, leading: Shape, of_keys: int | None = None) -> T:
    """Return the same value for one index of the first leading dimension: one item of a batch, or one head.

    Args:
        owner: a frozen dataclass, such as a score, with parameters aligned from the right.
        parameters: its fields that can be tensors.
        index: of the first leading dimension.
        leading: the leading shape.
        of_keys: the index of what belongs to the keys, whose heads can be fewer; None for the same.

    Returns:
        The value, with detached parameters.

    Example:
        >>> from qkv.scores.kernels import Gaussian
        >>> score = Gaussian(torch.tensor([1.0, 2.0]))
        >>> item(score, score.parameters, 1, (2,))
        Gaussian(bandwidth=tensor(2.))
    """
    changes = {
        name: pick(x.detach(), index if not of_key or of_keys is None else of_keys, rank + len(leading))
        for name, rank, of_key in parameters
        if isinstance(x := getattr(owner, name), Tensor)
    }
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def of_items(x: Tensor, items: Sequence[range], trailing: int) -> Tensor:
    """Return the entries of some items; a leading dimension of size 1, or that is absent, stands for all.

    Args:
        x: its leading dimensions align with the items from the right.
        items: which entries of each leading dimension.
        trailing: how many dimensions an item has.

    Example:
        >>> of_items(torch.arange(4), [range(3), range(1, 3)], 0)
        tensor([1, 2])
    """
    for back, run in enumerate(reversed(items), start=1):
        dim = x.ndim - trailing - back
        if dim >= 0 and x.shape[dim] > 1 and len(run) != x.shape[dim]:
            x = x.narrow(dim, run.start, len(run))
    return x


def with_items(owner: T, parameters: Sequence[Parameter], items: Sequence[range], of_keys: Sequence[range]) -> T:
    """Return the same value with the parameters of some items, and of some of the keys.

    Example:
        >>> from qkv.scores.kernels import Gaussian
        >>> score = Gaussian(torch.tensor([1.0, 2.0]))
        >>> with_items(score, score.parameters, [range(1, 2)], [])
        Gaussian(bandwidth=tensor([2.]))
    """
    changes = {
        name: of_items(x, of_keys if of_key else items, rank)
        for name, rank, of_key in parameters
        if isinstance(x := getattr(owner, name), Tensor)
    }
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def promoted(owner: T, parameters: Sequence[Parameter], dtype: torch.dtype) -> T:
    """Return the same value with each parameter in at least the type that a call computes in.

    This is the one rule for parameters: they are promoted before any arithmetic and never lowered, as rounding h to a
    narrower type than that of the call would change every score, and so would h⁻² computed in that type. Integers
    become floating-point numbers.

    Args:
        owner: a frozen dataclass, such as a score.
        parameters: its fields that can be tensors.
        dtype: of query, key and value; half precision computes in float32.

    Example:
        >>> from qkv.scores.kernels import Gaussian
        >>> score = Gaussian(torch.ones(2, dtype=torch.bfloat16))
        >>> [promoted(score, score.parameters, dtype).bandwidth.dtype for dtype in (torch.float16, torch.float64)]
        [torch.float32, torch.float64]
    """
    # Comparing element sizes first costs a tenth of `promote_types`, and nearly always suffices.
    size = max(dtype.itemsize, 4)
    changes = {
        name: x.to(torch.promote_types(x.dtype, torch.promote_types(dtype, torch.float32)))
        for name, _, _ in parameters
        if isinstance(x := getattr(owner, name), Tensor) and (x.dtype.itemsize < size or not x.is_floating_point())
    }
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def with_floats(owner: T, parameters: Sequence[Parameter], dtype: torch.dtype) -> T:
    """Return the same value with integer parameters converted to the type that a call of this dtype computes in.

    Example:
        >>> from qkv.biases import alibi
        >>> bias = alibi(torch.tensor([1, 2]))
        >>> with_floats(bias, bias.parameters, torch.float16).slopes
        tensor([1., 2.])
    """
    changes = {
        name: x.to(torch.promote_types(dtype, torch.float32))
        for name, _, _ in parameters
        if isinstance(x := getattr(owner, name), Tensor) and not x.is_floating_point()
    }
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def spread(parameter: float | Tensor, by: int = 2) -> float | Tensor:
    """Append dimensions to a per-head parameter, (H,) or a scalar, so that it broadcasts to (..., Q, K).

    Example:
        >>> spread(torch.ones(8)).shape
        torch.Size([8, 1, 1])
    """
    return parameter[(..., *(None,) * by)] if isinstance(parameter, Tensor) else parameter


def above(argument: str, number: object, limit: float, hint: str) -> None:
    """Raise ConfigError if a number, or any element of a tensor, is not above a limit.

    A tensor is checked only if reading it needs no synchronization: on the CPU, outside tracing.

    Example:
        >>> above("bandwidth", -1.0, 0, "Widths are above 0.")
        Traceback (most recent call last):
        qkv.errors.ConfigError: bandwidth: expected a number above 0; got -1.0. Widths are above 0.
    """
    if isinstance(number, Tensor):
        expect_real(argument, number)
        number = number if number.is_floating_point() else number.double()
        good = not readable(number) or bool((number > limit).all())
    else:
        real = isinstance(number, (int, float, torch.SymFloat, torch.SymInt)) and not _is_huge(number)
        good = real and number > limit  # type: ignore[operator]
    if not good:
        got = f"a tensor with minimum {number.min().item():g}" if isinstance(number, Tensor) else repr(number)
        raise ConfigError(argument, f"a number above {limit:g}", got, hint)


def above_as_one(argument: str, number: object, limit: float, hint: str) -> None:
    """Check that a parameter exceeds a bound, as `above` does, and that it is the same for all heads.

    Example:
        >>> above_as_one("power", torch.tensor([1.0, 2.0]), 0, "Power 2 is usual.")
        Traceback (most recent call last):
        qkv.errors.ConfigError: power: expected one number; got shape (2,). Power 2 is usual.
    """
    if isinstance(number, Tensor) and (number.numel() != 1 or number.is_meta):
        raise ConfigError(argument, "one number", f"shape {show(tuple(number.shape))}", hint)
    above(argument, number, limit, hint)


def _is_huge(number: object) -> bool:
    """Return whether a number is an integer that PyTorch cannot hold."""
    return type(number) is int and not -(1 << 63) <= number < 1 << 63


def finite(exponents: Tensor) -> Tensor:
    """Replace infinite numbers by the largest finite ones, in logarithms of terms of a sum and of the sum.

    Next to e^∞ nothing counts, and e^−∞ next to anything does not count; the same holds for the replacements. But ∞ − ∞
    becomes 0 instead of NaN.

    Example:
        >>> finite(torch.tensor([torch.inf, -torch.inf, torch.nan, 2.0]))
        tensor([ 3.4028e+38, -3.4028e+38,         nan,  2.0000e+00])
    """
    # Not larger than float32's limits even in a wider type: later steps can compute in float32.
    largest = min(torch.finfo(exponents.dtype).max, torch.finfo(torch.float32).max)
    # Not clamp, which would hide NaN from gradients.
    above = torch.where(exponents > largest, largest, exponents)
    return torch.where(exponents < -largest, -largest, above)


def logaddexp(one: Tensor, other: Tensor) -> Tensor:
    """Return log(eᵃ + eᵇ); where both are −∞, or both ∞, the gradient is 0, where PyTorch's is NaN.

    Example:
        >>> empty = torch.tensor([-torch.inf, 0.0], requires_grad=True)
        >>> total = logaddexp(empty, torch.tensor([-torch.inf, 0.0]))
        >>> total.tolist(), torch.autograd.grad(total.sum(), empty)[0].tolist()
        ([-inf, 0.6931471824645996], [0.0, 0.5])
    """
    both = (one == other) & one.isinf()
    return torch.where(both, one.detach(), torch.logaddexp(torch.where(both, 0.0, one), other))
