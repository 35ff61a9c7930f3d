"""What a backward pass reads again must be as it was: PyTorch's own rule, where PyTorch does not save the tensors.

A function of PyTorch's autograd saves what it reads, the tensors of a mask too, and PyTorch compares versions. Tiles
that are made again (`torch.utils.checkpoint`) read tensors that nobody saved: those of the call, and those that a
user-defined function closes over.
"""

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import TensorWeakRef

from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call
from qkv.scores.free import Learned
from qkv.values.pytree import tensors_in


def tensors_of(call: Call) -> list[Tensor]:
    """The tensors that a call's tiles are made of.

    Args:
        call: the tensors of a problem.
    """
    biases = call.bias.tensors() if isinstance(call.bias, PositionBias) else [call.bias]
    own = [x for x in (call.query, call.key, call.value, *biases, call.seed) if x is not None]
    if isinstance(call.score, Learned) and isinstance(call.score.module, nn.Module):
        # One that was compiled does not show what it reads.
        own += call.score.module.parameters()
    return [*own, *tensors_in(call.score), *tensors_in(call.normalizer), *call.visibility.tensors()]


@final
class Reads(TorchFunctionMode):
    """The tensors that tiles are made of, each with its version.

    Tiles are made within it, and made again: a function that was compiled for the one then serves the other. The first
    time, it finds the tensors that a user-defined function closes over.

    Args:
        known: tensors that are read in any case.

    Example:
        >>> weight = torch.ones(2)
        >>> with (reads := Reads([])):
        ...     output = (weight * torch.ones(2, requires_grad=True)).clone()
        >>> reads.guard([output])
        >>> weight += 1
        >>> try:
        ...     output.sum().backward()
        ... except RuntimeError as error:
        ...     print(str(error)[:95])
        one of the variables needed for gradient computation has been modified by an inplace operation:
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self._found: dict[int, tuple[Any, int]] = {}
        self._made: set[int] = set()
        self._guarded = False
        for x in known:
            self._note(x)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what is read; what the function made itself is nobody else's to change."""
        kwargs = kwargs or {}
        # A compiled function is traced through here: what it reads is no tensor yet.
        if self._guarded or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        for x in (*args, *kwargs.values()):
            for each in x if isinstance(x, (list, tuple)) else (x,):
                if isinstance(each, Tensor) and id(each) not in self._made:
                    self._note(each)
        found = func(*args, **kwargs)
        for each in found if isinstance(found, (list, tuple)) else (found,):
            if isinstance(each, Tensor) and id(each) not in self._found:
                self._made.add(id(each))
        return found

    def _note(self, x: Tensor) -> None:
        # A tensor of inference mode has no version.
        if id(x) not in self._found and not x.is_inference():
            self._found[id(x)] = TensorWeakRef(x), x._version

    def guard(self, outputs: Iterable[Tensor]) -> None:
        """Let the backward pass of these raise where what was read has changed by then.

        What the function itself changes, such as counts of its own, is not looked at.
        """
        pairs = [(reference, reference(), version) for reference, version in self._found.values()]
        # Tiles that were taken of a tensor are gone; the tensor itself is not.
        kept = [(reference, version) for reference, x, version in pairs if x is not None and x._version == version]
        self._found.clear()
        self._made.clear()
        self._guarded = True

        def check(_: Any) -> None:
            for reference, version in kept:
                x = reference()
                if x is not None and x._version != version:
                    raise RuntimeError(_changed(x, version))

        for output in outputs:
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(check)


def _changed(x: Tensor, version: int) -> str:
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
        f"shape {tuple(x.shape)} and dtype {x.dtype} that attention reads again in its backward pass is at version "
        f"{x._version}; expected version {version} instead. Change a clone of it, or change it after the backward pass."
    )
