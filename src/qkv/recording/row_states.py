"""The row states of long calls, which PyTorch's kernel computes anyway: any weight then follows from a query and a key.

They are rounded to float32, as the kernel returns them: a second pass for the digits that are missing would take time.

Without them, reading the first row of a long map takes a pass over all of its keys.
"""

import threading
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from qkv.masks.patterns import is_plain_causal
from qkv.nn.attention import Also, Attention
from qkv.normalizers.dense import Softmax
from qkv.normalizers.row_state import RowState
from qkv.scores.products import Dot, ScaledDot
from qkv.values.sharded import is_sharded

ROUNDED: Also = "rounded state"
LONG = 1 << 20
"""Queries times keys from which a pass over all keys takes longer than people notice."""


@final
class RowStates:
    """Hooks that ask an `Attention` for the row states of its long calls, and hide them from the model.

    Example:
        >>> layer, states = Attention(), RowStates()
        >>> before = layer.register_forward_pre_hook(states.ask, with_kwargs=True)
        >>> after = layer.register_forward_hook(states.take, with_kwargs=True, prepend=True)
        >>> with torch.no_grad():
        ...     output = layer(*torch.zeros(3, 1024, 4).unbind())
        >>> output.shape, states.last.lse[0]
        (torch.Size([1024, 4]), tensor(6.9315, dtype=torch.float64))
    """

    def __init__(self) -> None:
        self._last: RowState | None = None
        # Other threads may run the module while these hooks are added or removed, and must not see their arguments.
        self._thread = threading.get_ident()

    @property
    def last(self) -> RowState | None:
        """The row state of the last call; None if it was not free, or in another thread than the one of these hooks."""
        return self._last if threading.get_ident() == self._thread else None

    def ask(
        self, module: Attention, tensors: tuple[Tensor, ...], options: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]] | None:
        """Before a call: ask for its row state if it costs nothing and changes no bit of the output."""
        if threading.get_ident() != self._thread:
            return None
        self._last = None
        possible = module.also is None and options.get("also") is None and _is_free(module, tensors, options)
        # An argument, not a setting of the module, which other threads may be running.
        return (tensors, options | {"also": ROUNDED}) if possible else None

    def take(self, module: Attention, tensors: tuple[Tensor, ...], *rest: Any) -> Any:
        """After a call: keep its row state, and return the output alone."""
        options, output = rest if len(rest) == 2 else ({}, None)
        if options.get("also") != ROUNDED or not isinstance(output, tuple):
            return None
        output, state = output
        if threading.get_ident() == self._thread:
            self._last = state
        return output


def _is_free(module: Attention, tensors: tuple[Tensor, ...], options: Mapping[str, Any]) -> bool:
    """Return True for a long softmax over products without gradient, of all keys or the causal ones."""
    other = is_sharded() or module.backend != "auto"
    if other or len(tensors) != 3 or any(x.device.type != "cpu" for x in tensors):
        return False
    query, key, _ = tensors
    score, normalizer = module.mechanism(options.get("score"), options.get("normalizer"))
    mask = options.get("mask")
    plain = isinstance(score, Dot) or (isinstance(score, ScaledDot) and score.softcap is None)
    softmax = normalizer is None or (isinstance(normalizer, Softmax) and normalizer.sink is None)
    simple = mask is None or is_plain_causal(mask)
    learned = [x for x in (*tensors, getattr(score, "scale", None)) if isinstance(x, Tensor) and x.requires_grad]
    dropped = module.training and module.dropout > 0
    learns = bool(learned) and torch.is_grad_enabled()
    long = query.shape[-2] * key.shape[-2] >= LONG
    return long and plain and softmax and simple and options.get("bias") is None and not (learns or dropped)
