"""The non-local block matches its equations and keeps its promises."""

from typing import get_args

import pytest
import torch
from torch import nn

from qkv.errors import ConfigError, ShapeError
from qkv.nn.non_local import Form, NonLocalBlock


def _awake(channels: int, form: str, inner: int | None = None) -> NonLocalBlock:
    torch.manual_seed(0)
    block = NonLocalBlock(channels, inner, form).double()  # type: ignore[arg-type]
    nn.init.normal_(block.output.weight)
    return block


def _by_hand(block: NonLocalBlock, x: torch.Tensor) -> torch.Tensor:
    """Equations 1 to 7, pair by pair."""
    flat = x.flatten(2).mT
    theta = flat if block.theta is None else block.theta(flat)
    phi = flat if block.phi is None else block.phi(flat)
    if block.form == "concat":
        score = block.score.value()
        f = torch.relu((theta @ score.query_vector)[:, :, None] + (phi @ score.key_vector)[:, None])
    else:
        f = theta @ phi.mT
    weights = f / f.shape[-1] if block.form in ("dot", "concat") else f.exp() / f.exp().sum(-1, keepdim=True)
    return block.output(weights @ block.g(flat)).mT.reshape(x.shape) + x


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("shape", [(2, 4, 9), (2, 4, 3, 5), (1, 4, 2, 3, 2), (1, 4, 1)])
def test_each_form_is_its_equation(form: str, shape: tuple[int, ...]) -> None:
    block, x = _awake(4, form), torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(block(x), _by_hand(block, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", get_args(Form))
def test_a_new_block_changes_nothing(form: str) -> None:
    x = torch.randn(2, 6, 4, 4)
    assert torch.equal(NonLocalBlock(6, form=form)(x), x)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", get_args(Form))
def test_positions_may_come_in_any_order(form: str) -> None:
    block, x = _awake(4, form), torch.randn(1, 4, 12, dtype=torch.float64)
    order = torch.randperm(12)
    torch.testing.assert_close(block(x)[..., order], block(x[..., order]))


@pytest.mark.parametrize("form", get_args(Form))
def test_every_parameter_learns(form: str) -> None:
    block = _awake(4, form)
    block(torch.randn(2, 4, 6, dtype=torch.float64)).square().sum().backward()
    for name, parameter in block.named_parameters():
        # A softmax ignores a constant added to all scores of a row: φ's bias can have no effect.
        assert parameter.grad is not None, name


@pytest.mark.slow
def test_it_finds_what_a_small_convolution_cannot() -> None:
    """At the first pixel, tell which of two far corners is brighter."""
    torch.manual_seed(0)

    def train(middle: nn.Module) -> float:
        model = nn.Sequential(nn.Conv2d(2, 16, 1), middle, nn.Conv2d(16, 1, 1))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        right = 0.0
        for step in range(400):
            x = torch.randn(64, 1, 8, 8)
            place = torch.zeros(64, 1, 8, 8)
            place[:, :, 7, 7] = 1
            truth = (x[:, 0, 7, 7] > 0).float()
            found = model(torch.cat([x, place], 1))[:, 0, 0, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(found, truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += float(((found > 0) == (truth > 0)).float().mean()) if step >= 350 else 0
        return right / 50

    assert train(NonLocalBlock(16, 16)) > 0.95
    assert train(nn.Conv2d(16, 16, 3, padding=1)) < 0.65


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"channels": 4, "form": "gausian"}, 'Did you mean "gaussian"?'),
        ({"channels": 0}, "channels: expected a whole number from 1; got 0"),
        ({"channels": 4, "inner": 0}, "inner: expected a whole number from 1; got 0"),
    ],
)
def test_bad_settings_are_named(given: dict, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        NonLocalBlock(**given)
    assert message in str(raised.value)


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 5)])
def test_bad_shapes_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"x: expected shape \(B, 4, N\)"):
        NonLocalBlock(4)(torch.zeros(shape))
