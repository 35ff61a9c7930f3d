"""Biases from positions through PyTorch's kernel: the matrix they stand for, in memory that grows linearly."""

import pytest
import torch
from tests.contract.judge import rms, unit
from torch import Tensor

import qkv
from qkv.errors import UnsupportedError

S, N, M, B = qkv.scores, qkv.normalizers, qkv.masks, qkv.biases
SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.01])

MASKS = {
    "none": None,
    "causal": M.causal(),
    "offset": M.causal(3),
    "end": M.causal(align="end"),
    "lengths": M.lengths(torch.tensor([0, 7])),
    "both": M.causal() & M.lengths(torch.tensor([4, 11])),
    "window": M.window(3, 1),
    "either": M.window(1, 1) | M.lengths(2),
    "dense": torch.arange(9 * 12).view(9, 12) % 3 > 0,
}


def inputs(dtype: torch.dtype = torch.float64, queries: int = 9, keys: int = 12, value_width: int = 5) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 4, queries, 5), (2, 4, keys, 5), (2, 4, keys, value_width))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def attend(tensors: list[Tensor], backend: str, **options: object) -> tuple[Tensor, ...]:
    output = qkv.attention(*tensors, backend=backend, **options)  # type: ignore[arg-type]
    cotangent = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
    return output, *torch.autograd.grad(output, tensors, cotangent, retain_graph=True)


@pytest.mark.parametrize("value_width", [3, 5, 8])
@pytest.mark.parametrize("mask", MASKS)
def test_equals_the_reference(mask: str, value_width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.algorithms.sdpa.toeplitz.ROWS", 2)
    monkeypatch.setattr("qkv.algorithms.sdpa.toeplitz.WRITTEN", 300)
    tensors = inputs(value_width=value_width)
    table = torch.randn(4, 7, dtype=torch.float64)
    for bias in (B.alibi(SLOPES.double()), B.alibi(0.3, offset=4), B.relative(table), B.relative(table[0], offset=-2)):
        for score in (S.ScaledDot(), S.Cosine(torch.tensor([1.0, 2.0, 3.0, 4.0]).double())):
            options = {"bias": bias, "score": score, "mask": MASKS[mask]}
            ours, judge = attend(tensors, "toeplitz", **options), attend(tensors, "reference", **options)
            torch.testing.assert_close(ours, judge, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 4)])
def test_any_leading_shape(leading: tuple[int, ...]) -> None:
    query, key, value = torch.randn(3, *leading, 6, 4, dtype=torch.float64).unbind()
    bias = B.alibi(torch.rand(leading[-1:], dtype=torch.float64) if leading else 0.4)
    ours = qkv.attention(query, key, value, bias=bias, mask=M.causal(), backend="toeplitz")
    torch.testing.assert_close(ours, qkv.attention(query, key, value, bias=bias, mask=M.causal(), backend="reference"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_is_exact(dtype: torch.dtype) -> None:
    """The criterion of the contract, with PyTorch's allowance of 2 for gradients in float32."""
    options = {"bias": B.alibi(SLOPES), "mask": M.causal()}
    low = [x.detach().to(dtype).requires_grad_() for x in inputs(torch.float32, 64, 64)]
    wide = [x.detach().double().requires_grad_() for x in low]
    truth = attend(wide, "reference", **options)
    literal, ours = (attend(low, backend, **options) for backend in ("reference", "toeplitz"))
    for index, (o, r, m) in enumerate(zip(ours, truth, literal, strict=True)):
        allowed, epsilon = 2.0 if index else 1.0, 2 * unit(dtype) * r.abs().max()
        error, judge = (o.double() - r).abs(), (m.double() - r).abs()
        assert rms(error) <= allowed * (1.5 * rms(judge) + epsilon)
        assert error.max() <= allowed * (3 * judge.max() + epsilon)


def test_a_table_may_hide_whole_rows() -> None:
    tensors = inputs()
    bias = B.relative(torch.full((3,), -torch.inf, dtype=torch.float64))
    for x in attend(tensors, "toeplitz", bias=bias):
        assert (x == 0).all()


def test_grouped_heads() -> None:
    query, key, value = inputs()
    options = {"bias": B.alibi(SLOPES.double()), "enable_gqa": True, "mask": M.causal(3)}
    few = [query, *(x[:, :2].detach().requires_grad_() for x in (key, value))]
    found = [attend(few, backend, **options) for backend in ("toeplitz", "reference")]
    torch.testing.assert_close(*found)


def test_auto_takes_it_where_positions_are_fixed() -> None:
    query, key, value = (torch.randn(1, 4, 700, 16) for _ in range(3))
    plan = qkv.explain(query, key, value, bias=B.alibi(SLOPES), mask=M.causal())
    assert plan.backend == "toeplitz"
    assert not plan.problem.gradient
    assert qkv.explain(query.requires_grad_(), key, value, bias=B.alibi(SLOPES), mask=M.causal()).backend == "toeplitz"
    learned = B.alibi(SLOPES.clone().requires_grad_())
    assert qkv.explain(query, key, value, bias=learned, mask=M.causal()).backend == "blocked"
    assert "no bias from positions" in dict(qkv.explain(query, key, value).refusals)["sdpa.toeplitz"]


def test_what_it_does_not_serve_is_told() -> None:
    tensors = inputs()
    for options, reason in (
        ({"score": S.Additive(torch.ones(5).double())}, "the core beneath the bias is tanh_sum, not dot"),
        ({"score": S.SquaredDistance()}, "bent before it"),
        ({"score": S.ScaledDot(softcap=3.0)}, "bent before it"),
        ({"normalizer": N.Entmax()}, "the normalizer is entmax, not plain softmax"),
        ({"normalizer": N.Softmax(0.0)}, "the normalizer is softmax with a sink"),
        ({"dropout": 0.1}, "refuses dropout"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            qkv.attention(*tensors, bias=B.alibi(0.1), backend="toeplitz", **options)
    output = qkv.attention(*tensors, bias=B.alibi(0.1), backend="toeplitz")
    (first,) = torch.autograd.grad(output.sin().sum(), tensors[0], create_graph=True)
    with pytest.raises(UnsupportedError, match="a second derivative through toeplitz"):
        torch.autograd.grad(first.square().sum(), tensors[1])
