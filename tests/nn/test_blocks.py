"""Transformer blocks equal PyTorch's own, also step by step."""

import pytest
import torch
from torch import nn

from qkv.errors import UnsupportedError
from qkv.masks.patterns import lengths
from qkv.models.configs.translator import TransformerConfig
from qkv.nn.blocks import BlockCache, TransformerBlock
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.norms import POST_NORM, PRE_NORM

REAL = torch.tensor([7, 3])


def block(norm_first: bool, *, cross: bool = False, score: str = "scaled_dot") -> TransformerBlock:
    return TransformerBlock(
        MultiHeadAttention(8, 2, score=score),
        FeedForward(8, 16),
        PRE_NORM if norm_first else POST_NORM,
        cross=MultiHeadAttention(8, 2, score=score) if cross else None,
    ).double()


def copy_feed_forward(ours: FeedForward, theirs: nn.Module) -> None:
    ours.expand.load_state_dict(theirs.linear1.state_dict())
    ours.contract.load_state_dict(theirs.linear2.state_dict())


def shaken(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.double()


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_block_is_pytorchs(norm_first: bool) -> None:
    theirs = shaken(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first))
    ours = block(norm_first)
    ours.self_attention = MultiHeadAttention.from_torch(theirs.self_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    ours.around_self.norm.load_state_dict(theirs.norm1.state_dict())
    ours.around_feed.norm.load_state_dict(theirs.norm2.state_dict())
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    hidden = torch.arange(7) >= REAL[:, None]
    expected = theirs(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(ours(x, lengths(REAL))[~hidden], expected[~hidden], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm_first", [True, False])
def test_decoder_block_is_pytorchs(norm_first: bool) -> None:
    theirs = shaken(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first))
    ours = block(norm_first, cross=True)
    ours.self_attention = MultiHeadAttention.from_torch(theirs.self_attn)
    ours.cross_attention = MultiHeadAttention.from_torch(theirs.multihead_attn)
    copy_feed_forward(ours.feed_forward, theirs)
    for part, norm in (("self", theirs.norm1), ("cross", theirs.norm2), ("feed", theirs.norm3)):
        getattr(ours, f"around_{part}").norm.load_state_dict(norm.state_dict())
    x, memory = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 7, 8, dtype=torch.float64)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    hidden = torch.arange(7) >= REAL[:, None]
    expected = theirs(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=hidden)
    found, _ = ours.step(x, ours.begin(memory), lengths(REAL))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("score", ["scaled_dot", "additive", "bilinear"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_decoding_in_steps_equals_all_at_once(score: str, norm_first: bool) -> None:
    decoder = block(norm_first, cross=True, score=score)
    x, memory = torch.randn(2, 6, 8, dtype=torch.float64), torch.randn(2, 7, 8, dtype=torch.float64)
    cache, outputs = decoder.begin(memory), []
    for part in x.split([1, 1, 3, 1], 1):
        output, cache = decoder.step(part, cache, lengths(REAL))
        outputs.append(output)
    torch.testing.assert_close(
        torch.cat(outputs, 1), decoder.step(x, decoder.begin(memory), lengths(REAL))[0], rtol=1e-10, atol=1e-12
    )


def test_dropout_is_where_it_was_asked_for() -> None:
    parts = TransformerConfig(size=9, width=8, heads=2, dropout=0.25, attention_dropout=0.5).parts
    made = parts.block(cross=True)
    for name, module in made.named_modules():
        if isinstance(module, Dropout):
            assert module.share == 0.25, name
    for attention in (made.self_attention, made.cross_attention):
        assert attention is not None
        assert attention.attention.dropout == 0.5


def test_a_block_without_a_source_says_so() -> None:
    with pytest.raises(UnsupportedError, match="cross"):
        block(norm_first=True).begin(torch.randn(2, 7, 8))


@pytest.mark.parametrize("score", ["scaled_dot", "additive", "gaussian"])
@pytest.mark.parametrize("reach", [None, 1, 3])
@pytest.mark.parametrize("counts", [(9,), (1,) * 9, (2, 1, 3, 3), (4, 5)], ids=str)
def test_padding_at_the_left_may_come_in_any_steps(score: str, reach: int | None, counts: tuple[int, ...]) -> None:
    """Also where the first positions of a row are all padding, and a window has dropped some of it."""
    layer = block(True, score=score)
    layer.reach = reach
    x, padding = torch.randn(4, 9, 8, dtype=torch.float64), torch.tensor([0, 1, 5, 8])
    i, j = torch.arange(9)[:, None], torch.arange(9)
    seen = (j <= i) & (j >= i - (9 if reach is None else reach)) & (j >= padding[:, None, None])
    expected = layer(x, seen[:, None])
    cache, outputs, start = BlockCache(), [], 0
    for count in counts:
        output, cache = layer.step(x[:, start : start + count], cache, padding=padding)
        outputs.append(output)
        start += count
    real = j >= padding[:, None]
    torch.testing.assert_close(torch.cat(outputs, 1)[real], expected[real], rtol=1e-10, atol=1e-12)
