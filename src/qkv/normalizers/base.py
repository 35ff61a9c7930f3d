"""What a normalizer is: a function from the scores of a row to its weights."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from qkv.values.parameters import Parameter, readable


class Normalizer(ABC):
    """Maps scores to weights, row by row: a small frozen value.

    Attributes:
        parameters: the fields that can be tensors; per-head ones align from the right.
        convex: whether the weights of a row are non-negative and sum to one, unless all its keys are masked.
        needs_non_negative: whether the scores must be non-negative.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = ()
    convex: ClassVar[bool] = False
    needs_non_negative: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the weights literally by the equation.

        Args:
            scores: s, (..., Q, K).
            visible: the keys each row may see: bool, broadcasts to (..., Q, K); None for all.

        Returns:
            The weights w, (..., Q, K): 0 for masked keys, and all 0 in a fully masked row.
        """


def hide(scores: Tensor, visible: Tensor | None, by: float) -> Tensor:
    """Replace masked scores by a number, whatever they hold."""
    if visible is None or (visible.numel() == 1 and readable(visible) and bool(visible)):
        return scores
    return torch.where(visible, scores, torch.full_like(scores[..., :1, :1], by))


def divide(numerator: Tensor, total: Tensor) -> Tensor:
    """Return numerator/total, 0 with zero gradient where the total is 0."""
    empty = total == 0
    return torch.where(
        empty, torch.zeros_like(numerator), numerator / torch.where(empty, torch.ones_like(total), total)
    )


def count(visible: Tensor | None, scores: Tensor) -> Tensor:
    """Return n, the number of keys each row may see, in the scores' dtype: broadcasts to (..., Q, 1)."""
    if visible is None and torch.compiler.is_compiling():
        # Under tracing, a varying number of keys must not become a constant.
        return scores.new_ones(()).expand(1, scores.shape[-1]).sum(-1, keepdim=True)
    if visible is None:
        return scores.new_full((1, 1), scores.shape[-1])
    return visible.expand(*visible.shape[:-1], scores.shape[-1]).sum(-1, keepdim=True).to(scores.dtype)
