"""Cross entropy of the target tokens, summed, with label smoothing."""

import torch
import torch.nn.functional as F
from torch import Tensor


def label_smoothed_loss(logits: Tensor, target: Tensor, padding: int, smoothing: float = 0.0) -> tuple[Tensor, int]:
    """Sum the label-smoothed cross entropy over all tokens that are not padding.

    Args:
        logits: (..., N); N is the vocabulary size.
        target: the target tokens, (...), int64.
        padding: the token to ignore.
        smoothing: ε, the part of a target's weight that is spread evenly over all N tokens.

    Returns:
        The sum in nats, a float32 scalar, and the number of tokens that count.

    Source:
        Szegedy et al. 2016, section 7.

    Example:
        >>> loss, count = label_smoothed_loss(torch.zeros(2, 3, 4), torch.tensor([[1, 2, 0], [3, 0, 0]]), padding=0)
        >>> round(loss.item() / count, 4), count
        (1.3863, 3)
    """
    flat = logits.reshape(-1, logits.shape[-1])
    # Sums of logarithms lose too much precision in bfloat16.
    flat = flat if flat.dtype == torch.float64 else flat.float()
    loss = F.cross_entropy(flat, target.reshape(-1), ignore_index=padding, reduction="sum", label_smoothing=smoothing)
    return loss, int((target != padding).sum())
