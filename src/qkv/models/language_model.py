"""The Transformer decoder: a language model that predicts each token from those before it."""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.linalg.session import DecodingSession
from qkv.models.checks import check_target, parts_of
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.parts import TransformerParts, scaled
from qkv.models.predictor import TokenPredictor
from qkv.nn.blocks import BlockCache, TransformerBlock
from qkv.nn.decoding.cache import BatchRows
from qkv.nn.dropout import Dropout
from qkv.values.rows import select_rows


class DecoderState(NamedTuple):
    """A language model's state between two steps; B rows.

    Attributes:
        caches: keys and values of each block; empty initially.
        position: number of tokens read, padding included.
        padding: tokens of padding at the left of each row (B,); None for none.
        session: keeps packed weights and memory for the steps; None to keep nothing.
    """

    caches: tuple[BlockCache, ...]
    position: int
    padding: Tensor | None = None
    session: DecodingSession | None = None


@final
class LanguageModel(TokenPredictor[DecoderState]):
    """A stack of blocks of masked self-attention over one sequence, trained here or published.

    Args:
        config: its sizes, or all of its parts.

    Source: Vaswani et al. 2017, section 3, the decoder alone; Radford et al. 2019 (GPT-2); Black et al. 2022
        (GPT-NeoX); Touvron et al. 2023 (Llama); Gemma Team 2025 (Gemma 3).

    Example:
        >>> import torch
        >>> model = LanguageModel(DecoderConfig(size=20, width=16, heads=2, feed_forward=32)).eval()
        >>> tokens = torch.randint(4, 20, (2, 6))
        >>> logits = model(tokens)
        >>> first, state = model.read(tokens[:, :4])
        >>> rest, state = model.read(tokens[:, 4:], state)
        >>> torch.allclose(torch.cat([first, rest], 1), logits, atol=1e-5), state.position
        (True, 6)
    """

    def __init__(self, config: DecoderConfig | TransformerParts) -> None:
        super().__init__()
        self.config = config
        self.parts = parts = config.parts
        self.embed = nn.Embedding(parts.size, parts.width)
        self.positions = parts.positions.embedding(parts.width, parts.context)
        self.blocks = nn.ModuleList(parts.block(index) for index in range(parts.layers))
        self.norm = parts.norms.build(parts.width) if parts.norms.final else nn.Identity()
        self.output = nn.Linear(parts.width, parts.size, bias=parts.output_bias)
        self.dropout = Dropout(parts.dropout)
        self.rows = BatchRows()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters; the last layers before the residual stream start at zero, so that blocks start as
        identities.

        Source: Zhang et al. 2019, "Fixup Initialization", section 3 (zero last layers).
        """
        for block in self._blocks():
            attention, feed = block.self_attention, block.feed_forward
            attention.reset_parameters()
            nn.init.normal_(feed.expand.weight, std=self.parts.width**-0.5)
            for layer in (attention.output, feed.contract):
                assert layer is not None
                nn.init.zeros_(layer.weight)
        nn.init.normal_(self.embed.weight, std=0.02)
        if self.positions is not None:
            self.positions.reset_parameters()
        if self.output.bias is not None:
            nn.init.zeros_(self.output.bias)
        if self.parts.tied:
            self.output.weight = self.embed.weight
        else:
            nn.init.normal_(self.output.weight, std=0.02)

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """Predict the token after each one, as `TokenPredictor.forward`; logits of padding are undefined.

        Args:
            tokens: ids (B, T), int64; T at most `context` if positions are learned.
            padding: tokens of padding at the left of each row (B,), int64: nothing sees them; None for none.
        """
        return self._predict(tokens, self._padded(tokens, padding))[0]

    def read(
        self,
        tokens: Tensor,
        state: DecoderState | None = None,
        *,
        padding: Tensor | None = None,
        session: DecodingSession | None = None,
    ) -> tuple[Tensor, DecoderState]:
        """Read tokens that follow those of a state, as `TokenPredictor.read`; padding as for `forward`, initially."""
        before = self._padded(tokens, padding, session) if state is None else state
        return super().read(tokens, before, session=session)

    def logits(self, states: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Apply the output layer and the bound of its logits: (..., M) to (..., N)."""
        logits, cap = super().logits(states, session), self.parts.output_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def begin(
        self, tokens: Tensor, session: DecodingSession | None = None, padding: Tensor | None = None
    ) -> DecoderState:
        """Return the initial state for a batch of tokens (B, T) whose first `padding` tokens (B,) are hidden."""
        self.rows.begin(tokens)
        return DecoderState((BlockCache(),) * len(self.blocks), 0, padding, session)

    def continued(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return the output layer's input for each of some valid tokens (B, T, M), and the state after the last."""
        padding, start = state.padding, state.position
        x_BTM = scaled(self.embed(tokens), self.parts.embed_scale)
        if self.positions is not None:
            x_BTM = self.positions(x_BTM, start if padding is None else start - padding)
        x_BTM, caches = self.dropout(x_BTM), []
        for block, cache in zip(self._blocks(), state.caches, strict=True):
            x_BTM, new_cache = block.step(x_BTM, cache, session=state.session, padding=padding)
            caches.append(new_cache)
        states = scaled(self.norm(x_BTM), self.parts.output_scale)
        return states, state._replace(caches=tuple(caches), position=start + tokens.shape[1])

    def select(self, state: DecoderState, rows: Tensor) -> DecoderState:
        """Select rows of a state: fewer, repeated or reordered."""
        rows = self.rows(rows)
        padding = None if state.padding is None else select_rows(state.padding, rows)
        return state._replace(caches=tuple(cache.select(rows) for cache in state.caches), padding=padding)

    def _padded(
        self, tokens: Tensor, padding: Tensor | None, session: DecodingSession | None = None
    ) -> DecoderState | None:
        """Return the initial state for tokens with padding; None without padding."""
        if padding is None:
            return None
        check_target(tokens, tokens.shape[0], self.parts.size)
        return self.begin(tokens, session, padding)

    def _blocks(self) -> list[TransformerBlock]:
        return parts_of(self.blocks, TransformerBlock, "blocks")
