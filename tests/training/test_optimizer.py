import pytest
import torch
from tests.training.parts import Shift
from torch import nn

from qkv.errors import CheckpointError, ConfigError
from qkv.training.optimizer import (
    build_optimizer,
    clip_gradient,
    optimizer_state,
    scale_gradient,
    set_optimizer_state,
    undecayed,
)
from qkv.training_settings import Settings


class Every(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.tied = nn.Linear(4, 5, bias=False)
        self.tied.weight = self.embedding.weight
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm((2, 4))
        self.gru = nn.GRU(4, 4)
        self.vector = nn.Parameter(torch.ones(4))
        self.frozen = nn.Parameter(torch.ones(4, 4), requires_grad=False)


def test_only_matrices_are_decayed():
    model = Every()
    decayed = {name for name, _ in model.named_parameters()} - undecayed(model)
    assert decayed == {"linear.weight", "gru.weight_ih_l0", "gru.weight_hh_l0", "frozen"}


def test_each_trained_parameter_is_in_one_group():
    model = Every()
    first, second = build_optimizer(model, Settings(weight_decay=0.3)).param_groups
    assert (first["weight_decay"], second["weight_decay"]) == (0.3, 0.0)
    identities = [id(parameter) for group in (first, second) for parameter in group["params"]]
    assert sorted(identities) == sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)
    assert len(first["params"]) == 3


def test_decay_shrinks_what_has_no_gradient_and_nothing_else():
    model = Every()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    build_optimizer(model, Settings(weight_decay=0.5, learning_rate=0.1)).step()
    shrunk = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert shrunk == {"linear.weight", "gru.weight_ih_l0", "gru.weight_hh_l0"}
    torch.testing.assert_close(model.linear.weight, before["linear.weight"] * 0.95)


def test_the_update_is_adamws():
    model = nn.Linear(3, 2)
    weight, decay, rate = model.weight.detach().clone().double(), 0.1, 0.01
    optimizer = build_optimizer(model, Settings(weight_decay=decay, learning_rate=rate, betas=(0.8, 0.9)))
    first, second = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    for step in range(1, 4):
        gradient = torch.randn(2, 3)
        model.weight.grad, model.bias.grad = gradient, torch.zeros(2)
        optimizer.step()
        first = 0.8 * first + 0.2 * gradient.double()
        second = 0.9 * second + 0.1 * gradient.double() ** 2
        step_size = (first / (1 - 0.8**step)) / ((second / (1 - 0.9**step)).sqrt() + 1e-9)
        weight = weight * (1 - rate * decay) - rate * step_size
    torch.testing.assert_close(model.weight.detach().double(), weight, rtol=1e-5, atol=1e-6)


def test_moments_go_by_name_and_come_back_exactly():
    models = [Shift(), Shift()]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [build_optimizer(model, Settings()) for model in models]

    def step(index: int, seed: int) -> None:
        torch.manual_seed(seed)
        models[index].zero_grad()
        models[index](torch.arange(1, 6)).square().sum().backward()
        optimizers[index].step()

    step(0, 1)
    state = optimizer_state(models[0], optimizers[0])
    assert "optimizer.exp_avg.hidden.weight" in state
    assert not any("output.weight" in name for name in state)
    models[1].load_state_dict(models[0].state_dict())
    set_optimizer_state(models[1], optimizers[1], state | {"random.torch": torch.ones(1)})
    for index in range(2):
        step(index, 2)
    for (name, first), second in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(first, second), name


def test_putting_moments_back_copies_them():
    model = nn.Linear(1, 1)
    optimizer = build_optimizer(model, Settings())
    state = {f"optimizer.{key}.weight": torch.ones(1, 1) for key in ("exp_avg", "exp_avg_sq")}
    state["optimizer.step.weight"] = torch.tensor(1.0)
    set_optimizer_state(model, optimizer, state)
    optimizer.state[model.weight]["exp_avg"] += 1
    assert state["optimizer.exp_avg.weight"].item() == 1


@pytest.mark.parametrize("name", ["optimizer.exp_avg.other", "optimizer.exp_avg.weight", "optimizer.x"])
def test_moments_that_fit_no_parameter_are_refused(name):
    model = nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="moments that fit the model; got"):
        set_optimizer_state(model, build_optimizer(model, Settings()), {name: torch.ones(3)})


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ConfigError, match="parameters to train; got none"):
        build_optimizer(nn.Tanh(), Settings())


def parameters(*gradients: list[float] | None) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(2)) for _ in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.tensor(gradient)
    return made


def test_a_long_gradient_is_shortened_over_all_parameters():
    ours = parameters([3.0, 0.0], None, [0.0, 4.0])
    assert clip_gradient(ours, 1.0) == pytest.approx(5.0)
    torch.testing.assert_close(ours[0].grad, torch.tensor([0.6, 0.0]), rtol=1e-5, atol=0)
    torch.testing.assert_close(ours[2].grad, torch.tensor([0.0, 0.8]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("limit", [0, 10.0])
def test_a_short_gradient_stays(limit):
    ours = parameters([3.0, 4.0])
    assert clip_gradient(ours, limit) == pytest.approx(5.0)
    assert ours[0].grad.tolist() == [3.0, 4.0]


def test_scaling_multiplies_every_gradient():
    ours = parameters([2.0, 4.0], None, [6.0, 8.0])
    scale_gradient(ours, 0.5)
    assert [parameter.grad.tolist() for parameter in (ours[0], ours[2])] == [[1.0, 2.0], [3.0, 4.0]]
