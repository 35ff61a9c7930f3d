"""Rows that a batch does not have are named, wherever a decoding state selects its rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models.test_sessions import BOS, MAKERS, given, made
from tests.pairs import in_turn

from qkv.decode.prompted import Continuation, Prompted
from qkv.errors import DtypeError, QkvError, ShapeError
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.language_model import LanguageModel
from qkv.nn import BatchRows, BlockCache, Copyable, Memory
from qkv.nn.decoding.cache import MaskedMemory
from qkv.values.rows import select_rows

BATCH = 2
WRONG: dict[str, tuple[Any, type[QkvError]]] = {
    "beyond": (torch.tensor([0, 99]), ShapeError),
    "negative": (torch.tensor([-1]), ShapeError),
    "a table": (torch.tensor([[0, 1]]), ShapeError),
    "floats": (torch.tensor([0.0]), DtypeError),
    "bools": (torch.tensor([True, False]), DtypeError),
    "a list": ([0, 1], DtypeError),
    "none": (None, DtypeError),
}


def _memory() -> Memory:
    return Memory(torch.randn(BATCH, 3, 4), torch.randn(BATCH, 3, 5))


@torch.no_grad()
def _grown() -> Memory:
    return _memory().append(_memory())


def _prompted() -> Callable[[Any], Any]:
    model = Prompted(LanguageModel(DecoderConfig(size=20, width=16, heads=2)).eval())
    state = Continuation(torch.zeros(BATCH, 20), model.start(torch.tensor([[5], [6]]), torch.tensor([1, 1])).inner)
    return lambda rows: model.select(state, rows)


def _no_grad(select: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return torch.no_grad()(select)


SELECTIONS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "tensor": lambda: lambda rows: select_rows(torch.zeros(BATCH, 3), rows),
    "memory": lambda: _memory().select,
    "grown memory": lambda: _no_grad(_grown().select),
    "masked memory": lambda: MaskedMemory(_memory(), torch.ones(BATCH, 3, dtype=torch.bool)).select,
    "block": lambda: BlockCache(_memory(), _grown()).select,
    "copied words": lambda: Copyable(*torch.zeros(2, BATCH, 3), None, torch.zeros(BATCH), 0).select,
    "prompted": _prompted,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("holder", SELECTIONS)
def test_wrong_rows_are_named(holder: str, wrong: str) -> None:
    rows, kind = WRONG[wrong]
    with pytest.raises(kind) as caught:
        SELECTIONS[holder]()(rows)
    assert caught.value.argument == "rows"


@pytest.mark.parametrize(("kind", "wrong"), in_turn(MAKERS, WRONG, every=3))
@torch.no_grad()
def test_every_model_names_wrong_rows_of_its_state(kind: str, wrong: str) -> None:
    model, (source, lengths, _) = made(kind), given(kind)
    _, state = model.step(torch.full((len(source),), BOS), model.start(source, lengths))
    rows, error = WRONG[wrong]
    with pytest.raises(error) as caught:
        model.select(state, rows)
    assert caught.value.argument == "rows"


@pytest.mark.parametrize("method", ["fork", "regroup"])
@pytest.mark.parametrize("kind", [kind for kind in MAKERS if not kind.startswith(("pointer", "copying"))])
@torch.no_grad()
def test_every_model_names_rows_beyond_its_state(kind: str, method: str) -> None:
    model, (source, lengths, _) = made(kind), given(kind)
    _, state = model.step(torch.full((len(source),), BOS), model.start(source, lengths))
    forked, beyond = model.fork(state, torch.tensor([0, 1]), 2), torch.tensor([0, 99])
    with pytest.raises(ShapeError) as caught:
        _ = model.fork(state, beyond, 2) if method == "fork" else model.regroup(forked, beyond)
    assert caught.value.argument == "rows"


def test_a_batch_has_a_dimension() -> None:
    with pytest.raises(ShapeError, match=r"^batch: "):
        BatchRows().begin(torch.tensor(3))
