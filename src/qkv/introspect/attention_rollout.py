"""Attention rollout: how much each input position contributes to a position several layers above."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.errors import ConfigError, ShapeError
from qkv.introspect.lazy_map import AttentionMap
from qkv.shapes import show


@torch.no_grad()
def rollout(
    maps: Sequence[AttentionMap], queries: Sequence[int], *, residual: float = 0.5, stripe: int = 256
) -> Tensor:
    """Trace positions of the last layer down to the input, mixing attention and residual stream in each layer.

    With A the mean over heads, each layer multiplies by r·I + (1 − r)·A. Only the requested rows are computed, stripe
    by stripe, so memory grows with their number and the sequence length, never with its square.

    Args:
        maps: self-attention maps from the first layer to the last; each (H, N, N) or (N, N).
        queries: positions in the last layer.
        residual: r, the share of the residual stream.
        stripe: number of rows of a layer computed at a time.

    Returns:
        (len(queries), N), float64: how much of each input position is in each query.

    Raises:
        ShapeError: a map is not square, or not of one item.
        ConfigError: the share is outside [0, 1], or there is no map.

    Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.

    Example:
        >>> from qkv.introspect.lazy_map import attention_map
        >>> x = torch.randn(2, 5, 4)
        >>> reached = rollout([attention_map(x, x), attention_map(x, x)], queries=[0, 4])
        >>> reached.shape, round(float(reached[0].sum()), 6)
        (torch.Size([2, 5]), 1.0)
    """
    if not 0 <= residual <= 1 or not maps:
        got = f"{residual} with {len(maps)} maps"
        raise ConfigError("residual", "a share in [0, 1], and at least one map", got, "0.5 is usual.")
    size = maps[-1].shape[-1]
    for amap in maps:
        if len(amap.shape) not in (2, 3) or amap.shape[-2:] != (size, size):
            hint = "Rollout traces one sequence through layers of self-attention."
            raise ShapeError("maps", f"(H, {size}, {size})", show(amap.shape), hint)
    reached = torch.zeros(len(queries), size, dtype=torch.float64, device="cpu")
    indices = torch.tensor(list(queries), dtype=torch.int64, device="cpu")
    reached[torch.arange(len(queries), device="cpu"), indices] = 1
    for amap in reversed(maps):
        passed = torch.zeros_like(reached)
        for start in range(0, size, stripe):
            rows = amap[..., start : start + stripe, :].double().to(passed.device)
            passed += reached[:, start : start + stripe] @ (rows.mean(0) if rows.ndim == 3 else rows)
        reached = residual * reached + (1 - residual) * passed
    return reached
