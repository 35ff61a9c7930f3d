"""The RNN encoder-decoder, with attention of any score or without."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.errors import ConfigError, complaint
from qkv.masks.patterns import Lengths
from qkv.models.cells import STEPS, Hidden, gates, hidden_of
from qkv.nn.attention import Attention
from qkv.nn.scores import build_score


@final
@dataclass(frozen=True)
class RecurrentConfig:
    """The sizes of an RNN encoder-decoder.

    Args:
        size: pieces in the vocabulary that both sides share.
        cell: plain RNN, gated recurrent unit, or long short-term memory.
        score: how the decoder's state finds source positions; "none" for a fixed summary of the source.
        embedding: width of embeddings.
        hidden: width of the decoder's state, and of each direction of the encoder's.
        attention: A, the hidden width of an additive score.
        dropout: on embeddings, the memory and the output layer.
        tied: whether the output layer shares the embedding's weights.

    Raises:
        ConfigError: a size below one, or a dropout outside [0, 1).
    """

    size: int
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    score: Literal["additive", "bilinear", "dot", "scaled_dot", "none"] = "additive"
    embedding: int = 256
    hidden: int = 512
    attention: int = 256
    dropout: float = 0.3
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("size", "embedding", "hidden", "attention"):
            if getattr(self, name) < 1:
                raise ConfigError(complaint(f"model.{name}", "at least 1", str(getattr(self, name)), "Use more."))
        if not 0 <= self.dropout < 1:
            raise ConfigError(complaint("model.dropout", "a share in [0, 1)", str(self.dropout), "0 switches it off."))


class RecurrentState(NamedTuple):
    """What the decoder knows between two steps; B rows.

    Attributes:
        hidden: the cell's state, (B, M); the LSTM's has two parts.
        keys: what the score finds positions by, (B, S, F).
        values: the encoder's states, (B, S, V).
        lengths: real source positions, (B,).
        summary: the encoder's last states, (B, V): the context where there is no attention.
    """

    hidden: Hidden
    keys: Tensor
    values: Tensor
    lengths: Tensor
    summary: Tensor


@final
class RecurrentTranslator(nn.Module):
    """A bidirectional encoder and a decoder that looks back at it before every step.

    With s the decoder's state, h_j the encoder's at position j and y the last token:

        c_t = Σ_j softmax_j(score(s_{t−1}, h_j)) h_j,      s_t = cell(s_{t−1}, [y_{t−1}; c_t]),
        p(y_t) = softmax(W_o tanh(W [s_t; c_t; y_{t−1}]))

    Args:
        config: its sizes.

    Source: Bahdanau et al. 2015, section 3 and appendix A; without attention Cho et al. 2014, section 2.

    Example:
        >>> model = RecurrentTranslator(RecurrentConfig(size=20, embedding=8, hidden=8, attention=8))
        >>> source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
        >>> model(source, torch.tensor([5, 3]), target).shape
        torch.Size([2, 6, 20])
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        width, hidden = config.embedding, config.hidden
        self.embed = nn.Embedding(config.size, width)
        module = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[config.cell]
        self.encoder = module(width, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, hidden)
        # Dot products need one width: the memory is then brought to the state's.
        plain = config.score in ("dot", "scaled_dot")
        self.narrow = nn.Linear(2 * hidden, hidden, bias=False) if plain else None
        key_width = hidden if plain else 2 * hidden
        attends = config.score != "none"
        self.score = build_score(config.score, hidden, key_width, hidden=config.attention) if attends else None
        self.attention = Attention() if attends else None
        parts = gates(config.cell)
        self.from_embedding = nn.Linear(width, parts * hidden)
        self.from_context = nn.Linear(2 * hidden, parts * hidden, bias=False)
        self.from_hidden = nn.Linear(hidden, parts * hidden)
        self.readout = nn.Linear(hidden + 2 * hidden + width, width)
        self.output = nn.Linear(width, config.size)
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()

    @property
    def alignment_layer(self) -> str | None:
        """The name of the attention that aligns target and source, or None."""
        return None if self.attention is None else "attention"

    def reset_parameters(self) -> None:
        """Draw all parameters anew: recurrent matrices orthogonal, the others by Glorot's rule."""
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                if not name.startswith("score."):
                    nn.init.zeros_(parameter)
            elif "hh" in name or name.startswith("from_hidden"):
                for block in parameter.data.split(self.config.hidden):
                    nn.init.orthogonal_(block)
            elif not name.startswith("score."):
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.embed.weight, std=self.config.embedding**-0.5)
        if self.config.tied:
            self.output.weight = self.embed.weight

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """Predict each next target token, given the ones before it.

        Args:
            source: token ids (B, S), int64; what stands at or after a row's length is never read.
            source_lengths: (B,), int64.
            target: token ids (B, T): the begin mark first.

        Returns:
            Scores before the softmax, (B, T, N).
        """
        state = self.start(source, source_lengths)
        y_BTE = self.dropout(self.embed(target))
        steps_BTG = self.from_embedding(y_BTE)
        hiddens, contexts = [], []
        for step_BG in steps_BTG.unbind(1):
            context, hidden = self._advance(step_BG, state)
            state = state._replace(hidden=hidden)
            hiddens.append(hidden[0])
            contexts.append(context)
        return self._predict(torch.stack(hiddens, 1), torch.stack(contexts, 1), y_BTE)

    def start(self, source: Tensor, lengths: Tensor) -> RecurrentState:
        """Read the source.

        Args:
            source: token ids (B, S), int64.
            lengths: (B,), int64, from 0 to S.

        Returns:
            The state before the first step.
        """
        real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        x_BSE = self.dropout(self.embed(torch.where(real, source, 0)))
        packed = pack_padded_sequence(x_BSE, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        values, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        values = self.dropout(torch.where(real[..., None], values, torch.zeros((), dtype=values.dtype)))
        final = last[0] if isinstance(last, tuple) else last
        summary = torch.where(lengths[:, None] > 0, torch.cat([final[0], final[1]], -1), torch.zeros(()))
        keys = values if self.narrow is None else self.narrow(values)
        keys = keys if self.score is None else self.score.project_key(keys)
        first = torch.tanh(self.bridge(summary))
        return RecurrentState(hidden_of(self.config.cell, first), keys, values, lengths, summary)

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Take the newest token of each row and predict the next one.

        Args:
            tokens: ids (B,), int64.
            state: after the tokens before.

        Returns:
            Scores (B, N), and the state that includes `tokens`.
        """
        y_BE = self.embed(tokens)
        context, hidden = self._advance(self.from_embedding(y_BE), state)
        logits = self._predict(hidden[0][:, None], context[:, None], y_BE[:, None])
        return logits[:, 0], state._replace(hidden=hidden)

    def select(self, state: RecurrentState, rows: Tensor) -> RecurrentState:
        """Take rows of a state: fewer, repeated, or in another order."""
        hidden = tuple(part.index_select(0, rows) for part in state.hidden)
        return RecurrentState(hidden, *(part.index_select(0, rows) for part in state[1:]))

    def _advance(self, step_BG: Tensor, state: RecurrentState) -> tuple[Tensor, Hidden]:
        """One step of attention and cell; `step_BG` is what the embedding gives to the gates."""
        context = self._look(state)
        inputs = step_BG + self.from_context(context)
        return context, STEPS[self.config.cell](inputs, self.from_hidden(state.hidden[0]), state.hidden)

    def _look(self, state: RecurrentState) -> Tensor:
        if self.attention is None or self.score is None:
            return state.summary
        query = self.score.project_query(state.hidden[0][:, None])
        mask = Lengths(state.lengths)
        return self.attention(query, state.keys, state.values, score=self.score.projected(), mask=mask)[:, 0]

    def _predict(self, hidden: Tensor, context: Tensor, embedded: Tensor) -> Tensor:
        deep = torch.tanh(self.readout(torch.cat([hidden, context, embedded], -1)))
        return self.output(self.dropout(deep))
