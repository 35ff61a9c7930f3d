"""Check that the scores of a model are numbers."""

from torch import Tensor

from qkv.errors import QkvError


def expect_numbers(scores: Tensor, where: str) -> None:
    """Raise an error if scores hold NaN.

    Args:
        scores: any shape.
        where: the line or token that they belong to, for the message.

    Raises:
        QkvError: there is a NaN.

    Example:
        >>> import torch
        >>> expect_numbers(torch.tensor([0.0, float("-inf")]), "line 1")
        >>> expect_numbers(torch.tensor([float("nan")]), "line 1")
        Traceback (most recent call last):
        qkv.errors.QkvError: model: expected scores that are numbers; got NaN for line 1. The parameters hold NaN or
        Inf: take an earlier checkpoint.
    """
    if scores.isnan().any():
        hint = "The parameters hold NaN or Inf: take an earlier checkpoint."
        raise QkvError("model", "scores that are numbers", f"NaN for {where}", hint)
