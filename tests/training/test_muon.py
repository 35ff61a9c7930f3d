"""Muon: its effect on matrices; the other parameters move as with AdamW."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from qkv.training import muon
from qkv.training.muon import Muon, orthogonalized
from qkv.training.optimizer import build_optimizer, optimizer_state, set_optimizer_state
from qkv.training_settings import Settings


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 99))
def test_singular_vectors_stay_and_values_come_near_one(rows: int, columns: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    left, _ = torch.linalg.qr(torch.randn(rows, rows, generator=random, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(columns, columns, generator=random, dtype=torch.float64))
    rank = min(rows, columns)
    values = torch.linspace(0.2, 1.0, rank, dtype=torch.float64)
    matrix = left[:, :rank] * values @ right[:, :rank].mT
    found = left[:, :rank].mT @ orthogonalized(matrix[None])[0] @ right[:, :rank]
    assert (found - found.diagonal().diag()).abs().max() < 1e-9
    assert ((found.diagonal() > 0.6) & (found.diagonal() < 1.3)).all()


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("shape", [(3, 48, 48), (2, 96, 32), (1, 20, 300)])
def test_in_bfloat16_too_values_come_near_one(
    shape: tuple[int, ...], narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "_multiplies_bfloat16", lambda: narrow)
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found, wide = orthogonalized(matrices), orthogonalized(matrices.double())
    assert found.dtype == torch.float32
    assert torch.equal(found, found.bfloat16().float()) == narrow
    apart = torch.linalg.matrix_norm(found - wide, ord=2).max()
    assert apart < (0.06 if narrow else 1e-4), "the largest change of any vector of length one"


def test_a_gradient_of_zero_moves_nothing() -> None:
    assert not orthogonalized(torch.zeros(2, 3, 4)).any()


def test_what_is_no_matrix_moves_as_with_adamw() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, name in zip(models, ("adamw", "muon"), strict=True):
        optimizer = build_optimizer(model, Settings(optimizer=name, learning_rate=0.01))  # type: ignore[arg-type]
        for seed in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            optimizer.step()
    for (name, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other) == (name != "2.weight"), name


def test_a_step_on_a_matrix_has_the_size_of_a_step_of_adamw() -> None:
    weight = nn.Parameter(torch.zeros(64, 32))
    weight.grad = torch.randn(64, 32)
    Muon({"params": [weight], "weight_decay": 0.0}, [], lr=0.01).step()
    assert 0.1 < weight.square().mean().sqrt().item() / 0.01 < 0.4, "some 0.2 learning rates for each number"


def test_its_state_goes_through_a_checkpoint() -> None:
    torch.manual_seed(0)
    settings = Settings(optimizer="muon", learning_rate=0.01)
    model, again = (nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)) for _ in range(2))
    optimizer = build_optimizer(model, settings)
    _update(model, optimizer, 0)
    again.load_state_dict(model.state_dict())
    restored = build_optimizer(again, settings)
    set_optimizer_state(again, restored, optimizer_state(model, optimizer))
    _update(model, optimizer, 1)
    _update(again, restored, 1)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    optimizer.step()


def test_an_unknown_optimizer_gives_the_nearest() -> None:
    with pytest.raises(ValueError, match='Did you mean "muon"'):
        Settings(optimizer="moun")  # type: ignore[arg-type]
