"""A recurrent layer on top of an attention to the layer below: equation, causality, split states."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from qkv.errors import ConfigError, UnsupportedError
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


@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
def test_a_mapped_call_is_refused_with_what_to_do(cell: str) -> None:
    """PyTorch does not map its recurrent layers; other transformations work."""
    layer = RecurrentSelfAttention(4, 3, cell)  # type: ignore[arg-type]
    x, parameters = torch.randn(2, 1, 5, 4), dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        total: Tensor = functional_call(layer, parameters, (x,)).sum()
        return total

    several = {name: torch.stack([each, each]) for name, each in parameters.items()}
    with pytest.raises(UnsupportedError, match="x: expected tensors that no vmap maps"):
        vmap(layer)(x)
    with pytest.raises(UnsupportedError, match="x: expected tensors that no vmap maps"):
        vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    with pytest.raises(UnsupportedError, match="parameters: expected tensors that no vmap maps"):
        vmap(loss, in_dims=(0, None))(several, x[0])
    assert all(each.isfinite().all() for each in grad(loss)(parameters, x[0]).values())
