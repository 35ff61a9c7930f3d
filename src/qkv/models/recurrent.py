"""The RNN encoder-decoder, with attention of any score or none."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, error_message
from qkv.linalg.matmul import Linear, apply_layer, kept_weight
from qkv.linalg.session import Session
from qkv.masks.patterns import Lengths
from qkv.models import recurrence
from qkv.models.cells import STEPS, Hidden, gates, hidden_of
from qkv.models.checks import check_config, check_target, clean_source, padding_of
from qkv.nn.attention import Attention
from qkv.nn.decoding.cache import Rows
from qkv.nn.dropout import Dropout
from qkv.nn.location import LocationScore, LocationSteps
from qkv.nn.recurrent.kept_attention import KeptAttention
from qkv.nn.recurrent.repeated import Repeated
from qkv.nn.recurrent.repeated_attention import RepeatedAttention
from qkv.nn.scores import ScoreModule, build_score
from qkv.scores.base import Score


@final
@dataclass(frozen=True)
class RecurrentConfig:
    """The sizes of an RNN encoder-decoder.

    Args:
        size: size of the shared vocabulary.
        cell: plain RNN, gated recurrent unit, or long short-term memory.
        score: score of decoder state and source position; "location" reads the weights of the step before too; "none"
            for a fixed summary of the source.
        wiring: "bahdanau": the state before a step is the query, and the context is an input of the step; or "luong":
            the state after the step is the query, and the context only enters the prediction, all steps at once.
        embedding: width of embeddings.
        hidden: width of the decoder's state, and of each direction of the encoder's.
        attention: A, the hidden width of an additive or location-sensitive score.
        dropout: on embeddings, the memory and the output layer.
        tied: whether the output layer shares the embedding's weights.
        memory: "whole": encoder states are keys and values; "split": each is h = [k; v], with key k and value v.
        copy: whether and how words are copied from the source: see `qkv.nn.CopyHead`.

    Raises:
        ConfigError: a name is unknown, a size is below one, or a dropout is outside [0, 1).
    """

    size: int
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    score: Literal["additive", "bilinear", "dot", "scaled_dot", "location", "none"] = "additive"
    wiring: Literal["bahdanau", "luong"] = "bahdanau"
    embedding: int = 256
    hidden: int = 512
    attention: int = 256
    dropout: float = 0.3
    tied: bool = True
    memory: Literal["whole", "split"] = "whole"
    copy: Literal["none", "joint", "mixture"] = "none"

    def __post_init__(self) -> None:
        check_config(self)
        if self.memory == "split" and self.hidden % 2:
            hint = "Choose an even width."
            raise ConfigError(
                error_message("model.hidden", "an even width, to split into keys and values", f"{self.hidden}", hint)
            )


class RecurrentState(NamedTuple):
    """The decoder's state between two steps; B rows.

    Attributes:
        hidden: the cell's state, (B, M); the LSTM's has two parts.
        keys: projected keys, (B, S, F); B/W rows if each W adjacent rows share a source.
        values: the encoder's states, (B, S, V).
        lengths: real source positions, (B,); None where there is no padding.
        summary: the encoder's last states, (B, V): the context where there is no attention.
        session: keeps packed weights and the loop over the keys; None to keep nothing.
        alignment: the weights of the last step, (B, S), if the score reads them.
    """

    hidden: Hidden
    keys: Tensor
    values: Tensor
    lengths: Tensor | None
    summary: Tensor
    session: Session | None = None
    alignment: Tensor | None = None


@final
class RecurrentTranslator(nn.Module):
    """A bidirectional encoder, and a decoder that attends to it in every step.

    With s the decoder's state, h_j the encoder's at position j and y the last token, Bahdanau's wiring is

        c_t = Σ_j softmax_j(score(s_{t−1}, h_j)) h_j,      s_t = cell(s_{t−1}, [y_{t−1}; c_t]),

    and Luong's, without input feeding,

        s_t = cell(s_{t−1}, y_{t−1}),      c_t = Σ_j softmax_j(score(s_t, h_j)) h_j;

    both predict with p(y_t) = softmax(W_o tanh(W [s_t; c_t; y_{t−1}])).

    Args:
        config: its sizes.

    Source: Bahdanau et al. 2015, section 3 and appendix A; Luong et al. 2015, section 3, eq. 5; split states Daniluk
        et al. 2017, "Frustratingly Short Attention Spans", eq. 6 to 9; without attention Cho et al. 2014, section 2;
        location-sensitive attention Chorowski et al. 2015, eq. 8 and 9.

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
        self.bridge = Linear(2 * hidden, hidden)
        split = config.memory == "split"
        memory = hidden if split else 2 * hidden
        # Dot products need equal widths: the memory is then projected to the state's width.
        plain = config.score in ("dot", "scaled_dot")
        self.narrow = Linear(memory, hidden, bias=False) if plain else None
        key_width = hidden if plain else memory
        self.score = _score(config, key_width)
        attends = self.score is not None
        self.attention = Attention(also="weights" if config.score == "location" else None) if attends else None
        parts = gates(config.cell)
        self.from_embedding = Linear(width, parts * hidden)
        early = config.wiring == "bahdanau"
        value = memory if attends else 2 * hidden
        self.from_context = Linear(value, parts * hidden, bias=False) if early else None
        self.from_hidden = Linear(hidden, parts * hidden)
        self.readout = Linear(hidden + value + width, width)
        self.output = Linear(width, config.size)
        self.dropout = Dropout(config.dropout)
        self.rows = Rows()
        self.reset_parameters()

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the output layer's input and of the encoder's states."""
        return self.config.embedding, self.config.hidden * (1 if self.config.memory == "split" else 2)

    @property
    def alignment_layer(self) -> str | None:
        """The name of the attention that aligns target and source, or None."""
        return None if self.attention is None else "attention"

    def reset_parameters(self) -> None:
        """Initialize all parameters: recurrent matrices orthogonal, the others by Glorot's rule, biases zero.

        An LSTM's forget gate starts open (Jozefowicz et al. 2015): its bias is 1.
        """
        hidden = self.config.hidden
        for name, parameter in self.named_parameters():
            recurrent = "_hh_" in name or name.startswith("from_hidden")
            if name.startswith("score."):
                continue
            if parameter.ndim < 2:
                nn.init.zeros_(parameter)
                if recurrent and self.config.cell == "lstm":
                    nn.init.ones_(parameter.data[hidden : 2 * hidden])
            elif recurrent:
                for block in parameter.data.split(hidden):  # type: ignore[no-untyped-call]
                    nn.init.orthogonal_(block)
            else:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.embed.weight, std=self.config.embedding**-0.5)
        if self.config.tied:
            self.output.weight = self.embed.weight

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """Predict each next target token, given the ones before it.

        Args:
            source: token ids (B, S), int64; entries at or after a row's length are never read.
            source_lengths: (B,), int64.
            target: token ids (B, T): the begin token first.

        Returns:
            Logits, (B, T, N).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        logits: Tensor = self.output(self.states(source, source_lengths, target))
        return logits

    def states(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """Return the inputs of the output layer for each next target token: arguments as for `forward`, (B, T, E)."""
        state = self.start(source, source_lengths)
        check_target(target, source.shape[0], self.config.size)
        return self.advance(target, state)[0]

    def start(self, source: Tensor, lengths: Tensor) -> RecurrentState:
        """Encode the source.

        Args:
            source: token ids (B, S), int64.
            lengths: (B,), int64, from 0 to S.

        Returns:
            The state before the first step.

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        return self.read(source, lengths)[0]

    def start_in(self, session: Session, source: Tensor, lengths: Tensor) -> RecurrentState:
        """As `start`; the session keeps packed weights and the loop over the keys, here and in later steps."""
        return self.read(source, lengths, session)[0]

    def read(self, source: Tensor, lengths: Tensor, session: Session | None = None) -> tuple[RecurrentState, Tensor]:
        """As `start` or `start_in`, and the encoder's states (B, S, V)."""
        ids, real = clean_source(source, lengths, self.config.size)
        self.rows(torch.arange(ids.shape[0], device=ids.device), start=True)
        x_BSE = self.dropout(self.embed(ids))
        states, last = recurrence.run(self.encoder, x_BSE, lengths, session)
        values = self.dropout(torch.where(real[..., None], states, 0))
        summary = torch.where(lengths[:, None] > 0, torch.cat([last[0], last[1]], -1), 0)
        keys, values = _split(values) if self.config.memory == "split" else (values, values)
        keys = keys if self.narrow is None else apply_layer(self.narrow, keys, session)
        keys = keys if self.score is None else self.score.project_key(keys, session)
        # The state keeps the parameters' precision under autocast: it is added to at every step.
        first = torch.tanh(self.bridge(summary)).to(self.bridge.weight.dtype)
        hidden = hidden_of(self.config.cell, first)
        alignment = self.score.first_alignment(keys) if isinstance(self.score, LocationScore) else None
        return RecurrentState(hidden, keys, values, padding_of(lengths, real), summary, session, alignment), values

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Read the newest token of each row and predict the next one.

        Args:
            tokens: ids (B,), int64.
            state: state after the previous tokens.

        Returns:
            Scores (B, N), and the state that includes `tokens`.
        """
        h_B1E, state = self.advance(tokens[:, None], state)
        return apply_layer(self.output, h_B1E, state.session)[:, 0], state

    def advance(self, target: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return the inputs of the output layer after each of some target tokens.

        Args:
            target: ids (B, T), int64.
            state: state after the previous tokens.

        Returns:
            (B, T, embedding), and the state that includes the tokens.
        """
        y_BTE = self.dropout(self.embed(target))
        s_BTM, c_BTV, after = self._run(y_BTE, state)
        deep = torch.tanh(apply_layer(self.readout, torch.cat([s_BTM, c_BTV, y_BTE], -1), state.session))
        return self.dropout(deep), after

    def select(self, state: RecurrentState, rows: Tensor) -> RecurrentState:
        """Take rows of a state: fewer, repeated, or in another order."""
        return self._apart(state, rows, rows)

    def fork(self, state: RecurrentState, rows: Tensor, width: int) -> RecurrentState:
        """Select rows, and repeat each `width` times; the adjacent copies share their source.

        With a location-sensitive score they do not, because each then has keys of its own in every step.
        """
        repeated = rows.repeat_interleave(width)
        return self._apart(state, repeated, rows if state.alignment is None else repeated)

    def regroup(self, state: RecurrentState, rows: Tensor) -> RecurrentState:
        """Select rows of a forked state, in groups that share a source."""
        sources, width = len(state.keys), len(state.hidden[0]) // len(state.keys)
        if state.alignment is not None:
            return self.select(state, rows)
        kept = None if rows.numel() == sources * width else rows[::width] // width
        return self._apart(state, rows, kept)

    def _apart(self, state: RecurrentState, rows: Tensor, sources: Tensor | None) -> RecurrentState:
        rows = self.rows(rows)
        hidden, summary = (
            tuple(part.index_select(0, rows) for part in state.hidden),
            state.summary.index_select(0, rows),
        )
        if sources is None:
            return state._replace(hidden=hidden, summary=summary)
        lengths = None if state.lengths is None else state.lengths.index_select(0, sources)
        keys, values = state.keys.index_select(0, sources), state.values.index_select(0, sources)
        alignment = None if state.alignment is None else state.alignment.index_select(0, rows)
        return RecurrentState(hidden, keys, values, lengths, summary, state.session, alignment)

    def _run(self, y_BTE: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """States (B, T, M), contexts (B, T, V) and the state after. What needs no loop over time stays outside it."""
        inputs = apply_layer(self.from_embedding, y_BTE, state.session).unbind(1)
        looks = self._looks(state, len(inputs) if self.config.wiring == "bahdanau" else 1)
        look = None if self.from_context is None else self._early(self.from_context, state, len(inputs), looks)
        kept = kept_weight(state.session, self.from_hidden)
        from_hidden = Repeated(self.from_hidden.weight, self.from_hidden.bias, len(inputs), kept)
        hidden, states, contexts = state.hidden, [], []
        for own in inputs:
            given = own
            if look is not None:
                context, share = look(hidden[0])
                contexts.append(context)
                given = own + share
            hidden = STEPS[self.config.cell](given, from_hidden(hidden[0]), hidden)
            states.append(hidden[0])
        s_BTM = torch.stack(states, 1)
        c_BTV = torch.cat(contexts, 1) if contexts else looks(s_BTM)
        alignment = looks.alignment if isinstance(looks, LocationSteps) else None
        return s_BTM, c_BTV, state._replace(hidden=hidden, alignment=alignment)

    def _early(
        self, from_context: Linear, state: RecurrentState, steps: int, look: Callable[[Tensor], Tensor]
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """What a step takes from the source by the state before it (B, M): context, and its share of gates."""
        gates_of = Repeated(from_context.weight, None, steps, kept_weight(state.session, from_context))

        def early(s_BM: Tensor) -> tuple[Tensor, Tensor]:
            c_B1V = look(s_BM[:, None])
            return c_B1V, gates_of(c_B1V[:, 0])

        return early

    def _looks(self, state: RecurrentState, steps: int) -> Callable[[Tensor], Tensor]:
        """Return the contexts (B, T, V) of states (B, T, M)."""
        if self.attention is None or self.score is None:
            return lambda s_BTM: state.summary[:, None].expand(-1, s_BTM.shape[1], -1)
        if isinstance(self.score, LocationScore):
            mask = None if state.lengths is None else Lengths(state.lengths)
            alignment = self.score.first_alignment(state.keys) if state.alignment is None else state.alignment
            return LocationSteps(self.attention, self.score, mask, state.keys, state.values, alignment)
        ask = self.score.project_queries(steps, state.session)
        attend = _attends(self.attention, self.score.projected(), state, steps)

        def look(s_BTM: Tensor) -> Tensor:
            # Rows that share a source are queries of one attention: its memory need not be repeated.
            sources = state.keys.shape[0]
            together = s_BTM if sources == s_BTM.shape[0] else s_BTM.reshape(sources, -1, s_BTM.shape[-1])
            return attend(ask(together)).reshape(*s_BTM.shape[:2], -1)

        return look


def _score(config: RecurrentConfig, key_width: int) -> ScoreModule | LocationScore | None:
    match config.score:
        case "none":
            return None
        case "location":
            return LocationScore(config.hidden, key_width, config.attention)
        case name:
            return build_score(name, config.hidden, key_width, hidden=config.attention)


def _attends(attention: Attention, score: Score, state: RecurrentState, steps: int) -> Callable[[Tensor], Tensor]:
    """What attends to the source, in each of some steps."""
    mask = None if state.lengths is None else Lengths(state.lengths)
    if state.session is None or torch.is_grad_enabled():
        return RepeatedAttention(attention, score, mask, state.keys, state.values, steps)
    kept = state.session.keep(attention, KeptAttention)
    return partial(kept.attend, attention, score, mask, state.keys, state.values)


def _split(states_BSV: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values (B, S, M): half of each direction's states."""
    ahead_key, ahead_value, back_key, back_value = states_BSV.chunk(4, -1)
    return torch.cat([ahead_key, back_key], -1), torch.cat([ahead_value, back_value], -1)
