"""A recurrent layer on top of an attention to the layer below: equation, causality, split states."""

import pytest
import torch

from qkv.errors import ConfigError
from qkv.masks.patterns import lengths
from qkv.nn.recurrent.lower import RecurrentSelfAttention


@pytest.mark.parametrize("memory", ["whole", "split"])
def test_the_context_is_its_equation(memory: str) -> None:
    torch.manual_seed(0)
    layer = RecurrentSelfAttention(6, 5, memory=memory).double()  # type: ignore[arg-type]
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    key, value = x.chunk(2, -1) if memory == "split" else (x, x)
    scores = layer.score(key, key).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    context = scores.softmax(-1) @ value
    torch.testing.assert_close(layer(x), layer.recurrent(torch.cat([x, context], -1))[0])


@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
def test_a_state_does_not_see_what_follows(cell: str) -> None:
    torch.manual_seed(0)
    layer = RecurrentSelfAttention(4, 3, cell, "scaled_dot").double()  # type: ignore[arg-type]
    x = torch.randn(1, 6, 4, dtype=torch.float64)
    later = x.clone()
    later[:, 4:] = 9
    torch.testing.assert_close(layer(x)[:, :4], layer(later)[:, :4])


def test_another_mask_may_be_given() -> None:
    layer = RecurrentSelfAttention(4, 3).eval()
    x = torch.randn(2, 5, 4)
    assert not torch.allclose(layer(x)[:, 0], layer(x, lengths(torch.tensor([5, 2])))[:, 0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cell": "grv"}, 'Did you mean "gru"?'),
        ({"memory": "splt"}, 'Did you mean "split"?'),
        ({"memory": "split", "width": 5}, "width: expected an even width"),
    ],
)
def test_bad_settings_are_named(given: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as raised:
        RecurrentSelfAttention(**{"width": 4, "hidden": 3, **given})
    assert message in str(raised.value)
