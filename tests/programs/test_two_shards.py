"""Program 8: keys split over two machines: attend on each, send small states, merge."""

import torch

import qkv


def test_two_shards() -> None:
    query = torch.randn(2, 4, 7, 16)
    key, value = torch.randn(2, 4, 1000, 16), torch.randn(2, 4, 1000, 16)

    near = qkv.attention_with_state(query, key[:, :, :300], value[:, :, :300])
    far = qkv.attention_with_state(query, key[:, :, 300:], value[:, :, 300:])
    output, state = qkv.merge([near, far])

    assert torch.allclose(output, qkv.attention(query, key, value), atol=1e-6)
    assert torch.allclose(state.lse.float(), torch.logsumexp(query @ key.mT / 4, -1), atol=1e-5)
    kernel = {"score": qkv.scores.Gaussian(4.0)}
    halves = [
        qkv.attention_with_state(query, key[:, :, s], value[:, :, s], **kernel) for s in (slice(500), slice(500, 1000))
    ]
    assert torch.allclose(qkv.merge(halves)[0], qkv.attention(query, key, value, **kernel), atol=1e-5)
