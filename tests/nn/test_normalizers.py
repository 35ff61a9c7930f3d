"""Normalizers with parameters: each learns through every backend, and starts where it says."""

import pytest
import torch

import qkv
from qkv.errors import ConfigError
from qkv.nn.normalizers import LearnedEntmax, LearnedSigmoid, NormalizerModule, SinkSoftmax
from qkv.nn.scores import AdditiveScore


def modules(heads: int | None) -> list[NormalizerModule]:
    return [SinkSoftmax(heads), LearnedSigmoid(7, heads), LearnedEntmax(heads, 1.4)]


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("index", range(3))
def test_parameters_get_the_gradients_of_finite_differences(index: int, heads: int | None) -> None:
    torch.manual_seed(0)
    module = modules(heads)[index].double()
    query, key, value = torch.randn(3, 2, 2, 4, 3, dtype=torch.float64).unbind()
    (name, parameter), *more = module.named_parameters()
    assert not more

    def run(given: torch.Tensor, backend: str) -> torch.Tensor:
        weights = torch.func.functional_call(_Value(module), {f"module.{name}": given}, ())
        return qkv.attention(query, key, value, normalizer=weights, backend=backend)

    for backend in ("auto", "reference", "blocked"):
        assert torch.autograd.gradcheck(lambda given, backend=backend: run(given, backend), (parameter,))


class _Value(torch.nn.Module):
    """Builds the normalizer's value under given parameters."""

    def __init__(self, module: NormalizerModule) -> None:
        super().__init__()
        self.module = module

    def forward(self) -> qkv.normalizers.Normalizer:
        return self.module.value()


def test_each_head_has_its_own() -> None:
    module = SinkSoftmax(heads=2)
    with torch.no_grad():
        module.sink.copy_(torch.tensor([-torch.inf, 5.0]))
    weights = module(torch.zeros(2, 1, 4))
    torch.testing.assert_close(weights[0].sum(), torch.tensor(1.0))
    assert weights[1].sum() < 0.05


def test_alpha_starts_where_it_is_put_and_stays_between_softmax_and_sparsemax() -> None:
    module = LearnedEntmax(alpha=1.25)
    scores = torch.randn(3, 9)
    torch.testing.assert_close(module(scores), qkv.normalizers.Entmax(1.25)(scores))
    with torch.no_grad():
        module.logit.fill_(10.0)
    torch.testing.assert_close(module(scores), qkv.normalizers.Sparsemax()(scores), atol=1e-3, rtol=0)


def test_a_sink_learns_to_attend_to_nothing() -> None:
    """With additive scores, through the kernels used in training."""
    torch.manual_seed(0)
    score, module = AdditiveScore(4, 4, 8), SinkSoftmax()
    x = torch.randn(6, 5, 4)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.2)
    for _ in range(40):
        loss = qkv.attention(x, x, torch.ones(6, 5, 1), score=score.value(), normalizer=module.value()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert module.sink.item() > 2
    assert loss.item() < 0.5


def test_bad_starts_are_told() -> None:
    with pytest.raises(
        ConfigError, match=r"alpha: expected a number between 1 and 2; got 2\. For alpha = 1 use Softmax\(\)"
    ):
        LearnedEntmax(alpha=2.0)
    with pytest.raises(ConfigError, match="keys: expected a number from 1; got 0"):
        LearnedSigmoid(keys=0)
