"""The pointer network: predicts a sequence of positions of its own input."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, ShapeError, setting
from qkv.linalg.matmul import apply_layer
from qkv.models.cells import STEPS, Hidden, first_hidden, gates, run_cells
from qkv.models.checks import check_config
from qkv.models.elements import ElementEncoder
from qkv.models.first_weights import initialize_cells
from qkv.models.predictor import Predictor
from qkv.nn.decoding.cache import BatchRows
from qkv.nn.dropout import Dropout
from qkv.nn.mechanism import score_name
from qkv.nn.pointer import Pointer, PointerScore
from qkv.values.catalog import as_flag
from qkv.values.rows import select_rows

END = 0
"""Pointing here ends the sequence; the elements are 1 to S."""


@final
@dataclass(frozen=True)
class PointerConfig:
    """The sizes of a pointer network.

    Args:
        features: F, the numbers that describe an element: 2 for points in the plane; for words, the vocabulary size.
        cell: the decoder's cell.
        score: the score of decoder state and element, see `qkv.nn.Pointer`; also by its other names, and "gaussian".
        hidden: M, the width of states.
        attention: A, the hidden width of an additive score.
        once: whether each element can be pointed at only once.
        dropout: on states.
        elements: whether elements are "numbers" (vectors of them) or "words".
        encoder: "transformer" (self-attention), or bidirectional "lstm", "gru" or "rnn".
        layers: layers of the encoder.
        heads: of a transformer's layers.

    Raises:
        ConfigError: a name is unknown, a size is below one, heads do not divide the width, or a dropout is outside
            [0, 1).
    """

    features: int
    cell: Literal["gru", "lstm", "rnn"] = "lstm"
    score: str = "additive"
    hidden: int = 128
    attention: int = 128
    once: bool = True
    dropout: float = 0.0
    elements: Literal["numbers", "words"] = "numbers"
    encoder: Literal["transformer", "lstm", "gru", "rnn"] = "lstm"
    layers: int = 1
    heads: int = 4

    def __post_init__(self) -> None:
        score = score_name(self.score)
        # A normalized Gaussian kernel is the softmax of a squared distance.
        object.__setattr__(self, "score", "squared_distance" if score == "gaussian" else score)
        if self.score not in get_args(PointerScore):
            expected, names = "a score whose softmax can point", ", ".join(map(as_flag, get_args(PointerScore)))
            hint = f"Valid: {names}, gaussian."
            raise ConfigError("model.score", expected, f'"{as_flag(self.score)}"', hint)
        check_config(self)
        if self.encoder == "transformer" and self.hidden % self.heads:
            got = f"{self.heads} heads for width {self.hidden}"
            hint = "Choose another width, or another number of heads."
            raise ConfigError("model.heads", f"a divisor of {setting('model.hidden')}", got, hint)


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
        >>> model = PointerNetwork(PointerConfig(features=2, hidden=8, attention=8))
        >>> points, lengths = torch.rand(3, 5, 2), torch.tensor([5, 4, 5])
        >>> model(points, lengths, torch.tensor([[0, 1], [0, 2], [0, 5]])).shape
        torch.Size([3, 2, 6])
    """

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden
        self.encoder = ElementEncoder(config)
        self.end = nn.Parameter(torch.empty(width))
        self.bridge = nn.Linear(self.encoder.summary_width, width)
        self.from_element = nn.Linear(width, gates(config.cell) * width)
        self.from_hidden = nn.Linear(width, gates(config.cell) * width)
        self.pointer = Pointer(width, width, config.attention, config.score)
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters: recurrent matrices orthogonal, the others by Glorot's rule, biases zero."""
        self.encoder.reset_parameters()
        of_decoder = ("bridge.", "from_")
        parameters = ((name, tensor) for name, tensor in self.named_parameters() if name.startswith(of_decoder))
        initialize_cells(parameters, self.config.hidden)
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
        states, _ = run_cells(self.config.cell, inputs, self.from_hidden, state.hidden)
        free = state.free[:, None].expand(-1, target.shape[1], -1)
        if self.config.once:
            free = free & ~_visited_before(target, state.free.shape[1])
        return self._point(states, state, free)

    def start(self, source: Tensor, lengths: Tensor) -> PointerState:
        """Encode the elements.

        Args:
            source: (B, S, features), or ids of words (B, S), int64.
            lengths: (B,), int64, from 0 to S.

        Returns:
            The state before the first step.

        Raises:
            ShapeError: a shape or dtype is wrong.
        """
        self.rows.begin(source)
        e_BSM, summary = self.encoder(source, lengths)
        real = torch.arange(e_BSM.shape[1], device=e_BSM.device) < lengths[:, None]
        values = torch.cat([self.end.to(e_BSM.dtype).expand(e_BSM.shape[0], 1, -1), e_BSM], 1)
        free = torch.cat([torch.ones_like(real[:, :1]), real], 1)
        hidden = first_hidden(self.config.cell, self.bridge, summary)
        return PointerState(hidden, self.pointer.project(values), values, free)

    def select(self, state: PointerState, rows: Tensor) -> PointerState:
        """Select rows of a state: fewer, repeated or reordered."""
        rows = self.rows(rows)
        hidden = tuple(select_rows(part, rows) for part in state.hidden)
        return PointerState(hidden, *(select_rows(part, rows) for part in state[1:]))

    def _predict(self, tokens: Tensor, state: PointerState) -> tuple[Tensor, PointerState]:
        inputs = apply_layer(self.from_element, _states_at(state.values, tokens)[:, 0])
        hidden = STEPS[self.config.cell](inputs, apply_layer(self.from_hidden, state.hidden[0]), state.hidden)
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
        if not fits or (target.numel() and not 0 <= int(target.min()) <= int(target.max()) < state.free.shape[1]):
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
