"""Muon: matrices are updated by their orthogonalized momentum, everything else by AdamW."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import AdamW

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial of a Newton-Schulz iteration."""
_ITERATIONS = 5
_SCALE = 0.2
"""The root mean square of a matrix's step relative to the learning rate, about that of an AdamW step."""


@final
class Muon(AdamW):
    """Muon for matrices and AdamW for the rest, with one learning rate.

    An orthogonalized step is scaled to the size of an AdamW step, so that the same learning rates work for both. On
    small language models it needs about 0.6 of AdamW's updates.

    Args:
        matrices: the two-dimensional parameters that it orthogonalizes, with their settings.
        others: parameter groups for AdamW.
        lr: learning rate of all groups.
        betas: decay rates of AdamW's moments.
        eps: eps of AdamW.
        momentum: decay rate of the momentum of matrices.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Liu et al. 2025, "Muon is
        Scalable for LLM Training", eq. 4 (the scale).

    Example:
        >>> weight = nn.Parameter(torch.zeros(4, 2))
        >>> optimizer = Muon({"params": [weight], "weight_decay": 0.0}, [], lr=1.0)
        >>> weight.grad = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
        >>> _ = optimizer.step()
        >>> bool((weight[:2].diagonal() < -0.2).all()), bool(weight[2:].any())
        (True, False)
    """

    def __init__(
        self,
        matrices: Mapping[str, Any],
        others: Iterable[Mapping[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        momentum: float = 0.95,
    ) -> None:
        groups = [{**matrices, "momentum": momentum}, *map(dict, others)]
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        groups = self.param_groups
        self._step_matrices(groups[0])
        self.param_groups = groups[1:]
        try:
            super().step()
        finally:
            self.param_groups = groups

    def _step_matrices(self, group: Mapping[str, Any]) -> None:
        shapes: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
            shapes.setdefault(parameter.shape, []).append(parameter)
        for shape, same_shape in shapes.items():
            steps = orthogonalized(
                torch.stack([self._momentum(parameter, group["momentum"]) for parameter in same_shape])
            )
            step_size = group["lr"] * _SCALE * max(shape) ** 0.5
            for parameter, step in zip(same_shape, steps.unbind(0), strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step, alpha=step_size)

    def _momentum(self, parameter: nn.Parameter, rate: float) -> Tensor:
        """Nesterov momentum: the mean of gradients, one step ahead."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        mean: Tensor = state["momentum"].lerp_(parameter.grad, 1 - rate)
        return parameter.grad.lerp(mean, rate)


def orthogonalized(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices near one by Newton-Schulz iteration, without changing singular vectors.

    float32 is iterated in bfloat16, as in the source, on processors with bfloat16 products: a third of the time. The
    coefficients leave singular values within some 20 % of one; rounding changes them by less than 1 %.

    Args:
        matrices: (n, rows, columns), at least float32.

    Returns:
        Matrices of the same shape; singular values between about 0.7 and 1.2, except those that were nearly zero.

    Source: Jordan et al. 2024, "Muon".

    Example:
        >>> values = torch.linalg.svdvals(orthogonalized(torch.randn(1, 4, 9)))
        >>> bool((values > 0.5).all() and (values < 1.3).all())
        True
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    if x.dtype == torch.float32 and x.device.type == "cpu" and _multiplies_bfloat16():
        x = x.to(torch.bfloat16)
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


@lru_cache
def _multiplies_bfloat16() -> bool:
    """Return whether this processor has instructions for bfloat16 products."""
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
