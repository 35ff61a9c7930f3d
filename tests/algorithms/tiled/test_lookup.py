"""Backend `lookup` against `reference`, with ties, rows that see nothing, scores of −inf and NaN."""

import pytest
import torch
from torch import Tensor

import qkv
from qkv.algorithms.tiled import lookup
from qkv.engine import tiles
from qkv.errors import UnsupportedError
from qkv.masks import causal, lengths, window
from qkv.normalizers import Hard
from qkv.scores import Additive, Gaussian, ScaledDot, SquaredDistance

B, H, Q, K, D, V = 2, 3, 11, 13, 5, 4
MASKS = {
    "none": None,
    "causal": causal(),
    "lengths": lengths(torch.tensor([K, 4]), torch.tensor([0, Q])),
    "offsets": causal(torch.tensor([-3, 6])),
    "either": window(1, 0) | lengths(torch.tensor([2, 0])),
    "dense": torch.arange(Q * K).view(Q, K) % 3 == 0,
}
by_mask = pytest.mark.parametrize("mask", MASKS)


@pytest.fixture(params=["one tile", "many tiles"], autouse=True)
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many tiles":
        monkeypatch.setattr(tiles, "CACHED", tiles.TileSize(24, 2))
        monkeypatch.setattr(tiles, "MAX_SCORES", 64)
        monkeypatch.setattr(lookup, "MAX_MATRIX", 0)


def inputs() -> list[Tensor]:
    shapes = ((B, H, Q, D), (B, H, K, D), (B, H, K, V))
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def same(leaves: list[Tensor], **given: object) -> None:
    """Outputs and gradients are equal."""
    answers = []
    for backend in ("reference", "lookup"):
        output = qkv.attention(*leaves, normalizer=Hard(), backend=backend, **given)
        answers.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got, expected)


@by_mask
@pytest.mark.parametrize(
    "score", [ScaledDot(), SquaredDistance(2.0), Gaussian(1.5), Additive(torch.ones(D, dtype=torch.float64))], ids=repr
)
def test_one_value_is_read(mask: str, score: qkv.scores.Score) -> None:
    same(inputs(), mask=MASKS[mask], score=score)


@by_mask
def test_ties_go_to_the_first_key(mask: str) -> None:
    query, key, value = inputs()
    same([query.detach().round().requires_grad_(), key.detach().sign().requires_grad_(), value], mask=MASKS[mask])


@by_mask
def test_a_bias_may_hide_keys_and_whole_rows(mask: str) -> None:
    bias = torch.where(torch.rand(Q, K) < 0.5, 0.0, -torch.inf).double()
    bias[3] = -torch.inf
    same(inputs(), bias=bias, mask=MASKS[mask])


@by_mask
def test_visible_nan_stays_in_its_rows(mask: str) -> None:
    leaves = [x.detach() for x in inputs()]
    leaves[0][1, 1, 4, 2] = torch.nan
    outputs = [
        qkv.attention(*leaves, normalizer=Hard(), mask=MASKS[mask], backend=backend)
        for backend in ("reference", "lookup")
    ]
    torch.testing.assert_close(*outputs, equal_nan=True)


def test_values_broadcast_over_heads_and_their_gradients_add_up() -> None:
    query, key, value = inputs()
    same([query, key, value[:, :1].detach().requires_grad_()])


def test_its_state_is_the_largest_score() -> None:
    leaves = [x.detach() for x in inputs()]
    states = [
        qkv.attention_with_state(*leaves, normalizer=Hard(), mask=MASKS["offsets"], backend=backend)[1].value
        for backend in ("reference", "lookup")
    ]
    torch.testing.assert_close(*states)


def test_auto_reads_values_instead_of_weighing_them() -> None:
    assert qkv.explain(*torch.randn(3, 1, 8, 300, 64).unbind(), normalizer=Hard()).backend == "lookup"


def test_a_gradient_of_the_largest_score_is_left_to_others() -> None:
    with pytest.raises(UnsupportedError, match="the largest score would need a gradient"):
        qkv.attention_with_state(*inputs(), normalizer=Hard(), backend="lookup")
