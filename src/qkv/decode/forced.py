"""The log-probability of given targets, step by step by the same protocol as free decoding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.decode.likeliest import log_probability
from qkv.decode.protocol import Hypothesis, State, Stepper
from qkv.decode.walk import StepJournal
from qkv.errors import ShapeError


@torch.no_grad()
def forced(
    model: Stepper[State],
    source: Tensor,
    lengths: Tensor,
    targets: Sequence[Sequence[int]],
    *,
    bos: int,
    eos: int,
) -> list[Hypothesis]:
    """Score given targets, as `greedy` would report them if it had chosen them.

    Args:
        model: predicts the next token; a module should be in evaluation mode.
        source: token ids (B, S), int64.
        lengths: tokens in each row (B,), int64.
        targets: for each row the ids to score, without the begin mark; with the end token if it should count too.
        bos: the begin mark.
        eos: the end token.

    Returns:
        One hypothesis per row, with its target as ids.

    Raises:
        ShapeError: the number of targets is not the number of rows.
        QkvError: the model's scores are not numbers.

    Example:
        >>> class Even:  # four tokens, all as likely
        ...     def start(self, source, lengths, session=None):
        ...         return source
        ...     def step(self, tokens, state):
        ...         return torch.zeros(len(tokens), 4), state
        ...     def select(self, state, rows):
        ...         return state[rows]
        >>> source, lengths = torch.tensor([[5], [3]]), torch.tensor([1, 1])
        >>> [round(row.score, 2) for row in forced(Even(), source, lengths, [[2, 3, 1], [2]], bos=0, eos=1)]
        [-4.16, -1.39]
    """
    if len(targets) != source.shape[0]:
        raise ShapeError(
            "targets",
            f"one for each of {source.shape[0]} rows",
            f"{len(targets)}",
            "Give an empty target where a row has none.",
        )
    journal = StepJournal(rows=len(targets))
    counts = torch.tensor([len(ids) for ids in targets], dtype=torch.int64, device=source.device)
    if not counts.any():
        return journal.hypotheses(eos)
    state = model.start(source, lengths)
    rows = torch.arange(len(targets), device=source.device)
    tokens = torch.full_like(rows, bos)
    for step in range(int(counts.max())):
        active = (counts[rows] > step).nonzero().squeeze(1)
        if active.numel() < rows.numel():
            state = model.select(state, active)
            rows, tokens = rows[active], tokens[active]
        logits, state = model.step(tokens, state)
        tokens = torch.tensor([targets[row][step] for row in rows.tolist()], device=source.device)
        journal.note(rows, tokens, log_probability(logits, tokens))
    return journal.hypotheses(eos)
