"""A translator with hard monotonic attention: it sums over all alignments that never go back."""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.models import recurrence
from qkv.models.cells import Hidden, first_hidden, gates, run_cells
from qkv.models.checks import check_target, clean_source
from qkv.models.configs.translator import MonotonicConfig
from qkv.models.first_weights import initialize_cells, initialize_embeddings
from qkv.models.predictor import Predictor
from qkv.nn.attention import Attention
from qkv.nn.decoding.cache import BatchRows
from qkv.nn.dropout import Dropout
from qkv.nn.monotonic import (
    MonotonicJumps,
    MonotonicScores,
    Transitions,
    alignment_posterior,
    first_position,
    predicted_alignment,
    wide,
)
from qkv.normalizers.dense import Identity
from qkv.scores.products import Dot
from qkv.values.plain_modules import has_hooks
from qkv.values.rows import select_rows

_POSITIONS, _WEIGHTS = Dot(), Identity()


class MonotonicState(NamedTuple):
    """The decoder's state between two steps; B rows of S + 1 positions, the last real one of each the end.

    Attributes:
        hidden: the cell's state, (B, M).
        keys: what transitions read of each position, (B, S + 1, F).
        memory: what the prediction of tokens reads of each position, (B, S + 1, E).
        lengths: real positions, the end included (B,).
        joint: log P(a_t = j, y_t = n | the tokens before), (B, S + 1, N); None before the first step.
    """

    hidden: Hidden
    keys: Tensor
    memory: Tensor
    lengths: Tensor
    joint: Tensor | None = None


