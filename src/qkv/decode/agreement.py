"""Models that write left to right and models that write right to left decide together: each side proposes, both score.

An early mistake misleads one side, a late mistake the other; what both find likely is wrong less often.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from qkv.decode.forced import forced
from qkv.decode.protocol import Hypothesis, Stepper

_ROWS = 512
"""Proposals that are scored in one batch."""


@final
@dataclass(frozen=True, eq=False)
class Agreement:
    """Two models, or ensembles, of opposite directions over one vocabulary.

    Args:
        left_to_right: writes left to right.
        right_to_left: writes right to left.
        bos: the begin mark.
        eos: the end token.

    Source: Liu et al. 2016, "Agreement on Target-Bidirectional Neural Machine Translation", section 3.2.
    """

    left_to_right: Stepper[Any]
    right_to_left: Stepper[Any]
    bos: int
    eos: int

    def choose(
        self,
        source: Tensor,
        lengths: Tensor,
        left_to_right: Sequence[Sequence[Hypothesis]],
        right_to_left: Sequence[Sequence[Hypothesis]],
    ) -> list[list[Hypothesis]]:
        """Rank what both sides propose by the mean of both sides' log-probabilities.

        Args:
            source: token ids (B, S).
            lengths: (B,).
            left_to_right: for each row the proposals of the first model.
            right_to_left: for each row those of the second, as it wrote them: the last token first.

        Returns:
            For each row its different proposals in reading order, the best first. A score is the mean of both
            log-probabilities, end token included; a proposal is finished if one side ended it.
        """
        rows = [_proposals(ours, theirs) for ours, theirs in zip(left_to_right, right_to_left, strict=True)]
        rows_T = torch.tensor(
            [row for row, hypotheses in enumerate(rows) for _ in hypotheses], dtype=torch.int64, device=source.device
        )
        texts = [ids for hypotheses in rows for ids in hypotheses]
        scores = [
            score
            for first in range(0, len(texts), _ROWS)
            for score in self._scores(source, lengths, rows_T[first : first + _ROWS], texts[first : first + _ROWS])
        ]
        ranked: list[list[Hypothesis]] = [[] for _ in rows]
        for row, ids, score in zip(rows_T.tolist(), texts, scores, strict=True):
            ranked[row].append(Hypothesis(ids, score, rows[row][ids], ranked=score))
        # The sort is stable: of equal proposals, that of the first side stays first.
        return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in ranked]

    def _scores(self, source: Tensor, lengths: Tensor, rows_T: Tensor, texts: Sequence[tuple[int, ...]]) -> list[float]:
        sources, counts = source[rows_T], lengths[rows_T]
        targets = [[*ids, self.eos] for ids in texts], [[*reversed(ids), self.eos] for ids in texts]
        left_to_right, right_to_left = (
            forced(model, sources, counts, written, bos=self.bos, eos=self.eos)
            for model, written in zip((self.left_to_right, self.right_to_left), targets, strict=True)
        )
        return [(ours.score + theirs.score) / 2 for ours, theirs in zip(left_to_right, right_to_left, strict=True)]


def reversed_hypothesis(hypothesis: Hypothesis) -> Hypothesis:
    """Return the hypothesis of a model that writes right to left, in reading order.

    Example:
        >>> reversed_hypothesis(Hypothesis((7, 8, 9), -1.0)).ids
        (9, 8, 7)
    """
    return replace(hypothesis, ids=hypothesis.ids[::-1])


def _proposals(left_to_right: Sequence[Hypothesis], right_to_left: Sequence[Hypothesis]) -> dict[tuple[int, ...], bool]:
    """Return the proposals in reading order, each once, and whether a side ended it."""
    finished: dict[tuple[int, ...], bool] = {}
    for proposal in (*left_to_right, *map(reversed_hypothesis, right_to_left)):
        finished[proposal.ids] = finished.get(proposal.ids, False) or proposal.finished
    return finished
