"""The Transformer encoder-decoder."""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.biases import Bias
from qkv.linalg.session import DecodingSession
from qkv.models.checks import (
    clean_source,
    padding_of,
    parts_of,
    split_source,
)
from qkv.models.configs.translator import TransformerConfig
from qkv.models.encoders import encode
from qkv.models.first_weights import initialize_embeddings
from qkv.models.parts import TransformerParts, scaled
from qkv.models.predictor import EncoderDecoder
from qkv.nn.biases import at_positions, bias_of
from qkv.nn.blocks import BlockCache, TransformerBlock, fork_positions
from qkv.nn.decoding.cache import BatchRows
from qkv.nn.decoding.stepping import steps
from qkv.nn.dropout import Dropout
from qkv.values.rows import select_rows


class TransformerState(NamedTuple):
    """The decoder's state between two steps; B rows.

    Attributes:
        caches: of each decoder block.
        lengths: real source positions, (B,); None where there is no padding.
        position: of the next target token.
        visible: after `fork`, which of a source's cached keys each of its W hypotheses sees: bool (B/W, W, K). All
            hypotheses of a source share one cache, so that a beam copies no keys when it drops one of them.
        session: keeps packed weights and memory for the steps; None to keep nothing.
        parted: the position of `fork`, from which each source has W keys per position.
    """

    caches: tuple[BlockCache, ...]
    lengths: Tensor | None
    position: int
    visible: Tensor | None = None
    session: DecodingSession | None = None
    parted: int = 0