@final
class MonotonicTranslator(Predictor[MonotonicState]):
    """A bidirectional encoder, and a decoder that writes each token from one source position, which never moves back.

    With h_j the encoder's state at position j, s_t = cell(s_{t−1}, y_{t−1}) the decoder's and a_t the position,

        p(y_t | a_t, y_<t, x) = softmax(W_o tanh(W [s_t; h_{a_t}; y_{t−1}])),
        p(a_t | a_{t−1}, y_<t, x) by `qkv.nn.monotonic`: the scores e_tj = score(s_t, h_j) for order 0, and for order 1
        jumps of a_t − a_{t−1} with logits U [s_t; h_{a_{t−1}}].

    The positions are summed over exactly, in training and in decoding. A learned state after the last position is
    where the end token can be written from.

    `qkv.record` sees the alignment posterior P(a_t | x, y) of the given target in `forward`, where a target's last
    token, which nothing follows, counts as unknown; and in `step` the prediction P(a_t | x, y_1 … y_{t−1}). Weights on
    the end are left out, so a row may add up to less than 1.

    Memory of `forward` and its gradient: B·T·(S + 1)·(E + 2N) numbers, E the width of embeddings.

    Args:
        config: its sizes.
        padding: the id of padding in targets, which the posterior ignores.

    Source: Wu and Cotterell 2019, "Exact Hard Monotonic Attention for Character-Level Transduction"; the end as a
        position is the end mark of the source in the authors' code.

    Example:
        >>> model = MonotonicTranslator(MonotonicConfig(size=20, embedding=8, hidden=8))
        >>> source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
        >>> model(source, torch.tensor([5, 3]), target).shape
        torch.Size([2, 6, 20])
    """

    def __init__(self, config: MonotonicConfig, padding: int = 0) -> None:
        super().__init__()
        self.config, self.padding = config, padding
        width, hidden = config.embedding, config.hidden
        self.embed = nn.Embedding(config.size, width)
        self.embed_source = None if config.source_size is None else nn.Embedding(config.source_size, width)
        self.encoder = recurrence.CELLS[config.model](width, hidden, batch_first=True, bidirectional=True)
        self.end = nn.Parameter(torch.empty(2 * hidden))
        self.bridge = nn.Linear(2 * hidden, hidden)
        self.from_embedding = nn.Linear(width, gates(config.model) * hidden)
        self.from_hidden = nn.Linear(hidden, gates(config.model) * hidden)
        self.moves: MonotonicScores | MonotonicJumps
        if config.alignment == "monotonic-0":
            self.moves = MonotonicScores(hidden, 2 * hidden, config.attention, config.score)
        else:
            self.moves = MonotonicJumps(hidden, 2 * hidden, config.jumps)
        self.read_state = nn.Linear(hidden + width, width)
        self.read_memory = nn.Linear(2 * hidden, width, bias=False)
        self.output = nn.Linear(width, config.size)
        self.attention = Attention()
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        self.reset_parameters()

    @property
    def source_embedding(self) -> nn.Embedding:
        """The embedding of source tokens."""
        return self.embed if self.embed_source is None else self.embed_source

    @property
    def alignment_layer(self) -> str:
        """The name of the attention that shows the alignment."""
        return "attention"

    def reset_parameters(self) -> None:
        """Initialize all parameters: recurrent matrices orthogonal, the others by Glorot's rule, biases zero."""
        initialize_cells(
            ((name, tensor) for name, tensor in self.named_parameters() if not name.startswith("moves.")),
            self.config.hidden,
        )
        nn.init.normal_(self.end, std=0.1)
        initialize_embeddings(self.config.embedding**-0.5, self.embed, self.embed_source)
        if self.config.tied:
            self.output.weight = self.embed.weight

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """Predict each next target token, given the ones before it. Their sum is the exact log-marginal of a target.

        Args:
            source: token ids (B, S), int64; entries at or after a row's length are never read.
            source_lengths: (B,), int64.
            target: token ids (B, T): the begin token first.

        Returns:
            Log-probabilities, (B, T, N).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        state = self.start(source, source_lengths)
        check_target(target, source.shape[0], self.config.size)
        moves, emitted, ahead, _ = self._advance(target, state)
        if has_hooks(self.attention):
            self._show(alignment_posterior(moves, self._observed(target, emitted)), state)
        return _joint(ahead, emitted).logsumexp(2)

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> MonotonicState:
        """Encode the source.

        Args:
            source: token ids (B, S), int64.
            lengths: (B,), int64, from 0 to S.
            session: not used.

        Returns:
            The state before the first step.

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        ids, real = clean_source(source, lengths, self.config.source_size or self.config.size)
        self.rows.begin(ids)
        states, last = recurrence.run(self.encoder, self.dropout(self.source_embedding(ids)), lengths)
        inside = nn.functional.pad(torch.where(real[..., None], states, 0), (0, 0, 0, 1))
        at_end = torch.arange(inside.shape[1], device=ids.device) == lengths[:, None]
        values = self.dropout(torch.where(at_end[..., None], self.end.to(inside.dtype), inside))
        summary = torch.where(lengths[:, None] > 0, torch.cat([last[0], last[1]], -1), 0)
        hidden = first_hidden(self.config.model, self.bridge, summary)
        return MonotonicState(
            hidden, self.moves.project_key(values), apply_layer(self.read_memory, values), lengths + 1
        )

    def select(self, state: MonotonicState, rows: Tensor) -> MonotonicState:
        """Take rows of a state: fewer, repeated, or in another order."""
        rows = self.rows(rows)
        hidden = tuple(select_rows(part, rows) for part in state.hidden)
        keys, memory, lengths = (select_rows(part, rows) for part in (state.keys, state.memory, state.lengths))
        joint = None if state.joint is None else select_rows(state.joint, rows)
        return MonotonicState(hidden, keys, memory, lengths, joint)

    def fork(self, state: MonotonicState, rows: Tensor, width: int) -> MonotonicState:
        """Select rows, and repeat each `width` times."""
        return self.select(state, rows.repeat_interleave(width))

    def regroup(self, state: MonotonicState, rows: Tensor) -> MonotonicState:
        """Select rows of a forked state."""
        return self.select(state, rows)

    def _predict(self, tokens: Tensor, state: MonotonicState) -> tuple[Tensor, MonotonicState]:
        _, emitted, ahead, after = self._advance(tokens, state)
        joint = _joint(ahead, emitted)
        if has_hooks(self.attention):
            self._show(ahead.exp(), state)
        return joint.logsumexp(2), after._replace(joint=joint[:, 0])

    def _advance(self, target: Tensor, state: MonotonicState) -> tuple[Transitions, Tensor, Tensor, MonotonicState]:
        """Return transitions, log p(y_t | a_t) (B, T, S + 1, N), log P(a_t | tokens before) and the state after."""
        y_BTE = self.dropout(self.embed(target))
        inputs = apply_layer(self.from_embedding, y_BTE)
        s_BTM, hidden = run_cells(self.config.model, inputs, self.from_hidden, state.hidden)
        moves = self.moves(s_BTM, state.keys, state.lengths)
        combined = apply_layer(self.read_state, torch.cat([s_BTM, y_BTE], -1))[:, :, None] + state.memory[:, None]
        emitted = wide(apply_layer(self.output, self.dropout(torch.tanh(combined)))).log_softmax(-1)
        if state.joint is None:
            before = first_position(moves, emitted)
        else:
            observed_joint = _at_tokens(state.joint, target[:, 0])
            before = observed_joint - observed_joint.logsumexp(1, keepdim=True)
        observed = _at_tokens(emitted[:, :-1], target[:, 1:])
        ahead = predicted_alignment(moves, before, observed)
        return moves, emitted, ahead, state._replace(hidden=hidden)

    def _observed(self, target: Tensor, emitted: Tensor) -> Tensor:
        """Return log p(y_t | a_t) of the given tokens, 0 where none is known: after the last one, and for padding."""
        log_likelihoods = _at_tokens(emitted[:, :-1], target[:, 1:])
        log_probabilities = torch.where((target[:, 1:] != self.padding)[..., None], log_likelihoods, 0)
        return nn.functional.pad(log_probabilities, (0, 0, 0, 1))

    def _show(self, weights_BTS: Tensor, state: MonotonicState) -> None:
        """Let the hooks of the attention see weights on positions: queries are the weights, keys the positions."""
        inside = weights_BTS[..., :-1].masked_fill(_is_beyond(state.lengths - 1, weights_BTS), 0)
        rows, _, positions = inside.shape
        one_hot = torch.eye(positions, dtype=inside.dtype, device=inside.device).expand(rows, -1, -1)
        values = state.memory[:, :-1].to(inside.dtype)
        self.attention(inside, one_hot, values, score=_POSITIONS, normalizer=_WEIGHTS)


def _joint(ahead: Tensor, emitted: Tensor) -> Tensor:
    """Return log P(a_t = j, y_t = n), (B, T, S + 1, N)."""
    return ahead[..., None] + emitted


def _at_tokens(emitted: Tensor, tokens: Tensor) -> Tensor:
    """Look up tokens (...) in log-probabilities (..., S, N): (..., S)."""
    indices = tokens[..., None, None].expand(*emitted.shape[:-1], 1)
    return emitted.gather(-1, indices)[..., 0]


def _is_beyond(lengths: Tensor, weights_BTS: Tensor) -> Tensor:
    indices = torch.arange(weights_BTS.shape[-1] - 1, device=lengths.device)
    return (indices >= lengths[:, None])[:, None]
