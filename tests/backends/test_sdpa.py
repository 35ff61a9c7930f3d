"""Backend `sdpa` hands PyTorch's kernel four dimensions, whatever the caller's are."""

import pytest
import torch

import qkv
from qkv.masks import causal, lengths

LEADING = {
    "none": ((), (), ()),
    "one": ((3,), (3,), (3,)),
    "heads shared": ((2, 3), (2, 1), (2, 1)),
    "batch shared": ((2, 3), (1, 3), (3,)),
    "queries shared": ((1, 1), (2, 3), (2, 3)),
    "five": ((2, 1, 3), (1, 4, 3), (4, 1)),
}


@pytest.mark.parametrize("mask", [None, causal(), lengths(4)], ids=["all", "causal", "lengths"])
@pytest.mark.parametrize("name", LEADING)
def test_leading_dimensions_broadcast(name: str, mask: object) -> None:
    sizes = ((5, 4), (6, 4), (6, 3))
    leaves = [
        torch.randn(*leading, *own, dtype=torch.float64, requires_grad=True)
        for leading, own in zip(LEADING[name], sizes, strict=True)
    ]
    answers = []
    for backend in ("reference", "sdpa"):
        output = qkv.attention(*leaves, mask=mask, backend=backend)
        with torch.no_grad():
            state = qkv.attention_with_state(*leaves, mask=mask, backend=backend)[1]
        answers.append([output, state.value, *torch.autograd.grad(output.square().sum(), leaves)])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
