"""Names that layers accept, without PyTorch, so that settings can list them."""

from typing import Literal

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "squared_relu"]
"""Activations of feed-forward layers."""
PointerScore = Literal["additive", "bilinear", "dot", "scaled_dot", "cosine", "squared_distance"]
"""Scores whose softmax points at an element."""
