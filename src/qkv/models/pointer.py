"""The pointer network: encodes elements, and predicts a sequence of their positions."""

import math
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.errors import ShapeError
from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.models import recurrence
from qkv.models.cells import STEPS, Hidden, first_hidden, gates, run_cells
from qkv.models.checks import clean_source, padding_of
from qkv.models.configs.pointer import PointerConfig
from qkv.models.encoders import encode
from qkv.models.first_weights import initialize_cells, initialize_embeddings
from qkv.models.predictor import Predictor
from qkv.nn.blocks import TransformerBlock
from qkv.nn.decoding.cache import BatchRows
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.pointer import Pointer
from qkv.nn.positions import sinusoidal
from qkv.values.execution import on_host
from qkv.values.rows import real_positions, select_rows

END = 0
"""Pointing here ends the sequence; the elements are 1 to S."""


@final
class ElementEncoder(nn.Module):
    """Embeds elements and lets them attend to each other.

    Numbers are standardized, (x − mean)/scale, with one mean and scale for each feature, which `standardize` sets.

    Args:
        sizes: the pointer network's sizes.

    Source: Vinyals et al. 2015, section 2.3 (recurrent); Kool et al. 2019, "Attention, Learn to Solve Routing
        Problems!", section 3.1 (transformer).

    Example:
        >>> encoder = ElementEncoder(PointerConfig(features=2, model="transformer", width=8, heads=2))
        >>> states, summary = encoder(torch.rand(3, 5, 2), torch.tensor([5, 4, 5]))
        >>> states.shape, summary.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8]))
    """

    def __init__(self, sizes: PointerConfig) -> None:
        super().__init__()
        self.sizes = sizes
        words, width, cell = sizes.elements == "words", sizes.width, recurrence.CELLS.get(sizes.model)
        self.embed: nn.Module = nn.Embedding(sizes.features, width) if words else nn.Linear(sizes.features, width)
        if not words:
            self.register_buffer("mean", torch.zeros(sizes.features))
            self.register_buffer("scale", torch.ones(sizes.features))
        self.recurrent = (
            None if cell is None else cell(width, width, sizes.layers, batch_first=True, bidirectional=True)
        )
        self.join = None if cell is None else nn.Linear(2 * width, width)
        count = sizes.layers if cell is None else 0
        self.blocks = nn.ModuleList(
            TransformerBlock(
                MultiHeadAttention(width, sizes.heads),
                FeedForward(width, 2 * width, sizes.dropout),
                dropout=sizes.dropout,
            )
            for _ in range(count)
        )
        self.norm = nn.LayerNorm(width) if count else nn.Identity()
        self.dropout = Dropout(sizes.dropout)
        self.reset_parameters()

    @property
    def summary_width(self) -> int:
        """The width of the summary: two directions, or one mean."""
        return self.sizes.width if self.recurrent is None else 2 * self.sizes.width

    def reset_parameters(self) -> None:
        """Initialize all parameters but those of blocks: recurrent matrices orthogonal, the others by Glorot's rule."""
        others: tuple[str, ...] = ("blocks", "norm")
        if isinstance(self.embed, nn.Embedding):
            initialize_embeddings(self.sizes.width**-0.5, self.embed)
            others += ("embed",)
        parameters = ((name, tensor) for name, tensor in self.named_parameters() if not name.startswith(others))
        initialize_cells(parameters, self.sizes.width)

    def standardize(self, mean: Tensor, scale: Tensor) -> None:
        """Set the mean and the scale of each feature, (F,) each; a scale of 0 counts as 1.

        Raises:
            ShapeError: they are not (F,).
        """
        for name, tensor in (("mean", mean), ("scale", scale)):
            if tensor.shape != (self.sizes.features,):
                expected = f"({self.sizes.features},), one number per feature"
                raise ShapeError(name, expected, f"{tuple(tensor.shape)}", "Compute it over all elements.")
        self.get_buffer("mean").copy_(mean)
        self.get_buffer("scale").copy_(torch.where(scale > 0, scale, 1))

    def forward(self, elements: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode elements.

        Args:
            elements: numbers (B, S, F), or ids of words (B, S), int64; entries at or after a row's length are never
                read.
            lengths: (B,), int64.

        Returns:
            States (B, S, M), 0 in the padding, and a summary of each row: the recurrent layer's last states (B, 2M), or
            the mean state (B, M).

        Raises:
            ShapeError: a shape or dtype is wrong.
        """
        x_BSM, real = self._embedded(elements, lengths)
        if self.recurrent is not None:
            both, last = recurrence.run(self.recurrent, self.dropout(torch.tanh(x_BSM)), lengths)
            assert self.join is not None
            states = apply_layer(self.join, both)
            return self.dropout(torch.where(real[..., None], states, 0)), torch.cat([last[0], last[1]], -1)
        padded = padding_of(lengths, x_BSM.shape[1])
        x_BSM = self.dropout(x_BSM + sinusoidal(x_BSM.shape[1], x_BSM.shape[2], device=x_BSM.device, dtype=x_BSM.dtype))
        states = torch.where(real[..., None], self.norm(encode(self.blocks, x_BSM, padded)), 0)
        return states, states.sum(1) / lengths.clamp(min=1)[:, None]

    def _embedded(self, elements: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if self.sizes.elements == "words":
            ids, real = clean_source(elements, lengths, self.sizes.features)
            embedded: Tensor = self.embed(ids) * math.sqrt(self.sizes.width)
            return embedded, real
        real = _real(elements, lengths, self.sizes.features)
        numbers = (elements - self.get_buffer("mean")) / self.get_buffer("scale")
        embedded = self.embed(torch.where(real[..., None], numbers, 0))
        return embedded, real


def _real(source: Tensor, lengths: Tensor, features: int) -> Tensor:
    if source.ndim != 3 or source.shape[2] != features or source.shape[1] == 0:
        expected = f"(B, S, {features}) with S at least 1"
        hint = "The last dimension holds the features of an element."
        raise ShapeError("elements", expected, f"{tuple(source.shape)}", hint)
    if lengths.shape != source.shape[:1] or lengths.dtype != torch.int64:
        got = f"{lengths.dtype} of shape {tuple(lengths.shape)}"
        hint = "Give one length for each row."
        raise ShapeError("lengths", f"int64 of shape ({source.shape[0]},)", got, hint)
    return real_positions(lengths, source.shape[1])


class PointerState(NamedTuple):
    """The decoder's state between two steps; B rows.

    Attributes:
        hidden: the cell's state.
        keys: projected elements, the end first (B, 1 + S, F).
        values: states of the elements (B, 1 + S, M).
        free: the elements that can be pointed at (B, 1 + S), bool.
    """

    hidden: Hidden
    keys: Tensor
    values: Tensor
    free: Tensor


@final
class PointerNetwork(Predictor[PointerState]):
    """An encoder over elements, and a decoder whose outputs are attention weights over them.

    With e_j the state of element j (e_0 is learned, and ends the sequence) and d_i the decoder's,

        p(c_i | c_1, …, c_{i−1}) = softmax_j(vᵀ tanh(W_1 e_j + W_2 d_i)),      d_{i+1} = cell(d_i, e_{c_i}).

    Decode it with `greedy` or `beam` like a translator, with `bos=END` and `eos=END`.

    Args:
        config: its sizes.

    Source: Vinyals et al. 2015, "Pointer Networks", section 2.3.

    Example:
        >>> model = PointerNetwork(PointerConfig(features=2, width=8, attention=8))
        >>> points, lengths = torch.rand(3, 5, 2), torch.tensor([5, 4, 5])
        >>> model(points, lengths, torch.tensor([[0, 1], [0, 2], [0, 5]])).shape
        torch.Size([3, 2, 6])
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.encoder = ElementEncoder(config)
        self.end = nn.Parameter(torch.empty(width))
        self.bridge = nn.Linear(self.encoder.summary_width, width)
        self.from_element = nn.Linear(width, gates(config.decoder) * width)
        self.from_hidden = nn.Linear(width, gates(config.decoder) * width)
        self.pointer = Pointer(width, width, config.attention, config.score)
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters: recurrent matrices orthogonal, the others by Glorot's rule, biases zero."""
        self.encoder.reset_parameters()
        of_decoder = ("bridge.", "from_")
        parameters = ((name, tensor) for name, tensor in self.named_parameters() if name.startswith(of_decoder))
        initialize_cells(parameters, self.config.width)
        nn.init.normal_(self.end, std=0.1)

    def forward(self, elements: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Compute the log-probability of each next position, given the previous ones.

        Args:
            elements: (B, S, features), or ids of words (B, S), int64; entries at or after a row's length are never
                read.
            lengths: (B,), int64.
            target: positions (B, T), `END` first.

        Returns:
            Log-probabilities, (B, T, 1 + S).

        Raises:
            ShapeError: a shape or dtype is wrong, or a position is not that of an element.
        """
        state = self.start(elements, lengths)
        self._check_target(target, state)
        inputs = apply_layer(self.from_element, _states_at(state.values, target))
        states, _ = run_cells(self.config.decoder, inputs, self.from_hidden, state.hidden)
        free = state.free[:, None].expand(-1, target.shape[1], -1)
        if self.config.once:
            free = free & ~_visited_before(target, state.free.shape[1])
        return self._point(states, state, free)

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> PointerState:
        """Encode the elements.

        Args:
            source: (B, S, features), or ids of words (B, S), int64.
            lengths: (B,), int64, from 0 to S.
            session: not used.

        Returns:
            The state before the first step.

        Raises:
            ShapeError: a shape or dtype is wrong.
        """
        self.rows.begin(source)
        e_BSM, summary = self.encoder(source, lengths)
        real = real_positions(lengths, e_BSM.shape[1])
        values = torch.cat([self.end.to(e_BSM.dtype).expand(e_BSM.shape[0], 1, -1), e_BSM], 1)
        free = torch.cat([torch.ones_like(real[:, :1]), real], 1)
        hidden = first_hidden(self.config.decoder, self.bridge, summary)
        return PointerState(hidden, self.pointer.project(values), values, free)

    def select(self, state: PointerState, rows: Tensor) -> PointerState:
        """Select rows of a state: fewer, repeated or reordered."""
        rows = self.rows(rows)
        hidden = tuple(select_rows(part, rows) for part in state.hidden)
        return PointerState(hidden, *(select_rows(part, rows) for part in state[1:]))

    def _predict(self, tokens: Tensor, state: PointerState) -> tuple[Tensor, PointerState]:
        inputs = apply_layer(self.from_element, _states_at(state.values, tokens)[:, 0])
        hidden = STEPS[self.config.decoder](inputs, apply_layer(self.from_hidden, state.hidden[0]), state.hidden)
        free = state.free
        if self.config.once:
            indices = torch.arange(free.shape[1], device=free.device)
            free = free & ((indices != tokens) | (indices == END))
        after = state._replace(hidden=hidden, free=free)
        return self._point(hidden[0][:, None], after, free[:, None]), after

    def _point(self, states: Tensor, state: PointerState, free: Tensor) -> Tensor:
        _, probabilities = self.pointer.point(states, state.keys, state.values, free)
        # A probability below the least normal number is rounding error: its logarithm must stay finite for the loss.
        least = torch.finfo(probabilities.dtype).tiny
        return torch.where(free, probabilities.clamp(min=least).log(), -torch.inf)

    def _check_target(self, target: Tensor, state: PointerState) -> None:
        fits = target.ndim == 2 and target.dtype == torch.int64 and len(target) == len(state.free)
        # A GPU would have to be waited for.
        checked = target.numel() > 0 and on_host(target.device)
        if not fits or (checked and not 0 <= int(target.min()) <= int(target.max()) < state.free.shape[1]):
            expected = f"int64 (B, T) of positions from 0 to {state.free.shape[1] - 1}"
            hint = "Elements count from 1; 0 ends the sequence."
            raise ShapeError("target", expected, f"{target.dtype} {tuple(target.shape)}", hint)


def _states_at(values: Tensor, indices: Tensor) -> Tensor:
    """Look up the states (B, T, M) of positions (B, T)."""
    return values.gather(1, indices[..., None].expand(-1, -1, values.shape[-1]))


def _visited_before(target: Tensor, size: int) -> Tensor:
    """Return which elements each step has already pointed at (B, T, 1 + S); the end never counts."""
    chosen = nn.functional.one_hot(target, size).cumsum(1) > 0
    chosen[..., END] = False
    return chosen
