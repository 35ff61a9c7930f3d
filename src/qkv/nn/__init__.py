"""Layers: the seam through which every model attends, scores that own parameters, multi-head attention, blocks."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.nn.attention import Attention
    from qkv.nn.blocks import DecoderBlock, DecoderCache, EncoderBlock, FeedForward, Residual
    from qkv.nn.cache import Memory, Rows
    from qkv.nn.distance_scores import ConcatScore, KernelScore
    from qkv.nn.dropout import Dropout
    from qkv.nn.multihead import MultiHeadAttention
    from qkv.nn.positions import sinusoidal
    from qkv.nn.scores import (
        AdditiveScore,
        BilinearScore,
        DotScore,
        FixedScore,
        ScaledDotScore,
        ScoreModule,
        build_score,
    )

__all__ = [
    "AdditiveScore",
    "Attention",
    "BilinearScore",
    "ConcatScore",
    "DecoderBlock",
    "DecoderCache",
    "DotScore",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "FixedScore",
    "KernelScore",
    "Memory",
    "MultiHeadAttention",
    "Residual",
    "Rows",
    "ScaledDotScore",
    "ScoreModule",
    "build_score",
    "sinusoidal",
]

__getattr__ = lazy(
    __name__,
    {
        "AdditiveScore": "qkv.nn.scores",
        "Attention": "qkv.nn.attention",
        "BilinearScore": "qkv.nn.scores",
        "ConcatScore": "qkv.nn.distance_scores",
        "DecoderBlock": "qkv.nn.blocks",
        "DecoderCache": "qkv.nn.blocks",
        "DotScore": "qkv.nn.scores",
        "Dropout": "qkv.nn.dropout",
        "EncoderBlock": "qkv.nn.blocks",
        "FeedForward": "qkv.nn.blocks",
        "FixedScore": "qkv.nn.scores",
        "KernelScore": "qkv.nn.distance_scores",
        "Memory": "qkv.nn.cache",
        "MultiHeadAttention": "qkv.nn.multihead",
        "Residual": "qkv.nn.blocks",
        "Rows": "qkv.nn.cache",
        "ScaledDotScore": "qkv.nn.scores",
        "ScoreModule": "qkv.nn.scores",
        "build_score": "qkv.nn.scores",
        "sinusoidal": "qkv.nn.positions",
    },
)