@final
class TransformerTranslator(EncoderDecoder[TransformerState]):
    """A stack of blocks over the source, and a stack over the target whose blocks attend to it, trained or published.

    Args:
        config: its sizes, or all of its parts.

    Source: Vaswani et al. 2017, section 3, figure 1; Junczys-Dowmunt et al. 2018, "Marian"; Zhang et al. 2020,
        "PEGASUS"; Raffel et al. 2020, "T5"; Lewis et al. 2020, "BART"; Fan et al. 2021, "Beyond English-Centric
        Multilingual Machine Translation" (M2M-100).

    Example:
        >>> model = TransformerTranslator(TransformerConfig(size=20, width=16, heads=2, feed_forward=32))
        >>> source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
        >>> model(source, torch.tensor([5, 3]), target).shape
        torch.Size([2, 6, 20])
    """

    def __init__(self, config: TransformerConfig | TransformerParts) -> None:
        super().__init__()
        self.config = config
        self.parts = parts = config.parts
        self.embed = nn.Embedding(parts.size, parts.width)
        self.embed_source = None if parts.source_size is None else nn.Embedding(parts.source_size, parts.width)
        self.positions = parts.positions.embedding(parts.width, parts.context)
        # Learned positions and norms of embeddings are different ones on either side.
        learned = parts.positions.kind == "learned"
        self.source_positions = parts.positions.embedding(parts.width, parts.context) if learned else None
        self.embed_norm, self.source_embed_norm = (_end_norm(parts, parts.norms.embedding) for _ in range(2))
        self.encoder_bias = parts.positions.shared(parts.heads, causal=False)
        self.decoder_bias = parts.positions.shared(parts.heads, causal=True)
        self.rows = BatchRows()
        self.encoder = _encoder(parts)
        self.decoder = nn.ModuleList(parts.block(index, cross=True) for index in range(parts.decoder_layers))
        # Blocks that end in a norm need none after the stack.
        self.encoder_norm = _end_norm(parts, parts.norms.final or parts.recurrent is not None)
        self.decoder_norm = _end_norm(parts, parts.norms.final)
        self.output = nn.Linear(parts.width, parts.size, bias=parts.output_bias)
        self.dropout = Dropout(parts.dropout)
        self.end_dropout = Dropout(parts.dropout) if parts.end_dropout else nn.Identity()
        self.reset_parameters()

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the output layer's input and of the encoder's states."""
        return self.parts.width, self.parts.width

    @property
    def alignment_layer(self) -> str | None:
        """The name of the attention that aligns target and source: that of the last block."""
        return f"decoder.{self.parts.decoder_layers - 1}.cross_attention.attention"

    def reset_parameters(self) -> None:
        """Initialize embedding and output; blocks initialize their own parameters."""
        initialize_embeddings(self.parts.width**-0.5, self.embed, self.embed_source)
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)
        if self.parts.tied:
            self.output.weight = self.embed.weight
        else:
            nn.init.xavier_uniform_(self.output.weight)

    def read(
        self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None
    ) -> tuple[TransformerState, Tensor]:
        """Like `start`, but also return the encoder's states (B, S, M)."""
        ids = clean_source(source, lengths, self.parts.source_size or self.parts.size)[0]
        self.rows.begin(ids)
        second = None
        if self.parts.features_mark is not None:
            lengths, is_feature = split_source(ids, lengths, self.parts.features_mark)
            # Features are a set: they have no positions.
            second = self.dropout(scaled(self.source_embedding(ids), self.parts.embed_scale)), is_feature
        padded = padding_of(lengths, ids.shape[1])
        memory = self._encode(ids, lengths, padded, session)
        caches = tuple(block.begin(memory, session, second) for block in self._decoder_blocks())
        return TransformerState(caches, padded, 0, session=session), memory

    def advance(self, target: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """Return the output layer's input for each target token (B, T, M), and the state after the last."""
        visible, count = state.visible, target.shape[1]
        x_BTM = self._embed(self.embed, self.positions, self.embed_norm, target, state.position)
        if visible is not None:
            visible = _with_newest(visible)
            x_BTM = x_BTM.view(*visible.shape[:2], -1)
        x_BTM, caches = steps(
            self._decoder_blocks(),
            x_BTM,
            state.caches,
            state.lengths,
            visible,
            state.session,
            state.parted,
            bias=self._target_bias(count, state, visible),
        )
        h_BTM = scaled(self.end_dropout(self.decoder_norm(x_BTM)), self.parts.output_scale)
        after = state._replace(caches=caches, position=state.position + count, visible=visible)
        return h_BTM.view(*target.shape, -1), after

    def select(self, state: TransformerState, rows: Tensor) -> TransformerState:
        """Select rows of a state: fewer, repeated or reordered."""
        return _select_sources(state, self.rows(rows))

    def fork(self, state: TransformerState, rows: Tensor, width: int) -> TransformerState:
        """Select rows, and repeat each `width` times; the adjacent copies share their source and their past."""
        self.rows(rows.repeat_interleave(width))
        visible = torch.ones(rows.numel(), width, state.position, dtype=torch.bool, device=rows.device)
        return _select_sources(state, rows)._replace(visible=visible, parted=state.position)

    def regroup(self, state: TransformerState, rows: Tensor) -> TransformerState:
        """Select rows of a forked state, in groups that share a source."""
        assert state.visible is not None
        rows, width = self.rows(rows), state.visible.shape[1]
        visible = select_rows(state.visible.flatten(0, 1), rows).view(-1, width, state.visible.shape[2])
        if rows.numel() < state.visible.shape[0] * width:
            state = _select_sources(state, rows[::width] // width)
        return state._replace(visible=visible)

    def _encode(
        self, ids: Tensor, lengths: Tensor, padded: Tensor | None, session: DecodingSession | None = None
    ) -> Tensor:
        """Return the encoder's states (B, S, M) of ids (B, S); `padded` is `lengths`, or None without padding."""
        if isinstance(self.encoder, nn.ModuleList):
            count, shared = ids.shape[1], self.encoder_bias
            bias = None if shared is None else bias_of(shared, count, count)
            positions = self.source_positions or self.positions
            x_BSM = self._embed(self.source_embedding, positions, self.source_embed_norm, ids, 0)
            x_BSM = encode(self.encoder, x_BSM, padded, bias=bias, session=session)
        else:
            x_BSM = self.dropout(self.encoder(self.dropout(self.source_embedding(ids)), lengths, session))
        memory: Tensor = self.end_dropout(self.encoder_norm(x_BSM))
        return memory

    def _embed(
        self, embed: nn.Embedding, positions: nn.Module | None, norm: nn.Module, tokens: Tensor, start: int
    ) -> Tensor:
        x = scaled(embed(tokens), self.parts.embed_scale)
        embedded: Tensor = self.dropout(norm(x if positions is None else positions(x, start)))
        return embedded

    def _target_bias(self, count: int, state: TransformerState, visible: Tensor | None) -> Bias | Tensor | None:
        """Return the bias of the newest positions that all blocks share, if there is one."""
        if self.decoder_bias is None:
            return None
        if visible is None:
            return bias_of(self.decoder_bias, count, state.position + count, state.position)
        return at_positions(self.decoder_bias, fork_positions(visible, state.parted)[0], visible.shape[1])

    def _decoder_blocks(self) -> list[TransformerBlock]:
        return parts_of(self.decoder, TransformerBlock, "decoder")


def _select_sources(state: TransformerState, sources: Tensor) -> TransformerState:
    """Select the cached entries of some sources."""
    caches = tuple(cache.select(sources) for cache in state.caches)
    lengths = None if state.lengths is None else select_rows(state.lengths, sources)
    return state._replace(caches=caches, lengths=lengths)


def _with_newest(visible_SWK: Tensor) -> Tensor:
    """Return what each of W hypotheses sees once its newest key is stored next to those of the others."""
    sources, width, _ = visible_SWK.shape
    newest = torch.eye(width, dtype=torch.bool, device=visible_SWK.device)
    return torch.cat([visible_SWK, newest.expand(sources, width, width)], -1)


def _encoder(parts: TransformerParts) -> nn.Module:
    if parts.recurrent is not None:
        from qkv.models.recurrence import RecurrentEncoder

        return RecurrentEncoder(parts.recurrent, parts.width, parts.layers)
    return nn.ModuleList(parts.block(index) for index in range(parts.layers))


def _end_norm(parts: TransformerParts, present: bool) -> nn.Module:
    return parts.norms.build(parts.width) if present else nn.Identity()
