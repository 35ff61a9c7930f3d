"""The RNN encoder-decoder, with attention of any score or none."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, error_message
from qkv.linalg.matmul import Linear, apply_layer, kept_weight
from qkv.linalg.session import Session
from qkv.masks.patterns import Lengths
from qkv.models import recurrence
from qkv.models.cells import Hidden, LayerAbove, gates, hidden_of, stacked, top
from qkv.models.checks import check_config, check_heads, check_target, clean_source, padding_of
from qkv.models.encoders import CELLS, SelfAttentionEncoder
from qkv.nn.attention import Also, Attention
from qkv.nn.decoding.cache import Memory, Rows
from qkv.nn.dropout import Dropout
from qkv.nn.location import LocationScore, LocationSteps
from qkv.nn.mechanism import LOCATION, Mechanism
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.normalizers import NormalizerModule
from qkv.nn.recurrent.kept_attention import KeptAttention
from qkv.nn.recurrent.repeated import Repeated
from qkv.nn.recurrent.repeated_attention import RepeatedAttention
from qkv.nn.scores import ScoreModule
from qkv.scores.base import Score


@final
@dataclass(frozen=True)
class RecurrentConfig(Mechanism):
    """The sizes of an encoder-decoder with a recurrent decoder; the mechanism is that of its attention to the source.

    Args:
        size: size of the shared vocabulary.
        cell: plain RNN, gated recurrent unit, or long short-term memory.
        score: score of decoder state and source position; "location" reads the weights of the step before too; "none"
            for a fixed summary of the source.
        wiring: "bahdanau": the state before a step is the query, and the context is an input of the step; or "luong":
            the state after the step is the query, and the context only enters the prediction, all steps at once.
        embedding: width of embeddings.
        hidden: width of the decoder's state, and of each direction of the encoder's.
        attention: A, the hidden width of an additive or location-sensitive score or a small network.
        dropout: on embeddings, the memory and the output layer.
        tied: whether the output layer shares the embedding's weights.
        memory: "whole": encoder states are keys and values; "split": each is h = [k; v], with key k and value v.
        copy: whether and how words are copied from the source: see `qkv.nn.CopyHead`.
        heads: heads of the attention to the source. One head compares states as they are; several compare projections
            of them, and project what they read.
        encoder: "gru", "lstm" or "rnn", in both directions, or "transformer", as wide as the embeddings; None for the
            decoder's cell.
        encoder_layers, decoder_layers: number of layers.
        encoder_heads: heads of a Transformer encoder.
        window: how many positions to either side the attentions of a Transformer encoder see; None for all.

    Raises:
        ConfigError: a name is unknown, a size is below one, or a dropout is outside [0, 1).
    """

    stepwise: ClassVar[bool] = True
    size: int
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    score: str = field(default="additive", kw_only=True)
    wiring: Literal["bahdanau", "luong"] = "bahdanau"
    embedding: int = 256
    hidden: int = 512
    attention: int = 256
    dropout: float = 0.3
    tied: bool = True
    memory: Literal["whole", "split"] = "whole"
    copy: Literal["none", "joint", "mixture"] = "none"
    heads: int = 1
    encoder: Literal["gru", "lstm", "rnn", "transformer"] | None = None
    encoder_layers: int = 1
    decoder_layers: int = 1
    encoder_heads: int = 4
    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_config(self)
        if self.encoder == self.cell:
            object.__setattr__(self, "encoder", None)
        check_heads("hidden", self.hidden, self.heads)
        self._check_encoder()
        if self.score in ("none", LOCATION) and self.heads > 1:
            expected = "1 without attention" if self.score == "none" else f'1 with the score "{LOCATION}"'
            hint = "Omit it, or choose another score."
            raise ConfigError(error_message("model.heads", expected, f"{self.heads}", hint))
        if self.memory == "split" and self.hidden % 2:
            hint = "Choose an even width."
            raise ConfigError(
                error_message("model.hidden", "an even width, to split into keys and values", f"{self.hidden}", hint)
            )

    def _check_encoder(self) -> None:
        if self.encoder == "transformer":
            check_heads("embedding", self.embedding, self.encoder_heads, "encoder_heads")
            if self.memory == "split" and self.embedding % 2:
                expected = "an even width, to split into keys and values"
                raise ConfigError(
                    error_message("model.embedding", expected, f"{self.embedding}", "Choose an even width.")
                )
        elif self.window is not None:
            hint = "A window narrows self-attention, which is in a Transformer: add --encoder transformer, or omit it."
            raise ConfigError(error_message("model.window", "none for recurrent models", f"{self.window}", hint))


class RecurrentState(NamedTuple):
    """The decoder's state between two steps; B rows.

    Attributes:
        hidden: the cells' states, (B, M), from the lowest layer on; an LSTM's has two parts.
        keys: projected keys, (B, S, F), or (B, H, S, F) by head; B/W rows if each W adjacent rows share a source.
        values: the encoder's states, (B, S, V), or projections of them, (B, H, S, V).
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
    """An encoder, bidirectional or a Transformer's, and a recurrent decoder that attends to it in every step.

    With s the state of the decoder's last layer, h_j the encoder's at j and y the last token, Bahdanau's wiring is

        c_t = Σ_j softmax_j(score(s_{t−1}, h_j)) h_j,      s_t = cell(s_{t−1}, [y_{t−1}; c_t]),

    and Luong's, without input feeding,

        s_t = cell(s_{t−1}, y_{t−1}),      c_t = Σ_j softmax_j(score(s_t, h_j)) h_j;

    both predict with p(y_t) = softmax(W_o tanh(W [s_t; c_t; y_{t−1}])). Softmax stands for any normalizer.

    Args:
        config: its sizes.

    Source: Bahdanau et al. 2015, section 3 and appendix A; Luong et al. 2015, section 3, eq. 5; split states Daniluk
        et al. 2017, "Frustratingly Short Attention Spans", eq. 6 to 9; without attention Cho et al. 2014, section 2.

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
        self.encoder = _encoder(config)
        states = width if config.encoder == "transformer" else 2 * hidden
        self.bridge = Linear(states, hidden)
        memory = states // 2 if config.memory == "split" else states
        one = config.attends and config.heads == 1
        # Dot products and distances need equal widths: the memory is then projected to the state's width.
        self.narrow = Linear(memory, hidden, bias=False) if one and config.needs_equal_widths else None
        key_width = memory if self.narrow is None else hidden
        self.score = _score(config, key_width) if one else None
        normalizer = config.normalizer_part() if one else None
        self.normalizer = normalizer if isinstance(normalizer, NormalizerModule) else None
        fixed = None if isinstance(normalizer, NormalizerModule) else normalizer
        also: Also | None = "weights" if config.score == LOCATION else None
        self.attention = Attention(normalizer=fixed, also=also) if one else None
        several = config.attends and config.heads > 1
        self.multihead = MultiHeadAttention(hidden, config.heads, key_width=memory, score=config) if several else None
        parts = gates(config.cell)
        self.from_embedding = Linear(width, parts * hidden)
        early = config.wiring == "bahdanau"
        value = memory if one else hidden if several else states
        self.from_context = Linear(value, parts * hidden, bias=False) if early else None
        self.from_hidden = Linear(hidden, parts * hidden)
        self.above = nn.ModuleList(
            LayerAbove(config.cell, hidden, config.dropout) for _ in range(1, config.decoder_layers)
        )
        self.readout = Linear(hidden + value + width, width)
        self.output = Linear(width, config.size)
        self.dropout = Dropout(config.dropout)
        self.rows = Rows()
        self.reset_parameters()

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the output layer's input and of the encoder's states."""
        states = self.bridge.in_features
        return self.config.embedding, states // 2 if self.config.memory == "split" else states

    @property
    def alignment_layer(self) -> str | None:
        """The name of the attention that aligns target and source, or None."""
        if self.multihead is not None:
            return "multihead.attention"
        return None if self.attention is None else "attention"

    def reset_parameters(self) -> None:
        """Initialize all parameters: recurrent matrices orthogonal, the others by Glorot's rule, biases zero.

        An LSTM's forget gate starts open (Jozefowicz et al. 2015): its bias is 1.
        """
        hidden = self.config.hidden
        for name, parameter in self.named_parameters():
            recurrent = "_hh_" in name or "from_hidden" in name
            if name.startswith(("score.", "normalizer.", "multihead.", "encoder.blocks.", "encoder.norm.")):
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
        padded = padding_of(lengths, real)
        if isinstance(self.encoder, SelfAttentionEncoder):
            states, summary = self.encoder(self.embed(ids), lengths, padded, session)
        else:
            states, last = recurrence.run(self.encoder, self.dropout(self.embed(ids)), lengths, session)
            summary = torch.where(lengths[:, None] > 0, torch.cat([last[-2], last[-1]], -1), 0)
        values = self.dropout(torch.where(real[..., None], states, 0))
        keys, values = self._split(values) if self.config.memory == "split" else (values, values)
        read = values
        if self.multihead is not None:
            memory = self.multihead.project_memory(keys, values, session)
            keys, values = memory.key, memory.value
        keys = keys if self.narrow is None else apply_layer(self.narrow, keys, session)
        keys = keys if self.score is None else self.score.project_key(keys, session)
        # The state keeps the parameters' precision under autocast: it is added to at every step.
        first = torch.tanh(self.bridge(summary)).to(self.bridge.weight.dtype)
        hidden = hidden_of(self.config.cell, first) * self.config.decoder_layers
        alignment = self.score.first_alignment(keys) if isinstance(self.score, LocationScore) else None
        return RecurrentState(hidden, keys, values, padded, summary, session, alignment), read

    def _split(self, states_BSV: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, S, V/2): half of the states, of each direction's where there are two."""
        if isinstance(self.encoder, SelfAttentionEncoder):
            key, value = states_BSV.chunk(2, -1)
            return key, value
        ahead_key, ahead_value, back_key, back_value = states_BSV.chunk(4, -1)
        return torch.cat([ahead_key, back_key], -1), torch.cat([ahead_value, back_value], -1)

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
        if state.alignment is not None:
            return self.select(state, rows)
        sources, width = len(state.keys), len(state.hidden[0]) // len(state.keys)
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
        step = stacked(self.config.cell, from_hidden, self._above(), len(inputs), state.session)
        hidden, states, contexts = state.hidden, [], []
        for own in inputs:
            given = own
            if look is not None:
                context, share = look(top(self.config.cell, hidden))
                contexts.append(context)
                given = own + share
            hidden = step(given, hidden)
            states.append(top(self.config.cell, hidden))
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
        if isinstance(self.score, LocationScore):
            return self._located(self.score, state)
        attend = self._attends(state, steps)
        if attend is None:
            return lambda s_BTM: state.summary[:, None].expand(-1, s_BTM.shape[1], -1)

        def look(s_BTM: Tensor) -> Tensor:
            # Rows that share a source are queries of one attention: its memory need not be repeated.
            sources = state.keys.shape[0]
            together = s_BTM if sources == s_BTM.shape[0] else s_BTM.reshape(sources, -1, s_BTM.shape[-1])
            return attend(together).reshape(*s_BTM.shape[:2], -1)

        return look

    def _located(self, score: LocationScore, state: RecurrentState) -> LocationSteps:
        assert self.attention is not None
        mask = None if state.lengths is None else Lengths(state.lengths)
        alignment = score.first_alignment(state.keys) if state.alignment is None else state.alignment
        normalizer = None if self.normalizer is None else self.normalizer.value()
        return LocationSteps(self.attention, score, mask, state.keys, state.values, alignment, normalizer)

    def _attends(self, state: RecurrentState, steps: int) -> Callable[[Tensor], Tensor] | None:
        """What attends to the source, in each of some steps; None if nothing does."""
        mask = None if state.lengths is None else Lengths(state.lengths)
        if self.multihead is not None:
            layer, memory, session = self.multihead, Memory(state.keys, state.values), state.session
            return lambda s: layer.attend(layer.project_query(s, session), memory, mask=mask, session=session)
        if self.attention is None or self.score is None or isinstance(self.score, LocationScore):
            return None
        ask, score = self.score.project_queries(steps, state.session), self.score.projected()
        if self.normalizer is None:
            attend = _one_head(self.attention, score, mask, state, steps)
        else:
            keep = {"score": score, "normalizer": self.normalizer.value(), "mask": mask}
            attend = partial(_with_keys, self.attention, state.keys, state.values, keep)
        return lambda s: attend(ask(s))

    def _above(self) -> list[LayerAbove]:
        return [layer for layer in self.above if isinstance(layer, LayerAbove)]


