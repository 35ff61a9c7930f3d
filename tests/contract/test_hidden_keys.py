"""Keys masked everywhere change no bit, whatever they contain; a NaN that a row sees stays visible."""

from dataclasses import dataclass

import pytest
import torch
from tests.contract.any_call import LAYOUTS, lay
from tests.contract.calls import MECHANISMS, Call, by_part, drawn, same_bits, served_part
from tests.contract.mechanisms import NORMALIZER, ON_CPU, SCORE
from tests.contract.served import by_served
from torch import Tensor

from qkv.masks.base import Mask
from qkv.masks.patterns import causal, lengths, span, window

POISON = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf, "huge": 3e38}
by_backend = pytest.mark.parametrize("backend", ON_CPU)
SLOW = pytest.mark.slow
POISONS = ["nan", *(pytest.param(name, marks=SLOW) for name in POISON if name != "nan")]
DTYPES = [torch.float32, *(pytest.param(x, marks=SLOW) for x in (torch.float64, torch.bfloat16, torch.float16))]


@dataclass(frozen=True)
class Hiding:
    """A mask, the keys (B, 1, K) that it masks from every query, and the queries (B, 1, Q) that see nothing."""

    mask: Mask | Tensor
    keys: Tensor
    queries: Tensor


def _rows(*parts: str) -> Tensor:
    return torch.tensor([[letter == "x" for letter in part] for part in parts]).unsqueeze(1)


def _table() -> Tensor:
    seen = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.7
    seen[0, 0, :, 2] = seen[1, 0, :, 6] = False
    seen[1, 0, 0] = False
    return seen


HIDINGS = {
    "lengths": Hiding(lengths(torch.tensor([4, 6])), _rows("....xxx", "......x"), _rows(".....", ".....")),
    "both lengths": Hiding(
        lengths(torch.tensor([4, 0]), torch.tensor([3, 5])), _rows("....xxx", "xxxxxxx"), _rows("...xx", "xxxxx")
    ),
    "causal": Hiding(causal(), _rows(".....xx", ".....xx"), _rows(".....", ".....")),
    "span": Hiding(
        span(torch.tensor([2, 0]), torch.tensor([7, 5])), _rows("xx.....", ".....xx"), _rows(".....", ".....")
    ),
    "window": Hiding(window(1, 0, offset=-1), _rows("....xxx", "....xxx"), _rows("x....", "x....")),
    "dense": Hiding(_table(), _rows("..x....", "......x"), _rows(".....", "x....")),
    "predicate": Hiding(
        lengths(torch.tensor([4, 6])) | lengths(1), _rows("....xxx", "......x"), _rows(".....", ".....")
    ),
}


def poisoned(call: Call, hiding: Hiding, poison: float) -> Call:
    def fill(name: str, where: Tensor) -> Tensor:
        return torch.where(where.unsqueeze(-1), poison, call.leaves[name])

    return call.with_leaves(
        query=fill("query", hiding.queries), key=fill("key", hiding.keys), value=fill("value", hiding.keys)
    )


