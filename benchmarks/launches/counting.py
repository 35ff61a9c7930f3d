"""Count what a call would launch on a GPU, without one: PyTorch's fake CUDA tensors on the path of eager calls.

A fake tensor has a size, a type and a device, and no numbers: operators check their arguments and compute nothing. An
operator that mixes devices raises an error. `Counter` counts the operators that compute, each of which is one launch or
more, the numbers that Python reads, for which the processor waits for the GPU, and copies between devices.

Forward needs PyTorch alone. A gradient needs a guard for CUDA, which PyTorch's CPU build lacks and `guarded` compiles:
without one PyTorch ends the process.
"""

import os
import subprocess
import sys
import sysconfig
from collections import Counter as Occurrences
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.values import execution

HERE = Path(__file__).parent
GUARD = "QKV_CUDA_GUARD"
"""The variable of the environment that says that a process has a guard for CUDA."""
READS = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::nonzero"})
VIEWS = frozenset({"aten::alias", "aten::detach", "aten::lift_fresh", "aten::_unsafe_view", "aten::_reshape_alias"})
"""Operators that compute nothing, besides those whose schema says that they return a view."""


class Counter(TorchDispatchMode):
    """Count the operators on fake CUDA tensors while the mode is active.

    Attributes:
        launches: operators that compute on the device, by name.
        reads: numbers of the device that Python reads, by the line of qkv that reads them.
        copies: tensors copied from the device to the host, by line.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: Occurrences[str] = Occurrences()
        self.reads: Occurrences[str] = Occurrences()
        self.copies: Occurrences[str] = Occurrences()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operator and run it; a number that is read is 1, as fake tensors have none."""
        name, kwargs = func._schema.name, kwargs or {}
        source = next((x for x in args if isinstance(x, Tensor)), None)
        on_device = source is not None and source.is_cuda
        if name in READS and on_device:
            assert source is not None
            self.reads[line_of_qkv()] += 1
            if name == "aten::nonzero":
                return torch.empty(source.numel(), source.ndim, dtype=torch.int64, device=source.device)
            return True if name == "aten::equal" or source.dtype == torch.bool else _one(source.dtype)
        result = func(*args, **kwargs)
        if on_device and _on_host(name, args, result):
            self.copies[line_of_qkv()] += 1
        elif computes(func) and (on_device or (isinstance(result, Tensor) and result.is_cuda)):
            self.launches[name.removeprefix("aten::")] += 1
        return result


def computes(func: Any) -> bool:
    """Return whether an operator computes: no view, and nothing that Python alone answers."""
    name = func._schema.name
    if name in VIEWS or name.startswith("prim::") or "::sym_" in name or name.endswith("empty") or "empty_" in name:
        return False
    # A view returns what aliases an argument that it does not write.
    return not any(out.alias_info and not out.alias_info.is_write for out in func._schema.returns)


def _one(dtype: torch.dtype) -> float | int:
    return 1.0 if dtype.is_floating_point else 1


def _on_host(name: str, args: Any, result: Any) -> bool:
    """Return whether an operator copied a tensor of the device to the host."""
    if name == "aten::copy_":
        return bool(args[0].device.type == "cpu" and args[1].is_cuda)
    return bool(name == "aten::_to_copy" and result.device.type == "cpu")


def line_of_qkv() -> str:
    """Return the innermost line of the package that is being executed."""
    frame: Any = sys._getframe()
    while frame is not None and "/qkv/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return "outside of qkv" if frame is None else f"{frame.f_code.co_filename.rpartition('/qkv/')[2]}:{frame.f_lineno}"


class AsOnCuda(TorchFunctionMode):
    """Do what PyTorch's CUDA build does: one kernel for attention in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace `scaled_dot_product_attention` of tensors whose widths that kernel takes."""
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention or not args[0].is_cuda or args[0].shape[-1] % 4:
            return func(*args, **kwargs)
        query, key, value = args
        mask, causal, scale = kwargs["attn_mask"], kwargs["is_causal"], kwargs["scale"]
        if mask is not None:
            mask = mask.to(query.dtype).log() if mask.dtype == torch.bool else mask
            mask = mask.expand(*query.shape[:-1], key.shape[-2])
        compute_lse = any(x.requires_grad for x in args)
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(query, key, value, mask, compute_lse, 0.0, causal, scale=scale)[0]


