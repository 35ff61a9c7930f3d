"""Position biases: equal to the matrix they represent, in linear memory, with gradients."""

from collections.abc import Callable

import pytest
import torch
from tests.contract.criterion import Draw, failed, largest, shares
from tests.contract.orders import Order
from tests.seed import generator
from torch import Tensor

import qkv
from qkv.errors import ConfigError, ShapeError, UnsupportedError

S, N, M, B = qkv.scores, qkv.normalizers, qkv.masks, qkv.biases


def slopes() -> Tensor:
    return torch.tensor([0.5, 0.25, 0.1, 0.01], dtype=torch.float64)


def tables() -> Tensor:
    return torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


BIASES: dict[str, Callable[[], qkv.biases.Bias]] = {
    "alibi": lambda: B.alibi(slopes()),
    "alibi, one slope, offset": lambda: B.alibi(0.3, offset=4),
    "relative": lambda: B.relative(tables()),
    "relative, one table, offset": lambda: B.relative(tables()[0], offset=-2),
}


def matrix(bias: qkv.biases.Bias, queries: int, keys: int) -> Tensor:
    return bias.tile(torch.arange(queries)[:, None], torch.arange(keys)).double()


def inputs(queries: int = 9, keys: int = 12, groups: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query = torch.randn(2, 4, queries, 5, dtype=torch.float64)
    key, value = torch.randn(2, 2, groups, keys, 5, dtype=torch.float64).unbind()
    return query, key, value


@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
@pytest.mark.parametrize("name", BIASES)
def test_equals_the_matrix_that_it_stands_for(name: str, backend: str) -> None:
    query, key, value = inputs()
    bias = BIASES[name]()
    scores = [S.ScaledDot(), S.Additive(torch.randn(4, 5, dtype=torch.float64)), S.SquaredDistance()]
    for score in scores:
        for mask in (None, M.causal(), M.lengths(torch.tensor([0, 7]))):
            for normalizer in (N.Softmax(), N.Entmax(), N.Identity()):
                options = {"score": score, "mask": mask, "normalizer": normalizer, "backend": backend}
                ours = qkv.attention(query, key, value, bias=bias, **options)
                written = qkv.attention(query, key, value, bias=matrix(bias, 9, 12), **options)
                torch.testing.assert_close(ours, written, atol=1e-10, rtol=1e-10)


def test_tiles_know_their_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.algorithms.tiled.user_scores.MAX_ELEMENTS", 4096)
    query, key, value = inputs(queries=130, keys=200)
    bias = B.relative(tables())
    ours = qkv.attention(query, key, value, bias=bias, mask=M.causal(), backend="blocked")
    written = qkv.attention(query, key, value, bias=matrix(bias, 130, 200), mask=M.causal(), backend="reference")
    torch.testing.assert_close(ours, written, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_positions_are_exact_in_every_dtype(dtype: torch.dtype) -> None:
    table = torch.zeros(3)
    table[2] = 5.0
    query, key = torch.zeros(1, 1, dtype=dtype), torch.zeros(70_001, 1, dtype=dtype)
    amap = qkv.attention_map(query, key, bias=B.relative(table, offset=70_000 - 1))
    weights = amap.row(0).double()
    assert weights.argmax() == 70_000
    torch.testing.assert_close(weights[-1] / weights[0], torch.tensor(5.0).double().exp(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", ["reference", "blocked", "autocast"])
def test_half_precision_is_as_exact_as_with_the_matrix(dtype: torch.dtype, how: str) -> None:
    def draw(turn: int) -> Draw:
        g = generator("bias", turn)
        query, key, value = (x.to(dtype) for x in 1.5 * torch.randn(3, 4, 64, 64, generator=g))
        bias = B.relative(torch.randn(9, generator=g).to(dtype))
        dense = matrix(bias, 64, 64)
        exact = torch.softmax(query.double() @ key.double().mT / 8 + dense.double(), -1) @ value.double()

        def literal(order: Order) -> dict[str, Tensor]:
            with order.summing():
                return {"output": qkv.attention(query, key, value, bias=dense, backend="reference")}

        if how == "autocast":
            with torch.autocast("cpu", dtype):
                ours = qkv.attention(query.float(), key.float(), value.float(), bias=bias, backend="blocked")
        else:
            ours = qkv.attention(query, key, value, bias=bias, backend=how)
        return Draw({"output": ours}, {"output": exact}, literal, {"output": largest(value)})

    assert not failed(shares(draw, dtype))


@pytest.mark.parametrize("name", ["alibi", "relative"])
def test_gradients_reach_the_parameters(name: str) -> None:
    query, key, value = (x[:1, :, :4] for x in inputs())
    parameter = (slopes() if name == "alibi" else tables()).requires_grad_()
    make = B.alibi if name == "alibi" else B.relative

    def run(parameter: Tensor, query: Tensor) -> Tensor:
        return qkv.attention(query, key, value, bias=make(parameter), backend="blocked")

    assert torch.autograd.gradcheck(run, (parameter, query.clone().requires_grad_()))


def test_grouped_heads_equal_repeated_heads() -> None:
    query, key, value = inputs(groups=2)
    score = S.Additive(torch.randn(4, 6).double(), torch.randn(4, 6, 5).double(), torch.randn(2, 6, 5).double())
    bias = B.alibi(slopes())
    grouped = qkv.attention(query, key, value, score=score, bias=bias, enable_gqa=True)
    repeated = S.Additive(score.vector, score.query_weight, score.key_weight.repeat_interleave(2, 0))  # type: ignore[union-attr]
    keys, values = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    torch.testing.assert_close(grouped, qkv.attention(query, keys, values, score=repeated, bias=bias))


def test_weights_and_state_follow() -> None:
    query, key, value = inputs()
    bias = B.alibi(slopes())
    output, weights = qkv.attention_with_weights(query, key, value, bias=bias)
    assert torch.equal(output, qkv.attention(query, key, value, bias=bias))
    torch.testing.assert_close(weights @ value, output)
    lse = qkv.attention_with_state(query, key, value, bias=bias)[1].lse
    torch.testing.assert_close(lse, qkv.attention_with_state(query, key, value, bias=matrix(bias, 9, 12))[1].lse)


def test_what_does_not_fit_is_told() -> None:
    query, key, value = inputs()
    with pytest.raises(ConfigError, match=r"relative\(table\): expected an odd last dimension"):
        B.relative(torch.zeros(4))
    with pytest.raises(ShapeError, match=r"Alibi\(slopes\)"):
        qkv.attention(query, key, value, bias=B.alibi(torch.ones(3)))
    with pytest.raises(UnsupportedError, match="one that takes any number, beside a bias"):
        qkv.attention(query, key, value, score=S.Gaussian(), bias=B.alibi(0.1))
    with pytest.raises(ShapeError, match="key: expected width 5"):
        qkv.attention(query, key[..., :4], value, bias=B.alibi(0.1))
