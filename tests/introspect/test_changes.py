"""A map is of the numbers that its tensors held when it was made, or says that they have changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, near, same_bits
from tests.contract.changes import BIASES, MASKS, WAYS, B, H, K, Q, other, table
from tests.contract.mechanisms import NormalizerCase, ScoreCase
from torch import Tensor

import qkv
from qkv.errors import UnsupportedError
from qkv.introspect.lazy_map import AttentionMap
from qkv.masks.patterns import dense
from qkv.normalizers.row_state import RowState

READ: dict[str, Callable[[AttentionMap], Tensor]] = {
    "tile": lambda amap: amap[..., 1:4, 2:5],
    "received": lambda amap: amap.received(),
    "topk": lambda amap: amap.topk(2)[0],
    "pooled": lambda amap: amap.pooled(2, 3),
    "peak": lambda amap: amap.peak(),
}


def unchanged(make: Callable[[dict[str, Tensor]], AttentionMap], tensors: dict[str, Tensor]) -> None:
    """Change each tensor in each way; what is read afterwards must be what was read before."""
    expected = {name: read(make(tensors)) for name, read in READ.items()}
    for name in tensors:
        for way, write in WAYS.items():
            mine = {key: x.detach().clone() for key, x in tensors.items()}
            amap = make(mine)
            write(mine[name], other(mine[name]))
            for part, read in READ.items():
                assert same_bits(read(amap), expected[part]), (name, way, part)


COPIED = [(score, normalizer) for score, normalizer in MECHANISMS[::4] if score.name != "learned"]
"""What a function closes over is not copied."""


@pytest.mark.parametrize(("score", "normalizer"), COPIED, ids=lambda case: case.name)
def test_inputs_and_parameters_may_change(score: ScoreCase, normalizer: NormalizerCase) -> None:
    call = Call.draw(score, normalizer, ((B, H), Q, K), torch.float64)

    def make(x: dict[str, Tensor]) -> AttentionMap:
        return qkv.attention_map(x["query"], x["key"], **call.arguments(x))

    unchanged(make, {name: x for name, x in call.leaves.items() if name != "value"})


@pytest.mark.parametrize("name", [*MASKS, *(name for name in BIASES if "yours" not in name), "state", "bias"])
def test_masks_biases_and_states_may_change(name: str) -> None:
    query, key = torch.randn(2, B, H, Q, 16, generator=torch.Generator().manual_seed(0)).unbind()
    state = qkv.attention_with_state(query, key, key)[1]
    build, tensors = _option(name, state)
    unchanged(lambda x: qkv.attention_map(query, key, **build(x)), tensors)


def _option(name: str, state: RowState) -> tuple[Callable[[dict[str, Tensor]], dict[str, Any]], dict[str, Tensor]]:
    if name in MASKS:
        build, parts = MASKS[name]
        return lambda x: {"mask": build(*x.values())}, {f"{i}": part() for i, part in enumerate(parts)}
    if name in BIASES:
        make, shape = BIASES[name]
        return lambda x: {"bias": make(x["bias"])}, {"bias": torch.rand(shape)}
    if name == "state":
        return lambda x: {"state": RowState("softmax", x["state"])}, {"state": state.value}
    return lambda x: {"bias": x["bias"]}, {"bias": torch.rand(H, Q, K)}


@pytest.mark.parametrize("part", READ)
def test_what_is_not_copied_is_checked(part: str) -> None:
    """Tables as large as the map would make its memory quadratic; of functions only modules say what they read."""
    query, key = torch.randn(2, Q, 2).unbind()
    seen, bias, module = table()[0, 0], torch.rand(Q, K), torch.nn.Bilinear(2, 2, 1)
    options: list[tuple[Tensor, dict[str, Any]]] = [
        (seen, {"mask": seen}),
        (seen, {"mask": ~dense(seen)}),
        (bias, {"bias": bias}),
        (module.weight, {"score": _Scoring(module)}),
    ]
    for tensor, option in options:
        with torch.no_grad():
            amap = qkv.attention_map(query, key, **option)
            READ[part](amap)
            tensor.copy_(other(tensor))
            with pytest.raises(UnsupportedError, match="map: expected the tensors that it was made of"):
                READ[part](amap)
            READ[part](qkv.attention_map(query, key, **option))


class _Scoring(torch.nn.Module):
    """A score that a module computes."""

    def __init__(self, pairs: torch.nn.Bilinear) -> None:
        super().__init__()
        self.pairs = pairs

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        both = torch.broadcast_tensors(query[..., :, None, :], key[..., None, :, :])
        scores: Tensor = self.pairs(*(x.contiguous() for x in both))
        return scores[..., 0]


def test_gradients_reach_the_tensors_themselves() -> None:
    query, key = torch.randn(2, 4, 3, dtype=torch.float64).unbind()
    bandwidth = torch.ones((), dtype=torch.float64, requires_grad=True)
    query.requires_grad_()
    amap = qkv.attention_map(query, key, score=qkv.scores.Gaussian(bandwidth))
    with torch.no_grad():
        key.add_(1)
    amap.received()[0].backward()
    assert query.grad is not None
    assert bandwidth.grad is not None


def test_a_copy_of_what_was_expanded_takes_no_more_memory() -> None:
    query, key = torch.randn(1, 4, 3).expand(1000, 4, 3), torch.randn(1, 5, 3).expand(1000, 5, 3)
    amap = qkv.attention_map(query, key)
    held = amap._inputs[0]
    assert held.untyped_storage().nbytes() == 4 * 3 * 4
    assert near(amap[7], qkv.attention_map(query[7], key[7]).dense())
