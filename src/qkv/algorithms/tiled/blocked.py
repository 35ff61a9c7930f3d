"""Backend `blocked`: serves everything, forward and backward, in memory that grows linearly with queries and keys."""

from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.tiled import operators, traced_user_scores, user_scores
from qkv.algorithms.tiled.cores import FEW_QUERIES
from qkv.algorithms.tiled.stripes import SAVED, Tiles
from qkv.engine import autograd
from qkv.engine.backend import Backend, Result
from qkv.engine.mechanism import DIFFERENTIABLE, Inputs, Mechanism, prepare_inputs
from qkv.engine.problem import Call, Cost, Problem
from qkv.masks.lower import Visibility


def refuses(problem: Problem) -> str | None:
    """Serves everything but derivatives taken forward, and the gradient of a function of the caller's own under a
    transformation."""
    if problem.forward_mode and problem.core != "tile":
        return "its stripes are a function of our own, which has no derivative taken forward; reference has"
    if problem.core == "tile" and problem.transformed and problem.gradient:
        return "a function of yours cannot be made again under torch.func: its gradient would keep every tile"
    return None


def cost(problem: Problem) -> Cost:
    """The work of the full matrix without its way through memory, and half as much again to make stripes anew.

    Fitted to processor time of one thread.
    """
    pairs = problem.rows * problem.queries * problem.keys
    operations = 2 * pairs * (problem.width + problem.value_width) * (3.5 if problem.gradient else 1)
    linear = 4e-3 * problem.rows * (problem.queries + problem.keys) * problem.width if problem.gradient else 0.0
    start, each = (450, 2.5) if problem.gradient else (100, 0.3)
    if problem.core == "dot":
        each = 9 if problem.gradient else 4
    if problem.core == "tanh_sum":
        each += problem.width * (5.0 if problem.gradient else 1.6)
    if problem.core == "distance":
        start, each = (1500, each + problem.width * 0.26) if problem.gradient else (500, each + problem.width * 0.11)
        if problem.queries < FEW_QUERIES:
            start, each = (800, each + problem.width) if problem.gradient else (100, each + problem.width * 0.8)
    if problem.core == "tile":
        start, each = 3 * start, 3 * each
        if problem.positioned is not None:
            # A bias from positions takes ten passes of integers over each tile.
            each = 160 if problem.gradient else 40
    if problem.normalizer in ("sparsemax", "entmax"):
        start += 700 if problem.gradient else 200
        each += 6 if problem.gradient else 3
    if problem.normalizer == "hard":
        each += 2
    if problem.dropout:
        each += 4 if problem.gradient else 2
    return Cost(int(operations), 64 << 20, start + linear + operations / 150_000 + pairs * each / 1000)


def run(problem: Problem, call: Call) -> Result:
    """Stripes by a function of our own; callables by checkpoints, so that what they close over learns."""
    # Tensors without numbers cannot say which tiles are seen.
    traced = problem.transformed or torch.compiler.is_compiling() or problem.device == "meta"
    if problem.core == "tile":
        if traced:
            return traced_user_scores.run(problem, call)
        return user_scores.run(problem, call)
    recipe, inputs = prepare_inputs(problem, call)
    if traced:
        output, state = operators.apply(recipe, inputs, call.visibility)
        return _narrowed(problem, output, state)
    output, state = _Blocked.apply(recipe, call.visibility, *inputs)  # type: ignore[no-untyped-call]
    return _narrowed(problem, output, state)


def _narrowed(problem: Problem, output: Tensor, state: Tensor) -> Result:
    """The result in the problem's type, where a score's operands were wider."""
    if output.dtype != problem.dtype:
        output = output.to(problem.dtype)
        state = state if problem.dtype == torch.float64 else state.float()
    return Result(output, state if problem.state else None)


class _Blocked(torch.autograd.Function):
    """The eager way: a function of PyTorch's autograd over the tiles."""

    @staticmethod
    def forward(ctx: Any, recipe: Mechanism, visibility: Visibility, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.recipe, ctx.visibility = recipe, visibility
        # What the backward pass asks of the mask again is saved too, so that PyTorch sees when it was changed.
        ctx.save_for_backward(*inputs, *visibility.tensors())
        ctx.set_materialize_grads(False)
        query, _, value, *_ = inputs
        assert query is not None
        assert value is not None
        # Operands of half precision may be wider than what comes back.
        with torch.autocast(query.device.type, enabled=False):
            return Tiles(recipe, Inputs(*inputs), visibility).forward(value.dtype)  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, g_output: Tensor | None, g_state: Tensor | None) -> tuple[Any, ...]:
        wanted, inputs = list(ctx.needs_input_grad[2 : 2 + DIFFERENTIABLE]), ctx.saved_tensors[:SAVED]
        gradients = _Backward.apply(ctx.recipe, ctx.visibility, wanted, g_output, g_state, *inputs)  # type: ignore[no-untyped-call]
        return (None, None, *gradients, None)


class _Backward(torch.autograd.Function):
    """The gradients, as a function whose own derivative says where second derivatives are to be had."""

    @staticmethod
    def forward(
        ctx: Any,
        recipe: Mechanism,
        visibility: Visibility,
        wanted: list[bool],
        g_output: Tensor | None,
        g_state: Tensor | None,
        *inputs: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        given = Inputs(*inputs)  # type: ignore[arg-type]
        if g_output is None:
            g_output = given.query.new_zeros(1).expand(*recipe.leading, given.query.shape[-2], given.value.shape[-1])
        with torch.autocast(given.query.device.type, enabled=False):
            buffers = Tiles(recipe, given, visibility).backward(g_output, g_state if recipe.state else None, wanted)
        pairs = zip(buffers, inputs, strict=False)
        return tuple(None if g is None or x is None else g.to(x.dtype) for g, x in pairs)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise autograd.second_derivative("blocked")


BACKEND = Backend("blocked", "stripes of rows that fit the cache", refuses, cost, run)
