"""Tiles of whole rows as one autograd function, for eager calls, whatever computes the tiles.

The backward pass computes each tile again. Gradients with a graph come from the equation (`engine/derivatives.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.algorithms.tiled.position_tiles import PositionTiles
from qkv.engine.autograd import differentiable_by, forbid_differentiation
from qkv.engine.derivatives import Constants, differentiable_gradients, terms_of
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism
from qkv.masks.lower import Visibility
from qkv.scores.base import without_autocast

_INPUTS = len(Inputs._fields)
"""How many of the saved tensors are inputs; those that a bias learns from and those of the mask follow."""
_NO_GRADIENTS = (None,) * (_INPUTS - DIFFERENTIABLE)


class Tiles(Protocol):
    """A problem cut into tiles, which are computed one after another from its inputs."""

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the output (..., Q, V) and the row state (..., Q), float64, which is empty if not requested."""

    def backward(self, g_output: Tensor, g_state: Tensor | None, needs_grad: list[bool]) -> list[Tensor | None]:
        """Return the requested gradients of the inputs, in the order of `Inputs`."""


@final
@dataclass(frozen=True)
class TiledProblem:
    """What tiles compute, besides its tensors.

    Attributes:
        cut: returns the tiles of a mechanism, its inputs, its lowered mask, and the tiles of a position bias.
        mechanism: the equation.
        visibility: the lowered mask.
        make_bias: returns the tiles of a position bias that is not a function of j − i, given whether its parameters
            get gradients; None without such a bias.
        augmented: whether query and key are (−2q, ‖q‖², 1) and (k, 1, ‖k‖²), whose dot product is ‖q−k‖².
    """

    cut: Callable[[Mechanism, Inputs, Visibility, PositionTiles | None], Tiles]
    mechanism: Mechanism
    visibility: Visibility
    make_bias: Callable[[bool], PositionTiles] | None = None
    augmented: bool = False

    def bias(self, learns: bool) -> PositionTiles | None:
        """Return the tiles of the position bias, None if there is none."""
        return None if self.make_bias is None else self.make_bias(learns)


def attend(problem: TiledProblem, inputs: Inputs, *learned: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (..., Q, V) and the row state (..., Q), which is empty if not requested.

    Args:
        problem: what to compute.
        inputs: its tensors.
        learned: the tensors that its position bias learns from.
    """
    output, state = _TileFunction.apply(problem, *inputs, *learned)  # type: ignore[no-untyped-call]
    return output, state


def _gradients_with_graph(ctx: Any, g_output: Tensor | None, g_state: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients with a graph."""
    problem, inputs, needs_grad = ctx.problem, Inputs(*ctx.saved_tensors[:_INPUTS]), ctx.needs_input_grad[1:]
    tiles, learned = problem.bias(False), ()
    if tiles is not None:
        if not tiles.positions.replaceable:
            with torch.no_grad():
                numbers = _TileFunction.backward(ctx, g_output, g_state)
            return forbid_differentiation("blocked", numbers, (g_output, g_state, *ctx.saved_tensors))
        learned = ctx.saved_tensors[_INPUTS : _INPUTS + len(tiles.positions.learned)]
    terms = terms_of(inputs)
    if problem.augmented:
        # From the vectors themselves: the other two columns follow from them.
        width = inputs.query.shape[-1] - 2
        terms = terms._replace(query=inputs.query[..., :width] * -0.5, key=inputs.key[..., :width])
    further = len(terms) - DIFFERENTIABLE
    query, key, *others = differentiable_gradients(
        problem.mechanism,
        problem.visibility,
        (*terms, *learned),
        (*needs_grad[:DIFFERENTIABLE], *(False,) * further, *needs_grad[_INPUTS:]),
        (g_output, g_state if problem.mechanism.state else None),
        Constants(inputs.seed, inputs.ties, None if tiles is None else tiles.computed_from),
    )
    if problem.augmented:
        query = None if query is None else F.pad(query * -0.5, (0, 2))
        key = None if key is None else F.pad(key, (0, 2))
    of_inputs = (query, key, *others[: DIFFERENTIABLE - 2])
    return (None, *of_inputs, *_NO_GRADIENTS, *others[len(terms) - 2 :])


class _TileFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: TiledProblem, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.problem, inputs = problem, Inputs(*tensors[:_INPUTS])  # type: ignore[arg-type]
        # The backward pass evaluates the mask again: saving its tensors lets PyTorch detect in-place changes.
        ctx.save_for_backward(*tensors, *problem.visibility.tensors())
        ctx.set_materialize_grads(False)
        with without_autocast(inputs.query):
            return problem.cut(problem.mechanism, inputs, problem.visibility, problem.bias(False)).forward()

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, g_output: Tensor | None, g_state: Tensor | None) -> tuple[Any, ...]:
        problem, inputs, needs_grad = ctx.problem, Inputs(*ctx.saved_tensors[:_INPUTS]), ctx.needs_input_grad[1:]
        mechanism, bias = problem.mechanism, problem.bias(len(needs_grad) > _INPUTS)
        if g_output is None:
            sizes = inputs.query.shape[-2], inputs.value.shape[-1]
            g_output = inputs.value.new_zeros(1).expand(*mechanism.leading, *sizes)
        g_state = g_state if mechanism.state else None
        with without_autocast(inputs.query):
            tiles = problem.cut(mechanism, inputs, problem.visibility, bias)
            gradients = tiles.backward(g_output, g_state, list(needs_grad[:DIFFERENTIABLE]))
        pairs = zip(gradients, inputs, strict=False)
        cast = (None if g is None or x is None else g.to(x.dtype) for g, x in pairs)
        return (None, *cast, *_NO_GRADIENTS, *(() if bias is None else bias.gradients()))
