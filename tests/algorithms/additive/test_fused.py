"""Backend `fused` against `reference`: the code around the kernels, and the inputs that reach them."""

import pytest
import torch
from torch import Tensor

import qkv
from qkv.compiled import library
from qkv.masks import causal, lengths, window
from qkv.normalizers import Identity, Mean, Sigmoid, Softmax
from qkv.scores import Additive

pytestmark = pytest.mark.kernels

B, H, Q, K, A, V = 2, 3, 7, 9, 6, 5
MASKS = {
    "none": None,
    "offsets": causal(torch.tensor([-3, 4])),
    "lengths": lengths(torch.tensor([K, 4]), torch.tensor([0, Q])),
    "dense": torch.arange(Q * K).view(Q, K) % 3 == 0,
    "predicate": window(1, 0) | lengths(torch.tensor([2, 0])),
}


def inputs() -> list[Tensor]:
    shapes = ((B, H, Q, A), (B, H, K, A), (B, H, K, V), (H, A))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def same(leaves: list[Tensor], *more: Tensor, **given: object) -> None:
    """Output, row state and gradients equal those of `reference`."""
    query, key, value, vector = leaves
    answers = []
    for backend in ("reference", "fused"):
        output, state = qkv.attention_with_state(query, key, value, score=Additive(vector), backend=backend, **given)
        pulled = output.square().sum()
        if state.value.requires_grad:
            pulled = pulled + torch.where(state.value.isfinite(), state.value, 0).sum()
        answers.append([output, state.value, *torch.autograd.grad(pulled, (*leaves, *more))])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("normalizer", [Softmax(), Softmax(0.5), Mean(), Identity(), Sigmoid()], ids=str)
def test_masks_and_normalizers(mask: str, normalizer: qkv.normalizers.Normalizer) -> None:
    same(inputs(), mask=MASKS[mask], normalizer=normalizer)


@pytest.mark.parametrize("shape", [(Q, K), (H, 1, K), (B, 1, Q, 1), ()])
def test_a_bias_learns(shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    same(inputs(), bias, bias=bias, mask=causal(1))


@pytest.mark.parametrize("build", [Softmax, Sigmoid])
def test_a_parameter_of_the_normalizer_learns(build: type) -> None:
    parameter = torch.randn(H, dtype=torch.float64, requires_grad=True)
    same(inputs(), parameter, normalizer=build(parameter))


def test_dropout_drops_the_same_weights() -> None:
    query, key, value, vector = inputs()
    outputs = [
        qkv.attention(
            *(query, key, value),
            score=Additive(vector),
            dropout=0.4,
            generator=torch.Generator().manual_seed(5),
            backend=backend,
        )
        for backend in ("reference", "fused")
    ]
    torch.testing.assert_close(*outputs)


def test_grouped_heads_share_keys() -> None:
    query, vector = torch.randn(B, 4, Q, A), torch.randn(4, A)
    key, value = torch.randn(B, 2, K, A), torch.randn(B, 2, K, V)
    mask = lengths(torch.arange(8).view(B, 4))
    outputs = [
        qkv.attention(query, key, value, score=Additive(vector), mask=mask, enable_gqa=True, backend=backend)
        for backend in ("reference", "fused")
    ]
    torch.testing.assert_close(*outputs)


@pytest.mark.slow
def test_a_compiled_call_has_the_bits_of_the_eager_one() -> None:
    query, key, value, vector = leaves = [x.detach().float().requires_grad_() for x in inputs()]

    def attention(query: Tensor, key: Tensor, value: Tensor, vector: Tensor, real: Tensor) -> Tensor:
        return qkv.attention(query, key, value, score=Additive(vector), mask=lengths(real), backend="fused")

    torch.compiler.reset()
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    answers = []
    for function in (attention, compiled):
        output = function(query, key, value, vector, torch.tensor([K, 4]))
        answers.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    assert all(map(torch.equal, *answers))


def test_where_the_kernels_cannot_run_another_backend_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(600, A)
    assert qkv.explain(x, x, x, score=Additive(torch.ones(A))).backend == "fused"
    monkeypatch.setattr(library, "why_unavailable", lambda: "no kernels today")
    plan = qkv.explain(x[:599], x, x, score=Additive(torch.ones(A)))
    assert plan.backend == "blocked"
    assert dict(plan.refusals)["additive.factored"] == "no kernels today"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradient_of_a_small_sink_does_not_cancel(dtype: torch.dtype) -> None:
    """−w_sink (g·out) of each row: w_sink = e^(sink − lse') is small, and 1 − σ would lose most of its digits.

    Other errors: roundings of lse, which change w_sink by u|lse|, and of the sum over rows.
    """
    torch.manual_seed(0)
    leaves = [torch.randn(shape, dtype=dtype) for shape in ((2, 40, 16), (2, 50, 16), (2, 50, 8), (16,))]

    def gradient(wide: torch.dtype, backend: str) -> float:
        query, key, value, vector = (x.to(wide) for x in leaves)
        sink = torch.tensor(-9.0, dtype=wide, requires_grad=True)
        output = qkv.attention(query, key, value, score=Additive(vector), normalizer=Softmax(sink), backend=backend)
        return float(torch.autograd.grad(output.square().sum(), sink)[0])

    exact = gradient(torch.float64, "reference")
    assert abs(gradient(dtype, "fused") - exact) <= 32 * torch.finfo(dtype).eps * abs(exact)
