"""A call of PyTorch's own multi-head attention as a recorded call."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import UnsupportedError
from qkv.nn.pytorch import masks_of
from qkv.recording.calls import LastInputs, RecordedCall
from qkv.recording.projections import Projection, projections_of

_SIGNATURE = signature(nn.MultiheadAttention.forward)


def check_layer(name: str, layer: nn.MultiheadAttention) -> None:
    """Check that a layer can be recorded.

    Raises:
        UnsupportedError: it attends to keys that belong to no position.
    """
    if layer.bias_k is not None or layer.add_zero_attn:
        hint = "Record a layer without bias_k, bias_v and add_zero_attn, or select others: layers=[...]."
        raise UnsupportedError(name, "keys that belong to positions", "an extra key", hint)


@torch.no_grad()
def call_of(
    layer: nn.MultiheadAttention, arguments: tuple[Any, ...], options: dict[str, Any], moment: int
) -> RecordedCall:
    """Return a forward pass of PyTorch's layer as a call; its projections are computed again.

    Args:
        layer: the layer.
        arguments, options: the arguments of the pass.
        moment: see `RecordedCall`.
    """
    bound = _SIGNATURE.bind(layer, *arguments, **options).arguments
    inputs = [bound[name] for name in ("query", "key", "value")]
    self_attention = inputs[0] is inputs[1]
    if inputs[0].ndim == 2:
        inputs = [x.unsqueeze(0) for x in inputs]
    elif not layer.batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    query, key, value = (
        _by_head(x, part, layer.num_heads) for x, part in zip(inputs, projections_of(layer)[:3], strict=True)
    )
    padding, attended = bound.get("key_padding_mask"), bound.get("attn_mask")
    padding = padding if padding is None or padding.ndim == 2 else padding[None]
    mask, bias = masks_of(padding, attended, query.shape[0], layer.num_heads, bool(bound.get("is_causal")))
    named = {"mask": mask, "bias": bias}
    x, memory, values = (tensor.detach() for tensor in inputs)
    detached = LastInputs(x, memory, values, moment)
    return RecordedCall(
        query, key, value, {k: x for k, x in named.items() if x is not None}, None, moment, self_attention, detached
    )


def _by_head(x: Tensor, projection: Projection, heads: int) -> Tensor:
    """Project, and split heads: (B, N, M) to (B, H, N, D)."""
    assert projection.weight is not None
    projected = F.linear(x, projection.weight, projection.bias)
    return projected.view(*projected.shape[:-1], heads, -1).transpose(1, 2)
