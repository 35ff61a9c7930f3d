"""Layers: `Attention`, which every model uses, scores with parameters, multi-head attention, Transformer blocks."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.nn.attention import Attention as Attention
    from qkv.nn.biases import AlibiBias as AlibiBias
    from qkv.nn.biases import BiasModule as BiasModule
    from qkv.nn.biases import BucketedBias as BucketedBias
    from qkv.nn.biases import RelativeBias as RelativeBias
    from qkv.nn.biases import build_bias as build_bias
    from qkv.nn.blocks import BlockCache as BlockCache
    from qkv.nn.blocks import Residual as Residual
    from qkv.nn.blocks import TransformerBlock as TransformerBlock
    from qkv.nn.copy import Copyable as Copyable
    from qkv.nn.copy import CopyHead as CopyHead
    from qkv.nn.decoding.cache import BatchRows as BatchRows
    from qkv.nn.decoding.cache import Memory as Memory
    from qkv.nn.distance_scores import ConcatScore as ConcatScore
    from qkv.nn.distance_scores import KernelScore as KernelScore
    from qkv.nn.dropout import Dropout as Dropout
    from qkv.nn.feed_forward import FeedForward as FeedForward
    from qkv.nn.feed_forward import GatedFeedForward as GatedFeedForward
    from qkv.nn.location import LocationScore as LocationScore
    from qkv.nn.location import LocationSteps as LocationSteps
    from qkv.nn.mechanism import MechanismConfig as MechanismConfig
    from qkv.nn.monotonic import FirstOrder as FirstOrder
    from qkv.nn.monotonic import MonotonicJumps as MonotonicJumps
    from qkv.nn.monotonic import MonotonicScores as MonotonicScores
    from qkv.nn.monotonic import Transitions as Transitions
    from qkv.nn.monotonic import ZerothOrder as ZerothOrder
    from qkv.nn.multihead import MultiHeadAttention as MultiHeadAttention
    from qkv.nn.non_local import NonLocalBlock as NonLocalBlock
    from qkv.nn.normalizers import LearnedEntmax as LearnedEntmax
    from qkv.nn.normalizers import LearnedSigmoid as LearnedSigmoid
    from qkv.nn.normalizers import NormalizerModule as NormalizerModule
    from qkv.nn.normalizers import SinkSoftmax as SinkSoftmax
    from qkv.nn.norms import NormParts as NormParts
    from qkv.nn.norms import RMSNorm as RMSNorm
    from qkv.nn.pointer import Pointer as Pointer
    from qkv.nn.pooling import Pool as Pool
    from qkv.nn.positions import PositionEmbedding as PositionEmbedding
    from qkv.nn.positions import RopeScaling as RopeScaling
    from qkv.nn.positions import Rotary as Rotary
    from qkv.nn.positions import rotary as rotary
    from qkv.nn.positions import sinusoidal as sinusoidal
    from qkv.nn.pytorch import TorchMultiheadAttention as TorchMultiheadAttention
    from qkv.nn.recurrent.lower import RecurrentSelfAttention as RecurrentSelfAttention
    from qkv.nn.scores import AdditiveScore as AdditiveScore
    from qkv.nn.scores import BilinearScore as BilinearScore
    from qkv.nn.scores import CosineScore as CosineScore
    from qkv.nn.scores import DotScore as DotScore
    from qkv.nn.scores import FixedScore as FixedScore
    from qkv.nn.scores import LearnedScore as LearnedScore
    from qkv.nn.scores import ScaledDotScore as ScaledDotScore
    from qkv.nn.scores import ScoreModule as ScoreModule
    from qkv.nn.scores import build_score as build_score


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.nn.attention": "Attention",
        "qkv.nn.biases": "AlibiBias BiasModule BucketedBias RelativeBias build_bias",
        "qkv.nn.blocks": "BlockCache Residual TransformerBlock",
        "qkv.nn.copy": "CopyHead Copyable",
        "qkv.nn.decoding.cache": "BatchRows Memory",
        "qkv.nn.distance_scores": "ConcatScore KernelScore",
        "qkv.nn.dropout": "Dropout",
        "qkv.nn.feed_forward": "FeedForward GatedFeedForward",
        "qkv.nn.location": "LocationScore LocationSteps",
        "qkv.nn.mechanism": "MechanismConfig",
        "qkv.nn.monotonic": "FirstOrder MonotonicJumps MonotonicScores Transitions ZerothOrder",
        "qkv.nn.multihead": "MultiHeadAttention",
        "qkv.nn.non_local": "NonLocalBlock",
        "qkv.nn.normalizers": "LearnedEntmax LearnedSigmoid NormalizerModule SinkSoftmax",
        "qkv.nn.norms": "NormParts RMSNorm",
        "qkv.nn.pointer": "Pointer",
        "qkv.nn.pooling": "Pool",
        "qkv.nn.positions": "PositionEmbedding RopeScaling Rotary rotary sinusoidal",
        "qkv.nn.pytorch": "TorchMultiheadAttention",
        "qkv.nn.recurrent.lower": "RecurrentSelfAttention",
        "qkv.nn.scores": "AdditiveScore BilinearScore CosineScore DotScore FixedScore LearnedScore ScaledDotScore "
        "ScoreModule build_score",
    },
)