@by_part
@by_served(
    lambda hiding, dtype: drawn(dtype=dtype, mask=HIDINGS[hiding].mask),
    every=2,
    hiding=HIDINGS,
    poison=POISONS,
    dtype=DTYPES,
)
def test_hidden_keys_change_no_bit(backend: str, hiding: str, poison: str, dtype: torch.dtype, whole: bool) -> None:
    calls = [Call.draw(*mechanism, dtype=dtype, mask=HIDINGS[hiding].mask) for mechanism in MECHANISMS]
    turn = list(HIDINGS).index(hiding)
    for clean in served_part(calls, lambda call: call.serves(backend), turn, 1 if whole else 6):
        dirty = poisoned(clean, HIDINGS[hiding], POISON[poison])
        expected, gradients = clean.gradients(backend)
        output, poisoned_gradients = dirty.gradients(backend)
        assert output.isfinite().all(), clean
        assert same_bits(output, expected), clean
        assert all(same_bits(x, gradients[name]) for name, x in poisoned_gradients.items()), clean
        assert same_bits(dirty.weights(backend)[1], clean.weights(backend)[1]), clean
        if clean.serves(backend, state=True, gradient=False):
            assert same_bits(dirty.state(backend)[1].value, clean.state(backend)[1].value), clean


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hiding", HIDINGS)
def test_hidden_numbers_change_no_bit_in_any_layout(hiding: str, layout: str) -> None:
    """Without gradients a copy of keys and values is spared where they are finite, and may lie otherwise in memory."""
    turn = [*HIDINGS].index(hiding) + LAYOUTS.index(layout)
    for score, normalizer in MECHANISMS[turn % 5 :: 5]:
        clean = Call.draw(score, normalizer, dtype=torch.float32, mask=HIDINGS[hiding].mask)
        dirty = poisoned(clean, HIDINGS[hiding], torch.nan)
        outputs = []
        for call in (clean, dirty, clean):
            laid = {name: lay(call.leaves[name], layout) for name in ("query", "key", "value")}
            outputs.append(call.with_leaves(**laid).output("auto"))
        assert outputs[0].isfinite().all(), clean
        assert all(same_bits(outputs[0], output) for output in outputs[1:]), f"{clean} {layout}"


@by_backend
def test_hidden_keys_get_no_gradient(backend: str) -> None:
    hiding, ran = HIDINGS["lengths"], 0
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, mask=hiding.mask)
        if not call.serves(backend):
            continue
        ran += 1
        gradients = call.gradients(backend)[1]
        hidden = hiding.keys.expand(2, 2, 7)
        assert (gradients["key"][hidden] == 0).all(), call
        assert (gradients["value"][hidden] == 0).all(), call
    assert ran, f"{backend} serves no mechanism with lengths"


SMOOTH = ("softmax", "softmax_sink", "mean", "identity", "sigmoid", "sigmoid_bias", "sum")


@pytest.mark.parametrize("backend", [name for name in ON_CPU if name != "lookup"])
def test_visible_nan_stays_visible(backend: str) -> None:
    """A NaN in the value of a key with weight, or in the row's own query, shows in the row's output.

    A hard row weighs one key alone: tests/algorithms/tiled/test_lookup.py.
    """
    dtype = torch.float32 if backend == "sorted" else torch.float64  # in float64 it sorts finite coordinates only
    ran = 0
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, mask=lengths(torch.tensor([4, 6])), dtype=dtype)
        if normalizer.name not in SMOOTH or score.name == "uniform" or not call.serves(backend, gradient=False):
            continue
        ran += 1
        query = call.leaves["query"].clone()
        query[0, 0, 1] = torch.nan
        output = call.with_leaves(query=query).output(backend)
        assert output[0, 0, 1].isnan().all(), call
        assert output[0, 1].isfinite().all(), call
        assert output[0, 0, 2:].isfinite().all(), call
        key = call.leaves["key"].clone()
        key[1, 0, 2] = torch.nan
        output = call.with_leaves(key=key).output(backend)
        assert output[1, 0].isnan().all(), call
        assert output[1, 1].isfinite().all(), call
        if score.bend is None:  # a kernel or a rectifier can give a key zero weight
            value = call.leaves["value"].clone()
            value[1, 0, 2] = torch.nan
            assert call.with_leaves(value=value).output(backend)[1, 0].isnan().all(), call
    assert ran, f"{backend} serves no mechanism with lengths"


@by_backend
def test_an_outlier_among_hidden_keys_moves_no_distance(backend: str) -> None:
    """Shifts and centers use visible keys only: an outlier of 1e30 would ruin every product around it."""
    for name in ("squared_distance", "gaussian"):
        normalizer = NORMALIZER["softmax" if name == "squared_distance" else "sum"]
        call = Call.draw(SCORE[name], normalizer, dtype=torch.float32, mask=HIDINGS["lengths"].mask)
        if call.serves(backend):
            dirty = poisoned(call, HIDINGS["lengths"], 1e30)
            assert same_bits(dirty.output(backend), call.output(backend))
