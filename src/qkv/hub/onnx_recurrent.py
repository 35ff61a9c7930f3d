"""Recurrent layers in ONNX graphs: ONNX's own operators, which run over rows of unequal length in both directions."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor, nn

from qkv.errors import UnsupportedError
from qkv.models.recurrence import RunsWholeRows

_ORDER: Mapping[str, tuple[int, ...]] = MappingProxyType({"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2), "RNN_TANH": (0,)})
"""The gates of PyTorch's layers in the order of ONNX's operators: z r h, and i o f c."""


@torch.library.custom_op("qkv::onnx_recurrent", mutates_args=())
def _recurrent(
    x_SBM: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, lengths: Tensor, kind: str, reverse: bool
) -> tuple[Tensor, Tensor]:
    got, hint = "a call", "It stands for an operator of ONNX."
    raise UnsupportedError("qkv::onnx_recurrent", "to be exported, not run", got, hint)


@_recurrent.register_fake
def _(
    x_SBM: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, lengths: Tensor, kind: str, reverse: bool
) -> tuple[Tensor, Tensor]:
    (steps, batch, _), width = x_SBM.shape, recurrent.shape[-1]
    return x_SBM.new_empty(steps, batch, width), x_SBM.new_empty(batch, width)


@final
class ExportedRecurrence(RunsWholeRows):
    """A recurrent layer of PyTorch in the form that `translations` turn into operators of ONNX.

    Args:
        layer: an RNN, GRU or LSTM with `batch_first`.
    """

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.kind, self.layers, self.directions = layer.mode, layer.num_layers, 2 if layer.bidirectional else 1
        for index, name in enumerate(self._names(layer)):
            weight, recurrent, *biases = (
                _reordered(getattr(layer, f"{part}_{name}").detach(), self.kind)
                for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            for part, tensor in (("weight", weight), ("recurrent", recurrent), ("bias", torch.cat(biases))):
                self.register_buffer(f"{part}_{index}", tensor[None])

    @staticmethod
    def _names(layer: nn.RNNBase) -> list[str]:
        ways = ("", "_reverse") if layer.bidirectional else ("",)
        return [f"l{depth}{direction}" for depth in range(layer.num_layers) for direction in ways]

    def forward(self, x_BSM: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return states and last states, as `qkv.models.recurrence.run`."""
        x_SBM, last = x_BSM.transpose(0, 1), x_BSM.new_zeros(0)
        for depth in range(self.layers):
            both = [
                self._direction(x_SBM, lengths, depth * self.directions + direction, bool(direction))
                for direction in range(self.directions)
            ]
            x_SBM, last = torch.cat([states for states, _ in both], -1), torch.stack([end for _, end in both])
        return x_SBM.transpose(0, 1), last

    def _direction(self, x_SBM: Tensor, lengths: Tensor, index: int, reverse: bool) -> tuple[Tensor, Tensor]:
        weights = [self.get_buffer(f"{part}_{index}") for part in ("weight", "recurrent", "bias")]
        outputs: tuple[Tensor, Tensor] = torch.ops.qkv.onnx_recurrent(x_SBM, *weights, lengths, self.kind, reverse)
        return outputs


def _reordered(tensor: Tensor, kind: str) -> Tensor:
    parts = tensor.chunk(len(_ORDER[kind]))
    return torch.cat([parts[index] for index in _ORDER[kind]])


def with_exported_layers(model: nn.Module) -> None:
    """Replace every recurrent layer of PyTorch in a model by its exported form."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.RNNBase):
            parent, _, name_in_layer = name.rpartition(".")
            setattr(model.get_submodule(parent), name_in_layer, ExportedRecurrence(layer))


def translations() -> dict[Any, Callable[..., Any]]:
    """Return the translations of our operators for `torch.onnx.export`."""
    from onnxscript import opset18

    op: Any = opset18
    int32 = 6  # TensorProto.INT32

    def translated(
        x: Any, weight: Any, recurrent: Any, bias: Any, lengths: Any, kind: str, reverse: bool
    ) -> tuple[Any, Any]:
        inputs = (x, weight, recurrent, bias, op.Cast(lengths, to=int32))
        settings = {"direction": "reverse" if reverse else "forward", "hidden_size": int(recurrent.shape[-1])}
        if kind == "GRU":
            states, last = op.GRU(*inputs, **settings, linear_before_reset=1)
        elif kind == "LSTM":
            states, last, _ = op.LSTM(*inputs, **settings)
        else:
            states, last = op.RNN(*inputs, **settings, activations=["Tanh"])
        direction, directions = op.Constant(value_ints=[1]), op.Constant(value_ints=[0])
        return op.Squeeze(states, direction), op.Squeeze(last, directions)

    return {torch.ops.qkv.onnx_recurrent.default: translated}
