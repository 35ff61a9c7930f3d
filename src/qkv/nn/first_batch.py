"""Before training: set bandwidths by a first batch, and refuse attentions that give it no weight."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, setting
from qkv.functional import attention
from qkv.introspect.lazy_map import attention_map
from qkv.nn.attention import Attention
from qkv.nn.distance_scores import KernelScore
from qkv.nn.scores import ScoreModule, score_of
from qkv.normalizers.dense import Identity
from qkv.scores.kernels import SquaredDistance

_MAX_QUERIES = 64
"""Queries of a sequence whose distances to all keys are measured."""


class _Site(NamedTuple):
    """An attention whose weights can all be 0, and its score."""

    name: str
    attention: Attention
    score: ScoreModule


def start_from_first_batch(model: nn.Module, run: Callable[[], object]) -> None:
    """Set the bandwidth of each kernel to the median distance of its queries and keys in a first batch.

    With a bandwidth of 1, queries and keys of width 64 are outside the support of every compact kernel: all weights and
    gradients would be 0. A model without kernels is left alone, and `run` is not called.

    Args:
        model: with new weights; the parameters of its `KernelScore` modules are set.
        run: computes a first batch by the model.

    Raises:
        ConfigError: an attention gives all keys of all queries weight 0.

    Example:
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> layer = MultiHeadAttention(64, heads=1, score="gaussian")
        >>> start_from_first_batch(layer, lambda: layer(torch.randn(2, 9, 64)))
        >>> 5 < layer.score.value().bandwidth.item() < 20
        True
    """
    first_calls = [_FirstCall(site) for site in _sites(model)]
    if not first_calls:
        return
    handles = [handle for first_call in first_calls for handle in first_call.register()]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    for first_call in first_calls:
        first_call.expect_weights()


def _sites(model: nn.Module) -> Iterator[_Site]:
    """Yield the attentions whose weights can all be 0: those of kernels."""
    for name, module in model.named_modules():
        score, inner = (getattr(module, part, None) for part in ("score", "attention"))
        if not isinstance(inner, Attention) or not isinstance(score, ScoreModule):
            continue
        if score_of(score).value().core == "distance":
            yield _Site(f"{name}.attention".removeprefix("."), inner, score)


@final
class _FirstCall:
    """What one attention does in the first batch."""

    def __init__(self, site: _Site) -> None:
        self.site = site
        self.distance: float | None = None
        self.called = self.has_weight = False

    def register(self) -> list[Any]:
        layer = self.site.attention
        return [layer.register_forward_pre_hook(self._before, with_kwargs=True)]

    def expect_weights(self) -> None:
        if self.called and not self.has_weight:
            where = f", where queries and keys lie {self.distance:.3g} apart" if self.distance else ""
            got = f"none in {self.site.name}{where}"
            hint = "Set " + setting("bandwidth") + " to about that, or omit it: it is then learned from there."
            raise ConfigError("bandwidth", "some weight above 0 in the first batch", got, hint)

    def _before(self, layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Any:
        query, key, _ = args
        options: dict[str, Any] = {name: kwargs.get(name) for name in ("mask", "bias")}
        options["enable_gqa"] = kwargs.get("enable_gqa", False)
        if not self.called:
            self.called = True
            self.distance = _median_distance(query, key, options)
            score = self.site.score
            if isinstance(score, KernelScore) and self.distance is not None:
                score.start_from(self.distance)
        if not self.has_weight:
            projected = score_of(self.site.score).projected()
            kwargs = {**kwargs, "score": projected}
            ones = torch.ones_like(key[..., :1])
            _, normalizer = self.site.attention.mechanism(projected, kwargs.get("normalizer"))
            total = attention(query, key, ones, score=projected, normalizer=normalizer, **options)
            self.has_weight = bool(total.any())
        return args, kwargs


def _median_distance(query: Tensor, key: Tensor, options: dict[str, Any]) -> float | None:
    """Return the median of ‖q−k‖ over visible pairs; None if there is none."""
    distances = attention_map(query, key, score=SquaredDistance(), normalizer=Identity(), **{**options, "bias": None})
    step = max(1, math.ceil(query.shape[-2] / _MAX_QUERIES))
    rows = [distances.row(row) for row in range(0, query.shape[-2], step)]
    squares = -2 * torch.stack(rows).double()
    positive = squares[squares > 0].sqrt()
    return float(positive.median()) if positive.numel() else None
