"""Copying: probabilities over the vocabulary and over the words of the source, combined."""

from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn

from qkv.errors import ShapeError, expect_name
from qkv.masks.patterns import Lengths
from qkv.nn.attention import Attention
from qkv.nn.inputs import expect_input, expect_integers, expect_numbers, expect_sizes
from qkv.nn.scores import build_score, initialize_linear, score_of
from qkv.normalizers.row_state import RowState
from qkv.shapes import show
from qkv.values.checked import checked
from qkv.values.hooks import through_hooks
from qkv.values.rows import real_positions, select_rows

Mixing = Literal["joint", "mixture"]
_ROWS = "Each row of a batch has a source of its own."


class Copyable(NamedTuple):
    """The words that can be copied; B rows.

    Attributes:
        key: projected source positions (B, S, F).
        ids: the source's tokens (B, S), int64; ids from N on are out-of-vocabulary words.
        lengths: real source positions (B,); None if there is no padding.
        extra: number of out-of-vocabulary words of each row (B,).
        most: the maximum of `extra` over the batch.
    """

    key: Tensor
    ids: Tensor
    lengths: Tensor | None
    extra: Tensor
    most: int

    def select(self, rows: Tensor) -> "Copyable":
        """Select rows of the batch: fewer, repeated or reordered."""
        lengths = None if self.lengths is None else select_rows(self.lengths, rows)
        key, ids, extra = (select_rows(part, rows) for part in (self.key, self.ids, self.extra))
        return Copyable(key, ids, lengths, extra, self.most)


@checked
@final
class CopyHead(nn.Module):
    """p(w) = g · p_vocabulary(w) + (1 − g) · Σ_{j: x_j = w} α_j, with α the attention over the source x.

    | mixing | g |
    |---|---|
    | "joint" | Z_v / (Z_v + Z_s): one softmax over the scores of vocabulary and source together |
    | "mixture" | σ(w·h + b), a learned switch |

    Z_v and Z_s are the sums of the exponentials of each; log Z_s is the row state of the attention over the source.

    Args:
        vocabulary: N.
        query_width: M, width of the decoder's states h.
        key_width: E, width of the encoder's states.
        hidden: A, the width of the additive score.
        mixing: how g is computed.
        score: the score of decoder state and source word.

    Raises:
        ConfigError: a name is unknown, or the score does not support these widths.

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
        expect_sizes(vocabulary=vocabulary, query_width=query_width, key_width=key_width, hidden=hidden)
        self.widths = query_width, key_width
        self.vocabulary, self.mixing = vocabulary, expect_name("mixing", mixing, get_args(Mixing))
        self.score = build_score(score, query_width, key_width, hidden=hidden)
        self.attention = Attention(also="state")
        self.switch = nn.Linear(query_width, 1) if mixing == "mixture" else None
        initialize_linear(self.switch)

    def remember(self, states: Tensor, ids: Tensor, lengths: Tensor | None) -> Copyable:
        """Prepare a source, once for all steps.

        Args:
            states: encoder states (B, S, E).
            ids: the source's tokens (B, S), int64; id N + i is the i-th out-of-vocabulary word of its row.
            lengths: real positions (B,); None if there is no padding.

        Returns:
            The source in the form that `forward` takes.

        Raises:
            UnsupportedError: under `vmap` or on the device `meta`, as the number of out-of-vocabulary words is a size
                of the result; there `forward` takes what was prepared before.
        """
        expect_input("states", states, None, self.widths[1], rank=3)
        rows, size = states.shape[:2]
        expect_integers("ids", ids, (rows, size), "(B, S)")
        if lengths is not None:
            expect_integers("lengths", lengths, (rows,), "(B,)", (0, size))
        real = ids if lengths is None else torch.where(real_positions(lengths, ids.shape[1]), ids, 0)
        expect_integers("ids", real, (rows, size), "(B, S)", (0, None))
        real = real.long()
        extra = (real.amax(1) + 1 - self.vocabulary).clamp(min=0)
        hint = "Call remember before, outside of the transformation, and pass what it returns."
        expect_numbers("ids", real, "the out-of-vocabulary words decide the width of the result", hint)
        most: int = extra.max().item() if len(extra) else 0  # type: ignore[assignment]  # varies in an exported graph
        return Copyable(score_of(self.score).project_key(states), real, lengths, extra, most)

    def forward(self, logits: Tensor, states: Tensor, source: Copyable) -> Tensor:
        """Combine the probabilities of generating and copying.

        Args:
            logits: vocabulary logits (B, T, N).
            states: decoder states h (B, T, M).
            source: from `remember`.

        Returns:
            Log-probabilities (B, T, N + X), with X the largest number of out-of-vocabulary words in a row; −inf for
            words of other rows.
        """
        expect_input("logits", logits, None, self.vocabulary, rank=3)
        expect_input("states", states, self.switch, self.widths[0], rank=3)
        if not logits.shape[:2] == states.shape[:2] == (len(source.ids), states.shape[1]):
            got = f"{show(tuple(states.shape))} for {show(tuple(logits.shape))} logits and {len(source.ids)} sources"
            raise ShapeError("states", "as many rows and steps as logits, and a source for each row", got, _ROWS)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        copied, state = self._attend(states, source)
        generate = self.share(logits, states, state)[..., None]
        probabilities = nn.functional.pad(generate * logits.softmax(-1), (0, source.most))
        indices = source.ids[:, None].expand(-1, logits.shape[1], -1)
        probabilities = probabilities.scatter_add(-1, indices, (1 - generate) * copied.to(probabilities.dtype))
        # A probability below the least normal number is rounding error: its logarithm must stay finite for the loss.
        logarithms = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()
        # In a compiled graph the number is symbolic, and may be 0.
        if not torch.compiler.is_compiling() and not source.most:
            return logarithms
        beyond = torch.arange(source.most, device=logits.device) >= source.extra[:, None]
        other = nn.functional.pad(beyond, (self.vocabulary, 0))
        return logarithms.masked_fill(other[:, None], -torch.inf)

    def attend(self, states: Tensor, source: Copyable) -> tuple[Tensor, RowState]:
        """Return the copy weights α (B, T, S) and the row state, within the hooks of this layer.

        The values are one-hot positions, so the output is the weights.
        """
        return through_hooks(self, self._attend, states, source)

    def _attend(self, states: Tensor, source: Copyable) -> tuple[Tensor, RowState]:
        expect_input("states", states, self.switch, self.widths[0], rank=3)
        rows, size = source.ids.shape
        positions = torch.eye(size, dtype=source.key.dtype, device=source.key.device).expand(rows, -1, -1)
        mask = None if source.lengths is None else Lengths(source.lengths)
        query = score_of(self.score).project_query(states)
        copied, state = self.attention(query, source.key, positions, score=score_of(self.score).projected(), mask=mask)
        return copied, state

    def share(self, logits: Tensor, states: Tensor, state: RowState) -> Tensor:
        """Return g (B, T), the probability of generating; 1 if there is nothing to copy."""
        if self.switch is None:
            return torch.sigmoid(logits.logsumexp(-1) - state.lse).to(logits.dtype)
        switched: Tensor = self.switch(states)[..., 0].to(logits.dtype)
        return torch.where(state.lse == -torch.inf, 1.0, torch.sigmoid(switched))
