"""One step of a recurrent cell, given precomputed gate inputs; and of several layers of cells."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.nn.dropout import Dropout
from qkv.nn.recurrent.gated import gated
from qkv.nn.recurrent.repeated import repeat_layer

Hidden = tuple[Tensor, ...]
"""The state of a cell: (B, M); for the LSTM, hidden and cell state."""


def gates(cell: str) -> int:
    """Return the number of gates of a cell, each as wide as its state.

    Example:
        >>> gates("gru")
        3
    """
    return {"rnn": 1, "gru": 3, "lstm": 4}[cell]


def hidden_of(cell: str, first: Tensor) -> Hidden:
    """Build a cell's state from its visible part.

    Example:
        >>> len(hidden_of("lstm", torch.zeros(2, 4)))
        2
    """
    return (first, torch.zeros_like(first)) if cell == "lstm" else (first,)


def rnn_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden) -> Hidden:
    """h' = tanh(W x + U h).

    Args:
        inputs: W x + b, (B, M).
        recurrent: U h + b, (B, M).
        hidden: h; the result has its dtype: under autocast the gates are rounded, the state is not.

    Returns:
        h'.

    Source: Elman 1990, in the form of `torch.nn.RNN`.
    """
    return (torch.tanh(inputs + recurrent).to(hidden[0].dtype),)


def gru_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden) -> Hidden:
    """h' = (1 − z) n + z h with n = tanh(W x + r (U h)).

    Args:
        inputs: W x + b for r, z, n, (B, 3M).
        recurrent: U h + b likewise.
        hidden: h; the result has its dtype.

    Returns:
        h'.

    Source: Cho et al. 2014, eq. 5 to 8, in the form of `torch.nn.GRU`.
    """
    return (gated(inputs, recurrent, hidden[0]),)


def lstm_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden) -> Hidden:
    """c' = f c + i g and h' = o tanh(c').

    Args:
        inputs: W x + b for i, f, g, o, (B, 4M).
        recurrent: U h + b likewise.
        hidden: h and c; the result has their dtype.

    Returns:
        h' and c'.

    Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000, in the form of `torch.nn.LSTM`.
    """
    i, f, g, o = (inputs + recurrent).to(hidden[1].dtype).chunk(4, -1)
    c = torch.addcmul(torch.sigmoid(f) * hidden[1], torch.sigmoid(i), torch.tanh(g))
    return torch.sigmoid(o) * torch.tanh(c), c


STEPS: Mapping[str, Callable[[Tensor, Tensor, Hidden], Hidden]] = MappingProxyType(
    {"rnn": rnn_step, "gru": gru_step, "lstm": lstm_step}
)


@final
class LayerAbove(nn.Module):
    """The parameters of a recurrent layer whose inputs are the states of the layer below.

    Args:
        cell: the kind of cell.
        width: width of both states.
        dropout: on what it reads, in training.
    """

    def __init__(self, cell: str, width: int, dropout: float) -> None:
        super().__init__()
        self.from_below = nn.Linear(width, gates(cell) * width)
        self.from_hidden = nn.Linear(width, gates(cell) * width)
        self.dropout = Dropout(dropout)


def top(cell: str, hidden: Hidden) -> Tensor:
    """Return the visible state of the last layer, (B, M)."""
    return hidden[-2 if cell == "lstm" else -1]


def first_hidden(cell: str, bridge: nn.Module, summary: Tensor) -> Hidden:
    """Return the state tanh(W x + b) that a decoder starts with after a source with summary x (B, V).

    It keeps the parameters' precision under autocast, because every step adds to it.
    """
    dtype = next(bridge.parameters(), summary).dtype
    return hidden_of(cell, torch.tanh(apply_layer(bridge, summary)).to(dtype))


def run_cells(
    cell: str, inputs_BTG: Tensor, from_hidden: nn.Module, hidden: Hidden, above: Sequence[LayerAbove] = ()
) -> tuple[Tensor, Hidden]:
    """Run layers of cells over given inputs.

    Args:
        cell: the kind of cell.
        inputs_BTG: W x + b of the lowest layer for each step, (B, T, gates · M).
        from_hidden: U and its bias of the lowest layer.
        hidden: the states of all layers before the first step.
        above: the layers above it, in order.

    Returns:
        The visible states of the last layer (B, T, M), and the states of all layers after the last step.

    Example:
        >>> states, last = run_cells("lstm", torch.zeros(2, 3, 16), nn.Linear(4, 16), 2 * (torch.zeros(2, 4),))
        >>> states.shape, len(last)
        (torch.Size([2, 3, 4]), 2)
    """
    inputs = inputs_BTG.unbind(1)
    recurrent = repeat_layer(from_hidden, len(inputs))
    states, hidden = unrolled(cell, inputs, stacked(cell, recurrent, above, len(inputs)), hidden)
    return torch.stack(states, 1), hidden


def unrolled(
    cell: str, inputs: Iterable[Tensor], step: Callable[[Tensor, Hidden], Hidden], hidden: Hidden
) -> tuple[list[Tensor], Hidden]:
    """Return the visible state of the last layer after each step (B, M), and the states of all layers after the last.

    Args:
        cell: the kind of cell.
        inputs: W x + b of the lowest layer for each step.
        step: of all layers, see `stacked`.
        hidden: the states of all layers before the first step.
    """
    states = []
    for x in inputs:
        hidden = step(x, hidden)
        states.append(top(cell, hidden))
    return states, hidden


def stacked(
    cell: str,
    lowest: Callable[[Tensor], Tensor],
    above: Sequence[LayerAbove] = (),
    steps: int = 0,
    session: DecodingSession | None = None,
) -> Callable[[Tensor, Hidden], Hidden]:
    """Return one step of several layers of cells.

    Args:
        cell: the kind of cell.
        lowest: U h + b of the lowest layer.
        above: the layers above it, in order.
        steps: the largest number of steps, for the layers above.
        session: keeps packed weights; None to keep nothing.

    Returns:
        A function of W x + b of the lowest layer, (B, gates · M), and the states of all layers: the next states.

    Example:
        >>> step = stacked("gru", torch.nn.Linear(4, 12), [LayerAbove("gru", 4, 0.0)], steps=1, session=None)
        >>> [state.shape for state in step(torch.zeros(2, 12), (torch.zeros(2, 4), torch.zeros(2, 4)))]
        [torch.Size([2, 4]), torch.Size([2, 4])]
    """
    parts, cell_step = 2 if cell == "lstm" else 1, STEPS[cell]
    pairs = [
        (repeat_layer(layer.from_below, steps, session), repeat_layer(layer.from_hidden, steps, session))
        for layer in above
    ]

    def step(x: Tensor, hidden: Hidden) -> Hidden:
        new_hidden = cell_step(x, lowest(hidden[0]), hidden[:parts])
        for depth, (layer, (below, recurrent)) in enumerate(zip(above, pairs, strict=True), start=1):
            hidden_of_layer = hidden[parts * depth : parts * (depth + 1)]
            new_hidden += cell_step(
                below(layer.dropout(new_hidden[-parts])), recurrent(hidden_of_layer[0]), hidden_of_layer
            )
        return new_hidden

    return step
