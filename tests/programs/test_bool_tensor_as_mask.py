"""Program 10: a bool tensor as mask, as in PyTorch, alone and combined with other masks."""

import pytest
import torch
from torch.nn import functional as F

import qkv


def test_bool_tensor_as_mask() -> None:
    query, key, value = torch.randn(3, 2, 4, 6, 8).unbind()
    mask = torch.rand(6, 6) < 0.7
    mask[:, 0] = True
    assert torch.allclose(
        qkv.attention(query, key, value, mask=mask), F.scaled_dot_product_attention(query, key, value, mask), atol=1e-6
    )

    both = mask.tril()
    combined = qkv.attention(query, key, value, mask=qkv.masks.causal() & mask)
    assert torch.allclose(combined, qkv.attention(query, key, value, mask=both), atol=1e-6)

    per_item = torch.ones(2, 6, 6, dtype=torch.bool)
    assert qkv.attention(query, key, value, mask=per_item[:, None]).shape == query.shape
    with pytest.raises(qkv.QkvError, match=r"mask\[:, None\]"):  # [:, None] forgotten: the message says so
        qkv.attention(query, key, value, mask=per_item)
    with pytest.raises(qkv.QkvError, match="bias="):
        qkv.attention(query, key, value, mask=mask.float())
