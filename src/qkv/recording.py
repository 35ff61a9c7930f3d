"""What a running model attends to, kept by hooks on its one seam while it runs on its fast path."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, complaint, nearest
from qkv.functional import attention_with_weights
from qkv.nn.attention import Attention


@final
@dataclass(frozen=True, eq=False)
class Call:
    """One call of an attention: what it was given, detached."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]

    def weights(self) -> Tensor:
        """The weights (..., Q, K) that this call applied, dropout aside."""
        with torch.no_grad():
            return attention_with_weights(self.query, self.key, self.value, **self.options)[1]


@final
@dataclass(frozen=True, eq=False)
class Trace:
    """What was recorded: for each layer its calls, in order.

    Args:
        calls: by the name of the layer, its path in the model.
    """

    calls: dict[str, list[Call]] = field(default_factory=dict)

    @property
    def layers(self) -> list[str]:
        """The names of the recorded layers."""
        return list(self.calls)

    def weights(self, layer: str) -> Tensor:
        """The weights of a layer, rows of all its calls one after another.

        A decoder that attends once per step has called the layer once per row: the rows are gathered.

        Args:
            layer: its path in the model.

        Returns:
            (..., Q, K), Q counted over the calls.

        Raises:
            ConfigError: the layer was not recorded, or was not run.
        """
        if not self.calls.get(layer):
            mend = nearest(layer, self.calls) if self.calls else "Run the model inside the `with` block."
            raise ConfigError(complaint("layer", "a recorded layer that was run", repr(layer), mend))
        return torch.cat([call.weights() for call in self.calls[layer]], -2)


@contextmanager
def record(model: nn.Module, layers: Sequence[str] | None = None) -> Iterator[Trace]:
    """Record what a model attends to.

    Args:
        model: any module whose attentions are `qkv.nn.Attention`.
        layers: paths of the attentions to record; None for all.

    Returns:
        A context that gives the trace; no bit of the model's output changes, and nothing of it stays behind.

    Raises:
        ConfigError: a layer that the model does not have.

    Example:
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> model = MultiHeadAttention(8, 2)
        >>> with record(model) as trace:
        ...     output = model(torch.randn(1, 3, 8))
        >>> trace.layers, trace.weights("attention").shape
        (['attention'], torch.Size([1, 2, 3, 3]))
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    for name in layers or ():
        if name not in found:
            raise ConfigError(complaint("layers", "names of attention layers", repr(name), nearest(name, found)))
    chosen = found if layers is None else {name: found[name] for name in layers}
    trace = Trace({name: [] for name in chosen})
    hooks = [
        module.register_forward_hook(_keep(trace.calls[name]), with_kwargs=True) for name, module in chosen.items()
    ]
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()


def _keep(calls: list[Call]) -> Any:
    def hook(module: Attention, tensors: tuple[Tensor, ...], options: dict[str, Any], output: Tensor) -> None:
        query, key, value = (tensor.detach() for tensor in tensors)
        given = {name: option for name, option in options.items() if name != "generator" and option is not None}
        own = {"score": module.score, "normalizer": module.normalizer}
        given = {name: option for name, option in own.items() if option is not None} | given
        calls.append(Call(query, key, value, given))

    return hook
