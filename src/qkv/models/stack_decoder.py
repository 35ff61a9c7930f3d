"""A language model with the parts of a published one: GPT-2, GPT-NeoX, Llama, Mistral, Qwen, Gemma."""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.models.checks import parts_of
from qkv.models.stack import StackConfig, add_positions, causal_mask, initialize
from qkv.models.token_predictor import TokenPredictor
from qkv.nn.decoding.cache import BatchRows, Memory
from qkv.nn.dropout import Dropout
from qkv.nn.stack_block import StackBlock


class StackState(NamedTuple):
    """A language model's state between two steps; B rows.

    Attributes:
        caches: keys and values of each block; empty initially.
        position: number of tokens read, padding included.
        padding: tokens of padding at the left of each row (B,); None for none.
    """

    caches: tuple[Memory, ...]
    position: int
    padding: Tensor | None = None


@final
class StackLanguageModel(TokenPredictor[StackState]):
    """A stack of blocks of masked self-attention over one sequence.

    Args:
        config: its parts.

    Source: Radford et al. 2019 (GPT-2); Black et al. 2022 (GPT-NeoX); Touvron et al. 2023 (Llama); Gemma Team 2025
        (Gemma 3).

    Example:
        >>> model = StackLanguageModel(StackConfig(20, 16, 4, 2, 4, 32, 2, gated=True)).eval()
        >>> tokens = torch.randint(4, 20, (2, 6))
        >>> first, state = model.read(tokens[:, :4])
        >>> then, state = model.read(tokens[:, 4:], state)
        >>> torch.allclose(torch.cat([first, then], 1), model(tokens), atol=1e-5), state.position
        (True, 6)
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.size, config.width)
        self.positions = config.learned()
        self.blocks = nn.ModuleList(config.block(index) for index in range(config.layers))
        self.norm = config.norms.build(config.width) if config.norms.final else nn.Identity()
        self.output = nn.Linear(config.width, config.size, bias=config.output_bias)
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        initialize(self, config)
        if config.tied:
            self.output.weight = self.embed.weight

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """Predict the token after each one, as `TokenPredictor.forward`; logits of padding are undefined.

        Args:
            tokens: ids (B, T), int64; T at most `context` if positions are learned.
            padding: tokens of padding at the left of each row (B,), int64: nothing sees them; None for none.
        """
        return self.read(tokens, padding=padding)[0]

    def read(
        self, tokens: Tensor, state: StackState | None = None, *, padding: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Read tokens that follow those of a state, as `TokenPredictor.read`; padding as for `forward`, initially."""
        return super().read(tokens, self.begin(tokens, padding) if state is None else state)

    def logits(self, states: Tensor) -> Tensor:
        """Apply the output layer and the bound of its logits: (..., M) to (..., N)."""
        logits, cap = super().logits(states), self.config.output_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def begin(self, tokens: Tensor, padding: Tensor | None = None) -> StackState:
        """Return the initial state for a batch of tokens (B, T) whose first `padding` tokens (B,) are hidden."""
        self.rows.begin(tokens)
        return StackState((), 0, padding)

    def continued(self, tokens: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """Return the output layer's input for each token (B, T, M), and the state after the last. Tokens are valid."""
        padding, start = state.padding, state.position
        x = self.embed(tokens) * self.config.embed_scale
        x = add_positions(x, self.positions, self.config.positions, start if padding is None else start - padding)
        x = self.dropout(x)
        caches = []
        for index, block in enumerate(self._blocks()):
            past = state.caches[index] if state.caches else None
            first, known = (0, 0) if past is None else (past.first, past.length)
            mask = causal_mask(tokens.shape[1], known + tokens.shape[1], first, block.reach, padding)
            x, cache = block.step(x, past, mask)
            caches.append(cache)
        states: Tensor = self.norm(x)
        if self.config.output_scale != 1:
            states = states * self.config.output_scale
        return states, StackState(tuple(caches), start + tokens.shape[1], padding)

    def select(self, state: StackState, rows: Tensor) -> StackState:
        """Select rows of a state: fewer, repeated or reordered."""
        rows = self.rows(rows)
        padding = None if state.padding is None else state.padding.index_select(0, rows)
        return StackState(tuple(cache.select(rows) for cache in state.caches), state.position, padding)

    def _blocks(self) -> list[StackBlock]:
        return parts_of(self.blocks, StackBlock, "blocks")
