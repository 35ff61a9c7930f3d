"""Program 4: a ragged batch with (B,) lengths, where the batch size equals the number of heads."""

import torch

import qkv


def test_batch_as_large_as_heads() -> None:
    batch = heads = 4
    query, key, value = torch.randn(3, batch, heads, 10, 16).unbind()
    lengths = torch.tensor([10, 3, 7, 1])
    output = qkv.attention(query, key, value, mask=qkv.masks.lengths(lengths))
    for item, length in enumerate(lengths.tolist()):
        alone = qkv.attention(query[item], key[item, :, :length], value[item, :, :length])
        assert torch.allclose(output[item], alone, atol=1e-6)
