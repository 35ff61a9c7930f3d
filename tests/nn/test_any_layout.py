"""Layers give the same numbers whatever the layout of their inputs in memory, and serve a batch of no items."""

from typing import Any

import pytest
import torch
from tests.contract.any_call import LAYOUTS, lay
from tests.nn.layer_calls import layers
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from qkv.errors import QkvError
from qkv.nn.decoding.cache import Memory


def tensors_of(result: Any) -> list[Tensor]:
    leaves = tree_leaves(result)
    parts = [part for x in leaves for part in ((x.key, x.value) if isinstance(x, Memory) else (x,))]
    return [x for x in parts if isinstance(x, Tensor)]


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_take_any_layout(layout: str) -> None:
    for name, make in layers().items():
        call, arguments = make()
        if isinstance(call, nn.Module):
            call.eval()
        laid = {
            key: lay(x, layout) if isinstance(x, Tensor) and x.is_floating_point() else x
            for key, x in arguments.items()
        }
        for one, other in zip(tensors_of(call(**laid)), tensors_of(call(**arguments)), strict=True):
            torch.testing.assert_close(one, other, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")


@torch.no_grad()
def test_layers_serve_a_batch_of_no_items_or_name_what_differs() -> None:
    for name, make in layers().items():
        call, arguments = make()
        empty = {key: x[:0] if isinstance(x, Tensor) and x.ndim > 1 else x for key, x in arguments.items()}
        try:
            call(**empty)
        except QkvError:
            continue
        except Exception as error:
            raise AssertionError(name) from error
