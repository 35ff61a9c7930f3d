"""How PyTorch executes a call, which decides what an algorithm may do with its tensors."""

from typing import Literal

import torch
from torch import Tensor

from qkv.values.parameters import forward_mode, transformed

Mode = Literal["eager", "wrapped", "transformed", "compiled"]
"""How a call is executed.

- `eager`: plain tensors; their memory and their numbers can be read.
- `wrapped`: a subclass of Tensor, such as DTensor, that intercepts PyTorch's operators.
- `transformed`: `torch.func`, forward-mode derivatives, or a tracer such as `make_fx` or `torch.jit.trace`.
- `compiled`: `torch.compile` or `torch.export` makes a graph of the call.

In all modes but `eager` only PyTorch's operators may be used.
"""

PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""The classes of tensors that do not intercept PyTorch's operators."""


def mode_of(*tensors: Tensor) -> Mode:
    """Return how a call with these tensors is executed.

    Args:
        tensors: the inputs of the call.

    Example:
        >>> mode_of(torch.ones(2)), torch.func.vmap(lambda x: x + len(mode_of(x)))(torch.zeros(1))
        ('eager', tensor([11.]))
    """
    if torch.compiler.is_compiling():
        return "compiled"
    if transformed():
        return "transformed"
    for x in tensors:
        if type(x) not in PLAIN:
            return "wrapped"
    return "eager"


def tangents_possible() -> bool:
    """Return whether tensors may carry tangents of forward-mode derivatives, which only PyTorch's operators pass on."""
    return not torch.compiler.is_compiling() and forward_mode()