def _score(config: RecurrentConfig, key_width: int) -> ScoreModule | LocationScore:
    if config.score == LOCATION:
        return LocationScore(config.hidden, key_width, config.attention)
    return config.score_module(config.hidden, key_width, hidden=config.attention)


def _encoder(config: RecurrentConfig) -> nn.RNNBase | SelfAttentionEncoder:
    width, layers = config.embedding, config.encoder_layers
    if config.encoder == "transformer":
        mechanism, reach = Mechanism(), config.window
        return SelfAttentionEncoder(width, config.encoder_heads, layers, mechanism, reach=reach, dropout=config.dropout)
    layer: nn.RNNBase = CELLS[config.encoder or config.cell](
        width, config.hidden, layers, batch_first=True, bidirectional=True
    )
    return layer


def _with_keys(attention: Attention, keys: Tensor, values: Tensor, settings: dict[str, Any], query: Tensor) -> Tensor:
    found: Tensor = attention(query, keys, values, **settings)
    return found


def _one_head(
    attention: Attention, score: Score, mask: Lengths | None, state: RecurrentState, steps: int
) -> Callable[[Tensor], Tensor]:
    """Attention without heads to the source, in each of some steps, planned once for all of them."""
    if state.session is None or torch.is_grad_enabled():
        return RepeatedAttention(attention, score, mask, state.keys, state.values, steps)
    kept = state.session.keep(attention, KeptAttention)
    return partial(kept.attend, attention, score, mask, state.keys, state.values)
