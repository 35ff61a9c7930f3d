"""One step of a recurrent cell, given precomputed gate inputs."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from qkv.nn.recurrent.gated import gated

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
