"""Small maps serve where a tensor is expected; large ones refuse and say what to ask for."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import UnsupportedError
from qkv.introspect.lazy_map import TENSOR_LIMIT, AttentionMap

OTHER = torch.rand(2, 3, 5, 6)
USES: dict[str, Callable[[Any], Any]] = {
    "stack": lambda x: torch.stack([x, x]),
    "stack of both": lambda x: torch.stack([x, OTHER]),
    "cat": lambda x: torch.cat((x, x), dim=1),
    "mean": lambda x: x.mean(1),
    "torch.mean": lambda x: torch.mean(x, dim=-1),
    "max": lambda x: x.max(),
    "max of rows": lambda x: x.max(-1).indices,
    "sum": lambda x: x.sum((0, 1)),
    "cpu": lambda x: x.cpu(),
    "detach": lambda x: x.detach(),
    "to": lambda x: x.to(torch.float64),
    "squeeze": lambda x: x.squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "transpose": lambda x: x.transpose(-1, -2),
    "permute": lambda x: x.permute(1, 0, 2, 3),
    "mT": lambda x: x.mT,
    "reshape": lambda x: x.reshape(-1, 6),
    "times": lambda x: x * 2,
    "times from the left": lambda x: 0.5 * x,
    "a tensor times": lambda x: OTHER * x,
    "both": lambda x: x + x,
    "minus": lambda x: 1 - x,
    "matrix product": lambda x: x @ x.transpose(-1, -2),
    "matrix product from the left": lambda x: OTHER.mT @ x,
    "compared": lambda x: x > 0.1,
    "equal": lambda x: x == 0,
    "equal to a tensor": lambda x: x == OTHER,
    "unequal": lambda x: x != 0,
    "between": lambda x: (x > 0.1) & (x < 0.5),
    "with a sign": lambda x: +x,
    "power": lambda x: 2**x,
    "rounded": lambda x: torch.round(x, decimals=2),
    "softmax": lambda x: torch.nn.functional.softmax(x, -1),
    "interpolated": lambda x: torch.nn.functional.interpolate(x, size=(3, 3)),
    "largest of rows": lambda x: torch.topk(x, 2).values,
    "masked": lambda x: x.masked_fill(OTHER > 0.5, 0),
    "of heads": lambda x: x.index_select(1, torch.tensor([0, 2])),
    "rolled out": lambda x: (x[..., :5] + torch.eye(5)) @ x,
    "concatenated arrays": lambda x: np.concatenate([x, x]),
    "einsum": lambda x: torch.einsum("bhqk->bk", x),
    "where": lambda x: torch.where(x > 0.1, x, 0.0),
    "allclose": lambda x: torch.allclose(x, x),
    "list of heads": lambda x: x[:, [0, 2]],
    "new dimension": lambda x: x[None],
    "step": lambda x: x[..., ::2],
    "mask": lambda x: x[OTHER > 0.5],
    "rows": lambda x: torch.stack(list(x)),
    "numpy": lambda x: x.numpy().sum(),
    "asarray": np.asarray,
    "array of a type": lambda x: np.asarray(x, dtype=np.float64),
    "as_tensor": torch.as_tensor,
    "dlpack": torch.from_dlpack,
    "numpy's dlpack": np.from_dlpack,
    "numpy's einsum": lambda x: np.einsum("bhqk->bk", x),
    "list": lambda x: x.tolist(),
    "length": len,
    "size": lambda x: x.size(),
    "one size": lambda x: x.size(-1),
    "dimensions": lambda x: (x.dim(), x.ndim, x.numel(), x.dtype, x.device, tuple(x.shape)),
}


def map_of(queries: int = 5, keys: int = 6) -> AttentionMap:
    generator = torch.Generator().manual_seed(0)
    return qkv.attention_map(*(torch.randn(2, 3, size, 4, generator=generator) for size in (queries, keys)))


@pytest.mark.parametrize("name", USES)
def test_a_small_map_is_used_as_its_matrix(name: str) -> None:
    amap = map_of()
    got, want = USES[name](amap), USES[name](amap.dense())
    if isinstance(want, Tensor):
        assert isinstance(got, Tensor)
        assert torch.equal(got, want)
    elif isinstance(want, np.ndarray):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)
    else:
        assert got == want


def test_half_precision_becomes_an_array() -> None:
    amap = qkv.attention_map(*torch.randn(2, 3, 5, 4, dtype=torch.bfloat16).unbind())
    assert np.asarray(amap).dtype == np.float32
    assert amap.__array__(copy=False).dtype == np.float32


@pytest.fixture(scope="module")
def large() -> AttentionMap:
    return map_of(1, TENSOR_LIMIT // 4)


KNOWN = {"length", "size", "one size", "dimensions"}


@pytest.mark.parametrize("name", sorted(set(USES) - KNOWN - {"list of heads", "new dimension", "step", "mask", "rows"}))
def test_a_large_map_names_what_to_ask_for(name: str, large: AttentionMap) -> None:
    amap = large
    with pytest.raises(UnsupportedError, match=r"AttentionMap.*at most 4,194,304.*\.pooled\(.*\.dense\(\)"):
        USES[name](amap)


def test_a_large_map_knows_its_sizes(large: AttentionMap) -> None:
    amap, keys = large, TENSOR_LIMIT // 4
    assert (len(amap), amap.size(-1), amap.ndim, amap.numel()) == (2, keys, 4, 6 * keys)
    assert amap[0, 0, :, :4].shape == (1, 4)
    assert not hasattr(amap, "no_such_name")
    assert hasattr(amap, "mean")
    assert copy.copy(amap).shape == amap.shape
    assert copy.deepcopy(amap).row(0).shape == amap.row(0).shape
    assert len({amap, amap}) == 1


def test_gradients_pass_through() -> None:
    query, key = (torch.randn(1, 4, 3, requires_grad=True) for _ in range(2))
    (qkv.attention_map(query, key) * 2).sum(-1).square().sum().backward()
    assert query.grad is not None
