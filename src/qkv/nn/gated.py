"""The gated feed-forward layer."""

from typing import final

from torch import Tensor, nn

from qkv.linalg.layers import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.nn.blocks import Activation, activated, activation_of
from qkv.nn.dropout import Dropout
from qkv.nn.scores import xavier_uniform


@final
class GatedFeedForward(nn.Module):
    """W₂ (f(W_g x) ⊙ W₁ x), applied to each position; with biases if asked for.

    Args:
        width: M.
        hidden: width of the hidden layer.
        dropout: on the hidden layer, in training.
        activation: f: "silu" gives SwiGLU, "gelu" or "gelu_tanh" GEGLU.
        bias: whether the layers have a bias.

    Raises:
        ConfigError: the activation is unknown.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", eq. 6.

    Example:
        >>> import torch
        >>> GatedFeedForward(8, 16)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self, width: int, hidden: int, dropout: float = 0.0, *, activation: Activation = "silu", bias: bool = False
    ) -> None:
        super().__init__()
        self.activate = activation_of(activation)
        self.activation = activation
        self.gate = nn.Linear(width, hidden, bias=bias)
        self.expand = nn.Linear(width, hidden, bias=bias)
        self.contract = nn.Linear(hidden, width, bias=bias)
        self.dropout = Dropout(dropout)
        for layer in (self.gate, self.expand, self.contract):
            xavier_uniform(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, session: DecodingSession | None = None) -> Tensor:
        """(..., M) to (..., M)."""
        gate = activated(self.activate, self.gate, x, session)
        hidden: Tensor = self.dropout(gate * apply_layer(self.expand, x, session))
        return apply_layer(self.contract, hidden, session)
