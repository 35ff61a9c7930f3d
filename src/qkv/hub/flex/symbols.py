"""Trace a score or mask function: call it once on symbolic scalars, and record what it computes as an expression.

A symbolic scalar answers every PyTorch function with the expression of the result, so that all spellings of an
operation become one. What needs a number itself (`if q > k`, `int(q)`) or is not computed pair by pair cannot be
traced: such functions are called on tiles under `torch.vmap`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from qkv.errors import DtypeError
from qkv.hub.flex import operations
from qkv.hub.flex.expressions import Expression, captured, cast, number, parts, symbol
from qkv.hub.flex.reads import beyond
from qkv.values.execution import readable
from qkv.values.parameters import DENSE, is_dense, layout_of

SCORE_ARGUMENTS = ("score", "batch", "head", "query", "key")
MASK_ARGUMENTS = ("batch", "head", "query", "key")


class UntraceableError(Exception):
    """A function does something with a symbolic scalar that is not an operation on scalars; never seen by users."""


@final
class Symbol(Tensor):
    """A scalar without a number, or an indexed table whose last dimensions are not indexed yet.

    Attributes:
        expression: what it stands for.
        sizes: its shape; its memory holds one number, whatever its shape.
    """

    expression: Expression
    sizes: tuple[int, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse every function that does not pass through `Tracing`."""
        raise UntraceableError


def _symbol(expression: Expression, device: torch.device, sizes: tuple[int, ...] = ()) -> Symbol:
    one = torch.ones((), dtype=expression.dtype, device=device)
    # No function is computed of it: a result with a history comes from a `torch.autograd.Function`, whose derivative
    # need not follow from what it computes.
    symbol: Symbol = Tensor._make_subclass(Symbol, one, expression.dtype.is_floating_point)
    symbol.expression, symbol.sizes = expression, sizes
    return symbol


def indexed_by_tensors(func: Any, args: Sequence[Any]) -> list[Any] | None:
    """Return the indices of table[index, ...] if they are integers and some are tensors, else None."""
    if func is not Tensor.__getitem__:
        return None
    indices = args[1] if isinstance(args[1], tuple) else (args[1],)
    some = any(isinstance(x, Tensor) for x in indices)
    return list(indices) if some and all(map(_is_index, indices)) else None


def _is_index(x: object) -> bool:
    if isinstance(x, Tensor):
        return not x.is_floating_point() and x.dtype not in (torch.bool, torch.uint8)
    return isinstance(x, int) and not isinstance(x, bool)


def _expect_wide_indices(func: Any, args: Sequence[Any]) -> None:
    """Check that positions and what is computed from them index a table as PyTorch lets them."""
    if func is not Tensor.__getitem__:
        return
    for x in args[1] if isinstance(args[1], tuple) else (args[1],):
        varies = isinstance(x, Symbol) or (isinstance(x, Tensor) and x.ndim == 0 and not readable(x))
        if varies and x.dtype not in (torch.int32, torch.int64):
            hint = "Use table[index.long()]."
            expected = "indices of dtype int32 or int64"
            raise DtypeError("score_mod, post_mod or mask_mod", expected, f"{x.dtype}", hint)


@final
class IndexByTensors(TorchFunctionMode):
    """Let `table[q, k]` with scalar tensors read an element, instead of asking the scalars for their numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace indexing by the operator that takes tensors."""
        _expect_wide_indices(func, args)
        indices = indexed_by_tensors(func, args)
        if indices is not None:
            try:
                return torch.ops.aten.index.Tensor(
                    args[0], [torch.as_tensor(x, device=args[0].device) for x in indices]
                )
            except IndexError as error:
                match = re.search(r"-?\d+", str(error))
                raise beyond(args[0], "an index" if match is None else match[0], "") from None
        if func is Tensor.__array__ and not readable(args[0]):  # NumPy asks for the numbers of all pairs at once
            hint = "Make it a tensor outside of the function: torch.from_numpy(table)."
            raise DtypeError("score_mod, post_mod or mask_mod", "a function of tensors", "a NumPy array in it", hint)
        return func(*args, **(kwargs or {}))


