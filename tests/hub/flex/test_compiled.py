"""`flex_attention` within a function that `torch.compile` compiles, in one graph, with gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.contract.calls import near
from tests.pairs import fast
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

import qkv

N = 40
TABLE = torch.linspace(-1, 1, N * N, dtype=torch.float64).view(N, N)
BLOCKS = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, N, N, device="cpu")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "table": {"score_mod": lambda s, b, h, i, j: s + TABLE[i, j] * (h + 1)},
    "mask": {"block_mask": lambda b, h, i, j: (i >= j) & (i - j < 9)},
    "blocks": {"block_mask": BLOCKS, "score_mod": lambda s, b, h, i, j: s * s},
    "vector": {"score_mod": lambda s, b, h, i, j: torch.stack([s, s + j]).max()},
    "dropout": {"score_mod": lambda s, b, h, i, j: s.sin(), "dropout": 0.4},
    "post": {"post_mod": lambda w, b, h, i, j: w * w},
    "reference": {"score_mod": lambda s, b, h, i, j: s * s, "backend": "reference"},
    "lse": {"score_mod": lambda s, b, h, i, j: s * s, "return_lse": True},
    "largest": {"return_aux": AuxRequest(lse=True, max_scores=True)},
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def both(run: Callable[..., Any], leaves: list[Tensor]) -> None:
    answers = []
    for function in (torch.compile(run, backend="eager", fullgraph=True), run):
        results = [x for x in torch.utils._pytree.tree_leaves(function(*leaves)) if x is not None]
        total = sum(x.sin().sum() for x in results if x.requires_grad)
        answers.append([*results, *torch.autograd.grad(total, leaves, materialize_grads=True)])
    assert all(near(x, y) for x, y in zip(*answers, strict=True))


FAST = ("table", "mask", "dropout")
"""A table, a function of positions, and dropout."""


@pytest.mark.compiler
@pytest.mark.parametrize("name", fast(CASES, *FAST))
def test_one_graph_gives_what_an_eager_call_gives(name: str) -> None:
    def run(query: Tensor, key: Tensor, value: Tensor) -> Any:
        generator = (
            torch.Generator().manual_seed(0) if "dropout" in options and not torch.compiler.is_compiling() else None
        )
        return qkv.flex_attention(query, key, value, **options, generator=generator)

    options = CASES[name]
    leaves = [x.requires_grad_() for x in torch.randn(3, 2, 2, N, 4, dtype=torch.float64).unbind()]
    if name == "dropout":
        # Another seed: what is dropped differs.
        output = torch.compile(run, backend="eager", fullgraph=True)(*leaves)
        assert output.shape == leaves[0].shape
        assert not near(output, qkv.flex_attention(*leaves, options["score_mod"]))
    else:
        both(run, leaves)


@pytest.mark.compiler
def test_gradients_reach_what_the_functions_close_over() -> None:
    gains = torch.randn(2, N, dtype=torch.float64, requires_grad=True)

    def run(query: Tensor, key: Tensor, value: Tensor, gains: Tensor) -> Any:
        return qkv.flex_attention(query, key, value, lambda s, b, h, i, j: s * gains[h, j], enable_gqa=True)

    query = torch.randn(1, 2, N, 4, dtype=torch.float64, requires_grad=True)
    key, value = (x.requires_grad_() for x in torch.randn(2, 1, 1, N, 4, dtype=torch.float64).unbind())
    both(run, [query, key, value, gains])


def test_without_gradients() -> None:
    query, key, value = torch.randn(3, 1, 2, 300, 4).unbind()

    def run(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return qkv.flex_attention(query, key, value, block_mask=lambda b, h, i, j: i >= j)

    with torch.no_grad():
        found = torch.compile(run, backend="aot_eager", fullgraph=True)(query, key, value)
        assert near(found, run(query, key, value))
