"""Location-sensitive scores are the paper's equation, and every step reads the weights of the one before."""

import math

import pytest
import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.masks.patterns import Lengths
from qkv.nn.attention import Attention
from qkv.nn.location import LocationScore, LocationSteps


def made(reach: int = 2) -> LocationScore:
    torch.manual_seed(0)
    score = LocationScore(query_width=3, key_width=4, hidden=5, filters=2, reach=reach).double()
    torch.nn.init.normal_(score.bias)
    return score


def by_hand(score: LocationScore, s: Tensor, h_SE: Tensor, alignment: list[float]) -> list[float]:
    """Chorowski et al. 2015, eq. 8 and 9, one number after another."""
    v, w, u = score.vector.tolist(), score.query_weight.tolist(), score.location_weight.tolist()
    key, bias, filters = score.key_weight.tolist(), score.bias.tolist(), score.filters[:, 0].tolist()
    state, memory = s.tolist(), h_SE.tolist()
    reach, found = len(filters[0]) // 2, []
    for j, h in enumerate(memory):
        f = [
            sum(row[d + reach] * alignment[j + d] for d in range(-reach, reach + 1) if 0 <= j + d < len(memory))
            for row in filters
        ]
        e = 0.0
        for a in range(len(v)):
            inside = sum(x * y for x, y in zip(w[a], state, strict=True))
            inside += sum(x * y for x, y in zip(key[a], h, strict=True))
            inside += sum(x * y for x, y in zip(u[a], f, strict=True))
            e += v[a] * math.tanh(inside + bias[a])
        found.append(e)
    return found


@pytest.mark.parametrize("reach", [0, 1, 2, 5])
def test_scores_are_those_of_a_literal_loop(reach: int) -> None:
    score = made(reach)
    s, h, alignment = torch.randn(2, 3).double(), torch.randn(2, 6, 4).double(), torch.rand(2, 6).double()
    found = score(score.project_query(s), score.project_key(h), alignment)
    expected = [by_hand(score, *row) for row in zip(s, h, alignment.tolist(), strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_features_are_a_convolution_with_zeros_beyond_the_ends() -> None:
    score = made()
    alignment = torch.rand(3, 7).double()
    expected = torch.nn.functional.conv1d(alignment[:, None], score.filters, padding="same").transpose(1, 2)
    assert torch.equal(score.features(alignment), expected)


def test_each_step_reads_the_weights_of_the_one_before_it() -> None:
    score, attention = made(), Attention(also="weights")
    h, queries, lengths = torch.randn(2, 6, 4).double(), torch.randn(2, 3, 3).double(), torch.tensor([6, 4])
    keys = score.project_key(h)
    steps = LocationSteps(attention, score, Lengths(lengths), keys, h, score.first_alignment(keys))
    contexts = steps(queries)
    for row, length in enumerate(lengths.tolist()):
        weights = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        for step in range(3):
            scores = by_hand(score, queries[row, step], h[row], weights)
            powers = [math.exp(e) for e in scores[:length]]
            weights = [power / sum(powers) for power in powers] + [0.0] * (6 - length)
            expected = (torch.tensor(weights, dtype=torch.float64)[:, None] * h[row]).sum(0)
            torch.testing.assert_close(contexts[row, step], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(steps.alignment[row], torch.tensor(weights, dtype=torch.float64))


def test_each_head_is_a_score_of_its_own() -> None:
    """Steps of several heads equal those of one head with its part of the parameters."""
    torch.manual_seed(1)
    heads = LocationScore(query_width=3, key_width=4, hidden=5, filters=2, reach=2, heads=3).double()
    torch.nn.init.normal_(heads.bias)
    h, values = torch.randn(2, 6, 4).double(), torch.randn(2, 3, 6, 2).double()
    queries, attention, mask = torch.randn(2, 4, 3).double(), Attention(also="weights"), Lengths(torch.tensor([6, 4]))
    keys = heads.project_key(h)
    steps = LocationSteps(attention, heads, mask, keys, values, heads.first_alignment(keys))
    contexts = steps(queries)
    for head in range(3):
        one = made()
        for name, parameter in one.named_parameters():
            own = heads.get_parameter(name)
            parameter.data = own.unflatten(0, (3, 2))[head].data if name == "filters" else own[head].data
        alone_keys = one.project_key(h)
        alone = LocationSteps(attention, one, mask, alone_keys, values[:, head], one.first_alignment(alone_keys))
        torch.testing.assert_close(contexts[:, head], alone(queries), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(steps.alignment[:, head], alone.alignment, rtol=1e-12, atol=1e-12)


def test_gradients_reach_every_parameter_through_the_steps() -> None:
    score, attention = made(), Attention(also="weights")
    h, queries = torch.randn(2, 5, 4).double(), torch.randn(2, 3, 3).double()
    names = [name for name, _ in score.named_parameters()]

    def run(*parameters: Tensor) -> Tensor:
        for name, parameter in zip(names, parameters, strict=True):
            delattr(score, name)
            setattr(score, name, parameter)
        keys = score.project_key(h)
        return LocationSteps(attention, score, None, keys, h, score.first_alignment(keys))(queries)

    given = [parameter.detach().clone().requires_grad_() for _, parameter in score.named_parameters()]
    assert torch.autograd.gradcheck(run, given)


def test_no_filters_are_refused() -> None:
    with pytest.raises(ConfigError, match="filters: expected a whole number from 1"):
        LocationScore(3, 4, 5, filters=0)
