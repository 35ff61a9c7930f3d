"""The projections around an attention: query, key and value before it, the output projection after it."""

from typing import NamedTuple, overload

from torch import Tensor, nn

from qkv.errors import UnsupportedError
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.projections import projections_of_torch
from qkv.values.plain_modules import plain_weights


class Projection(NamedTuple):
    """x ↦ W x + b: weight (out, in) and bias (out); None for missing ones."""

    weight: Tensor | None
    bias: Tensor | None


class LayerProjections(NamedTuple):
    """The projections around an attention.

    Attributes:
        query, key, value: projections before it.
        output: projection after it; its weight is None if heads are only concatenated.
    """

    query: Projection
    key: Projection
    value: Projection
    output: Projection


@overload
def projections_of(layer: nn.MultiheadAttention) -> LayerProjections: ...
@overload
def projections_of(layer: MultiHeadAttention) -> LayerProjections | None: ...
def projections_of(layer: MultiHeadAttention | nn.MultiheadAttention) -> LayerProjections | None:
    """Return the projections of our layer or PyTorch's, as views of its parameters.

    None if one of ours is more than its parameters.

    Example:
        >>> projections_of(MultiHeadAttention(8, 2)).key.weight.shape
        torch.Size([8, 8])
    """
    if isinstance(layer, nn.MultiheadAttention):
        return LayerProjections(*(_detached(*part) for part in projections_of_torch(layer)))
    try:
        query, key, value = (_detached(*layer.projections.part(index)) for index in range(3))
        last = (None, None) if layer.output is None else plain_weights(layer.output, "output")
    except UnsupportedError:
        return None
    return LayerProjections(query, key, value, _detached(*last))


def _detached(weight: Tensor | None, bias: Tensor | None) -> Projection:
    return Projection(None if weight is None else weight.detach(), None if bias is None else bias.detach())
