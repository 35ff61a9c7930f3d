"""Differentiable statistics: stripes of whole rows, recomputed in the backward pass."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call
from qkv.engine.unchanged import Reads, tensors_of
from qkv.introspect.statistics import WeightSource, expect_entropy
from qkv.introspect.sweep import WEIGHTS
from qkv.introspect.tiles import complete_rows


def differentiable_parameters(call: Call) -> list[Tensor]:
    """Return the tensors of a call that need a gradient, if gradients are enabled."""
    if not torch.is_grad_enabled():
        return []
    owners = ((call.score, call.score.parameters), (call.normalizer, call.normalizer.parameters))
    gradients = [getattr(owner, parameter.name) for owner, parameters in owners for parameter in parameters]
    biases = call.bias.learned if isinstance(call.bias, PositionBias) else (call.bias,)
    tensors = [x for x in (call.query, call.key, *biases, *gradients) if isinstance(x, Tensor)]
    return [x for x in tensors if x.requires_grad]


def possible(call: Call) -> bool:
    """Return whether a gradient could be needed; a user-defined function may close over tensors that need one."""
    closure = call.score.core == "tile" or (isinstance(call.bias, PositionBias) and call.bias.closure)
    return torch.is_grad_enabled() and (closure or bool(differentiable_parameters(call)))


def received(source: WeightSource) -> Tensor:
    """Compute Σ_i w_ij of each key, (..., K), float64; gradients reach query, key, bias and parameters."""
    return torch.stack(_recomputed(_received, source)).sum(0)


def entropy(source: WeightSource) -> Tensor:
    """Compute −Σ_j w_ij log w_ij of each row, (..., Q), float64; gradients reach query, key, bias and parameters."""
    result = torch.cat(_recomputed(_entropy, source), -1)
    expect_entropy(source, result)
    return result


def _recomputed(function: Callable[[WeightSource, slice], Tensor], source: WeightSource) -> list[Tensor]:
    """Return the results of all stripes; the backward pass recomputes them, and raises if an input has changed."""
    reads = Reads(tensors_of(source.call))

    def stripe(rows: slice) -> Tensor:
        with reads:
            return function(source, rows)

    stripes = [checkpoint(stripe, rows, use_reentrant=False) for rows in _stripes(source)]
    reads.guard(stripes)
    return stripes


def _received(source: WeightSource, rows: slice) -> Tensor:
    return _weights(source, rows).sum(-2, dtype=torch.float64)


def _entropy(source: WeightSource, rows: slice) -> Tensor:
    w = _weights(source, rows)
    # The slope of −w log w is infinite at 0; a weight that is 0 stays 0.
    inside = torch.where(w == 0, torch.ones_like(w), w)
    entropies: Tensor = torch.special.entr(inside).sum(-1, dtype=torch.float64)
    return entropies


def _weights(source: WeightSource, rows: slice) -> Tensor:
    """Compute whole rows of weights with the normalizer itself, which includes the derivative of the row state."""
    w = complete_rows(source.call, rows)
    return w.expand(*source.shape[:-2], *w.shape[-2:])


def _stripes(source: WeightSource) -> list[slice]:
    queries, row_size = source.shape[-2], 1
    for size in (*source.shape[:-2], source.shape[-1]):
        row_size *= max(size, 1)
    height = max(1, WEIGHTS // row_size)
    return [slice(start, min(start + height, queries)) for start in range(0, max(queries, 1), height)]
