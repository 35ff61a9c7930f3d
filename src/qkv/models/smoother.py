"""Kernel smoothing as a module: its attention can be recorded, its points and bandwidths are its state."""

from typing import final

from torch import Tensor, nn

from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.normalizers.row_state import RowState
from qkv.scores.base import Score
from qkv.scores.catalog import SCORES


@final
class KernelSmoother(nn.Module):
    """f(x) = Σᵢ wᵢ(x) yᵢ with wᵢ(x) = K(uᵢ)/Σⱼ K(uⱼ) and uᵢ = ‖((x₁ − xᵢ₁)/h₁, …, (x_D − xᵢ_D)/h_D)‖.

    For the Gaussian kernel this is the product of one kernel per column; the others are radial in the scaled columns.

    Args:
        inputs: the points x (n, D).
        targets: their values y (n, outputs).
        kernel: K, a name in `qkv.scores.catalog.KERNELS`.
        bandwidths: h (D,).

    Source: Nadaraya 1964; Watson 1964; several columns: Härdle 1990, "Applied nonparametric regression", section 10.

    Example:
        >>> import torch
        >>> points, values = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [4.0]])
        >>> KernelSmoother(points, values, "boxcar", torch.tensor([0.5]))(torch.tensor([[0.5], [0.9]]))[0]
        tensor([[3.],
                [4.]])
    """

    def __init__(self, inputs: Tensor, targets: Tensor, kernel: str, bandwidths: Tensor) -> None:
        super().__init__()
        self.kernel = kernel
        self.register_buffer("inputs", inputs)
        self.register_buffer("targets", targets)
        self.register_buffer("bandwidths", bandwidths)
        self.attention = Attention(also="state")

    def forward(self, query: Tensor, mask: Mask | None = None, values: Tensor | None = None) -> tuple[Tensor, RowState]:
        """Estimate.

        Args:
            query: (..., m, D).
            mask: the points that each query may use; None for all.
            values: average these instead of the targets (n, outputs).

        Returns:
            (..., m, outputs), 0 where no point has any weight; and the row state (..., m), of the sum of the kernel's
            values.
        """
        scaled, points, score = self.scaled(query)
        stored = self.get_buffer("targets") if values is None else values
        stored = stored.expand(*query.shape[:-2], -1, -1)
        output, state = self.attention(scaled, points, stored, score=score, mask=mask)
        return output, state

    def scaled(self, query: Tensor) -> tuple[Tensor, Tensor, Score]:
        """Return queries and points in units of the first column's bandwidth relative to the others', and the score."""
        bandwidths = self.get_buffer("bandwidths")
        relative = bandwidths / bandwidths[:1]  # 1 for equal bandwidths: then nothing is rounded
        points = (self.get_buffer("inputs") / relative).expand(*query.shape[:-2], -1, -1)
        return query / relative, points, SCORES[self.kernel].make(bandwidth=bandwidths[0])
