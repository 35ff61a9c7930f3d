"""The interface of a normalizer: the weights of a row of scores, its row state, and the merge of two results."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.errors import MaskError, UnsupportedError
from qkv.shapes import broadcasts_to, show
from qkv.values.checked import explained_by
from qkv.values.execution import readable
from qkv.values.parameters import Parameter, expect_floats

Partial = tuple[Tensor, Tensor]
"""Attention over some of the keys: output (..., Q, V) and row state (..., Q)."""


class Normalizer(ABC):
    """Maps scores to weights, row by row: a small frozen value.

    Calling it computes the weights, which is all that a user-defined normalizer must define. `state` is what a backend
    stores about a row besides its output; with it, `merge` combines results over disjoint sets of keys.

    Attributes:
        parameters: the fields that can be tensors; per-head ones align from the right.
        convex: whether the weights of a row are non-negative and sum to one, unless all its keys are masked.
        non_negative: whether no weight is ever below 0, although a row need not sum to one.
        needs_non_negative: whether the scores must be non-negative.
        mergeable: whether results over disjoint sets of keys can be merged.
        piecewise_constant: whether the weights change by jumps only, so that scores get zero gradient.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = ()
    convex: ClassVar[bool] = False
    non_negative: ClassVar[bool] = False
    needs_non_negative: ClassVar[bool] = False
    mergeable: ClassVar[bool] = False
    piecewise_constant: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            setattr(cls, "__call__", explained_by(_expect_scores)(vars(cls)["__call__"]))  # noqa: B010 - a method

    @abstractmethod
    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the weights literally by the equation.

        Args:
            scores: s, (..., Q, K).
            visible: the keys each row may see: bool, broadcasts to (..., Q, K); None for all.

        Returns:
            The weights w, (..., Q, K): 0 for masked keys, and all 0 in a fully masked row.
        """

    def state(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        """Compute the row state.

        Args:
            scores: s, (..., Q, K).
            visible: as for the weights.

        Returns:
            (..., Q), in float64: rounded to float32, a log-sum-exp of 40 would change every weight by 2e-6.

        Raises:
            UnsupportedError: the normalizer defines no row state.
        """
        hint = "attention_with_weights gives the weights themselves."
        raise UnsupportedError("normalizer", "one with a row state", type(self).__name__, hint)

    @staticmethod
    def merge(left: Partial, right: Partial) -> Partial:
        """Merge attention over two disjoint sets of keys into attention over their union.

        Raises:
            UnsupportedError: the weights of a row depend on all its keys.
        """
        hint = "Compute the rows over all their keys at once."
        raise UnsupportedError("parts", "a normalizer whose rows can be merged", "another", hint)


def _expect_scores(normalizer: Normalizer, scores: Tensor, visible: Tensor | None = None) -> None:
    """Check the scores and the mask that a normalizer is called with."""
    expect_floats("scores", scores, 1)
    shape = tuple(scores.shape)
    if visible is None:
        return
    if not isinstance(visible, Tensor) or visible.dtype != torch.bool or visible.device != scores.device:
        got = f"{visible.dtype} on {visible.device}" if isinstance(visible, Tensor) else type(visible).__name__
        raise MaskError("visible", f"a bool tensor on {scores.device}", got, "True means that a row may see the key.")
    if not broadcasts_to(tuple(visible.shape), shape):
        hint = "The last two dimensions are queries and keys."
        raise MaskError("visible", f"a shape that broadcasts to {show(shape)}", show(tuple(visible.shape)), hint)


def hide(scores: Tensor, visible: Tensor | None, by: float) -> Tensor:
    """Replace masked scores by a number, whatever they hold."""
    if visible is None or (visible.numel() == 1 and readable(visible) and bool(visible)):
        return scores
    return torch.where(visible, scores, by)


def empty_rows(scores: Tensor) -> Tensor:
    """Return which rows are −inf only, bool (..., Q, 1).

    Elements are compared because the maximum of ONNX Runtime can ignore NaN: a row of −inf and NaN would seem empty.

    Example:
        >>> empty_rows(torch.tensor([[-torch.inf, torch.nan], [-torch.inf, -torch.inf]]))
        tensor([[False],
                [ True]])
    """
    return (scores.detach() == -torch.inf).all(-1, keepdim=True)


def divide(numerator: Tensor, total: Tensor) -> Tensor:
    """Return numerator/total, 0 with zero gradient where the total is 0."""
    return numerator / total.masked_fill(total == 0, torch.inf)


def count(visible: Tensor | None, scores: Tensor) -> Tensor:
    """Return n, the number of keys each row may see, in the scores' dtype: broadcasts to (..., Q, 1)."""
    if visible is None and torch.compiler.is_compiling():
        # Under tracing, a varying number of keys must not become a constant.
        return scores.new_ones(()).expand(1, scores.shape[-1]).sum(-1, keepdim=True)
    if visible is None:
        return scores.new_full((1, 1), scores.shape[-1])
    return visible.expand(*visible.shape[:-1], scores.shape[-1]).sum(-1, keepdim=True).to(scores.dtype)


def state_scores(scores: Tensor, visible: Tensor | None, hidden: float) -> tuple[Tensor, Tensor]:
    """Prepare scores for a row state.

    Args:
        scores: s, (..., Q, K).
        visible: the keys each row may see, or None.
        hidden: the value of masked scores.

    Returns:
        The scores in float64, in which a state is not rounded, and the mask as a tensor.
    """
    s = scores.double()
    mask = torch.ones((), dtype=torch.bool, device=s.device) if visible is None else visible
    return torch.where(mask, s, hidden), mask


def visible_count(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Return the row state of mean and sigmoid: how many keys each row may see, (..., Q)."""
    s, mask = state_scores(scores, visible, 0.0)
    return mask.expand_as(s).sum(-1).to(s.dtype)


def weighted_sum(left: Tensor, left_weight: Tensor, right: Tensor, right_weight: Tensor) -> Tensor:
    """Return the sum of two outputs (..., Q, V), each times a weight (..., Q), in the type of the outputs."""
    return (left * left_weight[..., None] + right * right_weight[..., None]).to(left.dtype)


def merge_totals(left: Partial, right: Partial) -> Partial:
    """Merge outputs that were divided by their row states."""
    (left_output, a), (right_output, b) = left, right
    total = a + b
    safe = torch.where(total == 0, torch.ones_like(total), total)
    return weighted_sum(left_output, a / safe, right_output, b / safe), total
