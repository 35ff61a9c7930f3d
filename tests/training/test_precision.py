import time

import pytest
import torch
from tests.training.parts import ShiftTask, fresh
from torch import nn

from qkv.training.precision import choose, computing


class Slow(ShiftTask):
    """Slow in one precision, like a machine without support for it, by a clock that only its batches advance."""

    def __init__(self, model: nn.Module, slow: bool) -> None:
        super().__init__(model)
        self.slow, self.now = slow, 0.0

    def objective(self, model, batch):
        self.now += 3.0 if torch.is_autocast_enabled("cpu") == self.slow else 1.0
        return super().objective(model, batch)


@pytest.mark.parametrize(("slow", "expected"), [(True, "float32"), (False, "bfloat16")])
def test_the_faster_one_is_chosen_and_said(slow, expected, monkeypatch):
    said: list[str] = []
    task = Slow(fresh().model, slow)
    monkeypatch.setattr(time, "perf_counter", lambda: task.now)
    assert choose(task, task.model, [[0, 1], [2, 3]], said.append) == expected
    assert len(said) == 1
    assert said[0].endswith(f"training in {expected}.")


def test_measuring_changes_nothing():
    task = fresh()
    task.model.train()
    before = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    choose(task, task.model, [[0, 1]], lambda _: None)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in task.model.state_dict().items())
    assert all(parameter.grad is None for parameter in task.model.parameters())


def test_bfloat16_computes_in_it_and_leaves_weights_alone():
    model = nn.Linear(2, 2)
    with computing("bfloat16", torch.device("cpu")):
        assert model(torch.ones(1, 2)).dtype == torch.bfloat16
    with computing("float32", torch.device("cpu")):
        assert model(torch.ones(1, 2)).dtype == torch.float32
    assert model.weight.dtype == torch.float32
