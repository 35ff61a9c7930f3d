"""Copying: probabilities over the vocabulary and over the source's own words, mixed into one."""

from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, error_message, nearest
from qkv.masks.patterns import Lengths
from qkv.nn.attention import Attention
from qkv.nn.scores import build_score, xavier_uniform
from qkv.normalizers.row_state import RowState

Mixing = Literal["joint", "mixture"]
MIXINGS = ("joint", "mixture")


class Copyable(NamedTuple):
    """What can be copied; B rows.

    Attributes:
        key: source positions as the score wants them (B, S, F).
        ids: the source's tokens (B, S), int64; from N on they are words that the vocabulary lacks.
        lengths: real source positions (B,); None where there is no padding.
        extra: how many words each row has that the vocabulary lacks (B,).
        most: the largest of them in the batch.
    """

    key: Tensor
    ids: Tensor
    lengths: Tensor | None
    extra: Tensor
    most: int

    def select(self, rows: Tensor) -> "Copyable":
        """Take rows of the batch: fewer, repeated or reordered."""
        lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        key, ids, extra = (part.index_select(0, rows) for part in (self.key, self.ids, self.extra))
        return Copyable(key, ids, lengths, extra, self.most)


@final
class CopyHead(nn.Module):
    """p(w) = g · p_vocabulary(w) + (1 − g) · Σ_{j: x_j = w} α_j, with α the attention over the source x.

    | mixing | g |
    |---|---|
    | "joint" | Z_v / (Z_v + Z_s): one softmax over the scores of vocabulary and source together |
    | "mixture" | σ(w·h + b), a learned switch |

    Z_v and Z_s are the sums of the exponentials of either; log Z_s is the row state of the source's attention.

    Args:
        vocabulary: N.
        query_width: M, of the decoder's states h.
        key_width: E, of the encoder's states.
        hidden: A, the width of the additive score.
        mixing: how g comes about.
        score: how the decoder's state finds a word to copy.

    Raises:
        ConfigError: an unknown name, or widths that the score cannot relate.

    Source: Gu et al. 2016, "Incorporating Copying Mechanism in Sequence-to-Sequence Learning", eq. 4 to 6 (joint);
        See et al. 2017, "Get To The Point", eq. 8 and 9 (mixture).

    Example:
        >>> head = CopyHead(vocabulary=10, query_width=4, key_width=6, hidden=8)
        >>> source = head.remember(torch.randn(2, 5, 6), torch.tensor([[4, 5, 10, 6, 11], [4, 4, 10, 0, 0]]), None)
        >>> logarithms = head(torch.randn(2, 3, 10), torch.randn(2, 3, 4), source)
        >>> logarithms.shape, bool((logarithms.exp().sum(-1) - 1).abs().max() < 1e-5)
        (torch.Size([2, 3, 12]), True)
    """

    def __init__(
        self,
        vocabulary: int,
        query_width: int,
        key_width: int,
        hidden: int,
        mixing: Mixing = "mixture",
        score: str = "additive",
    ) -> None:
        super().__init__()
        if mixing not in MIXINGS:
            raise ConfigError(
                error_message("mixing", '"joint" or "mixture"', f'"{mixing}"', nearest(str(mixing), MIXINGS))
            )
        self.vocabulary, self.mixing = vocabulary, mixing
        self.score = build_score(score, query_width, key_width, hidden=hidden)
        self.attention = Attention(also="state")
        self.switch = nn.Linear(query_width, 1) if mixing == "mixture" else None
        if self.switch is not None:
            xavier_uniform(self.switch.weight)
            nn.init.zeros_(self.switch.bias)

    def remember(self, states: Tensor, ids: Tensor, lengths: Tensor | None) -> Copyable:
        """Prepare a source, once for all steps.

        Args:
            states: of the encoder (B, S, E).
            ids: the source's tokens (B, S), int64; word N + i is the i-th that the vocabulary lacks in its row.
            lengths: real positions (B,); None where there is no padding.

        Returns:
            What can be copied.
        """
        real = ids if lengths is None else torch.where(_before(lengths, ids), ids, 0)
        extra = (real.amax(1) + 1 - self.vocabulary).clamp(min=0)
        return Copyable(self.score.project_key(states), real, lengths, extra, int(extra.max()) if len(extra) else 0)

    def forward(self, logits: Tensor, states: Tensor, source: Copyable) -> Tensor:
        """Mix.

        Args:
            logits: of the vocabulary, before the softmax (B, T, N).
            states: of the decoder, h (B, T, M).
            source: from `remember`.

        Returns:
            Logarithms of probabilities (B, T, N + X), X the most words that a row's source has beyond the vocabulary;
            −inf for words that are another row's.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        copied, state = self.attend(states, source)
        generate = self.share(logits, states, state)[..., None]
        chances = nn.functional.pad(generate * logits.softmax(-1), (0, source.most))
        places = source.ids[:, None].expand(-1, logits.shape[1], -1)
        chances = chances.scatter_add(-1, places, (1 - generate) * copied.to(chances.dtype))
        # A probability below the least normal number is rounding: its logarithm must stay finite for the loss.
        logarithms = chances.clamp(min=torch.finfo(chances.dtype).tiny).log()
        if not source.most:
            return logarithms
        beyond = torch.arange(source.most, device=logits.device) >= source.extra[:, None]
        other = nn.functional.pad(beyond, (self.vocabulary, 0))
        return logarithms.masked_fill(other[:, None], -torch.inf)

    def attend(self, states: Tensor, source: Copyable) -> tuple[Tensor, RowState]:
        """Where each state would copy from: α (B, T, S), and the row state.

        The values are the positions themselves, one-hot: what is attended to is then the weights.
        """
        rows, size = source.ids.shape
        positions = torch.eye(size, dtype=source.key.dtype, device=source.key.device).expand(rows, -1, -1)
        mask = None if source.lengths is None else Lengths(source.lengths)
        query = self.score.project_query(states)
        copied, state = self.attention(query, source.key, positions, score=self.score.projected(), mask=mask)
        return copied, state

    def share(self, logits: Tensor, states: Tensor, state: RowState) -> Tensor:
        """g (B, T): how much is generated; all of it where there is nothing to copy."""
        if self.switch is None:
            return torch.sigmoid(logits.logsumexp(-1) - state.lse)
        switched: Tensor = self.switch(states)[..., 0].to(logits.dtype)
        return torch.where(state.lse == -torch.inf, 1.0, torch.sigmoid(switched))


def _before(lengths: Tensor, ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
