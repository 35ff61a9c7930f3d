"""Layers made on the device `meta` and given memory later start as any other, as large models are built."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from qkv.nn.biases import AlibiBias, BucketedBias, RelativeBias
from qkv.nn.blocks import TransformerBlock
from qkv.nn.distance_scores import ConcatScore, KernelScore
from qkv.nn.feed_forward import GatedFeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.non_local import NonLocalBlock
from qkv.nn.normalizers import LearnedEntmax, LearnedSigmoid, SinkSoftmax
from qkv.nn.norms import NormParts, RMSNorm
from qkv.nn.pooling import Pool
from qkv.nn.positions import PositionEmbedding
from qkv.nn.scores import AdditiveScore, BilinearScore, CosineScore, LearnedScore

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "alibi": lambda: AlibiBias(3),
    "learned alibi": lambda: AlibiBias(6, learned=True),
    "relative bias": lambda: RelativeBias(2, heads=3),
    "bucketed bias": lambda: BucketedBias(8, 16, heads=2),
    "cosine": lambda: CosineScore(7.0, heads=2),
    "kernel": lambda: KernelScore("gaussian", 2.5),
    "concat": lambda: ConcatScore(4, 5),
    "additive": lambda: AdditiveScore(4, 5, 6),
    "bilinear": lambda: BilinearScore(4, 5),
    "pairs": lambda: LearnedScore(4, 5, 6),
    "sink": lambda: SinkSoftmax(2, 0.5),
    "sigmoid": lambda: LearnedSigmoid(9, 2),
    "entmax": lambda: LearnedEntmax(2, 1.3),
    "norm": lambda: RMSNorm(4, shift=1.0),
    "embedding": lambda: PositionEmbedding("learned", 4, 8),
    "pool": lambda: Pool(4),
    "non-local": lambda: NonLocalBlock(4),
    "block": lambda: TransformerBlock(
        MultiHeadAttention(8, 2, extra_key=True, positions=AlibiBias(2)),
        GatedFeedForward(8, 16),
        NormParts("rms"),
        cross=MultiHeadAttention(8, 2, score="cosine", normalizer=SinkSoftmax(2)),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_gets_memory_later_starts_as_any_other(name: str) -> None:
    make = LAYERS[name]
    with torch.device("meta"):
        layer = make()
    layer.to_empty(device="cpu")
    for x in layer.parameters():
        nn.init.constant_(x, torch.nan)
    torch.manual_seed(0)
    usual = make()
    for module in reversed(list(layer.modules())):  # parts before what they are part of
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for (path, x), (_, expected) in zip(layer.named_parameters(), usual.named_parameters(), strict=True):
        assert x.isfinite().all(), path
        if bool((expected == expected.flatten()[0]).all()):
            assert torch.equal(x, expected), path
    for (path, x), (_, expected) in zip(layer.named_buffers(), usual.named_buffers(), strict=True):
        assert torch.equal(x, expected), path


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_gets_memory_and_a_checkpoint_is_the_one_that_was_stored(name: str) -> None:
    """What a checkpoint does not hold, because it follows from the settings, is there too."""
    usual = LAYERS[name]()
    with torch.device("meta"):
        layer = LAYERS[name]()
    layer.to_empty(device="cpu").load_state_dict(usual.state_dict())
    both = zip((*layer.parameters(), *layer.buffers()), (*usual.parameters(), *usual.buffers()), strict=True)
    assert all(torch.equal(x, expected) for x, expected in both)
