"""Layers: the seam through which every model attends, scores that own parameters, multi-head attention, blocks."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.nn.attention import Attention
    from qkv.nn.blocks import DecoderBlock, DecoderCache, EncoderBlock, FeedForward, Residual
    from qkv.nn.cache import Memory, Rows
    from qkv.nn.causal import CausalBlock
    from qkv.nn.distance_scores import ConcatScore, KernelScore
    from qkv.nn.dropout import Dropout
    from qkv.nn.multihead import MultiHeadAttention
    from qkv.nn.non_local import NonLocalBlock
    from qkv.nn.positions import PositionEmbedding, Rotary, rotary, sinusoidal
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
    "CausalBlock",
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
    "NonLocalBlock",
    "PositionEmbedding",
    "Residual",
    "Rotary",
    "Rows",
    "ScaledDotScore",
    "ScoreModule",
    "build_score",
    "rotary",
    "sinusoidal",
]

__getattr__ = lazy(
    __name__,
    {
        "AdditiveScore": "qkv.nn.scores",
        "Attention": "qkv.nn.attention",
        "BilinearScore": "qkv.nn.scores",
        "CausalBlock": "qkv.nn.causal",
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
        "NonLocalBlock": "qkv.nn.non_local",
        "PositionEmbedding": "qkv.nn.positions",
        "Residual": "qkv.nn.blocks",
        "Rotary": "qkv.nn.positions",
        "Rows": "qkv.nn.cache",
        "ScaledDotScore": "qkv.nn.scores",
        "ScoreModule": "qkv.nn.scores",
        "build_score": "qkv.nn.scores",
        "rotary": "qkv.nn.positions",
        "sinusoidal": "qkv.nn.positions",
    },
)
