"""The RNN encoder-decoder, with attention of any score or none."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.errors import UnsupportedError
from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.masks.patterns import Lengths
from qkv.models import recurrence
from qkv.models.cells import Hidden, LayerAbove, first_hidden, gates, stacked, top
from qkv.models.checks import (
    clean_source,
    padding_of,
    parts_of,
    split_source,
)
from qkv.models.configs.translator import RecurrentConfig
from qkv.models.encoders import SelfAttentionEncoder
from qkv.models.first_weights import initialize_cells, initialize_embeddings
from qkv.models.predictor import EncoderDecoder
from qkv.nn.attention import Also, Attention
from qkv.nn.decoding.cache import BatchRows, MaskedMemory, Memory
from qkv.nn.dropout import Dropout
from qkv.nn.location import LocationScore, LocationSteps
from qkv.nn.mechanism import LOCATION, MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.normalizers import module_or_value
from qkv.nn.recurrent.repeated import repeat_layer
from qkv.nn.recurrent.repeated_attention import PlannedAttention, RepeatedAttention
from qkv.nn.scores import ScoreModule, ScoreParts, score_of
from qkv.normalizers.kinds import optional_normalizer
from qkv.scores.base import Score
from qkv.values.rows import real_positions, select_rows


class RecurrentState(NamedTuple):
    """The decoder's state between two steps; B rows.

    Attributes:
        hidden: the cells' states, (B, M), from the lowest layer on; an LSTM's has two parts.
        keys: projected keys, (B, S, F), or (B, H, S, F) by head; B/W rows if each W adjacent rows share a source.
        values: the encoder's states, (B, S, V), or projections of them, (B, H, S, V).
        lengths: real source positions, (B,); None where there is no padding.
        summary: the encoder's last states, (B, V): the context where there is no attention.
        session: keeps packed weights and the loop over the keys; None to keep nothing.
        alignment: the weights of the last step, (B, S) or (B, H, S), if the score reads them.
        features: the source's features, if they are a second source; as many rows as `keys`.
    """

    hidden: Hidden
    keys: Tensor
    values: Tensor
    lengths: Tensor | None
    summary: Tensor
    session: DecodingSession | None = None
    alignment: Tensor | None = None
    features: MaskedMemory | None = None


@final
class RecurrentTranslator(EncoderDecoder[RecurrentState]):
    """An encoder, bidirectional or a Transformer's, and a recurrent decoder that attends to it in every step.

    With s the state of the decoder's last layer, h_j the encoder's at j and y the last token, Bahdanau's wiring is

        c_t = Σ_j softmax_j(score(s_{t−1}, h_j)) h_j,      s_t = cell(s_{t−1}, [y_{t−1}; c_t]),

    and Luong's, without input feeding,

        s_t = cell(s_{t−1}, y_{t−1}),      c_t = Σ_j softmax_j(score(s_t, h_j)) h_j;

    both predict with p(y_t) = softmax(W_o tanh(W [s_t; c_t; y_{t−1}])). Softmax stands for any normalizer. With
    separate features, c_t is the context of the source concatenated with that of the features.

    Args:
        config: its sizes.

    Source: Bahdanau et al. 2015, section 3 and appendix A; Luong et al. 2015, section 3, eq. 5; split states Daniluk
        et al. 2017, "Frustratingly Short Attention Spans", eq. 6 to 9; without attention Cho et al. 2014, section 2;
        two sources Zoph and Knight 2016, "Multi-Source Neural Translation", section 4.

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
        self.embed_source = None if config.source_size is None else nn.Embedding(config.source_size, width)
        self.encoder = _encoder(config)
        states = width if config.encoder == "transformer" else 2 * hidden
        self.bridge = nn.Linear(states, hidden)
        memory = states // 2 if config.memory == "split" else states
        location_heads = config.score == LOCATION and config.heads > 1
        has_score = location_heads or (config.attends and config.heads == 1)
        # Dot products and distances need equal widths: the memory is then projected to the state's width.
        self.narrow = nn.Linear(memory, hidden, bias=False) if has_score and config.needs_equal_widths else None
        key_width = memory if self.narrow is None else hidden
        self.score = _score(config, key_width) if has_score else None
        self.normalizer, fixed = module_or_value(
            config.normalizer_part(config.heads if location_heads else None) if has_score else None
        )
        self.features_attention = _features_attention(config)
        also: Also | None = "weights" if config.score == LOCATION else None
        self.attention = Attention(normalizer=fixed, also=also) if has_score else None
        self.head_values = nn.Linear(memory, hidden) if location_heads else None
        self.head_output = nn.Linear(hidden, hidden) if location_heads else None
        multi_head = config.attends and config.heads > 1 and not location_heads
        self.multihead = (
            MultiHeadAttention(hidden, config.heads, key_width=memory, score=config) if multi_head else None
        )
        parts = gates(config.model)
        self.from_embedding = nn.Linear(width, parts * hidden)
        attends_before_step = config.wiring == "bahdanau"
        value = hidden if multi_head or location_heads else memory if has_score else states
        value += 0 if self.features_attention is None else hidden
        self.from_context = nn.Linear(value, parts * hidden, bias=False) if attends_before_step else None
        self.from_hidden = nn.Linear(hidden, parts * hidden)
        self.above = nn.ModuleList(
            LayerAbove(config.model, hidden, config.dropout) for _ in range(1, config.decoder_layers)
        )
        self.readout = nn.Linear(hidden + value + width, width)
        self.output = nn.Linear(width, config.size)
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        self.reset_parameters()

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the output layer's input and of the encoder's states."""
        states = self.config.embedding if self.config.encoder == "transformer" else 2 * self.config.hidden
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
        others = ("score.", "normalizer.", "multihead.", "features_attention.", "encoder.blocks.", "encoder.norm.")
        parameters = ((name, parameter) for name, parameter in self.named_parameters() if not name.startswith(others))
        initialize_cells(parameters, self.config.hidden, open_forget_gate=self.config.model == "lstm")
        initialize_embeddings(self.config.embedding**-0.5, self.embed, self.embed_source)
        if self.config.tied:
            self.output.weight = self.embed.weight

    def read(
        self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None
    ) -> tuple[RecurrentState, Tensor]:
        """Like `start`, but also return the encoder's states (B, S, V)."""
        ids, real = clean_source(source, lengths, self.config.source_size or self.config.size)
        self.rows.begin(ids)
        embedded, features = self.source_embedding(ids), None
        if self.features_attention is not None:
            assert self.config.features_mark is not None
            lengths, is_feature = split_source(ids, lengths, self.config.features_mark)
            real = real_positions(lengths, ids.shape[1])
            # Features are a set: they have no positions, and no encoder beyond their embedding.
            projected = self.features_attention.project_memory(self.dropout(embedded), session=session)
            features = MaskedMemory(projected, is_feature)
        padded = padding_of(lengths, ids.shape[1])
        if isinstance(self.encoder, SelfAttentionEncoder):
            states, summary = self.encoder(embedded, lengths, padded, session)
        else:
            states, last = recurrence.run(self.encoder, self.dropout(embedded), lengths, session)
            summary = torch.where(lengths[:, None] > 0, torch.cat([last[-2], last[-1]], -1), 0)
        values = self.dropout(torch.where(real[..., None], states, 0))
        keys, values = self._split(values) if self.config.memory == "split" else (values, values)
        states_read = values
        if self.multihead is not None:
            memory = self.multihead.project_memory(keys, values, session)
            keys, values = memory.key, memory.value
        keys = keys if self.narrow is None else apply_layer(self.narrow, keys, session)
        keys = keys if self.score is None else _key_score(self.score, self.config).project_key(keys, session)
        if self.head_values is not None:
            by_head = apply_layer(self.head_values, values, session)
            values = by_head.view(*by_head.shape[:2], self.config.heads, -1).transpose(1, 2)
        hidden = first_hidden(self.config.model, self.bridge, summary) * self.config.decoder_layers
        alignment = self.score.first_alignment(keys) if isinstance(self.score, LocationScore) else None
        return RecurrentState(hidden, keys, values, padded, summary, session, alignment, features), states_read

    def _split(self, states_BSV: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, S, V/2): half of the states, of each direction's where there are two."""
        if isinstance(self.encoder, SelfAttentionEncoder):
            key, value = states_BSV.chunk(2, -1)
            return key, value
        ahead_key, ahead_value, back_key, back_value = states_BSV.chunk(4, -1)
        return torch.cat([ahead_key, back_key], -1), torch.cat([ahead_value, back_value], -1)

    def advance(self, target: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return the output layer's input for each target token (B, T, E), and the state after the last."""
        y_BTE = self.dropout(self.embed(target))
        s_BTM, c_BTV, after = self._run(y_BTE, state)
        output = torch.tanh(apply_layer(self.readout, torch.cat([s_BTM, c_BTV, y_BTE], -1), state.session))
        return self.dropout(output), after

    def select(self, state: RecurrentState, rows: Tensor) -> RecurrentState:
        """Take rows of a state: fewer, repeated, or in another order."""
        return self._select(state, rows, rows)

    def fork(self, state: RecurrentState, rows: Tensor, width: int) -> RecurrentState:
        """Select rows, and repeat each `width` times; the adjacent copies share their source.

        With a location-sensitive score they do not, because each then has keys of its own in every step.
        """
        repeated = rows.repeat_interleave(width)
        return self._select(state, repeated, rows if state.alignment is None else repeated)

    def regroup(self, state: RecurrentState, rows: Tensor) -> RecurrentState:
        """Select rows of a forked state, in groups that share a source."""
        if state.alignment is not None:
            return self.select(state, rows)
        sources, width = len(state.keys), len(state.hidden[0]) // len(state.keys)
        sources_kept = None if rows.numel() == sources * width else rows[::width] // width
        return self._select(state, rows, sources_kept)

    def _select(self, state: RecurrentState, rows: Tensor, sources: Tensor | None) -> RecurrentState:
        """Select rows of a state, and of its sources, which several rows can share; None keeps all sources."""
        rows = self.rows(rows)
        hidden, summary = tuple(select_rows(part, rows) for part in state.hidden), select_rows(state.summary, rows)
        if sources is None:
            return state._replace(hidden=hidden, summary=summary)
        lengths = None if state.lengths is None else select_rows(state.lengths, sources)
        keys, values = select_rows(state.keys, sources), select_rows(state.values, sources)
        alignment = None if state.alignment is None else select_rows(state.alignment, rows)
        features = None if state.features is None else state.features.select(sources)
        return RecurrentState(hidden, keys, values, lengths, summary, state.session, alignment, features)

    def _run(self, y_BTE: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """Return states (B, T, M), contexts (B, T, V) and the state after; what needs no loop stays outside it."""
        inputs = apply_layer(self.from_embedding, y_BTE, state.session).unbind(1)
        source_contexts = self._source_contexts(state, len(inputs) if self.config.wiring == "bahdanau" else 1)
        contexts_of = self._contexts(source_contexts, state)
        attend = None
        if self.from_context is not None:
            attend = self._attend_before_step(self.from_context, state, len(inputs), contexts_of)
        from_hidden = repeat_layer(self.from_hidden, len(inputs), state.session)
        above = parts_of(self.above, LayerAbove, "above")
        step = stacked(self.config.model, from_hidden, above, len(inputs), state.session)
        hidden, states, contexts = state.hidden, [], []
        for step_input in inputs:
            x = step_input
            if attend is not None:
                context, gate_inputs = attend(top(self.config.model, hidden))
                contexts.append(context)
                x = step_input + gate_inputs
            hidden = step(x, hidden)
            states.append(top(self.config.model, hidden))
        s_BTM = torch.stack(states, 1)
        c_BTV = torch.cat(contexts, 1) if contexts else contexts_of(s_BTM)
        alignment = source_contexts.alignment if isinstance(source_contexts, LocationSteps) else None
        return s_BTM, c_BTV, state._replace(hidden=hidden, alignment=alignment)

    def _attend_before_step(
        self, from_context: nn.Module, state: RecurrentState, steps: int, attend: Callable[[Tensor], Tensor]
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return a function from the state before a step (B, M) to its context and the gate inputs from it."""
        gates_of = repeat_layer(from_context, steps, state.session)

        def attend_to_source(s_BM: Tensor) -> tuple[Tensor, Tensor]:
            c_B1V = attend(s_BM[:, None])
            return c_B1V, gates_of(c_B1V[:, 0])

        return attend_to_source

    def _source_contexts(self, state: RecurrentState, steps: int) -> Callable[[Tensor], Tensor]:
        """Return the function from states (B, T, M) to their contexts of the source (B, T, V)."""
        if isinstance(self.score, LocationScore):
            return self._location_contexts(self.score, state)
        attend = self._source_attention(state, steps)
        if attend is None:
            return lambda s_BTM: state.summary[:, None].expand(-1, s_BTM.shape[1], -1)
        return lambda s_BTM: _by_source(attend, s_BTM, state.keys.shape[0])

    def _contexts(
        self, source_contexts: Callable[[Tensor], Tensor], state: RecurrentState
    ) -> Callable[[Tensor], Tensor]:
        """Return the function from states (B, T, M) to contexts (B, T, V): of the source, then of its features."""
        layer, features, session = self.features_attention, state.features, state.session
        if (output := self.head_output) is not None:
            source_contexts = _with_heads_mixed(source_contexts, output, session)
        if layer is None or features is None:
            return source_contexts

        def attend(s: Tensor) -> Tensor:
            return layer.attend(layer.project_query(s, session), features.memory, mask=features.mask, session=session)

        return lambda s_BTM: torch.cat([source_contexts(s_BTM), _by_source(attend, s_BTM, len(features.visible))], -1)

    def _location_contexts(self, score: LocationScore, state: RecurrentState) -> LocationSteps:
        assert self.attention is not None
        mask = None if state.lengths is None else Lengths(state.lengths)
        alignment = score.first_alignment(state.keys) if state.alignment is None else state.alignment
        normalizer = optional_normalizer(self.normalizer)
        return LocationSteps(self.attention, score, mask, state.keys, state.values, alignment, normalizer)

    def _source_attention(self, state: RecurrentState, steps: int) -> Callable[[Tensor], Tensor] | None:
        """Return the function that attends to the source in each of some steps; None for a model without attention."""
        mask = None if state.lengths is None else Lengths(state.lengths)
        if self.multihead is not None:
            layer, memory, session = self.multihead, Memory(state.keys, state.values), state.session
            return lambda s: layer.attend(layer.project_query(s, session), memory, mask=mask, session=session)
        if self.attention is None or self.score is None or isinstance(self.score, LocationScore):
            return None
        score_parts = score_of(self.score)
        project_query, score = score_parts.project_queries(steps, state.session), score_parts.projected()
        if self.normalizer is None:
            attend = _one_head(self.attention, score, mask, state, steps)
            return lambda s: attend(project_query(s))
        attention, keys, values = self.attention, state.keys, state.values
        settings = {"score": score, "normalizer": optional_normalizer(self.normalizer), "mask": mask}
        return lambda s: attention(project_query(s), keys, values, **settings)


def _with_heads_mixed(
    source_contexts: Callable[[Tensor], Tensor], output: nn.Module, session: DecodingSession | None
) -> Callable[[Tensor], Tensor]:
    """Return a function from states to contexts (B, T, V): those of all heads (B, H, T, V/H), joined and projected."""
    return lambda s_BTM: apply_layer(output, source_contexts(s_BTM).transpose(1, 2).flatten(2), session)


def _by_source(attend: Callable[[Tensor], Tensor], s_BTM: Tensor, sources: int) -> Tensor:
    """Attend once for all rows that share a source: their states are its queries, and its memory is not repeated."""
    grouped = s_BTM if sources == s_BTM.shape[0] else s_BTM.reshape(sources, -1, s_BTM.shape[-1])
    return attend(grouped).reshape(*s_BTM.shape[:2], -1)


def _features_attention(config: RecurrentConfig) -> MultiHeadAttention | None:
    if config.features_mark is None:
        return None
    # A location is a position in the source: features have none.
    mechanism = MechanismConfig(score="additive") if config.score == LOCATION else config
    return MultiHeadAttention(config.hidden, config.heads, key_width=config.embedding, score=mechanism)


def _key_score(score: nn.Module, config: RecurrentConfig) -> ScoreParts | LocationScore:
    if isinstance(score, LocationScore):
        return score
    if config.score == LOCATION:
        hint = "Another module in its place would not get the weights of the step before."
        raise UnsupportedError("score", "the LocationScore that the decoder was built with", type(score).__name__, hint)
    return score_of(score)


def _score(config: RecurrentConfig, key_width: int) -> ScoreModule | LocationScore:
    if config.score == LOCATION and config.heads > 1:
        return LocationScore(config.hidden, key_width, config.hidden // config.heads, heads=config.heads)
    if config.score == LOCATION:
        return LocationScore(config.hidden, key_width, config.attention)
    return config.score_module(config.hidden, key_width, hidden=config.attention)


def _encoder(config: RecurrentConfig) -> nn.RNNBase | SelfAttentionEncoder:
    width, layers = config.embedding, config.encoder_layers
    if config.encoder == "transformer":
        return SelfAttentionEncoder(
            width,
            config.encoder_heads,
            layers,
            config.encoding,
            positions=config.positions or "sinusoidal",
            reach=config.window,
            dropout=config.dropout,
        )
    layer: nn.RNNBase = recurrence.CELLS[config.encoder or config.model](
        width, config.hidden, layers, batch_first=True, bidirectional=True
    )
    return layer


def _one_head(
    attention: Attention, score: Score, mask: Lengths | None, state: RecurrentState, steps: int
) -> Callable[[Tensor], Tensor]:
    """Return the function of single-head attention to the source, planned once for all steps."""
    if state.session is None or torch.is_grad_enabled():
        return RepeatedAttention(attention, score, mask, state.keys, state.values, steps)
    attention_of_session = state.session.keep(attention, PlannedAttention)
    return partial(attention_of_session.attend, attention, score, mask, state.keys, state.values)