_WHOLE = frozenset({"aten::gru", "aten::lstm", "aten::rnn_tanh", "aten::_pad_packed_sequence"})
"""Operators that consist of others, but in inference mode come whole."""


class RealOnHost(TorchDispatchMode):
    """Run operators on tensors of the host outside of the fake mode, so that these have numbers, as beside a GPU.

    Recurrent cells of the CPU build have no form for fake tensors; they get one here.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; rows that are packed have one length, as theirs were copied from the device."""
        kwargs = kwargs or {}
        if func._schema.name in _WHOLE:
            with self:
                return func.decompose(*args, **kwargs)
        if func is torch.ops.aten._thnn_fused_gru_cell.default:
            return args[2].new_empty(args[2].shape), args[2].new_empty(args[2].shape[0], 5 * args[2].shape[1])
        if func is torch.ops.aten._thnn_fused_gru_cell_backward.default:
            wide = args[0].new_empty(args[0].shape[0], 3 * args[0].shape[1])
            bias = wide.new_empty(wide.shape[1]) if args[2] else None
            return wide, wide, torch.empty_like(args[0]), bias, bias
        if func is torch.ops.aten._pack_padded_sequence.default and args[0].is_cuda:
            rows, steps = args[0].shape[:2] if args[2] else args[0].shape[1::-1]
            with unset_fake_temporarily():
                sizes = torch.full((steps,), rows, dtype=torch.int64)
            return args[0].new_empty(rows * steps, args[0].shape[-1]), sizes
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        device = kwargs.get("device")
        if any(isinstance(x, FakeTensor) for x in tensors) or (
            device is not None and torch.device(device).type != "cpu"
        ):
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            return func(*args, **kwargs)


def _as_list(x: Tensor) -> Any:
    """Return ones in the place of the numbers of a fake tensor, which are copied to the host at once."""
    x.flatten()[0].item()
    with unset_fake_temporarily():
        return torch.ones(x.shape, dtype=x.dtype).tolist()


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Make tensors fake, and let qkv treat them as the eager tensors of a GPU that they stand for."""
    with (
        patch.multiple(execution, _TRACING=(), PLAIN=execution.PLAIN | {FakeTensor}),
        patch.object(FakeTensor, "tolist", _as_list),
        patch.object(torch.cuda, "device_of", nullcontext),  # there is one, and the CPU build cannot choose it
        FakeTensorMode(allow_non_fake_inputs=True),
        RealOnHost(),  # type: ignore[no-untyped-call]
        AsOnCuda(),
    ):
        yield


def on_fake_cuda(model: nn.Module) -> None:
    """Replace the parameters and buffers of a model by fake ones on CUDA; call it inside of `fake_cuda`."""
    replaced: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                fake = nn.Parameter(torch.empty_like(parameter, device="cuda"), parameter.requires_grad)
                module._parameters[name] = replaced.setdefault(id(parameter), fake)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.empty_like(buffer, device="cuda")
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def has_guard() -> bool:
    """Return whether this process can compute gradients of fake CUDA tensors."""
    return GUARD in os.environ


def guarded(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process whose PyTorch has a guard for CUDA, compiled into a folder.

    Raises:
        subprocess.CalledProcessError: there is no C++ compiler, or it fails.
    """
    package = Path(torch.__file__).parent
    library = folder / f"guard{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}"
    include = [f"-I{package / 'include'}", f"-I{package / 'include/torch/csrc/api/include'}"]
    link = [f"-L{package / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{package / 'lib'}"]
    compiler = os.environ.get("CXX", "c++")
    source = str(HERE / "guard.cpp")
    options = ["-std=c++20", "-shared", "-fPIC", *include, source, *link, "-o", str(library)]
    subprocess.run([compiler, *options], check=True)
    environment = {**os.environ, GUARD: "1", "LD_PRELOAD": str(library)}
    return subprocess.run(command, env=environment, text=True, check=False)
