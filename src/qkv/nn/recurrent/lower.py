"""A recurrent layer that attends to the layer below it."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, UnsupportedError, expect_name
from qkv.masks.base import Mask
from qkv.masks.patterns import causal
from qkv.nn.attention import Attention
from qkv.nn.inputs import expect_input, expect_sizes
from qkv.nn.scores import build_score, score_of, xavier_uniform
from qkv.values.checked import checked
from qkv.values.mapped import is_mapped_inside

_CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@checked
@final
class RecurrentSelfAttention(nn.Module):
    """h_t = cell(h_{t−1}, [x_t; c_t]) with c_t = Σ_j softmax_j(score(k_t, k_j)) v_j over the states x below.

    Each state below is both key and value, or is split in two, x = [k; v]: keys find positions, values are averaged.

    Args:
        width: M, the width of the states below.
        hidden: the width of the layer's own states.
        cell: "gru", "lstm" or "rnn".
        score: "additive", "bilinear", "dot" or "scaled_dot".
        memory: "whole" or "split" states.

    Raises:
        ConfigError: an unknown name, or an odd width with split states.

    Source: Cheng et al. 2016, "Long Short-Term Memory-Networks for Machine Reading", section 3; split states: Daniluk
        et al. 2017, "Frustratingly Short Attention Spans in Neural Language Modeling", eq. 6 to 9.

    Example:
        >>> layer = RecurrentSelfAttention(8, 16, memory="split")
        >>> layer(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        cell: Literal["gru", "lstm", "rnn"] = "gru",
        score: str = "additive",
        memory: Literal["whole", "split"] = "whole",
    ) -> None:
        super().__init__()
        expect_name("cell", cell, _CELLS)
        expect_name("memory", memory, ("whole", "split"))
        expect_sizes(width=width, hidden=hidden)
        if memory == "split" and width % 2:
            raise ConfigError("width", "an even width, to split", f"{width}", "Choose an even width.")
        self.width, self.memory = width, memory
        part = width // 2 if memory == "split" else width
        self.score = build_score(score, part, part)
        self.attention = Attention()
        self.recurrent = _CELLS[cell](width + part, hidden, batch_first=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the cell's parameters: orthogonal recurrent matrices, the others by Glorot's rule, zero biases."""
        for name, parameter in self.recurrent.named_parameters():
            if parameter.ndim < 2:
                nn.init.zeros_(parameter)
                continue
            for block in parameter.data.split(parameter.shape[1] if "_hh_" in name else parameter.shape[0]):
                nn.init.orthogonal_(block) if "_hh_" in name else xavier_uniform(block)

    def forward(self, x: Tensor, mask: Mask | Tensor | None = None) -> Tensor:
        """Read a sequence.

        Args:
            x: the states below (B, T, M).
            mask: the states that a step may attend to; None for its own position and those before it.

        Returns:
            The layer's states (B, T, hidden).

        Raises:
            ShapeError, DtypeError: x does not fit.
            UnsupportedError: `torch.func.vmap` maps x or the parameters: PyTorch does not map its recurrent layers.
        """
        expect_input("x", x, None, self.width, rank=3)
        _expect_unmapped(x, self.recurrent)
        key, value = x.chunk(2, -1) if self.memory == "split" else (x, x)
        mask = causal() if mask is None else mask
        context = self.attention(key, key, value, score=score_of(self.score).value(), mask=mask)
        states: Tensor = self.recurrent(torch.cat([x, context], -1))[0]
        return states


def _expect_unmapped(x: Tensor, recurrent: nn.RNNBase) -> None:
    if torch.compiler.is_compiling():
        return
    parameters = dict(recurrent.named_parameters()).values()
    for name, tensors in (("x", [x]), ("parameters", parameters)):
        if any(map(is_mapped_inside, tensors)):
            hint = "Put the samples into the batch of x, and call the layers of an ensemble one after another."
            got = f"{name} under torch.func.vmap"
            raise UnsupportedError(name, "tensors that no vmap maps", got, hint)
