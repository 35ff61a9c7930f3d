"""Scores and their scale in one operation: finite wherever the equation is."""

import pytest
import torch

import qkv
from qkv.scores import ScaledDot


@pytest.mark.parametrize(("scale", "query", "key"), [(1e10, 1e30, 1e-38), (1e-10, 1e8, 1e30), (1.0, 2.0, 3.0)])
def test_a_scale_overflows_no_operand(scale: float, query: float, key: float) -> None:
    queries, keys = torch.full((1, 2, 1), query), torch.tensor([[[key], [key / 2]]])
    found = qkv.attention(queries, keys, torch.eye(2)[None], score=ScaledDot(scale=scale), backend="reference")
    exact = torch.softmax(queries.double() @ keys.double().mT * scale, -1)
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-3)
