"""Distance and concatenation scores with parameters: a learned bandwidth, two learned vectors."""

import math
from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, expect_name
from qkv.nn.inputs import expect_optional_sizes, expect_sizes
from qkv.nn.scores import ScoreModule, xavier_uniform
from qkv.scores.base import Score
from qkv.scores.catalog import DISTANCES, POWERS, SCORES
from qkv.scores.sums import Concat
from qkv.values.catalog import listed
from qkv.values.checked import checked
from qkv.values.parameters import above


def kernel_value(kernel: str, bandwidth: float | Tensor, power: float | None = None) -> Score:
    """Build a kernel by name.

    Args:
        kernel: a name in `DISTANCES`: "gaussian", "squared_distance", "triangular", ...
        bandwidth: h.
        power: of a kernel that has one; None for its default.

    Returns:
        The score.

    Raises:
        ConfigError: the kernel is unknown, or the power does not apply to it.

    Example:
        >>> kernel_value("triangular", 2.0)
        Epanechnikov(bandwidth=2.0, power=1)
    """
    expect_name("kernel", kernel, DISTANCES, "the name of a kernel")
    if power is None:
        return SCORES[kernel].make(bandwidth=bandwidth)
    if not SCORES[kernel].number("power"):
        raise ConfigError("power", f"the kernel {listed(POWERS, 'or')}", f'"{kernel}"', "Omit the power.")
    return SCORES[kernel].make(bandwidth=bandwidth, power=power)


@checked
@final
class KernelScore(ScoreModule):
    """A score of ‖q−k‖/h with a learned bandwidth h; its logarithm is the parameter, so that h stays above 0.

    Args:
        kernel: a name in `DISTANCES`: "gaussian", "squared_distance", "triangular", ... The bandwidth of "boxcar" gets
            zero gradient.
        bandwidth: initial h.
        heads: H, for one bandwidth per head; None for one.
        power: of a kernel that has one; None for its default.

    Raises:
        ConfigError: the kernel is unknown, the power does not apply to it, or the bandwidth is not above 0.

    Source: Nadaraya 1964; Watson 1964; a learned width: Zhang et al., "Dive into Deep Learning", section 11.2.4.

    Example:
        >>> score = KernelScore("gaussian", bandwidth=2.0)
        >>> score(torch.zeros(1, 1), torch.tensor([[2.0]]))
        tensor([[0.6065]], grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        kernel: str = "gaussian",
        bandwidth: float = 1.0,
        *,
        heads: int | None = None,
        power: float | None = None,
    ) -> None:
        super().__init__()
        expect_optional_sizes(heads=heads)
        above("bandwidth", bandwidth, 0, "It is the initial value.")
        self.kernel, self.power = kernel, power
        self._initial = math.log(bandwidth)
        self.log_bandwidth = nn.Parameter(torch.full(() if heads is None else (heads,), self._initial))
        self.value()  # report an unknown kernel here rather than in the first forward pass

    def reset_parameters(self) -> None:
        """Set the initial bandwidths."""
        nn.init.constant_(self.log_bandwidth, self._initial)

    def value(self) -> Score:
        """Build the kernel with the current bandwidth."""
        return kernel_value(self.kernel, self.log_bandwidth.exp(), self.power)

    @torch.no_grad()
    def start_from(self, distance: float) -> None:
        """Set the bandwidth so that keys at a typical distance get weight.

        It becomes that distance for the Gaussian; other kernels get the bandwidth that smooths as much.

        Args:
            distance: for example the median of ‖q−k‖ over a batch.

        Example:
            >>> score = KernelScore("gaussian")
            >>> score.start_from(4.0)
            >>> score.value().bandwidth.item()
            4.0
        """
        above("distance", distance, 0, "It is a typical distance of queries and keys.")
        self.log_bandwidth.fill_(math.log(distance * SCORES[self.kernel].smoothing))


@checked
@final
class ConcatScore(ScoreModule):
    """relu(w_q·q + w_k·k), with w_q and w_k learned.

    Args:
        query_width: D.
        key_width: E.
        activation: "relu", or "leaky_relu" as in graph attention.
        heads: H, for one pair of vectors per head; None for one pair.
        key_heads: G, the heads of the key vector; None for `heads`.

    Raises:
        ConfigError: the activation is unknown.

    Source: Wang et al. 2018, "Non-local Neural Networks", eq. 5; Veličković et al. 2018, "Graph Attention Networks",
        eq. 3; initialization: Glorot and Bengio 2010, eq. 16.

    Example:
        >>> ConcatScore(3, 4, "leaky_relu", heads=2)(torch.randn(2, 5, 3), torch.randn(2, 7, 4)).shape
        torch.Size([2, 5, 7])
    """

    def __init__(
        self,
        query_width: int,
        key_width: int,
        activation: Literal["relu", "leaky_relu"] = "relu",
        *,
        heads: int | None = None,
        key_heads: int | None = None,
    ) -> None:
        super().__init__()
        expect_sizes(query_width=query_width, key_width=key_width)
        expect_optional_sizes(heads=heads, key_heads=key_heads)
        lead = () if heads is None else (heads,)
        key_lead = lead if key_heads is None else (key_heads,)
        self.activation = activation
        self.query_vector = nn.Parameter(torch.empty(*lead, query_width))
        self.key_vector = nn.Parameter(torch.empty(*key_lead, key_width))
        self.reset_parameters()
        self.value()  # report an unknown activation here rather than in the first forward pass

    def reset_parameters(self) -> None:
        """Initialize both vectors."""
        for vector in (self.query_vector, self.key_vector):
            xavier_uniform(vector.data[..., None, :])

    def value(self) -> Score:
        """Build the score with the current vectors."""
        return Concat(self.query_vector, self.key_vector, self.activation)
