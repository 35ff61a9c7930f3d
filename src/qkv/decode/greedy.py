"""Greedy decoding: the likeliest token at each step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.decode.likeliest import likeliest
from qkv.decode.protocol import Hypothesis, State, Stepper
from qkv.decode.walk import as_never, walk
from qkv.linalg.session import DecodingSession


@torch.inference_mode()
def greedy(
    model: Stepper[State],
    source: Tensor,
    lengths: Tensor,
    *,
    bos: int,
    eos: int,
    limit: int | Tensor,
    never: Sequence[int] = (),
    session: DecodingSession | None = None,
) -> list[Hypothesis]:
    """Decode each row by its likeliest token at each step; of equally likely tokens the one with the lowest id.

    The ids of a row do not depend on the rest of the batch, its order or its padding, unless two scores differ by less
    than the rounding of the model's own products. Finished rows leave the batch.

    Args:
        model: predicts the next token; a module should be in evaluation mode.
        source: token ids (B, S), int64.
        lengths: tokens in each row (B,), int64.
        bos: the begin mark, the first token that the model is given.
        eos: the end token; a row that chooses it is finished.
        limit: the largest number of tokens, the end token included; one number, or one for each row (B,).
        never: ids that are never chosen, whatever their scores; log-probabilities stay those of the model. The end
            token may not be among them.
        session: keeps packed weights and memory for several decodings; None for this one alone.

    Returns:
        One hypothesis per row, in the order of the rows. It is unfinished if the row reached the limit, or if no token
        that may be chosen had any probability.

    Raises:
        ShapeError: `limit` has another shape.
        ConfigError: `never` holds the end token.
        QkvError: the model's scores are not numbers.

    Example:
        >>> class Counter:  # counts from the source's first id up to 6, then ends with id 1
        ...     def start(self, source, lengths, session=None):
        ...         return source[:, 0]
        ...     def step(self, tokens, state):
        ...         following = torch.where(state > 6, 1, state)
        ...         return torch.nn.functional.one_hot(following, 8) * 100.0, state + 1
        ...     def select(self, state, rows):
        ...         return state[rows]
        >>> source, lengths = torch.tensor([[5], [3]]), torch.tensor([1, 1])
        >>> [hypothesis.ids for hypothesis in greedy(Counter(), source, lengths, bos=0, eos=1, limit=3)]
        [(5, 6), (3, 4, 5)]
    """
    ruled_out = as_never(never, eos)

    def best(logits_RN: Tensor, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        tokens, gains = likeliest(logits_RN, 1, ruled_out)
        return tokens.squeeze(1), gains.squeeze(1)

    return walk(model, source, lengths, best, bos=bos, eos=eos, limit=limit, session=session)
