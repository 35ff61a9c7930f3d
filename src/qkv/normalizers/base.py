"""What a normalizer is: the step from the scores of a row to its weights."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from qkv.values.parameters import Parameter, readable


class Normalizer(ABC):
    """From scores to weights, row by row: a small frozen value.

    Attributes:
        parameters: the fields that may be tensors, per head aligned from the right.
        convex: whether the weights of a row that sees a key are non-negative and sum to one.
        needs_non_negative: whether only non-negative scores may be normalized.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = ()
    convex: ClassVar[bool] = False
    needs_non_negative: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """The equation, literally.

        Args:
            scores: s, (..., Q, K).
            visible: which keys each row may see: bool, broadcasts to (..., Q, K); None where it may see all.

        Returns:
            The weights w, (..., Q, K): 0 where hidden, and all 0 in a row that may see nothing.
        """


def hide(scores: Tensor, visible: Tensor | None, by: float) -> Tensor:
    """Put a number in place of hidden scores, whatever they hold."""
    if visible is None or (visible.numel() == 1 and readable(visible) and bool(visible)):
        return scores
    return torch.where(visible, scores, torch.full_like(scores[..., :1, :1], by))


def divide(numerator: Tensor, total: Tensor) -> Tensor:
    """numerator/total, 0 with zero gradient where the total is 0."""
    empty = total == 0
    return torch.where(
        empty, torch.zeros_like(numerator), numerator / torch.where(empty, torch.ones_like(total), total)
    )


def count(visible: Tensor | None, scores: Tensor) -> Tensor:
    """n, the keys each row may see, as a number of the scores' type: broadcasts to (..., Q, 1)."""
    if visible is None and torch.compiler.is_compiling():
        # A number of keys that varies may not become data.
        return scores.new_ones(()).expand(1, scores.shape[-1]).sum(-1, keepdim=True)
    if visible is None:
        return scores.new_full((1, 1), scores.shape[-1])
    return visible.expand(*visible.shape[:-1], scores.shape[-1]).sum(-1, keepdim=True).to(scores.dtype)
