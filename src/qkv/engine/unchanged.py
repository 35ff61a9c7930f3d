"""Detect in-place changes of tensors that a backward pass reads again but that autograd has not saved.

An autograd function saves the tensors that it reads, and PyTorch compares their versions in the backward pass. Tiles
that are recomputed by `torch.utils.checkpoint` read tensors that nothing saved: those of the call, and those that a
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
    """Return the tensors that a call's tiles are computed from."""
    biases = call.bias.tensors() if isinstance(call.bias, PositionBias) else [call.bias]
    tensors = [x for x in (call.query, call.key, call.value, *biases, call.seed) if x is not None]
    if isinstance(call.score, Learned) and isinstance(call.score.module, nn.Module):
        # A compiled module does not show which parameters it reads.
        tensors += call.score.module.parameters()
    return [*tensors, *tensors_in(call.score), *tensors_in(call.normalizer), *call.visibility.tensors()]


@final
class Reads(TorchFunctionMode):
    """Records the tensors that tiles are computed from, each with its version.

    Tiles are computed, and recomputed, within this mode, so that a function compiled in one case serves the other. The
    first time it finds the tensors that a user-defined function closes over.

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

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._read: dict[int, tuple[Any, int]] = {}
        self._computed: set[int] = set()
        self._guarded = False
        for x in tensors:
            self._record(x)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the tensors that an operator reads, except those that the function itself has computed."""
        kwargs = kwargs or {}
        # While a function is compiled, its tensors are symbolic.
        if self._guarded or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        for x in (*args, *kwargs.values()):
            for tensor in x if isinstance(x, (list, tuple)) else (x,):
                if isinstance(tensor, Tensor) and id(tensor) not in self._computed:
                    self._record(tensor)
        result = func(*args, **kwargs)
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, Tensor) and id(tensor) not in self._read:
                self._computed.add(id(tensor))
        return result

    def _record(self, x: Tensor) -> None:
        # A tensor of inference mode has no version.
        if id(x) not in self._read and not x.is_inference():
            self._read[id(x)] = TensorWeakRef(x), x._version

    def guard(self, outputs: Iterable[Tensor]) -> None:
        """Make the backward pass of these outputs raise an error if a recorded tensor has changed by then.

        Tensors that the function itself changes, such as its own counters, are not checked.
        """
        pairs = [(reference, reference(), version) for reference, version in self._read.values()]
        # Temporary views of tensors have been freed; the tensors themselves have not.
        checked = [(reference, version) for reference, x, version in pairs if x is not None and x._version == version]
        self._read.clear()
        self._computed.clear()
        self._guarded = True

        def check(_: Any) -> None:
            for reference, version in checked:
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
