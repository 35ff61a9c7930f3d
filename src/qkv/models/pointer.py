"""The pointer network: predicts a sequence of positions of its own input."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.errors import ShapeError, error_message
from qkv.linalg.matmul import Linear
from qkv.models import recurrence
from qkv.models.cells import STEPS, Hidden, gates, hidden_of
from qkv.models.checks import check_config
from qkv.nn.decoding.cache import Rows
from qkv.nn.dropout import Dropout
from qkv.nn.pointer import Pointer
from qkv.nn.recurrent.repeated import Repeated
from qkv.nn.scores import xavier_uniform

END = 0
"""Pointing here ends the sequence; the elements are 1 to S."""


@final
@dataclass(frozen=True)
class PointerConfig:
    """The sizes of a pointer network.

    Args:
        features: F, how many numbers describe an element: 2 for points in the plane.
        cell: cell type of encoder and decoder.
        score: the score of decoder state and element.
        hidden: M, the width of states.
        attention: A, the hidden width of an additive score.
        once: whether each element can be pointed at only once.
        dropout: on states.

    Raises:
        ConfigError: a name is unknown, a size is below one, or a dropout is outside [0, 1).
    """

    features: int
    cell: Literal["gru", "lstm", "rnn"] = "lstm"
    score: Literal["additive", "bilinear", "scaled_dot"] = "additive"
    hidden: int = 128
    attention: int = 128
    once: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_config(self)


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
class PointerNetwork(nn.Module):
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
        module = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[config.cell]
        self.embed = nn.Linear(config.features, width)
        self.encoder = module(width, width, batch_first=True, bidirectional=True)
        self.join = Linear(2 * width, width)
        self.end = nn.Parameter(torch.empty(width))
        self.bridge = Linear(2 * width, width)
        self.from_element = Linear(width, gates(config.cell) * width)
        self.from_hidden = Linear(width, gates(config.cell) * width)
        self.pointer = Pointer(width, width, config.attention, config.score)
        self.dropout = Dropout(config.dropout)
        self.rows = Rows()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters: recurrent matrices orthogonal, the others by Glorot's rule, biases zero."""
        for name, parameter in self.named_parameters():
            if name.startswith("pointer."):
                continue
            if parameter.ndim < 2:
                nn.init.zeros_(parameter)
            elif "_hh_" in name or name.startswith("from_hidden"):
                for block in parameter.data.split(self.config.hidden):  # type: ignore[no-untyped-call]
                    nn.init.orthogonal_(block)
            else:
                xavier_uniform(parameter)
        nn.init.normal_(self.end, std=0.1)

    def forward(self, elements: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Compute the log-probability of each next position, given the previous ones.

        Args:
            elements: (B, S, features); entries at or after a row's length are never read.
            lengths: (B,), int64.
            target: positions (B, T), `END` first.

        Returns:
            Log-probabilities, (B, T, 1 + S).

        Raises:
            ShapeError: a shape or dtype is wrong, or a position is not that of an element.
        """
        state = self.start(elements, lengths)
        self._check_target(target, state)
        hidden, states = state.hidden, []
        from_hidden = Repeated(self.from_hidden.weight, self.from_hidden.bias, target.shape[1])
        for inputs in self.from_element(_taken(state.values, target)).unbind(1):
            hidden = STEPS[self.config.cell](inputs, from_hidden(hidden[0]), hidden)
            states.append(hidden[0])
        free = state.free[:, None].expand(-1, target.shape[1], -1)
        if self.config.once:
            free = free & ~_taken_before(target, state.free.shape[1])
        return self._point(torch.stack(states, 1), state, free)

    def start(self, source: Tensor, lengths: Tensor) -> PointerState:
        """Encode the elements.

        Args:
            source: (B, S, features).
            lengths: (B,), int64, from 0 to S.

        Returns:
            The state before the first step.

        Raises:
            ShapeError: a shape or dtype is wrong.
        """
        real = self._real(source, lengths)
        clean = torch.where(real[..., None], source, 0)
        self.rows(torch.arange(clean.shape[0], device=clean.device), start=True)
        x_BSM = self.dropout(torch.tanh(self.embed(clean)))
        both, last = recurrence.run(self.encoder, x_BSM, lengths)
        e_BSM = self.dropout(torch.where(real[..., None], self.join(both), 0))
        values = torch.cat([self.end.to(e_BSM.dtype).expand(e_BSM.shape[0], 1, -1), e_BSM], 1)
        first = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1))).to(self.bridge.weight.dtype)
        free = torch.cat([torch.ones_like(real[:, :1]), real], 1)
        return PointerState(hidden_of(self.config.cell, first), self.pointer.project(values), values, free)

    def step(self, tokens: Tensor, state: PointerState) -> tuple[Tensor, PointerState]:
        """Read the newest position of each row and predict the next one.

        Args:
            tokens: positions (B,), `END` before the first.
            state: state after the previous positions.

        Returns:
            Log-probabilities (B, 1 + S), and the state that includes `tokens`.
        """
        inputs = self.from_element(_taken(state.values, tokens[:, None])[:, 0])
        hidden = STEPS[self.config.cell](inputs, self.from_hidden(state.hidden[0]), state.hidden)
        free = state.free
        if self.config.once:
            places = torch.arange(free.shape[1], device=free.device)
            free = free & ((places != tokens[:, None]) | (places == END))
        state = state._replace(hidden=hidden, free=free)
        return self._point(hidden[0][:, None], state, free[:, None])[:, 0], state

    def select(self, state: PointerState, rows: Tensor) -> PointerState:
        """Select rows of a state: fewer, repeated or reordered."""
        rows = self.rows(rows)
        hidden = tuple(part.index_select(0, rows) for part in state.hidden)
        return PointerState(hidden, *(part.index_select(0, rows) for part in state[1:]))

    def _point(self, states: Tensor, state: PointerState, free: Tensor) -> Tensor:
        _, chances = self.pointer.point(states, state.keys, state.values, free)
        # A probability below the least normal number is rounding error: its logarithm must stay finite for the loss.
        least = torch.finfo(chances.dtype).tiny
        return torch.where(free, chances.clamp(min=least).log(), -torch.inf)

    def _real(self, source: Tensor, lengths: Tensor) -> Tensor:
        if source.ndim != 3 or source.shape[2] != self.config.features or source.shape[1] == 0:
            expected = f"(B, S, {self.config.features}) with S at least 1"
            hint = "The last dimension holds the features of an element."
            raise ShapeError(error_message("elements", expected, f"{tuple(source.shape)}", hint))
        if lengths.shape != source.shape[:1] or lengths.dtype != torch.int64:
            got = f"{lengths.dtype} of shape {tuple(lengths.shape)}"
            hint = "Give one length for each row."
            raise ShapeError(error_message("lengths", f"int64 of shape ({source.shape[0]},)", got, hint))
        return torch.arange(source.shape[1], device=source.device) < lengths[:, None]

    def _check_target(self, target: Tensor, state: PointerState) -> None:
        good = target.ndim == 2 and target.dtype == torch.int64 and len(target) == len(state.free)
        if not good or (target.numel() and not 0 <= int(target.min()) <= int(target.max()) < state.free.shape[1]):
            expected = f"int64 (B, T) of positions from 0 to {state.free.shape[1] - 1}"
            hint = "Elements count from 1; 0 ends the sequence."
            raise ShapeError(error_message("target", expected, f"{target.dtype} {tuple(target.shape)}", hint))


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Look up the states (B, T, M) of positions (B, T)."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))


def _taken_before(target: Tensor, size: int) -> Tensor:
    """Return which elements each step has already pointed at (B, T, 1 + S); the end never counts."""
    chosen = nn.functional.one_hot(target, size).cumsum(1) > 0
    chosen[..., END] = False
    return chosen
