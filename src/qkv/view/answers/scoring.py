"""The steps from a query and its keys to their scores, in the precision that a reader sees."""

import torch
from torch import Tensor

from qkv.scores.base import Score
from qkv.scores.free import Learned
from qkv.scores.steps import steps
from qkv.view.answers.stage import Stage, stage_of

_CHUNK = 4_096


def scores(score: Score, query: Tensor, keys: Tensor) -> Tensor:
    """Compute the score of one query with every key, (K), a few keys at a time."""
    parts = [score(query[None], keys[at : at + _CHUNK])[0] for at in range(0, len(keys), _CHUNK)]
    return torch.cat(parts) if parts else query.new_zeros(0)


def wide(score: Score, x: Tensor) -> Tensor:
    """Compute in float64, except for user-defined functions, which get their own dtype."""
    return x if isinstance(score, Learned) else x.double()


def score_stages(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    """Return the stages of the score of one query with some keys; the last stage is the score.

    Args:
        score: the score of one head.
        query: (D).
        keys: (n, E).

    Returns:
        The stages.

    Example:
        >>> from qkv.scores.products import ScaledDot
        >>> [stage.symbol for stage in score_stages(ScaledDot(), torch.ones(4), torch.ones(2, 4))]
        ['q·k', 's']
    """
    return [stage_of(step) for step in steps(score, wide(score, query), wide(score, keys))]
