"""The projections around an attention: before it of query, key and value, behind it of the joined heads."""

from typing import NamedTuple

from torch import Tensor

from qkv.nn.multihead import MultiHeadAttention


class Projection(NamedTuple):
    """x ↦ W x + b: weight (out, in) and bias (out); None for what there is not."""

    weight: Tensor | None
    bias: Tensor | None


class Around(NamedTuple):
    """The projections around an attention.

    Attributes:
        query, key, value: before it.
        output: behind it; its weight is None if heads are only joined.
    """

    query: Projection
    key: Projection
    value: Projection
    output: Projection


def around(layer: MultiHeadAttention) -> Around:
    """The projections of a layer, as views of its parameters.

    Example:
        >>> around(MultiHeadAttention(8, 2)).key.weight.shape
        torch.Size([8, 8])
    """
    query, key, value = (_detached(*layer.projections.part(index)) for index in range(3))
    output = Projection(None, None) if layer.output is None else _detached(layer.output.weight, layer.output.bias)
    return Around(query, key, value, output)


def _detached(weight: Tensor | None, bias: Tensor | None) -> Projection:
    return Projection(None if weight is None else weight.detach(), None if bias is None else bias.detach())
