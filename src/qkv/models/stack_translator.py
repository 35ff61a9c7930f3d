"""An encoder-decoder with the parts of a published one: Marian, Pegasus, T5."""

from typing import NamedTuple, final

from torch import Tensor, nn

from qkv.linalg.session import DecodingSession
from qkv.masks.patterns import lengths as first_keys
from qkv.models.checks import clean_source, padding_of, parts_of
from qkv.models.encoder_decoder import EncoderDecoder
from qkv.models.stack import StackConfig, add_positions, causal_mask, initialize
from qkv.nn.biases import bias_of
from qkv.nn.decoding.cache import BatchRows, Memory
from qkv.nn.dropout import Dropout
from qkv.nn.stack_block import StackBlock


class PairState(NamedTuple):
    """The decoder's state between two steps; B rows.

    Attributes:
        caches: keys and values of the target, of each block; empty initially.
        sources: keys and values of the source, of each block.
        lengths: real source positions (B,); None where there is no padding.
        position: of the next target token.
        session: keeps packed weights and memory for the steps; None to keep nothing.
    """

    caches: tuple[Memory, ...]
    sources: tuple[Memory, ...]
    lengths: Tensor | None
    position: int
    session: DecodingSession | None = None


@final
class StackTranslator(EncoderDecoder[PairState]):
    """A stack of blocks over the source, and a stack over the target whose blocks attend to it.

    Args:
        config: its parts.

    Source: Vaswani et al. 2017; Junczys-Dowmunt et al. 2018, "Marian"; Zhang et al. 2020, "PEGASUS"; Raffel et al.
        2020, "T5".

    Example:
        >>> import torch
        >>> model = StackTranslator(StackConfig(20, 16, 4, 4, 4, 32, 2, decoder_layers=2))
        >>> source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
        >>> model(source, torch.tensor([5, 3]), target).shape
        torch.Size([2, 6, 20])
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.size, config.width)
        self.target_embed = nn.Embedding(config.size, config.width) if config.two_embeddings else None
        self.positions = config.learned()
        self.encoder_bias, self.decoder_bias = config.bias(causal=False), config.bias(causal=True)
        self.encoder = nn.ModuleList(config.block() for _ in range(config.layers))
        self.decoder = nn.ModuleList(config.block(cross=True) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = (
            config.norms.build(config.width) if config.norms.final else nn.Identity() for _ in range(2)
        )
        self.output = nn.Linear(config.width, config.size, bias=config.output_bias)
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        initialize(self, config)
        if config.tied:
            self.output.weight = (self.target_embed or self.embed).weight

    @property
    def widths(self) -> tuple[int, int]:
        """The widths of the output layer's input and of the encoder's states."""
        return self.config.width, self.config.width

    @property
    def alignment_layer(self) -> str | None:
        """The name of the attention that aligns target and source: that of the last block."""
        return f"decoder.{self.config.decoder_layers - 1}.cross_attention.attention"

    def read(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> tuple[PairState, Tensor]:
        """Like `start` or `start_in`, but also return the encoder's states (B, S, M)."""
        ids, real = clean_source(source, lengths, self.config.size)
        self.rows.begin(ids)
        padded = padding_of(lengths, real)
        x = self._embed(self.embed, ids, 0)
        mask = None if padded is None else first_keys(padded)
        bias = None if self.encoder_bias is None else bias_of(self.encoder_bias, ids.shape[1], ids.shape[1])
        for block in parts_of(self.encoder, StackBlock, "encoder"):
            x, _ = block.step(x, None, mask, bias=bias, session=session)
        memory: Tensor = self.dropout(self.encoder_norm(x)) if self.config.norms.final else x
        sources = tuple(
            block.cross_attention.project_memory(memory, session=session)
            for block in parts_of(self.decoder, StackBlock, "decoder")
        )
        return PairState((), sources, padded, 0, session), memory

    def advance(self, target: Tensor, state: PairState) -> tuple[Tensor, PairState]:
        """Return the output layer's input for each target token (B, T, M), and the state after the last."""
        count, start = target.shape[1], state.position
        x = self._embed(self.target_embed or self.embed, target, start)
        mask = causal_mask(count, start + count, 0, None, None)
        bias = None if self.decoder_bias is None else bias_of(self.decoder_bias, count, start + count, start)
        hidden = None if state.lengths is None else first_keys(state.lengths)
        caches = []
        for index, block in enumerate(parts_of(self.decoder, StackBlock, "decoder")):
            past = state.caches[index] if state.caches else None
            x, cache = block.step(
                x, past, mask, bias=bias, source=state.sources[index], source_mask=hidden, session=state.session
            )
            caches.append(cache)
        states: Tensor = self.decoder_norm(x)
        if self.config.norms.final:
            states = self.dropout(states)
        if self.config.output_scale != 1:
            states = states * self.config.output_scale
        return states, state._replace(caches=tuple(caches), position=start + count)

    def select(self, state: PairState, rows: Tensor) -> PairState:
        """Select rows of a state: fewer, repeated or reordered."""
        rows = self.rows(rows)
        return state._replace(
            caches=tuple(cache.select(rows) for cache in state.caches),
            sources=tuple(source.select(rows) for source in state.sources),
            lengths=None if state.lengths is None else state.lengths.index_select(0, rows),
        )

    def _embed(self, embed: nn.Embedding, tokens: Tensor, start: int) -> Tensor:
        x = embed(tokens) * self.config.embed_scale
        found: Tensor = self.dropout(add_positions(x, self.positions, self.config.positions, start))
        return found
