"""Tables that end where the mask hides are read; one that a visible pair leaves is named, with the index."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.calls import near
from tests.pairs import in_turn
from torch import Tensor

import qkv
from qkv.errors import ArgumentError, DtypeError, MaskError

N, SHORT = 24, 15
WHOLE = torch.randn(2, N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Read = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

READS: dict[str, tuple[tuple[int, ...], Read]] = {
    "by key": ((SHORT,), lambda t, b, h, i, j: t[j]),
    "by query": ((SHORT,), lambda t, b, h, i, j: t[i]),
    "by distance": ((SHORT,), lambda t, b, h, i, j: t[i - j]),
    "by pair": ((SHORT, SHORT), lambda t, b, h, i, j: t[i, j]),
    "by head and key": ((2, SHORT), lambda t, b, h, i, j: t[h][j]),
    "by a product": ((SHORT,), lambda t, b, h, i, j: t[(i * j) // 4]),
    "by blocks": ((SHORT,), lambda t, b, h, i, j: t[i // 2 + j % 5]),
    "clamped": ((SHORT,), lambda t, b, h, i, j: t[(i - j).clamp(0, SHORT - 1)]),
}
INDICES: dict[str, Read] = {
    "by key": lambda t, b, h, i, j: j,
    "by query": lambda t, b, h, i, j: i,
    "by distance": lambda t, b, h, i, j: i - j,
    "by pair": lambda t, b, h, i, j: torch.maximum(i, j),
    "by head and key": lambda t, b, h, i, j: j,
    "by a product": lambda t, b, h, i, j: (i * j) // 4,
    "by blocks": lambda t, b, h, i, j: i // 2 + j % 5,
    "clamped": lambda t, b, h, i, j: (i - j).clamp(0, SHORT - 1),
}
USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added": lambda s, x: s + x,
    "times": lambda s, x: s * x,
    "on tiles": lambda s, x: (s * x).sin(),
    "in vectors": lambda s, x: torch.stack([s, x]).sum(),
}


def inputs() -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    return [x.requires_grad_() for x in torch.randn(3, 1, 2, N, 4, dtype=torch.float64, generator=g).unbind()]


def table_of(name: str) -> Tensor:
    shape = READS[name][0]
    return WHOLE.flatten()[: torch.Size(shape).numel()].view(shape).clone().requires_grad_()


def seen(name: str) -> Callable[..., Tensor]:
    index = INDICES[name]
    return lambda b, h, i, j: (index(WHOLE, b, h, i, j) < SHORT) & (index(WHOLE, b, h, i, j) >= -SHORT)


@pytest.mark.parametrize(
    ("hidden", "use", "name"),
    in_turn(["by the mask", "by the score"], [name for name in USES if name != "in vectors"], READS, every=3),
)
def test_a_table_may_end_where_nothing_is_visible(name: str, use: str, hidden: str) -> None:
    """As where the function itself reads the first entry for hidden pairs."""
    read, used, visible = READS[name][1], USES[use], seen(name)
    found = []
    for safe in (False, True):
        tensors, table = inputs(), table_of(name)

        def score(
            s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, t: Tensor = table, safe: bool = safe
        ) -> Tensor:
            shown = visible(b, h, i, j)
            if safe:
                i, j = (torch.where(shown, x, 0) for x in (i, j))
            changed = used(s, read(t, b, h, i, j))
            return torch.where(shown, changed, -float("inf")) if hidden == "by the score" else changed

        mask: Any = visible if hidden == "by the mask" else None
        output: Any = qkv.flex_attention(*tensors, score, mask)
        found.append([output, *torch.autograd.grad(output.sin().sum(), [*tensors, table])])
    assert all(near(x, y, 4000) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", [name for name in READS if name != "clamped"])
def test_a_visible_read_beyond_the_end_names_table_and_index(name: str, use: str) -> None:
    table, read, used = table_of(name), READS[name][1], USES[use]
    with pytest.raises(ArgumentError, match="table of shape") as caught:
        qkv.flex_attention(*inputs(), lambda s, b, h, i, j: used(s, read(table, b, h, i, j)))
    assert isinstance(caught.value, IndexError)
    assert str(SHORT) in str(caught.value)


def test_a_mask_may_read_a_table_where_another_condition_holds() -> None:
    table = torch.rand(SHORT) < 0.5
    longer = torch.cat([table, torch.ones(N - SHORT, dtype=torch.bool)])
    found = qkv.flex_attention(*inputs(), block_mask=lambda b, h, i, j: (j < SHORT) & table[j])
    assert torch.equal(found, qkv.flex_attention(*inputs(), block_mask=lambda b, h, i, j: (j < SHORT) & longer[j]))
    with pytest.raises(ArgumentError, match="table of shape"):
        qkv.flex_attention(*inputs(), block_mask=lambda b, h, i, j: table[j])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["sparse", "csr", "nested", "jagged"])
@pytest.mark.parametrize("place", ["query", "mask", "bias", "inside", "table"])
def test_tensors_that_are_not_dense_are_named(place: str, kind: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    plain = torch.eye(N, dtype=torch.float64)
    odd = {
        "sparse": plain.to_sparse,
        "csr": plain.to_sparse_csr,
        "nested": lambda: torch.nested.nested_tensor([plain[:3], plain[:5]]),
        "jagged": lambda: torch.nested.nested_tensor([plain[:3], plain[:5]], layout=torch.jagged),
    }[kind]()
    if place in ("mask", "inside") and kind in ("csr", "nested", "jagged"):
        odd = {"csr": plain.bool().to_sparse_csr(), "jagged": None, "nested": None}[kind]
        if odd is None:
            layout = torch.jagged if kind == "jagged" else torch.strided
            odd = torch.nested.nested_tensor([plain[:3].bool(), plain[:5].bool()], layout=layout)
    elif place in ("mask", "inside"):
        odd = plain.bool().to_sparse()
    calls: dict[str, Callable[[], object]] = {
        "query": lambda: qkv.attention(odd, key, value),
        "mask": lambda: qkv.attention(query, key, value, mask=odd),
        "bias": lambda: qkv.attention(query, key, value, bias=odd),
        "inside": lambda: qkv.attention(query, key, value, mask=qkv.masks.causal() & qkv.masks.dense(odd)),
        "table": lambda: qkv.flex_attention(query, key, value, lambda s, b, h, i, j: s + odd[i, j]),
    }
    with pytest.raises((DtypeError, MaskError), match="dense"):
        calls[place]()


NARROW: dict[str, Callable[[Tensor, Tensor], Callable[..., Tensor]]] = {
    "read": lambda table, index: lambda score, b, h, q, k: score + table[index[k]],
    "computed": lambda table, index: lambda score, b, h, q, k: score + table[index[k] | index[q]],
    "second": lambda table, index: lambda score, b, h, q, k: score + table.expand(9, 9)[q, index[k]],
    "not traced": lambda table, index: lambda score, b, h, q, k: score.reshape(()) + table[index[q]],
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.bool], ids=str)
@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_index_is_refused_with_what_to_do(name: str, dtype: torch.dtype) -> None:
    """PyTorch takes bytes and truth values for masks, and others not at all."""
    query, key, value = torch.randn(3, 1, 1, 6, 4).unbind()
    table, index = torch.randn(9), torch.arange(6)
    with pytest.raises(DtypeError, match=r"expected indices of dtype int32 or int64; got torch\..*index\.long"):
        qkv.flex_attention(query, key, value, score_mod=NARROW[name](table, index.to(dtype)))
    expected = qkv.flex_attention(query, key, value, score_mod=NARROW[name](table, index))
    same = qkv.flex_attention(query, key, value, score_mod=NARROW[name](table, index.int()))
    torch.testing.assert_close(same, expected)
