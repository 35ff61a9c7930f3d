"""Scores with a learned bandwidth or learned vectors: their parameters learn, per head, through every backend."""

import pytest
import torch

import qkv
from qkv.errors import ConfigError
from qkv.nn.distance_scores import ConcatScore, KernelScore
from qkv.nn.scores import ScoreModule


@pytest.mark.parametrize(
    "score",
    [
        KernelScore("gaussian", 1.5),
        KernelScore("squared_distance", 0.7, heads=2),
        KernelScore("epanechnikov", 4.0, heads=2),
        ConcatScore(3, 3),
        ConcatScore(3, 3, "leaky_relu", heads=2),
    ],
)
def test_parameters_get_the_gradients_of_finite_differences(score: ScoreModule) -> None:
    torch.manual_seed(0)
    score.double()
    query, key, value = torch.randn(3, 1, 2, 4, 3, dtype=torch.float64).unbind()
    names = [name for name, _ in score.named_parameters()]

    def run(*parameters: torch.Tensor) -> torch.Tensor:
        values = dict(zip(names, parameters, strict=True))
        made = torch.func.functional_call(_Value(score), {f"score.{name}": x for name, x in values.items()}, (query,))
        return qkv.attention(query, key, value, score=made)

    assert torch.autograd.gradcheck(run, tuple(score.parameters()))


class _Value(torch.nn.Module):
    """Builds the score's value under given parameters."""

    def __init__(self, score: ScoreModule) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: torch.Tensor) -> qkv.scores.Score:
        return self.score.value()


def test_a_bandwidth_is_found_by_gradient() -> None:
    torch.manual_seed(0)
    key = torch.linspace(0, 5, 200)[:, None]
    truth = torch.sin(2 * key)
    value = truth + 0.2 * torch.randn_like(key)
    score = KernelScore("gaussian", bandwidth=2.0)
    optimizer = torch.optim.Adam(score.parameters(), lr=0.05)
    errors = []
    for _ in range(60):
        error = (qkv.attention(key, key, value, score=score.value()) - truth).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < errors[0] / 10
    assert 0.05 < score.log_bandwidth.exp().item() < 0.5


def test_boxcar_bandwidth_gets_zero_gradient() -> None:
    score = KernelScore("boxcar", heads=2)
    query = torch.randn(1, 2, 5, 3)
    qkv.attention(query, query, query.clone().requires_grad_(), score=score.value()).sum().backward()
    assert score.log_bandwidth.grad is None or not score.log_bandwidth.grad.any()


def test_unknown_names_give_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'kernel: .*"gausian".* Did you mean "gaussian"'):
        KernelScore("gausian")
    with pytest.raises(ConfigError, match=r"bandwidth: .*above 0"):
        KernelScore("gaussian", bandwidth=-1.0)
    with pytest.raises(ConfigError, match="activation"):
        ConcatScore(3, 3, "rleu")  # type: ignore[arg-type]
