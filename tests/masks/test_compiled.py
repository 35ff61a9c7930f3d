"""Masks are made and combined inside of a compiled function, as outside of it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.torch_version import TorchVersion

import qkv
from qkv.masks import Mask, causal, documents, lengths

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # PyTorch's compiler reads it
]
Make = Callable[[Tensor, Tensor], "Mask | Tensor"]
inverts = pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.14", reason="the compiler inverts nothing but tensors"
)


def in_place(table: Tensor, counts: Tensor) -> "Mask | Tensor":
    mask: Mask | Tensor = table
    mask &= causal()
    mask |= lengths(1)
    return mask


COMBINED: dict[str, Make] = {
    "tensor and mask": lambda table, counts: table & causal(),
    "mask and tensor": lambda table, counts: causal() & table,
    "tensor or mask": lambda table, counts: table | lengths(counts),
    "mask or tensor": lambda table, counts: lengths(counts) | table,
    "masks": lambda table, counts: causal() & lengths(counts) | documents(torch.arange(5) // 2),
    "in place": in_place,
    "not, by name": lambda table, counts: table & lengths(counts).__invert__(),
}
INVERTED: dict[str, Make] = {
    "not": lambda table, counts: ~lengths(counts),
    "not not": lambda table, counts: ~~causal(),
    "not both": lambda table, counts: ~(causal() & lengths(counts)) | table,
    "tensor and not": lambda table, counts: table & ~causal(),
}


@pytest.mark.parametrize("name", [*COMBINED, *(pytest.param(name, marks=inverts) for name in INVERTED)])
def test_combined_masks_are_compiled(name: str) -> None:
    make = {**COMBINED, **INVERTED}[name]
    query, key, value = torch.randn(3, 2, 5, 4).unbind()
    table, counts = torch.rand(5, 5) > 0.3, torch.tensor([3, 5])

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor, counts: Tensor) -> Tensor:
        return qkv.attention(query, key, value, mask=make(table, counts))

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(query, key, value, table, counts), attend(query, key, value, table, counts))


@pytest.mark.parametrize("name", [*COMBINED, *INVERTED])
def test_combined_masks_show_what_tensors_show(name: str) -> None:
    table, counts = torch.rand(5, 5) > 0.3, torch.tensor([3, 5])
    made = {**COMBINED, **INVERTED}[name](table, counts)
    ahead, real = torch.ones(5, 5).triu(1) > 0, torch.arange(5) < counts[:, None, None]
    expected = {
        "tensor and mask": table & ~ahead,
        "mask and tensor": table & ~ahead,
        "tensor or mask": table | real,
        "mask or tensor": table | real,
        "masks": ~ahead & real | (torch.arange(5)[:, None] // 2 == torch.arange(5) // 2),
        "in place": table & ~ahead | (torch.arange(5) < 1),
        "not, by name": table & ~real,
        "not": ~real,
        "not not": ~ahead,
        "not both": ~(~ahead & real) | table,
        "tensor and not": table & ahead,
    }[name]
    assert torch.equal(qkv.masks.matrix(made, 5, 5, (2,)), expected.expand(2, 5, 5))
