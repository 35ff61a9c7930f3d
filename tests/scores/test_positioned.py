"""A score with a bias from positions: it is there in every tile, the smallest too, and knows where the tile lies."""

import torch

from qkv.scores.positioned import Positioned, with_positions
from qkv.scores.products import Dot

SCORE = Positioned(Dot(), lambda query, key: 10.0 + (query - key))


def test_a_tile_of_one_pair_has_its_bias() -> None:
    x = with_positions(torch.ones(1, 2))
    assert SCORE(x, x).tolist() == [[12.0]]


def test_a_tile_has_the_bias_of_its_place_in_the_whole() -> None:
    x = with_positions(torch.ones(7, 2))
    assert torch.equal(SCORE(x[2:4], x[5:]), SCORE(x, x)[2:4, 5:])
    assert SCORE(x, x)[2, 5].item() == 2 + 10 - 3


def test_an_empty_tile_is_empty() -> None:
    x = with_positions(torch.ones(3, 2))
    assert SCORE(x[:0], x).shape == (0, 3)
    assert SCORE(x, x[:0]).shape == (3, 0)
