"""The encoder of a pointer network: numbers in any unit, words, padding, and steps that say what all at once says."""

import pytest
import torch

from qkv.errors import ConfigError, ShapeError
from qkv.models.configs.pointer import PointerConfig
from qkv.models.pointer import END, ElementEncoder, PointerNetwork
from qkv.nn.pointer import Pointer

SIZES = {"width": 8, "attention": 8, "layers": 2}
ENCODERS = ("transformer", "lstm", "gru", "rnn")


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("elements", ["numbers", "words"])
def test_steps_say_what_all_at_once_says(encoder: str, elements: str) -> None:
    torch.manual_seed(0)
    config = PointerConfig(features=5, decoder="gru", elements=elements, model=encoder, **SIZES)  # type: ignore[arg-type]
    model = PointerNetwork(config).double().eval()
    given = torch.randint(0, 5, (3, 4)) if elements == "words" else torch.rand(3, 4, 5, dtype=torch.float64)
    target = torch.tensor([[END, 2, 4], [END, 3, 1], [END, 1, END]])
    together = model(given, torch.tensor([4, 3, 1]), target)
    state = model.start(given, torch.tensor([4, 3, 1]))
    for place, tokens in enumerate(target.unbind(1)):
        found, state = model.step(tokens, state)
        torch.testing.assert_close(found, together[:, place])


@pytest.mark.parametrize("encoder", ENCODERS)
def test_padding_changes_nothing(encoder: str) -> None:
    torch.manual_seed(0)
    config = PointerConfig(features=2, model=encoder, **SIZES)  # type: ignore[arg-type]
    model = ElementEncoder(config).double().eval()
    x = torch.rand(2, 6, 2, dtype=torch.float64)
    x[1, 4:] = torch.nan
    states, summary = model(x, torch.tensor([6, 4]))
    alone, its = model(x[1:, :4], torch.tensor([4]))
    torch.testing.assert_close(states[1, :4], alone[0])
    torch.testing.assert_close(summary[1], its[0])
    assert (states[1, 4:] == 0).all()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_unit_of_numbers_does_not_matter(encoder: str) -> None:
    x, lengths, found = torch.rand(2, 5, 2, dtype=torch.float64), torch.tensor([5, 5]), []
    for unit in (1.0, 1000.0):
        torch.manual_seed(0)
        model = ElementEncoder(PointerConfig(features=2, model=encoder, **SIZES)).double().eval()  # type: ignore[arg-type]
        numbers = (x * unit).flatten(0, 1)
        model.standardize(numbers.mean(0), numbers.std(0))
        found.append(model(x * unit, lengths)[0])
        assert "mean" in model.state_dict(), "a checkpoint knows the unit"
    torch.testing.assert_close(found[0], found[1])


def test_a_feature_without_spread_stays_finite() -> None:
    model = ElementEncoder(PointerConfig(features=2, model="transformer", **SIZES))  # type: ignore[arg-type]
    model.standardize(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 0.0]))
    assert model(torch.full((1, 3, 2), 5.0), torch.tensor([3]))[0].isfinite().all()
    with pytest.raises(ShapeError, match=r"mean: expected \(2,\), one number per feature"):
        model.standardize(torch.ones(3), torch.ones(2))


def test_heads_divide_the_width() -> None:
    with pytest.raises(ConfigError, match=r"heads: expected a divisor of width; got 3 heads for width 8"):
        PointerConfig(features=2, model="transformer", width=8, heads=3)


@pytest.mark.parametrize("score", ["additive", "bilinear", "dot", "scaled_dot", "cosine", "squared_distance"])
def test_weights_are_probabilities_under_every_score(score: str) -> None:
    pointer = Pointer(4, 4, 3, score)
    _, chances = pointer(torch.randn(2, 3, 4) * 30, torch.randn(2, 5, 4) * 30)
    torch.testing.assert_close(chances.sum(-1), torch.ones(2, 3))


@pytest.mark.parametrize(("score", "message"), [("boxcar", "a score whose softmax"), ("cosine", "equal widths")])
def test_scores_that_cannot_point_are_named(score: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pointer(4, 5, 3, score)
