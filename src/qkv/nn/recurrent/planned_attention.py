"""Attention over keys and values that a decoding keeps from step to step."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from qkv.functional import decoder_for
from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.scores.base import Score
from qkv.values.parameters import transformed
from qkv.values.plain import has_hooks
from qkv.values.pytree import tensors_in

_Loop = Callable[[Tensor], Tensor] | None


@final
class PlannedAttention:
    """attention(q_t, K, V) in the steps of a decoding, planned once for all steps over the same keys, by a session.

    Where no plan saves time, or someone watches the module, the module itself runs.

    Example:
        >>> from qkv.scores import Additive
        >>> attention, planned, score = Attention(), PlannedAttention(), Additive(torch.randn(8))
        >>> query, (key, value) = torch.randn(3, 2, 1, 8), torch.randn(2, 2, 5, 8)
        >>> steps = [planned.attend(attention, score, None, key, value, each) for each in query]
        >>> torch.allclose(torch.stack(steps), attention(query, key, value, score=score), atol=1e-6)
        True
    """

    def __init__(self) -> None:
        # The last call: what must be the same for its loop to serve again, its tensors, the loop.
        self._last: tuple[Any, list[Tensor], _Loop] | None = None

    def attend(
        self, attention: Attention, score: Score, mask: Mask | None, key: Tensor, value: Tensor, query: Tensor
    ) -> Tensor:
        """Take a step, without gradients.

        Args:
            attention: the module.
            score: what it scores by.
            mask: where queries may attend.
            key: K (B, S, D).
            value: V (B, S, V).
            query: (B, Q, D).

        Returns:
            (B, Q, V).
        """
        loop = self._loop(attention, score, mask, key, value, query) if _free(attention, key) else None
        if loop is not None:
            return loop(query)
        output: Tensor = attention(query, key, value, score=score, mask=mask)
        return output

    def _loop(
        self, attention: Attention, score: Score, mask: Mask | None, key: Tensor, value: Tensor, query: Tensor
    ) -> _Loop:
        tensors = [key, value, *tensors_in(mask), *tensors_in(score)]
        mark = (query.shape, type(score), [_mark(x) for x in tensors])
        last = self._last
        if last is None or last[0] != mark:
            # The tensors are held, so that no others come to have their identities.
            last = self._last = mark, tensors, decoder_for(query, key, value, score, attention.normalizer, mask)
        return last[2]


def _mark(x: Tensor) -> tuple[int, int, int]:
    # What inference mode made has no version, and cannot be changed outside of it.
    return id(x), x.data_ptr(), 0 if x.is_inference() else x._version


def _free(attention: Attention, key: Tensor) -> bool:
    """Return whether a loop may take the place of the module."""
    chosen = attention.backend == "auto" and not attention.dropout and attention.also is None
    rewritten = torch.compiler.is_compiling() or transformed()
    return chosen and key.device.type == "cpu" and not rewritten and not has_hooks(attention)
