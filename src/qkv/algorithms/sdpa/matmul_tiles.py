"""A plain softmax over dot products, on processors where oneDNN's matrix products are faster than MKL's.

PyTorch's fused kernel computes its matrix products with MKL in small blocks, and MKL uses wide vector registers only on
Intel processors. On others a tile of whole rows is faster, although it does not fit in the L1 cache: a matrix product,
PyTorch's softmax in place, a matrix product. A tile holds whole rows, so the softmax is exact. The backward pass
recomputes each tile; gradients of keys and values are accumulated in column-major layout, in which their products are
fastest.
"""

from typing import Any, final

import torch
from torch import Tensor

from qkv.engine.autograd import second_derivative
from qkv.engine.problem import Problem
from qkv.linalg.buffers import Workspace, borrow_workspace
from qkv.linalg.matmul import LONGEST, contiguous_rows, onednn_serves, product
from qkv.scores.pointwise import Linear
from qkv.scores.widened import as_it_is

PAIRS = 1 << 18
"""Scores per tile, 1 MiB: all or half of it fits in the L2 cache."""
TALL = 128
"""Fewest rows of a tile: products with fewer are slower, even if the tile then exceeds the L2 cache."""
TERMS = LONGEST
"""Most terms summed in one product; also most rows of a tile, because gradients of keys and values sum over them."""
LEAST = 1 << 17
"""Fewest pairs per head: below it the call overhead dominates, as each call waits for both threads of two."""


def serves(problem: Problem) -> bool:
    """Return whether these tiles can compute a problem and are faster on this processor."""
    return (
        problem.core == "dot"
        and isinstance(problem.pointwise, Linear)
        and problem.normalizer == "softmax"
        and problem.mask == "all"
        and problem.bias == "none"
        and not (problem.sink or problem.dropout or problem.state or problem.transformed)
        and problem.dtype == torch.float32
        and problem.device == "cpu"
        and problem.queries * problem.keys >= LEAST
        and min(problem.queries, problem.keys) >= TALL
        and 0 not in (problem.rows, problem.width, problem.value_width)
        and not torch.compiler.is_compiling()
        and _quick()
    )


def _quick() -> bool:
    large = torch.zeros((), dtype=torch.float32, device="cpu").expand(1024, 1024)
    return onednn_serves(large, large)


def time(problem: Problem) -> float:
    """Return microseconds comparable to `qkv.algorithms.sdpa.sdpa.cost`, fitted to two threads at 512 to 4,096 keys."""
    operations = 2 * problem.rows * problem.queries * problem.keys * (problem.width + problem.value_width)
    return 25 + operations * (3.5 if problem.gradient else 1) / 165_000


def attend(problem: Problem, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Compute softmax attention tile by tile.

    Args:
        problem: one for which `serves` is true.
        query: (..., Q, F).
        key: (..., K, F).
        value: (..., K, V).
        scale: factor of the dot products.

    Returns:
        The output (..., Q, V), differentiable once.

    Example:
        >>> import qkv
        >>> x = torch.ones(3, 400, 4)
        >>> (qkv.attention(x, x, x, backend="rowwise") - x).abs().max() < 1e-6
        tensor(True)
    """
    whole = (x.expand(*problem.leading, *x.shape[-2:]) for x in (query, key, value))
    output: Tensor = _Tiles.apply(scale, *whole)  # type: ignore[no-untyped-call]
    return output


@final
class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = contiguous_rows(key), contiguous_rows(value)
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        with borrow_workspace() as rooms:
            for own, seen, looked, found in zip(*map(_items, (query, key, value, output)), strict=True):
                scaled = _scaled(own, scale, rooms)
                for rows in _walk(own, seen):
                    found[rows] = _long(_weights(scaled[rows], seen), looked)
        ctx.scale = scale
        ctx.save_for_backward(query, key, value)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        found = _Back.apply(ctx.scale, ctx.needs_input_grad[1:], g, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return (None, *found)


@final
class _Back(torch.autograd.Function):
    """The gradients, as a function whose own derivative raises an error that names where second derivatives work."""

    @staticmethod
    def forward(
        ctx: Any, scale: float, wanted: tuple[bool, ...], g: Tensor, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor | None, ...]:
        # The gradients of keys and values are stored column-major.
        shapes = (query.shape, key.mT.shape, value.mT.shape)
        buffers = [query.new_empty(shape) if want else None for shape, want in zip(shapes, wanted, strict=True)]
        each = [None if x is None else _items(x) for x in buffers]
        with as_it_is(query), borrow_workspace() as rooms:
            for number, item in enumerate(zip(*map(_items, (query, key, value, g.contiguous())), strict=True)):
                scaled = _scaled(item[0], scale, rooms)
                into = tuple(None if x is None else x[number] for x in each)
                for rows in _walk(*item[:2]):
                    _pull((scaled, *item[1:]), rows, scale, into)
        of_query, of_key, of_value = buffers
        return of_query, None if of_key is None else of_key.mT, None if of_value is None else of_value.mT

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise second_derivative("rowwise")


def _pull(item: tuple[Tensor, ...], rows: slice, scale: float, buffers: tuple[Tensor | None, ...]) -> None:
    """Add the contribution of one tile to the gradients."""
    query, key, value, g = item
    d_query, d_key, d_value = buffers
    weights = _weights(query[rows], key)
    if d_value is not None:
        _add(d_value, product(g[rows].mT.contiguous(), weights), rows)
    if d_query is None and d_key is None:
        return
    slopes = product(g[rows], value.mT)
    torch.ops.aten._softmax_backward_data.out(slopes, weights, -1, torch.float32, grad_input=slopes)
    if d_query is not None:
        torch.mul(_long(slopes, key), scale, out=d_query[rows])
    if d_key is not None:
        _add(d_key, product(query[rows].mT.contiguous(), slopes), rows)


def _add(buffer: Tensor, part: Tensor, rows: slice) -> None:
    """Add `part` to the buffer; the first part overwrites its uninitialized memory."""
    if rows.start == 0:
        buffer.copy_(part)
    else:
        buffer += part


def _scaled(query: Tensor, scale: float, rooms: Workspace) -> Tensor:
    """Multiply the queries of an item by the scale; the result is contiguous for the product that follows."""
    return torch.mul(query, scale, out=rooms.take("query", tuple(query.shape), query.dtype))


def _weights(query: Tensor, key: Tensor) -> Tensor:
    scores = product(query, key.mT)
    return torch.ops.aten._softmax.out(scores, -1, False, out=scores)  # type: ignore[no-any-return]


def _long(left: Tensor, right: Tensor) -> Tensor:
    """Return a matrix product whose sums are split into parts of at most `TERMS` terms."""
    terms = left.shape[1]
    if terms <= TERMS:
        return product(left, right)
    first, *others = (slice(start, start + TERMS) for start in range(0, terms, TERMS))
    found = product(left[:, first].contiguous(), right[first])
    for part in others:
        found += product(left[:, part].contiguous(), right[part])
    return found


def _walk(query: Tensor, key: Tensor) -> list[slice]:
    """Return the rows of each tile."""
    height = max(TALL, min(TERMS, PAIRS // key.shape[0]))
    return [slice(start, start + height) for start in range(0, query.shape[0], height)]


def _items(x: Tensor) -> tuple[Tensor, ...]:
    return x.reshape(-1, *x.shape[-2:]).unbind()
