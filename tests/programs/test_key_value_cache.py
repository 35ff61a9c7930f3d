"""Program 7: generate token by token with a cache of keys and values, in chunks of any size."""

import torch

import qkv


def test_key_value_cache() -> None:
    query, key, value = torch.randn(3, 2, 4, 12, 8).unbind()
    whole = qkv.attention(query, key, value, mask=qkv.masks.causal())

    parts, past = [], 0
    for size in (5, 1, 1, 3, 2):
        now = slice(past, past + size)
        cached = slice(0, past + size)
        mask = qkv.masks.causal(offset=past)
        parts.append(qkv.attention(query[:, :, now], key[:, :, cached], value[:, :, cached], mask=mask))
        past += size
    assert torch.allclose(torch.cat(parts, 2), whole, atol=1e-6)

    local = qkv.attention(query, key, value, mask=qkv.masks.window(3, 0))
    step = qkv.attention(query[:, :, 9:10], key[:, :, :10], value[:, :, :10], mask=qkv.masks.window(3, 0, offset=9))
    assert torch.allclose(step, local[:, :, 9:10], atol=1e-6)
