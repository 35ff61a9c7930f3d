"""Features of a source as a second source: symbols after a mark, read by a separate attention."""

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.errors import ConfigError, setting


class Sides(NamedTuple):
    """The two parts of a batch of sources.

    Attributes:
        lengths: symbols before the mark, (B,).
        features: which positions hold features, bool (B, S).
    """

    lengths: Tensor
    features: Tensor


def split_source(ids_BS: Tensor, lengths: Tensor, mark: int) -> Sides:
    """Split sources at the last mark of each row; a row without one has no features.

    Args:
        ids_BS: (B, S), int64.
        lengths: real positions, (B,).
        mark: the id between a source and its features.

    Example:
        >>> sides = split_source(torch.tensor([[5, 6, 4, 7], [5, 6, 7, 0]]), torch.tensor([4, 3]), mark=4)
        >>> sides.lengths.tolist(), sides.features.int().tolist()
        ([2, 3], [[0, 0, 0, 1], [0, 0, 0, 0]])
    """
    indices = torch.arange(ids_BS.shape[1], device=ids_BS.device)
    real = indices < lengths[:, None]
    last = torch.where((ids_BS == mark) & real, indices, -1).amax(1)
    before = torch.where(last < 0, lengths, last)
    return Sides(before, (indices > before[:, None]) & real)


def expect_attention_for_features(score: str) -> None:
    """Refuse features as a second source where the first is not attended to.

    Raises:
        ConfigError: the score is "none".
    """
    if score == "none":
        hint = f"Choose a score, or {setting('features', 'front')}."
        raise ConfigError("model.score", "an attention beside that over features", '"none"', hint)
