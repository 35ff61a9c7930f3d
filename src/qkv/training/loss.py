"""Cross entropy of target tokens, summed, with label smoothing: of logits, or of an output layer that stores none."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.linalg.matmul import onednn_serves, product
from qkv.values.plain_modules import is_plain

_ROWS = 512
"""Tokens whose logits are in memory at a time: enough for full matrix speed, few enough to be overwritten in place."""


def label_smoothed_loss(
    logits: Tensor, target: Tensor, padding: int, smoothing: float = 0.0, count: int | None = None
) -> tuple[Tensor, int]:
    """Sum the label-smoothed cross entropy over all tokens that are not padding.

    Args:
        logits: (..., N); N is the vocabulary size.
        target: the target tokens, (...), int64.
        padding: the token to ignore.
        smoothing: ε, the part of a target's weight that is spread evenly over all N tokens.
        count: the number of tokens that count, if it is known where the batch was made; None to count them, for which a
            GPU must be waited for.

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
    return loss, int((target != padding).sum()) if count is None else count


def layer_loss(
    states: Tensor, layer: nn.Module, target: Tensor, padding: int, smoothing: float = 0.0, count: int | None = None
) -> tuple[Tensor, int]:
    """Sum the label-smoothed cross entropy of an output layer's logits over all tokens that are not padding.

    Args:
        states: inputs of the output layer (..., M).
        layer: a plain `nn.Linear`, whose logits are never stored; any other module is called.
        target, padding, smoothing, count: as for `output_loss`.

    Returns:
        As for `output_loss`.

    Example:
        >>> layer, target = nn.Linear(5, 4), torch.tensor([[1, 2, 0], [3, 0, 0]])
        >>> layer_loss(torch.zeros(2, 3, 5), layer, target, padding=0)[1]
        3
    """
    if is_plain(layer, nn.Linear):
        weight, bias = layer.weight, layer.bias
        return output_loss(states, weight, bias, target, padding, smoothing, count)  # type: ignore[arg-type]
    return label_smoothed_loss(layer(states), target, padding, smoothing, count)


def output_loss(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    padding: int,
    smoothing: float = 0.0,
    count: int | None = None,
) -> tuple[Tensor, int]:
    """Sum the label-smoothed cross entropy of a linear layer's logits over all tokens that are not padding.

    Equals `label_smoothed_loss` of states·Wᵀ + b, with the same gradients, up to rounding. But logits are computed for
    a few tokens at a time, padding is skipped, and the gradient is computed while the logits are in memory.

    Args:
        states: inputs of the output layer (..., M).
        weight: its W (N, M).
        bias: its b (N,), or None.
        target: the target tokens (...), int64.
        padding: the token to ignore.
        smoothing: ε, the part of a target's weight that is spread evenly over all N tokens.
        count: as for `label_smoothed_loss`.

    Returns:
        The sum in nats, a scalar of at least float32; and the number of tokens that count.

    Source: Szegedy et al. 2016, section 7; gradients in the forward pass as in Hsu et al. 2024, "Liger Kernel",
        section 3.2.

    Example:
        >>> states, weight = torch.zeros(2, 3, 5), torch.randn(4, 5)
        >>> loss, count = output_loss(states, weight, None, torch.tensor([[1, 2, 0], [3, 0, 0]]), padding=0)
        >>> round(loss.item() / count, 4), count
        (1.3863, 3)
    """
    flat, labels = states.reshape(-1, states.shape[-1]), target.reshape(-1)
    real = labels != padding
    counted = (real.nonzero() if count is None else torch.nonzero_static(real, size=count)).squeeze(1)
    if counted.numel() < labels.numel():
        flat, labels = flat.index_select(0, counted), labels.index_select(0, counted)
    kind = flat.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else flat.dtype
    loss: Tensor = _OutputLoss.apply(flat, weight, bias, labels, smoothing, dtype)  # type: ignore[no-untyped-call]
    return loss, counted.numel()


class _OutputLoss(torch.autograd.Function):
    """The loss together with its gradients, which the backward pass only scales."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, dtype: Any
    ) -> Tensor:
        # Sums of logarithms and of gradients lose too much precision in half types.
        wide = torch.promote_types(states.dtype, torch.float32)
        total = torch.zeros((), dtype=wide, device=states.device)
        learns = any(ctx.needs_input_grad)
        tensors = (states, weight) if bias is None else (states, weight, bias)
        gradients = [torch.zeros_like(x, dtype=wide) for x in tensors] if learns else []
        with torch.autocast(states.device.type, enabled=False):
            matrix = weight.to(dtype)
            for start in range(0, states.shape[0], _ROWS):
                rows = slice(start, start + _ROWS)
                x_RM = states[rows].to(dtype)
                scores_RN = product(x_RM, matrix.mT).to(wide)
                scores_RN = scores_RN if bias is None else scores_RN.add_(bias)
                total += loss_to_gradient(scores_RN, target[rows], smoothing, learns)
                if learns:
                    error_RN = scores_RN.to(dtype)
                    gradients[0][rows] = product(error_RN, matrix)
                    _add_product(gradients[1], error_RN.mT, x_RM)
                    if bias is not None:
                        gradients[2] += scores_RN.sum(0)
        ctx.save_for_backward(*(gradient.to(x.dtype) for gradient, x in zip(gradients, tensors, strict=False)))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> Any:
        scaled = [gradient * factor.to(gradient.dtype) for gradient in ctx.saved_tensors]
        return (*scaled, *(None for _ in range(6 - len(scaled))))


def loss_to_gradient(scores_RN: Tensor, target_R: Tensor, smoothing: float, learns: bool) -> Tensor:
    """Sum the loss of some tokens, and overwrite their logits by its gradient, softmax minus target.

    Args:
        scores_RN: the logits; overwritten.
        target_R: the target tokens, int64.
        smoothing: ε.
        learns: whether the gradient is needed.

    Returns:
        The sum, a scalar.
    """
    labels = target_R[:, None]
    maxima = scores_RN.amax(-1, keepdim=True)
    target_scores = (1 - smoothing) * scores_RN.gather(1, labels)
    if smoothing:
        target_scores += smoothing * scores_RN.mean(-1, keepdim=True)
    exponentials_RN = scores_RN.sub_(maxima).exp_()
    denominators = exponentials_RN.sum(-1, keepdim=True)
    if learns:
        exponentials_RN.mul_(1 / denominators)
        if smoothing:
            exponentials_RN.sub_(smoothing / scores_RN.shape[-1])
        exponentials_RN.scatter_add_(1, labels, torch.full_like(denominators, smoothing - 1))
    return (denominators.log() + maxima - target_scores).sum()


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype and not onednn_serves(left, right.mT):
        total.addmm_(left, right)
    else:
        total.add_(product(left, right))
