"""A call of each public layer of `qkv.nn`, by name, for tests that hold for all of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qkv import masks, scores
from qkv.nn import (
    AdditiveScore,
    AlibiBias,
    Attention,
    BatchRows,
    BilinearScore,
    BucketedBias,
    ConcatScore,
    Copyable,
    CopyHead,
    CosineScore,
    DotScore,
    Dropout,
    FeedForward,
    FixedScore,
    GatedFeedForward,
    KernelScore,
    LearnedEntmax,
    LearnedScore,
    LearnedSigmoid,
    LocationScore,
    MechanismConfig,
    Memory,
    MonotonicJumps,
    MonotonicScores,
    MultiHeadAttention,
    NonLocalBlock,
    Pointer,
    Pool,
    PositionEmbedding,
    RecurrentSelfAttention,
    RelativeBias,
    Residual,
    RMSNorm,
    Rotary,
    ScaledDotScore,
    SinkSoftmax,
    TorchMultiheadAttention,
    TransformerBlock,
    rotary,
)
from qkv.nn.scores import score_of

Call = tuple[Callable[..., Any], dict[str, Any]]


def block(**parts: Any) -> TransformerBlock:
    return TransformerBlock(MultiHeadAttention(8, 2), FeedForward(8, 16), **parts)


def layers() -> dict[str, Callable[[], Call]]:
    """Return a call of each public layer, made where it is called: on another device, or in a mode."""
    torch.manual_seed(0)
    states, query, key, value = torch.ones(2, 5, 8), torch.ones(2, 3, 4), torch.ones(2, 5, 6), torch.ones(2, 5, 7)
    seen, counts = torch.ones(2, 3, 5, dtype=torch.bool), torch.tensor([5, 3])
    pair: dict[str, Any] = {"query": query, "key": key}
    scored: dict[str, Any] = {"scores": torch.rand(2, 3, 5), "visible": seen}
    counted: dict[str, Any] = {"queries": 3, "keys": 5, "offset": 2}
    pointer, additive, location = Pointer(4, 6, 8), AdditiveScore(4, 6, 8), LocationScore(4, 6, 8)
    attend, biased = (
        MultiHeadAttention(4, 2, key_width=6, value_width=7),
        MultiHeadAttention(8, 2, positions=AlibiBias(2)),
    )
    turned = MultiHeadAttention(8, 2, positions=Rotary())
    copy, moves, jumps = CopyHead(9, 4, 6, 8), MonotonicScores(4, 6, 8), MonotonicJumps(4, 6, 2)
    ids, located = torch.tensor([[4, 5, 10, 6, 8], [4, 4, 10, 0, 0]]), location.project_key(key)
    source = Copyable(score_of(copy.score).project_key(key), ids, None, torch.tensor([2, 2]), 2)
    biased_query, biased_memory = biased.extend(states, None)
    decoder, residual = block(cross=MultiHeadAttention(8, 2)), Residual(8)
    both = block(cross=MultiHeadAttention(8, 2), second=MultiHeadAttention(8, 2))
    theirs = TorchMultiheadAttention(MultiHeadAttention(8, 2))
    hides = torch.zeros(2, 5, dtype=torch.bool)
    step = {"x": states, "cache": decoder.begin(states), "memory_mask": masks.lengths(counts), "session": None}
    return {
        "norm": lambda: (RMSNorm(8), {"x": states}),
        "pool": lambda: (Pool(8), {"states": states, "mask": masks.lengths(counts)}),
        "pointer": lambda: (pointer, {**pair, "mask": None}),
        "pointer.point": lambda: (
            pointer.point,
            {"query": query, "key": pointer.project(key), "value": key, "mask": None},
        ),
        "feed forward": lambda: (FeedForward(8, 16), {"x": states, "session": None}),
        "gated": lambda: (GatedFeedForward(8, 16), {"x": states, "session": None}),
        "non-local": lambda: (NonLocalBlock(5, 2), {"x": states}),
        "heads": lambda: (attend, {**pair, "value": value, "mask": None, "bias": None, "session": None}),
        "heads.project_query": lambda: (attend.project_query, {"query": query, "session": None}),
        "heads.project_memory": lambda: (attend.project_memory, {"key": key, "value": value, "session": None}),
        "heads.extend": lambda: (turned.extend, {"x": states, "past": turned.extend(states, None)[1], "at": None}),
        "heads.attend": lambda: (
            biased.attend,
            {"query": biased_query, "memory": biased_memory, "mask": None, "indices": torch.arange(5)},
        ),
        "heads, padded": lambda: (attend, {**pair, "value": value, "mask": masks.lengths(counts)}),
        "heads, all parts": lambda: (
            MultiHeadAttention(8, 2, key_heads=1, extra_key=True, norms=(RMSNorm(4), RMSNorm(4))),
            {"query": states, "mask": masks.causal() & masks.lengths(counts)},
        ),
        "heads, sparse": lambda: (
            MultiHeadAttention(8, 2, score="cosine", normalizer=LearnedEntmax(2), dropout=0.1),
            {"query": states, "mask": ~masks.documents(torch.arange(5) // 2)},
        ),
        "additive": lambda: (additive, pair),
        "additive.project_query": lambda: (additive.project_query, {"query": query}),
        "additive.project_key": lambda: (additive.project_key, {"key": key, "session": None}),
        "bilinear.project_query": lambda: (BilinearScore(4, 6).project_query, {"query": query}),
        "kernel.start_from": lambda: (KernelScore().start_from, {"distance": 2.0}),
        "bilinear": lambda: (BilinearScore(4, 6), pair),
        "concat": lambda: (ConcatScore(4, 6), pair),
        "dot": lambda: (DotScore(), {"query": query, "key": query}),
        "scaled dot": lambda: (ScaledDotScore(), {"query": query, "key": query}),
        "fixed": lambda: (FixedScore(scores.Gaussian(2.0)), {"query": query, "key": query}),
        "kernel": lambda: (KernelScore("boxcar"), {"query": query, "key": query}),
        "cosine": lambda: (CosineScore(), {"query": query, "key": query}),
        "learned": lambda: (LearnedScore(4, 6, 8), pair),
        "sink": lambda: (SinkSoftmax(), scored),
        "sigmoid": lambda: (LearnedSigmoid(5), scored),
        "entmax": lambda: (LearnedEntmax(), scored),
        "alibi": lambda: (AlibiBias(2), counted),
        "relative": lambda: (RelativeBias(2, 2), counted),
        "buckets": lambda: (BucketedBias(8, 16, 2), counted),
        "copy.remember": lambda: (copy.remember, {"states": key, "ids": ids, "lengths": counts}),
        "copy": lambda: (copy, {"logits": torch.ones(2, 3, 9), "states": query, "source": source}),
        "copy.attend": lambda: (copy.attend, {"states": query, "source": source}),
        "attention": lambda: (
            Attention(),
            {"query": query, "key": query, "value": query, "also": None, "enable_gqa": False},
        ),
        "dropout": lambda: (Dropout(0.5), {"x": states}),
        "location": lambda: (
            location,
            {
                "query": location.project_query(query[:, 0]),
                "keys": located,
                "alignment": location.first_alignment(located),
            },
        ),
        "location.project_query": lambda: (location.project_query, {"query": query}),
        "location.project_key": lambda: (location.project_key, {"key": key}),
        "monotonic": lambda: (moves, {"states": query, "keys": moves.project_key(key), "lengths": counts}),
        "monotonic.project_key": lambda: (moves.project_key, {"states": key}),
        "jumps": lambda: (jumps, {"states": query, "keys": jumps.project_key(key), "lengths": counts}),
        "jumps.project_key": lambda: (jumps.project_key, {"states": key}),
        "waves": lambda: (PositionEmbedding("sinusoidal", 8), {"x": states, "start": torch.tensor([0, 1])}),
        "positions": lambda: (PositionEmbedding("learned", 8, 16), {"x": states, "start": 0}),
        "positions of rows": lambda: (
            PositionEmbedding("learned", 8, 16),
            {"x": states, "start": torch.tensor([0, 1])},
        ),
        "rotary": lambda: (Rotary(share=0.5), {"x": states, "start": 0}),
        "rotary function": lambda: (rotary, {"x": states, "start": 0, "base": 10_000.0}),
        "residual.before": lambda: (residual.before, {"x": states}),
        "residual.after": lambda: (residual.after, {"x": states, "update": states}),
        "block": lambda: (decoder, {"x": states, "mask": None, "bias": None, "session": None}),
        "block.begin": lambda: (decoder.begin, {"memory": states, "session": None, "second": None}),
        "block.begin both": lambda: (both.begin, {"memory": states, "second": (states, ~hides)}),
        "block.step": lambda: (decoder.step, {**step, "visible": None, "padding": torch.tensor([0, 1])}),
        "block.step, forked": lambda: (
            decoder.step,
            {**step, "visible": torch.ones(2, 5, 5, dtype=torch.bool), "parted": 0},
        ),
        "theirs": lambda: (
            theirs,
            {
                "query": states,
                "key": states,
                "value": states,
                "key_padding_mask": hides,
                "attn_mask": torch.zeros(5, 5, dtype=torch.bool),
            },
        ),
        "theirs, added": lambda: (
            theirs,
            {
                "query": states,
                "key": states,
                "value": states,
                "key_padding_mask": torch.zeros(2, 5).masked_fill(torch.arange(5) > 2, -torch.inf),
                "attn_mask": torch.arange(25.0).view(5, 5),
            },
        ),
        "recurrent": lambda: (RecurrentSelfAttention(8, 6), {"x": states, "mask": None}),
        "rows": lambda: (BatchRows(), {"rows": torch.arange(2), "start": True}),
        "memory.append": lambda: (Memory(key, value).append, {"later": Memory(key, value), "session": None}),
        "memory.last": lambda: (Memory(key, value).last, {"count": 2}),
        "from_torch": lambda: (MultiHeadAttention.from_torch, {"other": nn.MultiheadAttention(8, 2)}),
        "score_module": lambda: (
            MechanismConfig(score="additive").score_module,
            {"query_width": 4, "key_width": 6, "heads": 2},
        ),
    }
