"""Whether what a model predicts can be used at all."""

from torch import Tensor

from qkv.errors import QkvError, error_message


def expect_numbers(scores: Tensor, where: str) -> None:
    """Refuse scores that are no numbers: nothing that follows from them would mean anything.

    Args:
        scores: of any shape.
        where: what they belong to, for the message.

    Raises:
        QkvError: there is a NaN among them.

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
        raise QkvError(error_message("model", "scores that are numbers", f"NaN for {where}", hint))
