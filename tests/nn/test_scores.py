"""Scores that own parameters: the projected form gives the same scores as the raw one."""

import pytest
import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.functional import attention
from qkv.nn.scores import AdditiveScore, BilinearScore, FixedScore, ScaledDotScore, ScoreModule, build_score
from qkv.scores.products import Cosine

NAMES = ["additive", "bilinear", "dot", "scaled_dot"]


def grouped(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // x.shape[-3], -3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("heads", "key_heads"), [(None, None), (4, 4), (4, 2)])
def test_projected_score_equals_the_raw_one(name: str, heads: int | None, key_heads: int | None) -> None:
    score = build_score(name, 6, 6, hidden=5, heads=heads, key_heads=key_heads).double()
    lead = () if heads is None else (heads,)
    key_lead = () if key_heads is None else (key_heads,)
    query = torch.randn(3, *lead, 4, 6, dtype=torch.float64)
    key, value = torch.randn(2, 3, *key_lead, 7, 6, dtype=torch.float64).unbind()
    options = {"enable_gqa": heads != key_heads}
    raw = attention(query, key, value, score=score.value(), **options)
    projected = attention(score.project_query(query), score.project_key(key), value, score=score.projected(), **options)
    torch.testing.assert_close(projected, raw, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("score", [AdditiveScore(3, 4, 5), BilinearScore(3, 4, scale=0.5)])
def test_parameters_get_their_gradients(score: ScoreModule) -> None:
    score.double()
    query = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    key = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in score.named_parameters()]

    def run(query: Tensor, key: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(score, given, (query, key)).softmax(-1)

    assert torch.autograd.gradcheck(run, (query, key, *score.parameters()))


def test_projected_keys_get_the_gradients_of_raw_ones() -> None:
    score = AdditiveScore(3, 4, 5).double()
    query = torch.randn(2, 1, 3, dtype=torch.float64)
    memory = torch.randn(2, 6, 4, dtype=torch.float64)
    whole = attention(query, memory, memory, score=score.value()).square().sum()
    expected = torch.autograd.grad(whole, list(score.parameters()))
    keys = score.project_key(memory)
    parts = attention(score.project_query(query), keys, memory, score=score.projected()).square().sum()
    for mine, theirs in zip(torch.autograd.grad(parts, list(score.parameters())), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_each_heads_matrix_is_drawn_by_its_own_sizes() -> None:
    score = AdditiveScore(100, 50, 200, heads=3)
    for weight, fans in ((score.query_weight, 300), (score.key_weight, 250), (score.vector, 201)):
        bound = (6 / fans) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound
        assert abs(weight.mean()) < 0.1 * bound


def test_a_fixed_score_carries_any_value() -> None:
    assert isinstance(FixedScore(Cosine()).value(), Cosine)


def test_softcap_bounds_the_scores() -> None:
    assert ScaledDotScore(softcap=2.0)(torch.full((1, 4), 9.0), torch.full((1, 4), 9.0)).item() == pytest.approx(2.0)


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'score: .* got "aditive"\. Did you mean "additive"\?'):
        build_score("aditive", 3, 3)


@pytest.mark.parametrize("name", ["dot", "scaled_dot"])
def test_products_of_unequal_widths_name_the_scores_that_serve(name: str) -> None:
    with pytest.raises(ConfigError, match=r'equal widths.*"bilinear" or "additive"'):
        build_score(name, 3, 4)
