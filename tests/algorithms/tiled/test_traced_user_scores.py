"""User-defined scores and biases from positions beyond the quadratic limit: compiled, exported, vmapped."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.pairs import fast
from torch import Tensor, nn

import qkv
from qkv.biases import Bias
from qkv.errors import UnsupportedError
from qkv.masks import causal, lengths
from qkv.planner.plan import QUADRATIC_LIMIT

torch.manual_seed(0)
NETWORK = nn.Linear(4, 1)


def pairs(query: Tensor, key: Tensor) -> Tensor:
    return NETWORK(torch.tanh(query[..., :, None, :] + key[..., None, :, :])).squeeze(-1)


class Blocks(Bias):
    """What the network says of pairs in one block, no function of j − i."""

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return NETWORK.bias * (rows_Q1 // 3 == columns_K // 3)


CALLS: dict[str, dict[str, Any]] = {
    "network": {"score": pairs},
    "network, causal": {"score": pairs, "mask": causal()},
    "network, causal and lengths": {"score": pairs, "mask": causal(2) & lengths(torch.tensor([4, 9]))},
    "network, causal or lengths": {"score": pairs, "mask": causal(-9) | lengths(torch.tensor([4, 0]))},
    "alibi, causal": {"bias": qkv.biases.alibi(torch.tensor([0.5, 0.1])), "mask": causal()},
    "yours, causal": {"bias": Blocks(), "mask": causal()},
    "relative, entmax": {"bias": qkv.biases.relative(torch.randn(2, 5)), "normalizer": qkv.normalizers.Entmax()},
}


SOME = ("network, causal and lengths", "yours, causal")
each = pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]
)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.algorithms.tiled.user_scores.ROWS", 8)


def tensors(queries: int = 20, keys: int = 14) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 2, n, 4, requires_grad=True) for n in (queries, keys, keys))


def of(name: str) -> Callable[..., Tensor]:
    return lambda query, key, value: qkv.attention(query, key, value, backend="blocked", **CALLS[name])


def with_gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    output = function(*inputs)
    leaves = (*inputs, *NETWORK.parameters())
    return [output, *torch.autograd.grad(output.square().sum(), leaves, materialize_grads=True)]


@pytest.mark.compiler
@pytest.mark.parametrize("name", fast(CALLS, SOME[0]))
def test_a_compiled_call_gives_what_the_eager_one_gives(name: str) -> None:
    torch.compiler.reset()
    function, inputs = of(name), tensors()
    traced = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(with_gradients(traced, inputs), with_gradients(function, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_sizes_may_vary(name: str) -> None:
    torch.compiler.reset()
    function = of(name)
    traced = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for sizes in ((20, 14), (20, 17), (7, 9)):  # no fewer keys than the lengths count
        inputs = tensors(*sizes)
        torch.testing.assert_close(with_gradients(traced, inputs), with_gradients(function, inputs))


class Attends(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.network = function, NETWORK

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


@pytest.mark.compiler
@each
def test_an_exported_program_gives_what_the_call_gives(name: str) -> None:
    program = torch.export.export(Attends(of(name)), tensors())
    inputs = tensors()
    torch.testing.assert_close(program.module()(*inputs), of(name)(*inputs))


@pytest.mark.parametrize("name", [name for name in CALLS if "lengths" not in name])
def test_vmap_gives_what_a_loop_gives(name: str) -> None:
    inputs = tensors()
    with torch.no_grad():
        looped = torch.stack([of(name)(*item) for item in zip(*inputs, strict=True)])
        torch.testing.assert_close(torch.vmap(of(name))(*inputs), looped)


def test_a_relative_bias_learns_under_vmap() -> None:
    """It is an operand of the operator, so that nothing has to be made again."""
    table = torch.randn(2, 5)
    inputs = tensors()

    def of_table(table: Tensor, *given: Tensor) -> Tensor:
        bias = qkv.biases.relative(table)
        return qkv.attention(*given, bias=bias, mask=causal(), backend="blocked").square().sum()

    mapped = torch.vmap(torch.func.grad(of_table), (None, 0, 0, 0))(table, *(x.detach() for x in inputs))
    looped = [torch.func.grad(of_table)(table, *item) for item in zip(*(x.detach() for x in inputs), strict=True)]
    torch.testing.assert_close(mapped, torch.stack(looped))
    table.requires_grad_()
    (expected,) = torch.autograd.grad(sum(of_table(table, *item) for item in zip(*inputs, strict=True)), table)
    torch.testing.assert_close(mapped.sum(0), expected)


def test_dropout_drops_the_same_weights() -> None:
    inputs = tensors()

    def dropped(*given: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return qkv.attention(*given, score=pairs, dropout=0.5, generator=generator, backend="blocked")

    with torch.no_grad():
        mapped = torch.vmap(dropped, randomness="same")(*(x[:1] for x in inputs))
        torch.testing.assert_close(mapped[0], dropped(*(x[0] for x in inputs)))


def test_a_gradient_that_would_keep_every_tile_is_refused() -> None:
    """Under torch.func nothing can be recomputed, so memory would silently grow with Q·K."""
    side = int(QUADRATIC_LIMIT**0.5) + 1
    large = tuple(x[:1, :1] for x in tensors(side, side))
    with pytest.raises(UnsupportedError, match="are not recomputed"):
        torch.vmap(lambda *given: qkv.attention(*given, score=pairs))(*large)
    small = tensors(5, 6)
    mapped = torch.vmap(lambda *given: qkv.attention(*given, score=pairs))(*small)
    torch.testing.assert_close(mapped, qkv.attention(*small, score=pairs))
