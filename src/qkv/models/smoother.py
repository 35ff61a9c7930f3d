"""Kernel smoothing as a module: its attention can be recorded, its points and bandwidths are its state."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.nn.attention import Attention
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Softmax
from qkv.scores.base import Score
from qkv.scores.catalog import SCORES
from qkv.scores.free import as_score
from qkv.scores.kernels import SquaredDistance
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape

_PAIRS = 1 << 18
"""Pairs of a query and a point of one tile: 2 MiB of weights."""
_FLAT = 1e-12
"""The variance, as a share of the mean square, below which points do not vary in a direction."""
REACH = 4.0
"""How many bandwidths a Gaussian reaches; its value there is 0.0003 of its largest."""
_NEGLIGIBLE = 10.0
"""The bandwidths from which a Gaussian is e⁻⁵⁰, 6e-19 of its value at the end of its reach."""


class Attended(NamedTuple):
    """What some queries attend to.

    Args:
        rows: the positions of the queries (m,).
        keys: the points that can have weight, a part of all.
        kernel: kernel weights of these points (m, k), which sum to 1, or are all 0.
        weights: their weights in the estimate (m, k): f(x) = Σ weight·target. With a degree above 0 some are negative.
        supported: whether a point with weight is within the kernel's reach (m,).
    """

    rows: Tensor
    keys: slice
    kernel: Tensor
    weights: Tensor
    supported: Tensor


@final
class KernelSmoother(nn.Module):
    """Local polynomial regression: around each query, a polynomial is fitted to the points that the query attends to.

    The attention weights are wᵢ(x) = K(uᵢ)vᵢ/Σⱼ K(uⱼ)vⱼ with uᵢ = ‖((xᵢ₁ − x₁)/h₁, …, (xᵢ_D − x_D)/h_D)‖ and v the
    weights of the points. Degree 0 is their mean Σᵢ wᵢ(x) yᵢ, Nadaraya-Watson; degree 1 adds the slope of the weighted
    least squares line, so that straight lines are not bent at the ends. For the Gaussian kernel several columns are the
    product of one kernel each; the other kernels are radial in the scaled columns. A column of categories multiplies
    the kernel by its λ where the categories differ: 0 keeps categories apart, 1 ignores the column.

    Args:
        inputs: the points x (n, D).
        targets: their values y (n, outputs).
        kernel: K, a name in `qkv.scores.catalog.KERNELS`.
        bandwidths: h (D,), or λ in [0, 1] of a column of categories.
        weights: v (n,), above 0; None for ones.
        degree: of the polynomial.
        neighbors: None, or the number k of a nearest-neighbor bandwidth: `bandwidths` are the units of the columns, and
            each query has the bandwidth that reaches its k-th nearest place; equal places count once, and k is at most
            their number.
        categorical: which columns are codes of categories.

    Source: Nadaraya 1964; Watson 1964; Fan and Gijbels 1996, "Local Polynomial Modelling", section 3.1;
        categories: Racine and Li 2004, "Nonparametric estimation of regression functions with both categorical and
        continuous data".

    Example:
        >>> import torch
        >>> points, values = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [4.0]])
        >>> KernelSmoother(points, values, "boxcar", torch.tensor([0.5]))(torch.tensor([[0.5], [0.9]]))[0]
        tensor([[3.],
                [4.]])
    """

    inputs: Tensor
    targets: Tensor
    bandwidths: Tensor
    weights: Tensor | None
    neighbors: Tensor | None
    middle: Tensor
    places: Tensor | None
    widest: Tensor | None
    alone: Tensor | None

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        kernel: str,
        bandwidths: Tensor,
        *,
        weights: Tensor | None = None,
        degree: int = 0,
        neighbors: int | None = None,
        categorical: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.kernel, self.degree = kernel, degree
        self.categorical = list(categorical)
        self.numeric = [column for column in range(inputs.shape[1]) if column not in self.categorical]
        self.register_buffer("inputs", inputs)
        self.register_buffer("targets", targets)
        self.register_buffer("bandwidths", bandwidths)
        self.register_buffer("weights", weights)
        self.register_buffer("neighbors", None if neighbors is None else torch.tensor(neighbors, device=inputs.device))
        self.register_buffer("middle", inputs[:, self.numeric].median(0).values, persistent=False)
        self.register_buffer("places", None, persistent=False)
        self.register_buffer("widest", None, persistent=False)
        self.register_buffer("alone", None, persistent=False)
        if neighbors is not None:
            self.places, place, counts = self.units(inputs).unique(dim=0, return_inverse=True, return_counts=True)
            self.alone = counts[place] == 1
            self.widest = torch.stack([self.widths(part).amax() for part in inputs.split(1024)]).amax()
        self.attention = Attention(also="weights")

    def forward(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Estimate.

        Args:
            query: (..., m, D).

        Returns:
            The estimate (..., m, outputs), 0 where no point has any weight; and the weights of the points in it
            (..., m, n).
        """
        _, weights = self.weights_of(query, self.degree)
        return weights @ self.targets, weights

    def weights_of(
        self, query: Tensor, degree: int, keys: slice = slice(None), left_out: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what each point weighs in the attention, and in the estimate.

        Args:
            query: (..., m, D).
            degree: of the polynomial.
            keys: the points to attend to, which must be all that have weight.
            left_out: for each query the position of its own point among these, and the share of that one's weight to
                keep (m,), to leave rows out.

        Returns:
            Kernel weights and weights in the estimate (..., m, k); zeros where no point has weight.
        """
        widths = self.widths(query, keys, left_out)
        scaled, points, score, normalizer = self.mechanism(query, keys, widths)
        targets = self.targets[keys].expand(*query.shape[:-2], -1, -1)
        _, kernel = self.attention(scaled, points, targets, score=score, normalizer=normalizer)  # (..., m, k)
        if left_out is not None:
            position, share = left_out
            kernel[torch.arange(len(position), device=position.device), position] *= share
            total = kernel.sum(-1, keepdim=True)
            kernel = kernel / torch.where(total > 0, total, 1)
        if not degree or not self.numeric:
            return kernel, kernel
        return kernel, _polynomial_weights(kernel, self.offsets(query, keys, widths), degree)

    def mechanism(
        self, query: Tensor, keys: slice = slice(None), widths: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Score, Normalizer | None]:
        """Return queries, points, score and normalizer of the attention.

        A kernel of the distance alone has algorithms of its own. Otherwise the logarithm of all factors is a score
        under softmax: queries carry their bandwidth, and points the logarithm of their weight.
        """
        bandwidths = self.bandwidths
        inputs = self.inputs[keys]
        if self.weights is None and self.places is None and not self.categorical:
            relative = bandwidths / bandwidths[:1]  # 1 for equal bandwidths: then nothing is rounded
            points = ((inputs - self.middle) / relative).expand(*query.shape[:-2], -1, -1)
            score = SCORES[self.kernel].make(bandwidth=bandwidths[0])
            return (query - self.middle) / relative, points, score, None
        logarithms = inputs.new_zeros(len(inputs)) if self.weights is None else self.weights[keys].log()
        widths = self.widths(query) if widths is None else widths
        scaled = torch.cat([self.units(query), query[..., self.categorical], widths[..., None]], -1)
        points = torch.cat([self.units(inputs), inputs[:, self.categorical], logarithms[:, None]], -1)
        return scaled, points.expand(*query.shape[:-2], -1, -1), as_score(self._log_kernel), Softmax()

    def widths(self, query: Tensor, keys: slice = slice(None), left_out: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return the bandwidth of each query in units of `bandwidths` (..., m); arguments as for `weights_of`."""
        if self.places is None or self.neighbors is None or self.alone is None:
            return query.new_ones(query.shape[:-1])
        squares, count = _squared_distances(self.units(query), self.places), int(self.neighbors)
        nearest = squares.kthvalue(count, -1).values
        if left_out is not None:  # its own place, the nearest one, may be gone
            position, share = left_out
            gone = (share == 0) & self.alone[keys][position]
            nearest = torch.where(gone, squares.kthvalue(min(count + 1, len(self.places)), -1).values, nearest)
        # The k-th place is within the bandwidth, whichever way its distance is rounded.
        return torch.where(nearest > 0, nearest.sqrt() * (1 + 1e-12), 1)

    def supported(self, query: Tensor, keys: slice, kernel: Tensor, degree: int) -> Tensor:
        """Return where points with weight support a polynomial of a degree (m,).

        A mean needs a point with weight. The slope far outside is that of a few points at the edge: points are out of
        reach at four bandwidths of a Gaussian, or at any distance larger than each nearest-neighbor bandwidth of the
        points themselves.
        """
        supported = (kernel > 0).any(-1)
        limit = REACH if self.kernel == "gaussian" and degree and self.numeric else math.inf
        limit = limit if self.widest is None else float(self.widest)
        if limit < math.inf and bool(supported.any()):
            distances = _squared_distances(self.units(query), self.units(self.inputs[keys])).sqrt()
            supported &= torch.where(kernel > 0, distances, torch.inf).amin(-1) <= limit
        return supported

    def tiles(self, query: Tensor, degree: int | None = None, leave_out: Tensor | None = None) -> Iterator[Attended]:
        """Yield what queries attend to, part by part; points sorted by the first numeric column need least time.

        Args:
            query: (m, D).
            degree: of the polynomial; None for its own.
            leave_out: where the queries are the points, the share of its own weight that each keeps (m,).
        """
        degree = self.degree if degree is None else degree
        order = (query[:, self.numeric[0]] if self.numeric else query[:, 0]).argsort()
        for rows in order.split(max(1, _PAIRS // len(self.inputs))):
            part = query[rows]
            keys = self._near(part, degree)
            if keys.start == keys.stop:
                none = part.new_zeros(len(part), 0)
                yield Attended(rows, keys, none, none, none.any(-1))
                continue
            left_out = None if leave_out is None else (rows - keys.start, leave_out[rows])
            kernel, weights = self.weights_of(part, degree, keys, left_out)
            yield Attended(rows, keys, kernel, weights, self.supported(part, keys, kernel, degree))

    def _near(self, query: Tensor, degree: int) -> slice:
        """Return the points that can have weight for some of these queries, which are sorted, if the points are too."""
        everything = slice(0, len(self.inputs))
        # A Gaussian mean is normalized in log space, at any distance.
        gaussian = self.kernel == "gaussian" and degree > 0
        compact = isinstance(SCORES[self.kernel].make(bandwidth=1.0).pointwise, BoxcarShape | EpanechnikovShape)
        if not self.numeric or self.places is not None or not (gaussian or compact):
            return everything
        column = self.numeric[0]
        inputs = self.inputs[:, column].contiguous()
        if bool((inputs[1:] < inputs[:-1]).any()):
            return everything
        reach = float(self.bandwidths[column]) * (_NEGLIGIBLE if gaussian else 1)
        ends = query[[0, -1], column]
        margin = reach + 1e-9 * (reach + ends.abs())  # of rounding
        first, last = torch.searchsorted(inputs, ends + margin * ends.new_tensor([-1, 1])).tolist()
        return slice(first, last)

    def units(self, inputs: Tensor) -> Tensor:
        """Return numeric columns in units of their bandwidths; centered, because years / h would lose digits."""
        units: Tensor = (inputs[..., self.numeric] - self.middle) / self.bandwidths[self.numeric]
        return units

    def offsets(self, query: Tensor, keys: slice, widths: Tensor) -> Tensor:
        """Return numeric columns of points relative to each query, in units of the bandwidth (..., D, m, k)."""
        points, here = self.inputs[keys][:, self.numeric].mT, query[..., self.numeric].mT
        units = self.bandwidths[self.numeric, None] * widths[..., None, :]
        return (points[:, None, :] - here[..., None]) / units[..., None]

    def _log_kernel(self, query: Tensor, key: Tensor) -> Tensor:
        """Return log K(u) + Σ log λ of differing categories + log v, of what `mechanism` makes."""
        count = len(self.numeric)
        offsets = (key[..., None, :, :count] - query[..., :, None, :count]) / query[..., :, None, -1:]  # (..., m, k, D)
        score = SquaredDistance() if self.kernel == "gaussian" else SCORES[self.kernel].make(bandwidth=1.0)
        values = score(torch.zeros_like(offsets[..., :1, :]), offsets)[..., 0, :]  # of one query each, at 0
        logarithms = values if self.kernel == "gaussian" else values.log()
        for place, column in enumerate(self.categorical, start=count):
            same = query[..., :, None, place] == key[..., None, :, place]
            logarithms = torch.where(same, logarithms, logarithms + self.bandwidths[column].log())
        return logarithms + key[..., None, :, -1]


def _squared_distances(query: Tensor, key: Tensor) -> Tensor:
    """‖q−k‖² by subtraction, column by column (..., m, n)."""
    squares = query.new_zeros(*query.shape[:-1], key.shape[-2])
    for column in range(query.shape[-1]):
        squares += (query[..., :, None, column] - key[..., None, :, column]).square()
    return squares


def polynomial_features(offsets: Tensor, degree: int) -> Tensor:
    """Return the powers and products of offsets up to a degree, without the constant.

    Args:
        offsets: (..., D, m, k).
        degree: of the polynomial, at least 1.

    Returns:
        (..., m, P, k).

    Example:
        >>> polynomial_features(torch.tensor([[[2.0]], [[3.0]]]), 2).flatten().tolist()
        [2.0, 3.0, 4.0, 6.0, 9.0]
    """
    columns = offsets.unbind(-3)
    terms = [term for power in range(1, degree + 1) for term in combinations_with_replacement(columns, power)]
    return torch.stack([torch.stack(term).prod(0) for term in terms], -2)


def _polynomial_weights(kernel: Tensor, offsets: Tensor, degree: int) -> Tensor:
    """Return the weights of points in the value at 0 of the polynomial fitted to them by weighted least squares.

    With features φ of a point, its powers and products without the constant, the fit at 0 is ȳ − φ̄ᵀC⁻¹cov(φ, y), means
    and covariances weighted by the kernel: the weight of a point is w(1 − (φ − φ̄)ᵀC⁻¹φ̄). Features are of offsets from
    the query, in bandwidths, and centered: moments of raw x lose all digits where x is far from 0, as years are. A
    direction in which the points do not vary gets no slope (the pseudoinverse).

    Args:
        kernel: w (..., m, k).
        offsets: (..., D, m, k).
        degree: of the polynomial, at least 1.
    """
    features = polynomial_features(offsets, degree)
    squares = (features.square() @ kernel[..., None]).clamp(min=0)  # (..., m, P, 1)
    features = features / torch.where(squares > 0, squares, 1).sqrt()
    means = features @ kernel[..., None]
    features = features - means
    covariance = (features * kernel[..., None, :]) @ features.mT
    slopes = torch.linalg.pinv(covariance, atol=_FLAT, rtol=0.0, hermitian=True) @ means  # (..., m, P, 1)
    line: Tensor = (slopes.mT @ features)[..., 0, :]
    return kernel * (1 - line)
