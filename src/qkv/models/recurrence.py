"""Run a recurrent PyTorch layer over padded rows.

On a GPU this uses PyTorch's cuDNN implementation. On the CPU, PyTorch's training time grows with the square of the
length: each step over packed rows fills a gradient as large as all steps together. So here the loop over steps is our
own, padding included, with the backward direction over rows reversed within their lengths, and one product over all
steps for the gradients of weights (`Repeated`). A layer that is more than plain weights is called.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from qkv.errors import UnsupportedError
from qkv.linalg.matmul import cached_weight, linear
from qkv.linalg.session import DecodingSession
from qkv.models.cells import hidden_of, stacked, unrolled
from qkv.models.configs.fields import Cell
from qkv.models.first_weights import initialize_cells
from qkv.nn.recurrent.gated_sequence import gated_steps, served
from qkv.nn.recurrent.repeated import Repeated
from qkv.values.plain_modules import is_plain

CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class RunsWholeRows(nn.Module):
    """A recurrent layer that handles rows of unequal length itself, as an exported one does.

    It takes (B, S, M) and lengths, and returns what `run` returns.
    """


def run(
    layer: nn.Module, x_BSM: Tensor, lengths: Tensor, session: DecodingSession | None = None
) -> tuple[Tensor, Tensor]:
    """Run a recurrent layer over rows of unequal length.

    Args:
        layer: an RNN (with tanh), GRU or LSTM of PyTorch with `batch_first`, without dropout between its layers; or a
            `RunsWholeRows`; or a module that is called as PyTorch's are, with packed rows.
        x_BSM: its inputs; those at or after a row's length do not affect the states before it.
        lengths: (B,), int64; 0 counts as 1.
        session: keeps packed weights for a decoding.

    Returns:
        The last layer's states (B, S, D·H), directions concatenated, arbitrary in the padding; and the last state of
        each of its directions (D, B, H).

    Raises:
        UnsupportedError: the layer has a full backward hook, which does not see packed rows, and rows have padding.

    Example:
        >>> layer = nn.GRU(2, 3, batch_first=True, bidirectional=True)
        >>> states, last = run(layer, torch.zeros(4, 5, 2), torch.tensor([5, 4, 3, 3]))
        >>> states.shape, last.shape
        (torch.Size([4, 5, 6]), torch.Size([2, 4, 3]))
    """
    lengths = lengths.clamp(min=1)
    if isinstance(layer, RunsWholeRows):
        output: tuple[Tensor, Tensor] = layer(x_BSM, lengths)
        return output
    if x_BSM.device.type != "cpu" or not is_plain(layer, nn.RNN, nn.GRU, nn.LSTM):
        return _call_layer(layer, x_BSM, lengths)
    assert isinstance(layer, nn.RNNBase)
    directions = [_run_forward, _run_backward] if layer.bidirectional else [_run_forward]
    last = x_BSM.new_zeros(0)
    for depth in range(layer.num_layers):
        both = [run_direction(layer, f"_l{depth}", x_BSM, lengths, session) for run_direction in directions]
        x_BSM, last = torch.cat([states for states, _ in both], -1), torch.stack([end for _, end in both])
    return x_BSM, last


def _run_forward(
    layer: nn.RNNBase, name: str, x_BSM: Tensor, lengths: Tensor, session: DecodingSession | None
) -> tuple[Tensor, Tensor]:
    """Return the states of the forward direction (B, S, H), and each row's last one (B, H)."""
    states_SBH = _steps(layer, name, x_BSM.transpose(0, 1).contiguous(), session)
    return states_SBH.transpose(0, 1).contiguous(), states_SBH[
        lengths - 1, torch.arange(len(lengths), device=lengths.device)
    ]


