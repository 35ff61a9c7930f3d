"""The recurrent language model: a cell's states, and attention over the earlier ones."""

from typing import NamedTuple, final

from torch import Tensor, nn

from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, window
from qkv.models.cells import Hidden, LayerAbove, gates, hidden_of, run_cells
from qkv.models.checks import parts_of
from qkv.models.configs.language_model import RecurrentDecoderConfig
from qkv.models.first_weights import initialize_cells
from qkv.models.predictor import TokenPredictor
from qkv.nn.decoding.cache import BatchRows, Memory
from qkv.nn.dropout import Dropout
from qkv.nn.multihead import MultiHeadAttention
from qkv.values.rows import select_rows


class RecurrentDecoderState(NamedTuple):
    """The model's state between two steps; B rows.

    Attributes:
        hidden: the cells' states (B, M), from the lowest layer on; an LSTM's has two parts.
        past: keys and values of earlier states; None without attention.
        position: position of the next token.
        session: keeps packed weights and memory for the steps; None to keep nothing.
    """

    hidden: Hidden
    past: Memory | None
    position: int
    session: DecodingSession | None = None


@final
class RecurrentLanguageModel(TokenPredictor[RecurrentDecoderState]):
    """s_t = cell(s_{t−1}, y_t), c_t = attention(s_t; s_1, …, s_t), p(y_{t+1}) = softmax(W_o norm(s_t + c_t)).

    Args:
        config: its sizes.

    Source: Daniluk et al. 2017, "Frustratingly Short Attention Spans in Neural Language Modeling", section 2.1.

    Example:
        >>> import torch
        >>> model = RecurrentLanguageModel(RecurrentDecoderConfig(size=20, width=16, heads=2)).eval()
        >>> tokens = torch.randint(4, 20, (2, 6))
        >>> first, state = model.read(tokens[:, :4])
        >>> rest, state = model.read(tokens[:, 4:], state)
        >>> torch.allclose(torch.cat([first, rest], 1), model(tokens), atol=1e-5), state.position
        (True, 6)
    """

    def __init__(self, config: RecurrentDecoderConfig) -> None:
        super().__init__()
        self.config = config
        width, parts = config.width, gates(config.model)
        self.embed = nn.Embedding(config.size, width)
        self.from_embedding = nn.Linear(width, parts * width)
        self.from_hidden = nn.Linear(width, parts * width)
        self.above = nn.ModuleList(LayerAbove(config.model, width, config.dropout) for _ in range(1, config.layers))
        self.self_attention = None
        if config.attends:
            self.self_attention = MultiHeadAttention(width, config.heads, key_heads=config.key_heads, score=config)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, config.size, bias=False)
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters: recurrent matrices orthogonal, the others by Glorot's rule, biases zero.

        An LSTM's forget gate starts open (Jozefowicz et al. 2015): its bias is 1. The attention initializes its own.
        """
        width = self.config.width
        parameters = ((name, x) for name, x in self.named_parameters() if name.startswith(("from_", "above.")))
        initialize_cells(parameters, width, by_gate=True, open_forget_gate=self.config.model == "lstm")
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        if self.config.tied:
            self.output.weight = self.embed.weight
        else:
            nn.init.normal_(self.output.weight, std=width**-0.5)

    def begin(self, tokens: Tensor, session: DecodingSession | None = None) -> RecurrentDecoderState:
        """Return the initial state for a batch of tokens (B, T)."""
        self.rows.begin(tokens)
        zero = next(self.parameters()).new_zeros(tokens.shape[0], self.config.width)
        return RecurrentDecoderState(hidden_of(self.config.model, zero) * self.config.layers, None, 0, session)

    def continued(self, tokens: Tensor, state: RecurrentDecoderState) -> tuple[Tensor, RecurrentDecoderState]:
        """Return the output layer's input for each of some valid tokens (B, T, M), and the state after the last."""
        session = state.session
        inputs = apply_layer(self.from_embedding, self.dropout(self.embed(tokens)), session)
        above = parts_of(self.above, LayerAbove, "above")
        s_BTM, hidden = run_cells(self.config.model, inputs, self.from_hidden, state.hidden, above)
        s_BTM, past = self.dropout(s_BTM), state.past
        update: Tensor | None = None
        if self.self_attention is not None:
            query, past = self.self_attention.extend(s_BTM, past, session)
            mask = self._mask(tokens.shape[1], past.length)
            update = self.self_attention.attend(query, past, mask=mask, session=session)
            past = past if self.config.window is None else past.last(self.config.window)
        h_BTM: Tensor = self.norm(s_BTM if update is None else s_BTM + self.dropout(update))
        return self.dropout(h_BTM), RecurrentDecoderState(hidden, past, state.position + tokens.shape[1], session)

    def select(self, state: RecurrentDecoderState, rows: Tensor) -> RecurrentDecoderState:
        """Select rows of a state: fewer, repeated or reordered."""
        rows = self.rows(rows)
        hidden = tuple(select_rows(part, rows) for part in state.hidden)
        return state._replace(hidden=hidden, past=None if state.past is None else state.past.select(rows))

    def _mask(self, new: int, past: int) -> Mask | None:
        """Return the mask of the new positions, which are the last of all cached ones."""
        if self.config.window is not None and past > self.config.window + 1:
            return window(self.config.window, 0, offset=past - new)
        return causal(offset=past - new) if new > 1 else None
