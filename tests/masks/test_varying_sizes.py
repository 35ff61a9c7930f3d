"""A graph that is recorded with symbolic sizes holds for other sizes and lengths, with any mask."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import qkv
from qkv.masks import Mask, causal, lengths
from qkv.masks.base import Grid
from qkv.nn import CopyHead
from qkv.normalizers import Hard, Normalizer, Softmax


@dataclass(frozen=True)
class Thirds(Mask):
    """Two of three diagonals."""

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Return whether the key is on one of them."""
        return (rows_Q1 + columns_K) % 3 != 0


MASKS: dict[str, Callable[[Tensor], Mask | None]] = {
    "none": lambda counts: None,
    "lengths": lengths,
    "not lengths": lambda counts: ~lengths(counts),
    "lengths or causal": lambda counts: lengths(counts) | causal(),
    "a user-defined mask": lambda counts: Thirds() & lengths(counts),
    "causal": lambda counts: causal(),
}


def _inputs(batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(batch, 3, size, 4) for size in (queries, keys, keys))
    key[..., -1, :] = key[..., 0, :]
    return query, key, value


@pytest.mark.parametrize(
    ("normalizer", "name"),
    [
        *((Hard(), "none"), (Softmax(), "a user-defined mask")),
        *(
            pytest.param(Softmax(), name, marks=pytest.mark.slow)
            for name in ("lengths or causal", "causal", "not lengths")
        ),
        pytest.param(Hard(), "lengths", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_graph_of_one_size_holds_for_others(normalizer: Normalizer, name: str) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, counts: Tensor) -> Tensor:
        return qkv.attention(query, key, value, normalizer=normalizer, mask=MASKS[name](counts))

    graph = make_fx(attend, tracing_mode="symbolic")(*_inputs(2, 8, 7), torch.tensor([3, 7]))
    for sizes, counts in (((2, 8, 7), [7, 2]), ((4, 6, 9), [1, 9, 4, 0])):
        call = (*_inputs(*sizes), torch.tensor(counts))
        torch.testing.assert_close(graph(*call), attend(*call), rtol=1e-5, atol=1e-5)


@pytest.mark.compiler
def test_a_compiled_copy_head_serves_any_number_of_new_words() -> None:
    head = CopyHead(10, 4, 6, 8)

    def chances(ids: Tensor) -> Tensor:
        out: Tensor = head(logits, states, head.remember(encoded, ids, torch.tensor([5, 3])))
        return out

    logits, states, encoded = torch.randn(2, 3, 10), torch.randn(2, 3, 4), torch.randn(2, 5, 6)
    compiled = torch.compile(chances, fullgraph=True, backend="eager")
    ids = torch.tensor([[4, 5, 10, 6, 11], [4, 4, 10, 0, 0]])
    for each in (ids, ids.clamp(max=9), ids + 4):
        torch.testing.assert_close(compiled(each), chances(each))


def test_a_graph_of_more_queries_than_keys_hides_keys_of_another() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, mask=causal())

    graph = make_fx(attend, tracing_mode="symbolic")(*_inputs(2, 8, 7))
    query, key, value = _inputs(2, 5, 9)
    expected = attend(query, key, value)
    key[..., 5:, :] = value[..., 5:, :] = torch.nan
    torch.testing.assert_close(graph(query, key, value), expected, rtol=1e-5, atol=1e-5)
