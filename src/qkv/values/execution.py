"""How PyTorch executes a call, which decides what an algorithm may do with its tensors."""

from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

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
_TRACING = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


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


def transformed() -> bool:
    """Return whether calls are transformed or traced: vmap, grad, forward-mode derivatives, or a graph capture.

    Anything computed outside PyTorch's operators would then be lost.

    Example:
        >>> transformed()
        False
        >>> with torch.autograd.forward_ad.dual_level():
        ...     transformed()
        True
    """
    return _tracing_state() is not None or _interpreters() is not None or forward_mode() or traced()


def undisturbed() -> bool:
    """Return whether PyTorch's operators run as they are: neither traced nor transformed, nor observed by a mode.

    Example:
        >>> undisturbed(), torch.func.vmap(lambda x: x + undisturbed())(torch.zeros(1))
        (True, tensor([0.]))
    """
    return not torch.compiler.is_compiling() and not _dispatch_modes() and not transformed()


_tracing_state = torch._C._get_tracing_state
_interpreters = torch._C._functorch.peek_interpreter_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def forward_mode() -> bool:
    """Return whether forward-mode derivatives (`torch.autograd.forward_ad`) are active."""
    return forward_ad._current_level >= 0


def traced() -> bool:
    """Return whether `make_fx` or fake tensors are active, whose tensors have no numbers and whose sizes may vary.

    Modes that only observe do not count.

    Example:
        >>> traced()
        False
    """
    # The length of the stack counts both kinds of modes, and nearly always is 0.
    return _dispatch_modes() > 0 and any(torch._C._get_dispatch_mode(key) is not None for key in _TRACING)


def sizes_vary() -> bool:
    """Return whether a graph is being captured. Its sizes may be symbolic, so that no branch may depend on them.

    Example:
        >>> sizes_vary()
        False
    """
    return torch.compiler.is_compiling() or traced()


def readable(tensor: Tensor) -> bool:
    """Return whether a tensor can be read without synchronization: on the CPU, outside tracing and transformations.

    Example:
        >>> readable(torch.zeros(2)), readable(torch.zeros(2, device="meta"))
        (True, False)
    """
    return tensor.is_cpu and has_numbers(tensor)


def on_host(device: torch.device) -> bool:
    """Return whether numbers of a device lie in the processor's own memory.

    To read one of a GPU, the processor waits for all that it has launched there; and a GPU takes as long for a launch
    of a few thousand numbers as for one of millions. So on a GPU no branch depends on numbers, and tiles are large.

    Example:
        >>> on_host(torch.device("cpu")), on_host(torch.device("cuda"))
        (True, False)
    """
    return device.type == "cpu"


def has_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor has numbers that Python can read: outside tracing and transformations, and not on `meta`.

    Example:
        >>> has_numbers(torch.zeros(2)), has_numbers(torch.zeros(2, device="meta"))
        (True, False)
    """
    if torch.compiler.is_compiling() or tensor.is_meta or traced():
        return False
    return type(tensor) in PLAIN and not _is_wrapped(tensor)


def has_plain_memory(tensor: Tensor) -> bool:
    """Return whether a kernel can read and write a tensor's memory directly, with no transformation pending on it.

    Example:
        >>> has_plain_memory(torch.ones(2)), has_plain_memory(torch._neg_view(torch.ones(2)))
        (True, False)
    """
    return readable(tensor) and not tensor.is_neg() and not tensor._is_zerotensor() and not transformed()
