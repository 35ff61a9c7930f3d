"""The feed-forward layers of Transformer blocks, plain and gated."""

from collections.abc import Callable
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import expect_name
from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.nn.choices import Activation
from qkv.nn.dropout import Dropout
from qkv.nn.inputs import expect_input, expect_sizes
from qkv.nn.scores import initialize_linear
from qkv.values.checked import checked
from qkv.values.plain_modules import is_plain


def _relu(x: Tensor) -> Tensor:
    """Overwrite x unless it has a graph: PyTorch's layer returns a view, whose gradient autograd would copy thrice."""
    return F.relu(x) if x.requires_grad else F.relu_(x)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": _relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "squared_relu": lambda x: _relu(x).square(),
}


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by name; it may overwrite an argument without a graph.

    Raises:
        ConfigError: the name is unknown.

    Example:
        >>> import torch
        >>> activation_of("squared_relu")(torch.tensor([-1.0, 2.0]))
        tensor([0., 4.])
    """
    return _ACTIVATIONS[expect_name("activation", name, _ACTIVATIONS)]


def activated(
    activate: Callable[[Tensor], Tensor], layer: nn.Module, x: Tensor, session: DecodingSession | None = None
) -> Tensor:
    """Return f(layer(x)) for a function from `activation_of`.

    A hook may keep what a layer returned, so only the output of a plain layer without a graph is overwritten.

    Example:
        >>> import torch
        >>> activated(activation_of("relu"), nn.Identity(), torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    hidden = apply_layer(layer, x, session)
    return activate(hidden if hidden.requires_grad or is_plain(layer, nn.Linear) else hidden.clone())


@checked
@final
class FeedForward(nn.Module):
    """W₂ f(W₁ x + b₁) + b₂, applied to each position.

    Args:
        width: M.
        hidden: width of the hidden layer.
        dropout: on the hidden layer, in training.
        activation: f, "relu", "gelu", "gelu_tanh" (its approximation), "silu" or "squared_relu".
        bias: whether both layers have a bias.

    Raises:
        ConfigError: the activation is unknown.

    Source: Vaswani et al. 2017, eq. 2 (relu); Hendrycks and Gimpel 2016 (gelu); So et al. 2021, "Primer", section 3.1
        (squared relu); Elfwing et al. 2018 (silu).
    """

    def __init__(
        self, width: int, hidden: int, dropout: float = 0.0, *, activation: Activation = "relu", bias: bool = True
    ) -> None:
        super().__init__()
        expect_sizes(width=width, hidden=hidden)
        activation_of(activation)
        self.expand = nn.Linear(width, hidden, bias=bias)
        self.contract = nn.Linear(hidden, width, bias=bias)
        self.dropout = Dropout(dropout)
        self.activation = activation
        initialize_linear(self.expand, self.contract)

    def forward(self, x: Tensor, session: DecodingSession | None = None) -> Tensor:
        """(..., M) to (..., M)."""
        expand = self.expand
        expect_input("x", x, expand, rank=1)
        hidden: Tensor = self.dropout(activated(_ACTIVATIONS[self.activation], expand, x, session))
        return apply_layer(self.contract, hidden, session)


@checked
@final
class GatedFeedForward(nn.Module):
    """W₂ (f(W_g x) ⊙ W₁ x), applied to each position; with biases if `bias` is set.

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
        expect_sizes(width=width, hidden=hidden)
        activation_of(activation)
        self.activation = activation
        self.gate = nn.Linear(width, hidden, bias=bias)
        self.expand = nn.Linear(width, hidden, bias=bias)
        self.contract = nn.Linear(hidden, width, bias=bias)
        self.dropout = Dropout(dropout)
        initialize_linear(self.gate, self.expand, self.contract)

    def forward(self, x: Tensor, session: DecodingSession | None = None) -> Tensor:
        """(..., M) to (..., M)."""
        expect_input("x", x, self.gate, rank=1)
        gate = activated(_ACTIVATIONS[self.activation], self.gate, x, session)
        hidden: Tensor = self.dropout(gate * apply_layer(self.expand, x, session))
        return apply_layer(self.contract, hidden, session)
