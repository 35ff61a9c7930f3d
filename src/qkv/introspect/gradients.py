"""Statistics that gradients pass through: stripes of whole rows, each made again in the backward pass."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.engine.problem import Call
from qkv.engine.unchanged import Reads, tensors_of
from qkv.introspect.statistics import Whole
from qkv.introspect.sweep import WEIGHTS
from qkv.introspect.tiles import whole_rows


def wanted(call: Call) -> list[Tensor]:
    """The tensors of a call that a gradient is wanted of, where gradients are on; empty for none."""
    if not torch.is_grad_enabled():
        return []
    owners = ((call.score, call.score.parameters), (call.normalizer, call.normalizer.parameters))
    own = [getattr(owner, parameter.name) for owner, parameters in owners for parameter in parameters]
    tensors = [x for x in (call.query, call.key, call.bias, *own) if isinstance(x, Tensor)]
    return [x for x in tensors if x.requires_grad]


def possible(call: Call) -> bool:
    """Whether a gradient may be wanted: what a function of the caller's own closes over cannot be seen from here."""
    return torch.is_grad_enabled() and (call.score.core == "tile" or bool(wanted(call)))


def received(whole: Whole) -> Tensor:
    """Σ_i w_ij of each key, (..., K), float64; gradients reach query, key, bias and parameters."""
    return torch.stack(_made_again(_received, whole)).sum(0)


def entropy(whole: Whole) -> Tensor:
    """−Σ_j w_ij log w_ij of each row, (..., Q), float64; gradients reach query, key, bias and parameters."""
    return torch.cat(_made_again(_entropy, whole), -1)


def _made_again(function: Callable[[Whole, slice], Tensor], whole: Whole) -> list[Tensor]:
    """The stripes, which the backward pass makes again, unless what they are made of has changed by then."""
    reads = Reads(tensors_of(whole.call))

    def made(rows: slice) -> Tensor:
        with reads:
            return function(whole, rows)

    found = [checkpoint(made, rows, use_reentrant=False) for rows in _stripes(whole)]
    reads.guard(found)
    return found


def _received(whole: Whole, rows: slice) -> Tensor:
    return _weights(whole, rows).sum(-2, dtype=torch.float64)


def _entropy(whole: Whole, rows: slice) -> Tensor:
    w = _weights(whole, rows)
    # The slope of −w log w is infinite at 0; a weight that is 0 stays there.
    inside = torch.where(w > 0, w, torch.ones_like(w))
    return -(inside * inside.log()).sum(-1, dtype=torch.float64)


def _weights(whole: Whole, rows: slice) -> Tensor:
    """Whole rows of weights, by the normalizer itself: the derivative of a row state is in them."""
    w = whole_rows(whole.call, rows)
    return w.expand(*whole.shape[:-2], *w.shape[-2:])


def _stripes(whole: Whole) -> list[slice]:
    queries, each = whole.shape[-2], 1
    for size in (*whole.shape[:-2], whole.shape[-1]):
        each *= max(size, 1)
    height = max(1, WEIGHTS // each)
    return [slice(start, min(start + height, queries)) for start in range(0, max(queries, 1), height)]