def _run_backward(
    layer: nn.RNNBase, name: str, x_BSM: Tensor, lengths: Tensor, session: DecodingSession | None
) -> tuple[Tensor, Tensor]:
    """Return those of the backward direction: over rows reversed within their lengths, padding left at the end."""
    rows, longest, width = x_BSM.shape
    indices, every_row = (torch.arange(count, device=lengths.device) for count in (longest, rows))
    reversed_BS = torch.where(indices < lengths[:, None], lengths[:, None] - 1 - indices, indices)
    # One copy reverses rows and moves steps to the front, another undoes it: indices in (B, S) and (S, B).
    reversing_SB = (every_row * longest + reversed_BS.mT).flatten()
    restoring_BS = (reversed_BS * rows + every_row[:, None]).flatten()
    reversed_SBM = x_BSM.reshape(-1, width).index_select(0, reversing_SB).view(longest, rows, width)
    states_SBH = _steps(layer, f"{name}_reverse", reversed_SBM, session)
    states_BSH = states_SBH.flatten(0, 1).index_select(0, restoring_BS).view(rows, longest, layer.hidden_size)
    return states_BSH, states_SBH[lengths - 1, every_row]


def _steps(layer: nn.RNNBase, name: str, x_SBM: Tensor, session: DecodingSession | None) -> Tensor:
    """Return the states (S, B, H) of one layer in one direction."""
    cell = layer.mode.lower().removesuffix("_tanh")
    (weight, bias), (recurrent, recurrent_bias) = (_weights(layer, f"{part}{name}") for part in ("ih", "hh"))
    inputs = linear(x_SBM, weight, bias, cached_weight(session, (layer, f"ih{name}")))
    first, packed = recurrent.new_zeros(x_SBM.shape[1], layer.hidden_size), cached_weight(session, (layer, f"hh{name}"))
    if cell == "gru" and served(inputs, recurrent, recurrent_bias, first):
        return gated_steps(inputs, recurrent, recurrent_bias, first, packed)
    step = stacked(cell, Repeated(recurrent, recurrent_bias, len(inputs), packed))
    return torch.stack(unrolled(cell, inputs.unbind(), step, hidden_of(cell, first))[0])


def _weights(layer: nn.RNNBase, name: str) -> tuple[Tensor, Tensor | None]:
    return getattr(layer, f"weight_{name}"), getattr(layer, f"bias_{name}") if layer.bias else None


def _call_layer(layer: nn.Module, x_BSM: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Call the layer with packed rows, or with rows of one length if it has backward hooks."""
    # PyTorch's backward hooks see tensors, not packed rows.
    if layer._backward_hooks or layer._backward_pre_hooks:
        if bool((lengths < x_BSM.shape[1]).any()):
            name, hint = type(layer).__name__, "Hook the module around it, or give rows of one length."
            raise UnsupportedError(name, "no backward hook where rows have padding", "one", hint)
        states, last = layer(x_BSM)
    else:
        packed, last = layer(pack_padded_sequence(x_BSM, lengths.cpu(), batch_first=True, enforce_sorted=False))
        # Rows without their order: PyTorch would copy it to the host, and wait for the layer.
        by_length = PackedSequence(packed.data, packed.batch_sizes)
        states, _ = pad_packed_sequence(by_length, batch_first=True, total_length=x_BSM.shape[1])
        states = states.index_select(0, packed.unsorted_indices)
    final = last[0] if isinstance(last, tuple) else last
    directions = states.shape[-1] // final.shape[-1]
    return states, final[-directions:]


@final
class RecurrentEncoder(nn.Module):
    """A bidirectional RNN, GRU or LSTM over the source, for a Transformer decoder.

    Args:
        cell: the kind of cell.
        width: width of embeddings and states, half of it in each direction.
        layers: number of layers.

    Source: Bahdanau et al. 2015, section 3.2.

    Example:
        >>> RecurrentEncoder("gru", 8, layers=1)(torch.randn(3, 5, 8), torch.tensor([5, 2, 1])).shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, cell: Cell, width: int, layers: int) -> None:
        super().__init__()
        self.layer = CELLS[cell](width, width // 2, layers, batch_first=True, bidirectional=True)
        initialize_cells(self.layer.named_parameters(), width // 2, by_gate=True)

    def forward(self, x_BSM: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Encode embeddings (B, S, M) of rows of some lengths (B,): states (B, S, M), arbitrary in the padding."""
        return run(self.layer, x_BSM, lengths, session)[0]
