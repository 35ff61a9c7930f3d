"""Layers: `Attention`, which every model uses, scores with parameters, multi-head attention, Transformer blocks."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.nn.attention import Attention
    from qkv.nn.biases import AlibiBias, BiasModule, BucketedBias, RelativeBias, build_bias
    from qkv.nn.blocks import BlockCache, Residual, TransformerBlock
    from qkv.nn.copy import Copyable, CopyHead
    from qkv.nn.decoding.cache import BatchRows, Memory
    from qkv.nn.distance_scores import ConcatScore, KernelScore
    from qkv.nn.dropout import Dropout
    from qkv.nn.feed_forward import FeedForward, GatedFeedForward
    from qkv.nn.location import LocationScore, LocationSteps
    from qkv.nn.mechanism import MechanismConfig
    from qkv.nn.monotonic import FirstOrder, MonotonicJumps, MonotonicScores, Transitions, ZerothOrder
    from qkv.nn.multihead import MultiHeadAttention
    from qkv.nn.non_local import NonLocalBlock
    from qkv.nn.normalizers import LearnedEntmax, LearnedSigmoid, NormalizerModule, SinkSoftmax
    from qkv.nn.norms import NormParts, RMSNorm
    from qkv.nn.pointer import Pointer
    from qkv.nn.pooling import Pool
    from qkv.nn.positions import PositionEmbedding, RopeScaling, Rotary, rotary, sinusoidal
    from qkv.nn.pytorch import TorchMultiheadAttention
    from qkv.nn.recurrent.lower import RecurrentSelfAttention
    from qkv.nn.scores import (
        AdditiveScore,
        BilinearScore,
        CosineScore,
        DotScore,
        FixedScore,
        LearnedScore,
        ScaledDotScore,
        ScoreModule,
        build_score,
    )

__all__ = [
    "AdditiveScore",
    "AlibiBias",
    "Attention",
    "BatchRows",
    "BiasModule",
    "BilinearScore",
    "BlockCache",
    "BucketedBias",
    "ConcatScore",
    "CopyHead",
    "Copyable",
    "CosineScore",
    "DotScore",
    "Dropout",
    "FeedForward",
    "FirstOrder",
    "FixedScore",
    "GatedFeedForward",
    "KernelScore",
    "LearnedEntmax",
    "LearnedScore",
    "LearnedSigmoid",
    "LocationScore",
    "LocationSteps",
    "MechanismConfig",
    "Memory",
    "MonotonicJumps",
    "MonotonicScores",
    "MultiHeadAttention",
    "NonLocalBlock",
    "NormParts",
    "NormalizerModule",
    "Pointer",
    "Pool",
    "PositionEmbedding",
    "RMSNorm",
    "RecurrentSelfAttention",
    "RelativeBias",
    "Residual",
    "RopeScaling",
    "Rotary",
    "ScaledDotScore",
    "ScoreModule",
    "SinkSoftmax",
    "TorchMultiheadAttention",
    "TransformerBlock",
    "Transitions",
    "ZerothOrder",
    "build_bias",
    "build_score",
    "rotary",
    "sinusoidal",
]

__getattr__ = lazy(
    __name__,
    {
        "AdditiveScore": "qkv.nn.scores",
        "AlibiBias": "qkv.nn.biases",
        "Attention": "qkv.nn.attention",
        "BiasModule": "qkv.nn.biases",
        "BilinearScore": "qkv.nn.scores",
        "BlockCache": "qkv.nn.blocks",
        "BucketedBias": "qkv.nn.biases",
        "ConcatScore": "qkv.nn.distance_scores",
        "CopyHead": "qkv.nn.copy",
        "Copyable": "qkv.nn.copy",
        "CosineScore": "qkv.nn.scores",
        "DotScore": "qkv.nn.scores",
        "Dropout": "qkv.nn.dropout",
        "FeedForward": "qkv.nn.feed_forward",
        "FirstOrder": "qkv.nn.monotonic",
        "FixedScore": "qkv.nn.scores",
        "GatedFeedForward": "qkv.nn.feed_forward",
        "KernelScore": "qkv.nn.distance_scores",
        "LearnedEntmax": "qkv.nn.normalizers",
        "LearnedScore": "qkv.nn.scores",
        "LearnedSigmoid": "qkv.nn.normalizers",
        "LocationScore": "qkv.nn.location",
        "LocationSteps": "qkv.nn.location",
        "MechanismConfig": "qkv.nn.mechanism",
        "Memory": "qkv.nn.decoding.cache",
        "MonotonicJumps": "qkv.nn.monotonic",
        "MonotonicScores": "qkv.nn.monotonic",
        "MultiHeadAttention": "qkv.nn.multihead",
        "NonLocalBlock": "qkv.nn.non_local",
        "NormParts": "qkv.nn.norms",
        "NormalizerModule": "qkv.nn.normalizers",
        "Pointer": "qkv.nn.pointer",
        "Pool": "qkv.nn.pooling",
        "PositionEmbedding": "qkv.nn.positions",
        "RMSNorm": "qkv.nn.norms",
        "RecurrentSelfAttention": "qkv.nn.recurrent.lower",
        "RelativeBias": "qkv.nn.biases",
        "Residual": "qkv.nn.blocks",
        "RopeScaling": "qkv.nn.positions",
        "Rotary": "qkv.nn.positions",
        "BatchRows": "qkv.nn.decoding.cache",
        "ScaledDotScore": "qkv.nn.scores",
        "ScoreModule": "qkv.nn.scores",
        "SinkSoftmax": "qkv.nn.normalizers",
        "TorchMultiheadAttention": "qkv.nn.pytorch",
        "TransformerBlock": "qkv.nn.blocks",
        "Transitions": "qkv.nn.monotonic",
        "ZerothOrder": "qkv.nn.monotonic",
        "build_bias": "qkv.nn.biases",
        "build_score": "qkv.nn.scores",
        "rotary": "qkv.nn.positions",
        "sinusoidal": "qkv.nn.positions",
    },
)


def __dir__() -> list[str]:
    return __all__
