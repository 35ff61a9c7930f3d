"""One compilation serves many sizes: lengths, heads, widths and batches, of functions, layers and FlexAttention."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.pairs import in_turn
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import AuxRequest

import qkv
from qkv.masks import causal
from qkv.nn import FeedForward, MultiHeadAttention, TorchMultiheadAttention, TransformerBlock
from qkv.normalizers import Sparsemax
from qkv.scores import Gaussian

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # PyTorch's compiler reads it
]
TWICE = torch.linspace(0.5, 1.5, 8)


def _flex(**options: Any) -> Callable[..., Any]:
    return lambda query, key, value: qkv.flex_attention(query, key, value, **options)


def _with_state(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    output, state = qkv.attention_with_state(query, key, value, mask=causal())
    return output, state.lse


CALLS: dict[str, Callable[..., Any]] = {
    "attention": lambda q, k, v: qkv.attention(q, k, v, mask=causal(align="end")),
    "biased": lambda q, k, v: qkv.attention(q, k, v, bias=qkv.biases.alibi(0.2)),
    "gaussian": lambda q, k, v: qkv.attention(q, k, v, score=Gaussian(2.0)),
    "sparse": lambda q, k, v: qkv.attention(q, k, v, normalizer=Sparsemax(), mask=causal()),
    "with weights": lambda q, k, v: qkv.attention_with_weights(q, k, v, mask=causal()),
    "with state": _with_state,
    "flex": _flex(),
    "flex, score": _flex(score_mod=lambda s, b, h, i, j: s * TWICE[h] - (i - j).abs() * 0.2),
    "flex, mask": _flex(block_mask=lambda b, h, i, j: i + 3 >= j),
    "flex, weight": _flex(post_mod=lambda w, b, h, i, j: w * w),
    "flex, state": _flex(return_aux=AuxRequest(lse=True, max_scores=True)),
    "flex, reference": _flex(score_mod=lambda s, b, h, i, j: s * s, backend="reference"),
}
Sizes = tuple[int, int, int, int, int, int]
VARYING: dict[str, list[Sizes]] = {
    "lengths": [(2, 3, n, n + 3, 4, 5) for n in (10, 11, 13, 17, 23, 31, 60)],
    "heads": [(2, heads, 9, 12, 4, 5) for heads in (2, 3, 4, 5, 6, 7)],
    "width": [(2, 3, 9, 12, width, width + 1) for width in (4, 5, 6, 7, 8, 9)],
    "batch": [(batch, 3, 9, 12, 4, 5) for batch in (2, 3, 4, 5, 6, 7)],
}
MOST = {None: 4, True: 3}
"""The most graphs of six or more sizes: the first size's own, and one for each algorithm that the sizes decide."""


def serves(function: Callable[..., Any], calls: Sequence[tuple[Tensor, ...]], dynamic: bool | None, most: int) -> None:
    """Compile a function in one graph, and compare its results and gradients with eager ones at all sizes."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter)
    for leaves in calls:
        answers = []
        for each in (compiled, function):
            results = [x for x in torch.utils._pytree.tree_leaves(each(*leaves)) if x is not None]
            total = sum(x.sin().sum() for x in results if x.requires_grad)
            answers.append([*results, *torch.autograd.grad(total, leaves, materialize_grads=True)])  # type: ignore[arg-type]
        torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= most


def tensors(sizes: Sizes) -> tuple[Tensor, ...]:
    batch, heads, queries, keys, width, value_width = sizes
    shapes = (queries, width), (keys, width), (keys, value_width)
    return tuple(torch.randn(batch, heads, *shape, requires_grad=True) for shape in shapes)


@pytest.mark.parametrize(("name", "axis", "dynamic"), in_turn(CALLS, VARYING, (None, True), every=12))
def test_calls_of_many_sizes_share_a_graph(name: str, axis: str, dynamic: bool | None) -> None:
    serves(CALLS[name], [tensors(sizes) for sizes in VARYING[axis]], dynamic, MOST[dynamic])


def _theirs() -> Callable[..., Any]:
    layer = TorchMultiheadAttention(MultiHeadAttention(8, 2))
    return lambda x: layer(x, x, x, attn_mask=torch.zeros(x.shape[1], x.shape[1]))[0]


LAYERS: dict[str, Callable[[], Callable[..., Any]]] = {
    "heads": lambda: MultiHeadAttention(8, 2),
    "block": lambda: TransformerBlock(MultiHeadAttention(8, 2), FeedForward(8, 16)),
    "theirs": _theirs,
}
INPUTS = {"lengths": [(2, n) for n in (9, 10, 11, 17, 23, 60)], "batch": [(b, 9) for b in (2, 3, 4, 5, 6, 7)]}


@pytest.mark.parametrize(("name", "axis", "dynamic"), in_turn(LAYERS, INPUTS, (None, True), every=3))
def test_layers_of_many_sizes_share_a_graph(name: str, axis: str, dynamic: bool | None) -> None:
    calls = [(torch.randn(*sizes, 8, requires_grad=True),) for sizes in INPUTS[axis]]
    serves(LAYERS[name](), calls, dynamic, MOST[dynamic])


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_long_calls_of_flex_attention_share_graphs_by_their_stripes(dynamic: bool | None) -> None:
    """Up to 128 rows are one stripe, up to 256 two, up to 512 four."""
    calls = [tensors((1, 2, n, 9, 4, 5)) for n in (100, 128, 129, 200, 256, 257, 300, 512)]
    serves(CALLS["flex, score"], calls, dynamic, most=3 if dynamic else 4)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_output_lies_in_memory_as_the_query_does(dynamic: bool | None) -> None:
    torch.compiler.reset()
    compiled = torch.compile(CALLS["flex"], fullgraph=True, dynamic=dynamic, backend="eager")
    for length in (10, 11, 17):
        query, key, value = (torch.randn(2, length, 3, 4).transpose(1, 2) for _ in range(3))
        assert compiled(query, key, value).stride() == CALLS["flex"](query, key, value).stride() == query.stride()
