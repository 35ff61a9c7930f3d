"""The stripes as registered operators, for tracing: `torch.compile`, `torch.export`, `torch.func`.

Eager calls use a `torch.autograd.Function`, whose overhead is a tenth of an operator's dispatch; both run the same
`Stripes`. The mechanism and the mask are passed as text and numbers, so that an exported program can be saved.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.tiled.mask_encoding import decode, encode
from qkv.algorithms.tiled.stripes import Stripes
from qkv.engine.autograd import operator_arguments
from qkv.engine.derivatives import Constants, second_gradients, terms_of
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism, full_rank
from qkv.masks.base import Bounds, Grid
from qkv.masks.lower import Kind, Visibility
from qkv.scores.pointwise import POINTWISE, number_of

_INPUTS = len(Inputs._fields)
TENSORS = _INPUTS + 3
"""How many arguments are tensors or None: the inputs, the bounds `first` and `last`, and a dense mask."""
_SETTINGS = TENSORS + 4
"""Where the arguments begin that tell the mechanism."""


def apply(mechanism: Mechanism, inputs: Inputs, visibility: Visibility) -> tuple[Tensor, Tensor]:
    """Return output and row state, computed by the registered operator."""
    rank = len(mechanism.leading)
    first, last = visibility.bounds or (None, None)
    first, last = (None if bound is None else full_rank(bound, rank + 1) for bound in (first, last))
    dense = None if visibility.dense is None else full_rank(visibility.dense, rank + 2)
    code, tensors, numbers = "", [], []  # type: tuple[str, list[Tensor], list[int]]
    if visibility.mask is not None:
        encoded = encode(visibility.mask, len(visibility.grid.leading))
        if encoded is None:
            dense = full_rank(visibility.tile(slice(None), slice(None)), rank + 2)  # type: ignore[arg-type]
        else:
            code, tensors, numbers = encoded
    names = f"{mechanism.core} {type(mechanism.pointwise).__name__} {mechanism.normalizer}"
    groups = [] if visibility.groups is None or visibility.mask is None else list(visibility.groups)
    settings = mechanism.factor, number_of(mechanism.pointwise), mechanism.dropout, mechanism.state
    args = (*inputs, first, last, dense, tensors, code, numbers, groups, names, *settings)
    run: Callable[..., Any] = blocked if torch.compiler.is_compiling() else Transformed.apply
    output, state = run(*args)
    return output, state


_SCHEMA = (
    f"{operator_arguments(Inputs)}, Tensor? first, Tensor? last, Tensor? dense, Tensor[] mask_tensors, str mask_code, "
    "SymInt[] mask_numbers, SymInt[] groups, str names, float factor, float shape_parameter, float dropout, bool state"
)


@torch.library.custom_op("qkv::blocked", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)")
def blocked(*args: Any) -> tuple[Tensor, Tensor]:
    """Return the output (..., Q, V) and the row state (..., Q), which is empty if not requested."""
    return Stripes(*_problem(args)).forward()


@blocked.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    rows = query.shape[:-1]
    state = query.new_empty(rows if rest[-1] else (*rows[:-1], 0), dtype=torch.float64)
    return value.new_empty(*rows, value.shape[-1]), state


@torch.library.custom_op(
    "qkv::blocked_backward",
    mutates_args=(),
    schema=f"(Tensor g_output, Tensor? g_state, bool[] needs_grad, {_SCHEMA}) -> Tensor[]",
)
def blocked_backward(g_output: Tensor, g_state: Tensor | None, needs_grad: Sequence[bool], *args: Any) -> list[Tensor]:
    """Return the gradients of the first eight tensors, empty where not requested."""
    gradients = zip(Stripes(*_problem(args)).backward(g_output, g_state, list(needs_grad)), args, strict=False)
    return [g_output.new_empty(0) if g is None or x is None else g.to(x.dtype) for g, x in gradients]


@blocked_backward.register_fake
def _(g_output: Tensor, g_state: Tensor | None, needs_grad: Sequence[bool], query: Tensor, *rest: Any) -> list[Tensor]:
    inputs = (query, *rest[: DIFFERENTIABLE - 1])
    pairs = zip(inputs, needs_grad, strict=True)
    return [query.new_empty(0) if x is None or not needed else x.new_empty(x.shape) for x, needed in pairs]


def _problem(args: Sequence[Any]) -> tuple[Mechanism, Inputs, Visibility]:
    """Return mechanism, inputs and lowered mask, from the arguments of `blocked`."""
    inputs, (*bounds, dense, tensors, code, numbers, groups) = Inputs(*args[:_INPUTS]), args[_INPUTS:_SETTINGS]
    names, factor, shape_parameter, dropout, state = args[_SETTINGS:]
    core, kind, normalizer = names.split(" ")
    pointwise = POINTWISE[kind](*(shape_parameter for _ in fields(POINTWISE[kind])))
    leading, pair = tuple(inputs.query.shape[:-2]), (groups[0], groups[1]) if groups else None
    mechanism = Mechanism(core, pointwise, normalizer, factor, dropout, state, leading)
    outer = leading if pair is None else (*leading[:-2], pair[0] * pair[1])
    grid = Grid(outer, inputs.query.shape[-2], inputs.key.shape[-2], inputs.query.device)
    if code:
        return mechanism, inputs, Visibility("predicate", grid, mask=decode(code, tensors, numbers), groups=pair)
    bounded = any(x is not None for x in bounds)
    kind_of_mask: Kind = "dense" if dense is not None else "bounds" if bounded else "all"
    return mechanism, inputs, Visibility(kind_of_mask, grid, Bounds(*bounds), dense)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, rest = inputs[:TENSORS], inputs[TENSORS:]
    ctx.save_for_backward(*tensors, *rest[0])
    ctx.rest = rest[1:]
    ctx.state = rest[-1]
    ctx.set_materialize_grads(False)
    ctx.shape = output[0].shape


def _gradients(ctx: Any, g_output: Tensor | None, g_state: Tensor | None) -> tuple[Any, ...]:
    gradients = _requested_gradients(blocked_backward, ctx, g_output, g_state)
    # PyTorch takes an empty list for a list of tensors, and expects as many gradients.
    rest: list[Any] = [[] if isinstance(x, (list, tuple)) and not x else None for x in ctx.rest]
    return (*gradients, *(None,) * (TENSORS - DIFFERENTIABLE), [None] * (len(ctx.saved_tensors) - TENSORS), *rest)


def _requested_gradients(
    backward: Callable[..., Any], ctx: Any, g_output: Tensor | None, g_state: Tensor | None
) -> list[Any]:
    tensors = ctx.saved_tensors
    if g_output is None:
        g_output = tensors[0].new_zeros(ctx.shape)
    needs_grad = list(ctx.needs_input_grad[:DIFFERENTIABLE])
    state = g_state if ctx.state else None
    gradients = backward(g_output, state, needs_grad, *tensors[:TENSORS], list(tensors[TENSORS:]), *ctx.rest)
    return [g if needed else None for g, needed in zip(gradients, needs_grad, strict=True)]


def _setup_backward_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    g_output, g_state, ctx.upstream_for, *tensors = inputs[: 3 + TENSORS]
    mask_tensors, *ctx.rest = inputs[3 + TENSORS :]
    ctx.save_for_backward(g_output, g_state, *tensors, *mask_tensors)
    ctx.set_materialize_grads(False)


def _second_gradients(ctx: Any, *upstream: Any) -> tuple[Any, ...]:
    gradients = _requested_second_gradients(ctx, *upstream)
    rest: list[Any] = [[] if isinstance(x, (list, tuple)) and not x else None for x in ctx.rest]
    masks = len(ctx.saved_tensors) - 2 - TENSORS
    return (*gradients, *(None,) * (TENSORS - DIFFERENTIABLE), [None] * masks, *rest)


def _requested_second_gradients(ctx: Any, upstream: Sequence[Tensor | None]) -> list[Any]:
    """Return the gradients of the arguments of `blocked_backward`, as far as they have any."""
    g_output, g_state, *tensors = ctx.saved_tensors
    mechanism, inputs, visibility = _problem((*tensors[:TENSORS], tensors[TENSORS:], *ctx.rest))
    needs_grad = ctx.needs_input_grad
    of_terms, of_cotangents = second_gradients(
        mechanism,
        visibility,
        terms_of(inputs),
        (g_output, g_state),
        [g if needed else None for g, needed in zip(upstream, ctx.upstream_for, strict=True)],
        (needs_grad[3 : 3 + DIFFERENTIABLE], needs_grad[:2]),
        Constants(inputs.seed, inputs.ties),
    )
    return [*of_cotangents, None, *of_terms]


blocked.register_autograd(_gradients, setup_context=_setup_context)
blocked_backward.register_autograd(_second_gradients, setup_context=_setup_backward_context)


SEED = Inputs._fields.index("seed")


def _vmap_forward(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    if args[SEED] is not None:
        output, state = _one_by_one(blocked, info, in_dims, args)
        return (output, state), (0, 0)
    args = _move_to_front(args, in_dims)
    query = args[0].expand(info.batch_size, *args[0].shape[1:])
    return blocked(query, *args[1:]), (0, 0)


def _vmap_backward(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[list[Tensor], list[int]]:
    if args[3 + SEED] is not None:
        gradients = list(_one_by_one(blocked_backward, info, in_dims, args))
        return gradients, [0] * len(gradients)
    # Each mapped item has its own gradient, also of tensors that all items share.
    args = _move_to_front(args, in_dims)
    differentiable = (
        x.expand(info.batch_size, *x.shape[1:]) if isinstance(x, Tensor) and x.ndim else x
        for x in (*args[:2], *args[3 : 3 + DIFFERENTIABLE])
    )
    g_output, g_state, *inputs = differentiable
    gradients = blocked_backward(g_output, g_state, args[2], *inputs, *args[3 + DIFFERENTIABLE :])
    needs_grad = [needed and x is not None for needed, x in zip(args[2], inputs, strict=True)]
    pairs = zip(gradients, needs_grad, strict=True)
    return [g if needed else g.expand(info.batch_size, 0) for g, needed in pairs], [0] * len(gradients)


def _move_to_front(args: tuple[Any, ...], in_dims: tuple[Any, ...]) -> tuple[Any, ...]:
    """Move the mapped dimension to the front; tensors that are not mapped broadcast over it."""

    def moved(x: Tensor, dim: int | None) -> Tensor:
        if dim is None:
            return x.unsqueeze(0) if x.ndim else x
        return x.movedim(dim, 0)

    return _over_tensors(moved, args, in_dims)


def _one_by_one(
    run: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """Run once for each mapped item, and stack the results: dropout counts the rows of each item separately."""

    def run_item(item: int) -> Any:
        return run(*_over_tensors(lambda x, dim: x if dim is None else x.select(dim, item), args, in_dims))

    items = [run_item(item) for item in range(info.batch_size)]
    return tuple(torch.stack(parts) for parts in zip(*items, strict=True))


def _over_tensors(
    change: Callable[[Tensor, int | None], Tensor], args: tuple[Any, ...], in_dims: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Change each tensor among arguments, which may be in lists, given its mapped dimension."""

    def changed(x: Any, dim: Any) -> Any:
        if isinstance(x, (list, tuple)) and x and isinstance(x[0], Tensor):
            return [change(part, part_dim) for part, part_dim in zip(x, dim, strict=True)]
        return change(x, dim) if isinstance(x, Tensor) else x

    return tuple(changed(x, dim) for x, dim in zip(args, in_dims, strict=True))


class Transformed(torch.autograd.Function):
    """The operator under transformations of `torch.func`, which use these methods instead of its registration."""

    vmap = staticmethod(_vmap_forward)
    setup_context = staticmethod(_setup_context)

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        """Run the operator."""
        return blocked(*args)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g_output: Tensor | None, g_state: Tensor | None) -> tuple[Any, ...]:
        """Return the gradients of the tensors, and None for the other arguments."""
        gradients = _requested_gradients(_TransformedBackward.apply, ctx, g_output, g_state)
        return (*gradients, *(None,) * (TENSORS - DIFFERENTIABLE + 1 + len(ctx.rest)))


class _TransformedBackward(torch.autograd.Function):
    setup_context = staticmethod(_setup_backward_context)

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        return tuple(blocked_backward(*args))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Any, ...]:
        gradients = _requested_second_gradients(ctx, upstream)
        return (*gradients, *(None,) * (TENSORS - DIFFERENTIABLE + 1 + len(ctx.rest)))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        gradients, dims = _vmap_backward(info, in_dims, *args)
        return tuple(gradients), tuple(dims)


blocked.register_vmap(_vmap_forward)
blocked_backward.register_vmap(_vmap_backward)