@final
class Tracing(TorchFunctionMode):
    """Answer functions of symbols by symbols; functions of other tensors are computed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operation on symbols."""
        kwargs = kwargs or {}
        if not any(isinstance(x, Symbol) for x in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            if func in _PROPERTIES or (func in _SCALAR_PROPERTIES and not _sizes(args[0])):
                return func(*args, **kwargs)
            return self._answer(func, args, kwargs)

    def _answer(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Symbol:
        _expect_wide_indices(func, args)
        indices = indexed_by_tensors(func, args)
        if indices is not None or func is Tensor.__getitem__:
            return self._indexed(args[0], [args[1]] if indices is None else indices)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(x.sizes if isinstance(x, Symbol) else x.ndim for x in tensors):
            raise UntraceableError
        return _symbol(_recorded(func, args, kwargs), self.device)

    def _indexed(self, table: Tensor, indices: Sequence[Any]) -> Symbol:
        """Return an element, or a part that further indices select from: table[b][h] is table[b, h]."""
        if not all(_is_index(x) and not (isinstance(x, Tensor) and _sizes(x)) for x in indices):
            raise UntraceableError
        start, read = _expression(table), [_expression(x) for x in indices]
        if start.name == "index":
            start, read = start.arguments[0], [*start.arguments[1:], *read]
        shape = start.arguments[0].tensor.shape if start.name == "captured" else ()
        if len(read) > len(shape):
            raise UntraceableError
        return _symbol(Expression("index", (start, *read), table.dtype), self.device, tuple(shape[len(read) :]))


def _sizes(x: Tensor) -> Sequence[int]:
    return x.sizes if isinstance(x, Symbol) else x.shape


_PROPERTIES = (
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.is_floating_point,
    torch.is_floating_point,
    torch.result_type,
    torch.is_tensor,
)
"""The properties that a symbol itself has."""
_SCALAR_PROPERTIES = (Tensor.shape.__get__, Tensor.ndim.__get__, Tensor.dim, Tensor.size)  # type: ignore[attr-defined]


def traced(function: Callable[..., Any], names: Sequence[str], dtype: torch.dtype, device: torch.device) -> Expression:
    """Return what a function computes from one pair.

    Args:
        function: a `score_mod` or `mask_mod`.
        names: the symbols that it is called with.
        dtype: of the score.
        device: of the tensors.

    Raises:
        UntraceableError: it can only be called on numbers.

    Example:
        >>> causal = lambda b, h, q, k: q >= k
        >>> traced(causal, MASK_ARGUMENTS, torch.float32, torch.device("cpu")).name
        'ge'
    """
    # PyTorch's compiler would see through the symbols.
    function = getattr(function, "_torchdynamo_orig_callable", function)
    arguments = [_symbol(symbol(name, dtype if name == "score" else torch.int64), device) for name in names]
    try:
        with Tracing(device):
            result = function(*arguments)
    except DtypeError:
        raise
    except Exception as error:
        # What the function itself raises, it raises again when it is called on a tile.
        raise UntraceableError from error
    with torch._C.DisableTorchFunctionSubclass():
        if not isinstance(result, Tensor) or _sizes(result):
            raise UntraceableError
        expression: Expression = _expression(result)
    _expect_device(expression, device)
    return expression


def _expect_device(expression: Expression, device: torch.device) -> None:
    """Raise DtypeError if a tensor that a function closes over is on another device than the indices."""
    pending, visited = [expression], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        pending += parts(part)
        x = part.arguments[0].tensor if part.name == "captured" else None
        # As everywhere in PyTorch, a CPU scalar tensor works with any device.
        if x is not None and x.device != device and (x.ndim or x.device.type != "cpu"):
            hint = "Move it there with .to(query.device)."
            raise DtypeError("score_mod or mask_mod", f"tensors on {device}, that of query", f"{x.device}", hint)


def _expression(x: Any) -> Any:
    """Return an argument as an expression, if it is a tensor or a number."""
    if isinstance(x, Symbol):
        if x.grad_fn is not None or not hasattr(x, "expression"):
            raise UntraceableError
        return x.expression
    if isinstance(x, Tensor):
        if not is_dense(x):
            raise DtypeError("score_mod or mask_mod", f"{DENSE}, to read from", layout_of(x), "Use .to_dense().")
        return captured(x)
    return number(x) if isinstance(x, (bool, int, float)) else x


def _recorded(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Expression:
    """Return a PyTorch function of symbols as an expression.

    Raises:
        UntraceableError: it is not computed pair by pair.
    """
    operation = operations.of(
        func, [_expression(x) for x in args], {name: _expression(x) for name, x in kwargs.items()}
    )
    if operation is None:
        raise UntraceableError
    if not isinstance(operation, Expression) and operation[0] == "call":
        operator_, *arguments, named = operation[1]
        operation = "call", (operator_, *map(_tensor_or_constant, args, arguments), named)
    # The dtype is that which the function itself returns.
    like = func(*_examples(args), **_examples(kwargs))
    if not isinstance(like, Tensor) or like.ndim:
        raise UntraceableError
    return cast(operation, like.dtype) if isinstance(operation, Expression) else Expression(*operation, like.dtype)


def _tensor_or_constant(original: Any, argument: Any) -> Any:
    """Return an argument of a function that may treat tensors and numbers differently: a tensor stays a tensor."""
    is_tensor = isinstance(argument, Expression) and argument.name == "number" and isinstance(original, Tensor)
    return Expression("tensor", (argument,), argument.dtype) if is_tensor else argument


def _examples(arguments: Any) -> Any:
    return tree_map_only(Tensor, lambda x: torch.ones((), dtype=x.dtype, device=x.device), arguments)
