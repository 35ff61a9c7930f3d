"""A translator with hard monotonic attention sums over alignments, in one pass, step by step and on record."""

import itertools

import pytest
import torch
from tests.models.test_translators import BOS, EOS, MONOTONIC, batch, made
from torch import Tensor

from qkv.errors import ConfigError
from qkv.models.configs.translator import MonotonicConfig
from qkv.models.monotonic import MonotonicTranslator
from qkv.nn.monotonic import FirstOrder, ZerothOrder
from qkv.recording.recorder import record

both = pytest.mark.parametrize("kind", MONOTONIC, ids=["zeroth", "first"])
SOURCE, TARGET = [3, 4, 5], [BOS, 6, 7, 6]
ENDED = [*TARGET[1:], EOS]


def joint(model: MonotonicTranslator) -> dict[tuple[int, ...], Tensor]:
    """p(y, a | x) of every alignment, by the model's equation: factors from its parts, sums and products by hand."""
    state = model.start(*batch([SOURCE]))
    moves, emitted, _, _ = model._advance(torch.tensor([TARGET]), state)
    end = len(SOURCE)
    found = {}
    for path in itertools.combinations_with_replacement(range(end + 1), len(TARGET)):
        chance = torch.ones((), dtype=torch.float64)
        for step, (i, j) in enumerate(itertools.pairwise((0, *path))):
            if isinstance(moves, ZerothOrder):
                powers = moves.scores[0, step, i:].exp()
            else:
                assert isinstance(moves, FirstOrder)
                powers = moves.logits[0, step, i, : end + 1 - i].exp()
            chance = chance * powers[j - i] / powers.sum() * emitted[0, step, j, ENDED[step]].exp()
        found[path] = chance
    return found


@both
@torch.no_grad()
def test_probability_of_a_target_is_the_sum_over_its_alignments(kind: tuple[str, dict[str, str]]) -> None:
    model = made(kind)
    predicted = model(*batch([SOURCE]), torch.tensor([TARGET]))[0]
    total = predicted.gather(-1, torch.tensor(ENDED)[:, None]).sum()
    expected = torch.stack(list(joint(model).values())).sum().log()
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(predicted.exp().sum(-1), torch.ones(len(TARGET), dtype=torch.float64))


@both
@torch.no_grad()
def test_record_shows_the_posterior_of_the_alignments(kind: tuple[str, dict[str, str]]) -> None:
    model = made(kind)
    with record(model) as trace:
        recorded = model(*batch([SOURCE]), torch.tensor([TARGET]))
    assert torch.equal(recorded, model(*batch([SOURCE]), torch.tensor([TARGET]))), "recording changes no bit"
    weights = trace.weights(model.alignment_layer)[0]
    # The last step's token is not given: the alignments of the tokens before it are the same with any, so sum over it.
    expected = torch.zeros(len(TARGET), len(SOURCE) + 1, dtype=torch.float64)
    state = model.start(*batch([SOURCE]))
    _, emitted, _, _ = model._advance(torch.tensor([TARGET]), state)
    for path, chance in joint(model).items():
        share = chance / emitted[0, -1, path[-1], EOS].exp()
        for step, position in enumerate(path):
            expected[step, position] += share
    expected /= expected.sum(-1, keepdim=True)
    torch.testing.assert_close(weights, expected[:, :-1], rtol=0, atol=1e-10)


@both
@torch.no_grad()
def test_padding_of_targets_changes_no_posterior(kind: tuple[str, dict[str, str]]) -> None:
    model = made(kind)
    target = torch.tensor([[*TARGET, 0, 0], [BOS, 8, 9, 8, 9, 5]])
    with record(model) as trace:
        model(*batch([SOURCE, [7, 8, 9, 3, 4]]), target)
        model(*batch([SOURCE]), torch.tensor([TARGET]))
    together, alone = (one.calls[model.alignment_layer][0].weights() for one in trace.passes)
    torch.testing.assert_close(together[0, : len(TARGET), :3], alone[0], rtol=1e-10, atol=1e-12)


@both
@torch.no_grad()
def test_record_shows_the_prediction_in_steps(kind: tuple[str, dict[str, str]]) -> None:
    model = made(kind)
    state = model.start(*batch([SOURCE]))
    with record(model) as trace:
        for token in TARGET:
            _, state = model.step(torch.tensor([token]), state)
    _, _, ahead, _ = model._advance(torch.tensor([TARGET]), model.start(*batch([SOURCE])))
    torch.testing.assert_close(trace.weights(model.alignment_layer)[0], ahead[0, :, :-1].exp())


def test_settings_of_the_other_alignment_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'score: expected no score with "monotonic-1"'):
        MonotonicConfig(size=9, alignment="monotonic-1", score="additive")
    with pytest.raises(ConfigError, match=r'jumps: expected no jumps with "monotonic-0"'):
        MonotonicConfig(size=9, jumps=2)
    with pytest.raises(ConfigError, match='Did you mean "monotonic-1"'):
        MonotonicConfig(size=9, alignment="monotonic1")  # type: ignore[arg-type]
