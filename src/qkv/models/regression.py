"""Kernel regression with scikit-learn's estimator interface."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self, final

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from qkv.errors import ConfigError, expect_name
from qkv.functional import attention
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.masks.base import Mask
from qkv.masks.patterns import dense
from qkv.models.bandwidths import column_scales, distance_range, minimize
from qkv.models.intervals import MergedRows, bootstrap_interval, normal_interval, unsupported
from qkv.models.smoother import KernelSmoother
from qkv.normalizers.dense import Hard
from qkv.scores.catalog import KERNELS
from qkv.scores.kernels import SquaredDistance

_PAIRS = 1 << 18
"""Pairs of a query and a point that a mask holds at once."""
CRITERIA = ("cross-validation", "aic")
"""What a bandwidth can minimize."""
Array = np.ndarray[Any, np.dtype[np.float64]]
Beyond = Literal["nearest", "mean", "nan"]
Interval = Literal["robust", "normal", "bootstrap"]


@final
class KernelRegression(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression by attention: a polynomial fitted around each query to the points that it attends to.

    Queries are the points to predict, keys the training inputs, values the training targets, weights those of a kernel.
    Degree 0 is Nadaraya-Watson, Σᵢ K((x − xᵢ)/h) yᵢ / Σⱼ K((x − xⱼ)/h); degree 1 is local linear regression.

    Args:
        kernel: K, a name in `qkv.scores.catalog.KERNELS`: "gaussian", "triangular", ...
        bandwidth: h, one for all columns or one for each, which for a column of categories is λ in [0, 1]; or what to
            minimize: "cross-validation", the squared error of predicting each row from the others; or "aic", the
            corrected Akaike information criterion.
        beyond: the prediction out of the kernel's support, where no training point has weight (with a degree above 0
            also more than four bandwidths of a Gaussian from each point): the "nearest" point's target, the "mean" of
            all, or "nan". With "nan" or a degree above 0, bandwidths are chosen as with "mean", so that a point far
            from all others does not widen them. With degree 0 a Gaussian has weight everywhere, and is normalized in
            log space.
        degree: of the polynomial, 0 to 2. A line is not biased where the curve ends or points thin out, a mean is.
        neighbors: None, or the number of places that each query reaches, of which equal ones count once, or "auto" for
            the one that minimizes what `bandwidth` names. Then a bandwidth is the unit of a column, by default its
            standard deviation, and each query has its own multiple of them.
        categorical: the positions of columns that hold codes of categories; they have no slope.

    Attributes:
        bandwidth_: the h in use; an array (D,) for more than one column; of `neighbors` the units of the columns.
        neighbors_: the number in use, or None.
        criterion_: what it minimizes: the mean squared leave-one-out error, `beyond` as above, or the AIC; NaN if
            nothing was chosen, or if there is a single point.
        n_features_in_: the width of an input.

    Source: Nadaraya 1964, "On estimating regression"; Watson 1964, "Smooth regression analysis"; Fan and Gijbels 1996,
        "Local Polynomial Modelling"; leave-one-out: Härdle 1990, "Applied nonparametric regression", section 5.1; AIC:
        Hurvich, Simonoff and Tsai 1998, "Smoothing parameter selection in nonparametric regression".

    Example:
        >>> import numpy
        >>> x = numpy.linspace(0, 5, 50)[:, None]
        >>> model = KernelRegression("epanechnikov").fit(x, numpy.sin(x[:, 0]))
        >>> model.predict([[1.5]]).round(1), model.bandwidth_ < 1
        (array([1.]), True)
    """

    def __init__(
        self,
        kernel: str = "gaussian",
        bandwidth: float | Sequence[float] | str = "cross-validation",
        beyond: Beyond = "nearest",
        *,
        degree: int = 1,
        neighbors: int | str | None = None,
        categorical: Sequence[int] = (),
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.beyond = beyond
        self.degree = degree
        self.neighbors = neighbors
        self.categorical = categorical

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Store the training points, and choose the bandwidth.

        Args:
            X: inputs (n, D).
            y: targets (n,) or (n, outputs).
            sample_weight: how much each row counts (n,), such as the inverse of its variance; rows of weight 0 are left
                out. Leaving one out leaves out a row, whatever its weight.

        Returns:
            The estimator.

        Raises:
            ConfigError: the kernel or an option is unknown, a bandwidth is not above 0, there are not as many as
                columns, a λ is not in [0, 1], there are fewer places than neighbors, or a weight is below 0.
            ValueError: scikit-learn refuses the inputs.
        """
        self._check()
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        weights = _row_weights(sample_weight, len(X))
        kept = weights > 0
        self.inputs_: Array = X[kept]
        self.targets_, self.weights_ = y[kept], weights[kept]
        columns = range(X.shape[1])
        if not set(self.categorical) <= set(columns):
            hint = "Positions count from 0."
            raise ConfigError("categorical", f"positions below {len(columns)}", f"{self.categorical!r}", hint)
        self._numeric = [column for column in columns if column not in self.categorical]
        self._merged = self._merge()
        self._errors: Tensor | None = None
        self.criterion_ = math.nan
        bandwidths, self.neighbors_ = self._fixed() if not isinstance(self.bandwidth, str) else self._choose()
        self.bandwidth_ = float(bandwidths[0]) if len(bandwidths) == 1 else bandwidths.numpy()
        return self

    def predict(self, X: Any) -> Array:
        """Predict targets.

        Args:
            X: inputs (m, D).

        Returns:
            (m,), or (m, outputs) for several outputs.

        Raises:
            ValueError: scikit-learn refuses the inputs.
        """
        return self.predict_supported(X)[0]

    def predict_supported(self, X: Any) -> tuple[Array, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Predict targets, and say which predictions (m,) come from the kernel: `beyond` decides on the others."""
        query, points = self._query(X), self._points()
        estimates, supported, _ = _estimates(points.smoother, query)
        return self._like_targets(self._filled(points, query, estimates, supported, self.beyond)), supported.numpy()

    def interval(
        self, X: Any, level: float = 0.95, how: Interval = "robust", seed: int = 0, *, simultaneous: bool = False
    ) -> tuple[Array, Array]:
        """Return confidence intervals, see `qkv.models.intervals`.

        Args:
            X: inputs (m, D).
            level: the probability of covering.
            how: "robust" covers the true curve, and has its middle at the estimate of one degree more; "normal" and
                "bootstrap" cover the smoothed curve.
            seed: random seed of the bootstrap.
            simultaneous: whether that is the probability for the whole curve, instead of for each point by itself.

        Returns:
            The lower and the upper ends, each like predictions; NaN where no interval is known, see
            `qkv.models.intervals.unsupported`.

        Raises:
            ConfigError: the level is outside its range, the way is unknown, or the bootstrap is to be simultaneous.
            ValueError: scikit-learn refuses the inputs.
        """
        expect_name("interval", how, ("robust", "normal", "bootstrap"))
        query, points = self._query(X), self._points()
        if how == "bootstrap":
            if simultaneous:
                raise ConfigError(
                    "simultaneous", "the interval robust or normal", how, "The bootstrap is of each point."
                )
            ends = bootstrap_interval(points, query, torch.from_numpy(self._columns_of_targets()), level, seed=seed)
        else:
            degree = self.degree + (how == "robust")
            errors = self._row_errors()
            squares = errors.new_zeros(points.smoother.targets.shape).index_add_(0, points.point_of, errors.square())
            squares /= points.counts[:, None]
            ends = normal_interval(points, query, squares, level, degree, simultaneous=simultaneous)
        return self._like_targets(ends.low), self._like_targets(ends.high)

    def residuals(self) -> Array:
        """Return the leave-one-out residuals, each target minus its prediction from the other rows, like targets.

        NaN for a single row, and with `beyond="nan"` where no other row is within the kernel's support.
        """
        return self._like_targets(self._row_errors())

    def without_interval(self, X: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return where there is no interval: far from all training points, or where a single one has all the weight.

        Args:
            X: inputs (m, D).

        Returns:
            (m,).
        """
        outside: np.ndarray[Any, np.dtype[np.bool_]] = unsupported(self._points(), self._query(X)).numpy()
        return outside

    def attention_map(self, X: Any) -> AttentionMap:
        """Return the kernel weights of all training points in each prediction, as a lazy map.

        Args:
            X: inputs (m, D).

        Returns:
            A lazy (m, n) matrix.
        """
        query, key, score, normalizer = self.smoother().mechanism(self._query(X))
        return attention_map(query, key, score=score, normalizer=normalizer)

    @classmethod
    def of(cls, smoother: KernelSmoother, beyond: Beyond = "nearest") -> Self:
        """Return the fitted estimator of a smoother with one output, such as one from a file."""
        estimator = cls(
            smoother.kernel,
            smoother.bandwidths.numpy(),  # type: ignore[arg-type]
            beyond,
            degree=smoother.degree,
            neighbors=None if smoother.neighbors is None else int(smoother.neighbors),
            categorical=smoother.categorical,
        )
        weights = None if smoother.weights is None else smoother.weights.numpy()
        return estimator.fit(smoother.inputs.numpy(), smoother.targets.numpy()[:, 0], weights)

    def smoother(self) -> KernelSmoother:
        """Return the fitted estimate as a module, whose attention to the training rows can be recorded."""
        check_is_fitted(self)
        weights = None if (self.weights_ == 1).all() else torch.from_numpy(self.weights_)
        tensors = torch.from_numpy(self.inputs_.copy()), torch.from_numpy(self._columns_of_targets().copy())
        return self._smoother(*tensors, weights, self._bandwidths(), self.neighbors_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _query(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False).copy())

    def _columns_of_targets(self) -> Array:
        columns: Array = self.targets_.reshape(len(self.targets_), -1)
        return columns

    def _like_targets(self, predictions: Tensor) -> Array:
        array: Array = predictions.numpy()
        return array[:, 0] if self.targets_.ndim == 1 else array

    def _bandwidths(self) -> Tensor:
        return torch.as_tensor(np.atleast_1d(self.bandwidth_), dtype=torch.float64, device="cpu")

    def _merge(self) -> MergedRows:
        """Merge rows with equal inputs and weights, and sort them by the first numeric column; each bandwidth is 1."""
        first = self._numeric[:1]
        table = np.column_stack([self.inputs_[:, first], self.inputs_, self.weights_])
        distinct, merged, counts = np.unique(table, axis=0, return_inverse=True, return_counts=True)
        targets = torch.from_numpy(self._columns_of_targets().copy())
        point_of, numbers = torch.from_numpy(merged.reshape(-1)), torch.from_numpy(counts.astype(np.float64))
        empty = targets.new_zeros(len(distinct), targets.shape[1])
        means = empty.index_add(0, point_of, targets) / numbers[:, None]
        deviations = empty.index_add(0, point_of, (targets - means[point_of]).square())
        inputs, row_weights = (torch.from_numpy(distinct[:, part].copy()) for part in (slice(len(first), -1), -1))
        weights = None if bool((numbers * row_weights == 1).all()) else numbers * row_weights
        smoother = self._smoother(inputs, means, weights, inputs.new_ones(inputs.shape[1]), None)
        return MergedRows(smoother, numbers, row_weights, deviations, point_of)

    def _smoother(
        self, inputs: Tensor, targets: Tensor, weights: Tensor | None, bandwidths: Tensor, neighbors: int | None
    ) -> KernelSmoother:
        return KernelSmoother(
            inputs,
            targets,
            self.kernel,
            bandwidths,
            weights=weights,
            degree=self.degree,
            neighbors=neighbors,
            categorical=self.categorical,
        )

    def _points(self, bandwidths: Tensor | None = None, neighbors: int | None = None) -> MergedRows:
        """Return the merged points with a smoother, by default the fitted one."""
        if bandwidths is None:
            bandwidths, neighbors = self._bandwidths(), self.neighbors_
        points = self._merged.smoother
        smoother = self._smoother(points.inputs, points.targets, points.weights, bandwidths, neighbors)
        return replace(self._merged, smoother=smoother)

    def _fixed(self) -> tuple[Tensor, int | None]:
        """Return the bandwidths and the number of neighbors that were given."""
        if self.neighbors == "auto":
            hint = "Omit the bandwidth, or give the number of neighbors."
            raise ConfigError("bandwidth", "what the number of neighbors minimizes", "a number", hint)
        bandwidths = _per_column(self.bandwidth, len(self._numeric), self.categorical)  # type: ignore[arg-type]
        return bandwidths, self._number_of_neighbors()

    def _number_of_neighbors(self) -> int | None:
        if not isinstance(self.neighbors, int):
            return None
        places = self._count_places()
        if not 1 <= self.neighbors <= places:
            hint = "Equal rows are one place."
            raise ConfigError("neighbors", f"1 to {places:,}, the number of places", f"{self.neighbors}", hint)
        return self.neighbors

    def _count_places(self) -> int:
        return len(self._merged.smoother.inputs[:, self._numeric].unique(dim=0))

    def _choose(self) -> tuple[Tensor, int | None]:
        """Choose bandwidths, or the number of neighbors, and the λ of each column of categories."""
        numbers = self._merged.smoother.inputs[:, self._numeric]
        columns, neighbors = self.inputs_.shape[1], self._number_of_neighbors()
        units = numbers.new_ones(columns)
        units[self._numeric] = column_scales(torch.from_numpy(self.inputs_[:, self._numeric]))
        low, high = distance_range(numbers / units[self._numeric])
        scales, categories = units, torch.zeros_like(units, dtype=torch.bool)
        categories[list(self.categorical)] = True
        if self.neighbors is not None:  # these, and each λ, are searched
            low, high = min(2.0, float(self._count_places())), float(self._count_places())
            free = int(self.neighbors == "auto")
            scales = numbers.new_ones(free + len(self.categorical))
            categories = torch.ones_like(scales).cumsum(0) > free

        def parts(found: Tensor) -> tuple[Tensor, int | None]:
            if self.neighbors is None:
                return found, None
            bandwidths = units.clone()
            bandwidths[list(self.categorical)] = found[categories]
            count = min(round(float(found[0])), int(high)) if self.neighbors == "auto" else neighbors
            return bandwidths, count

        def criterion(found: Tensor) -> float:
            return measure(self._points(*parts(found)))

        measure = self._left_out_error if self.bandwidth == "cross-validation" else _corrected_aic
        if not len(scales):
            return units, neighbors
        found, least = minimize(criterion, scales, low, high, categories)
        self.criterion_ = least
        return parts(found)

    def _left_out_error(self, points: MergedRows) -> float:
        """Return the weighted mean squared error of predicting each row from the others."""
        # A bandwidth as wide as the data predicts the mean of the others: widening it for a far point gains nothing.
        # The nearest points would predict well at a bandwidth that reaches none, where a line has no interval.
        beyond = "mean" if self.beyond == "nan" or self.degree else self.beyond
        errors, factors = self._left_out(points, beyond)
        squares = points.counts[:, None] * errors.square() + factors[:, None].square() * points.deviations
        weights = points.row_weights * points.counts
        return float((points.row_weights @ squares).sum() / (weights.sum() * errors.shape[1]))

    def _row_errors(self) -> Tensor:
        """Return the leave-one-out errors of all rows at the fitted bandwidth, computed once."""
        check_is_fitted(self)
        if self._errors is None:
            points = self._points()
            errors, factors = self._left_out(points, self.beyond)
            targets = torch.from_numpy(self._columns_of_targets().copy())
            deviations = targets - points.smoother.targets[points.point_of]
            self._errors = errors[points.point_of] + factors[points.point_of, None] * deviations
        return self._errors

    def _left_out(self, points: MergedRows, beyond: str) -> tuple[Tensor, Tensor]:
        """Return e (n, outputs) and a (n,): a row that deviates by d from the mean of its c equals has error e + ad.

        Without it, its point has c − 1 rows, with the mean ȳ − d/(c − 1), and the weight l in its own estimate: the
        error ȳ + d − (Σ l ȳ − l d/(c − 1)) is linear in d.
        """
        smoother, others = points.smoother, points.counts - 1
        targets = smoother.targets
        if len(points.point_of) == 1:
            return torch.full_like(targets, math.nan), torch.ones_like(others)
        estimates, supported, own = _estimates(smoother, smoother.inputs, others / points.counts)
        estimates = self._filled(points, smoother.inputs, estimates, supported, beyond, left_out=True)
        return targets - estimates, 1 + own / others.clamp(min=1)

    def _filled(
        self,
        points: MergedRows,
        query: Tensor,
        estimates: Tensor,
        supported: Tensor,
        beyond: str,
        *,
        left_out: bool = False,
    ) -> Tensor:
        """Predict what no point supports."""
        smoother, lost = points.smoother, (~supported).nonzero()[:, 0]
        targets = smoother.targets
        if not len(lost):
            return estimates
        if self.kernel == "gaussian" and not self.degree and smoother.places is None and not self.categorical:
            beyond = "nearest"  # the limit of weights that underflow
        if beyond == "nan":
            estimates[lost] = math.nan
        elif beyond == "mean" or not self._numeric:
            weights = (points.counts * points.row_weights)[:, None]
            own = weights[lost] if left_out else weights.new_zeros(1, 1)
            own_sum = own * targets[lost] if left_out else 0
            estimates[lost] = ((weights * targets).sum(0) - own_sum) / (weights.sum() - own)
        else:
            keys = smoother.units(smoother.inputs)
            for rows in lost.split(max(1, _PAIRS // len(keys))):
                mask: Mask | None = None
                if left_out:
                    mask = dense(rows[:, None] != torch.arange(len(keys), device=rows.device))
                nearest = smoother.units(query[rows])
                score, normalizer = SquaredDistance(), Hard()
                estimates[rows] = attention(nearest, keys, targets, score=score, normalizer=normalizer, mask=mask)
        return estimates

    def _check(self) -> None:
        expect_name("kernel", self.kernel, KERNELS, "the name of a kernel")
        expect_name("beyond", self.beyond, ("nearest", "mean", "nan"))
        if self.degree not in (0, 1, 2):
            hint = "0 for a mean (Nadaraya-Watson), 1 for a line."
            raise ConfigError("degree", "0, 1 or 2", f"{self.degree!r}", hint)
        if isinstance(self.neighbors, str):
            expect_name("neighbors", self.neighbors, ("auto",), "a number, or auto")
        if isinstance(self.bandwidth, str):
            expect_name("bandwidth", self.bandwidth, CRITERIA, "a number, or what to minimize")


def _estimates(
    smoother: KernelSmoother, query: Tensor, leave_out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return estimates (m, outputs), whether points support them (m,), and the weight of each query's own point (m,).

    The last is of queries that are the points, in their order.
    """
    targets = smoother.targets
    estimates = targets.new_zeros(len(query), targets.shape[1])
    supported = torch.zeros_like(query[:, 0], dtype=torch.bool)
    own = targets.new_zeros(len(query))
    for tile in smoother.tiles(query, leave_out=leave_out):
        estimates[tile.rows] = tile.weights @ targets[tile.keys]
        supported[tile.rows] = tile.supported
        if query is smoother.inputs:
            own[tile.rows] = tile.weights.gather(1, (tile.rows - tile.keys.start)[:, None])[:, 0]
    return estimates, supported, own


def _corrected_aic(points: MergedRows) -> float:
    """Return log σ² + (1 + tr H/n)/(1 − (tr H + 2)/n), with the estimates Hy of the targets y."""
    smoother, count = points.smoother, len(points.point_of)
    estimates, _, own = _estimates(smoother, smoother.inputs)
    squares = points.counts[:, None] * (smoother.targets - estimates).square() + points.deviations
    weights = points.row_weights * points.counts
    variance = float((points.row_weights @ squares).sum() / (weights.sum() * estimates.shape[1]))
    trace = float(own.sum())
    left = 1 - (trace + 2) / count
    return math.log(max(variance, 1e-300)) + (1 + trace / count) / left if left > 0 else math.inf


def _row_weights(weights: Any, count: int) -> Array:
    if weights is None:
        return np.ones(count)
    numbers = np.asarray(weights, dtype=np.float64)
    if numbers.shape != (count,) or not (np.isfinite(numbers) & (numbers >= 0)).all() or not numbers.any():
        hint = "Rows of weight zero are left out."
        raise ConfigError("sample_weight", f"{count:,} finite numbers from 0, not all 0", f"{weights!r:.80}", hint)
    return numbers


def _per_column(bandwidth: float | Sequence[float], numeric: int, categorical: Sequence[int]) -> Tensor:
    numbers = np.atleast_1d(np.asarray(bandwidth, dtype=np.float64))
    columns = numeric + len(categorical)
    if numbers.ndim != 1 or len(numbers) not in ((1, columns) if not categorical else (columns,)):
        hint = "Give one for each, λ for categories." if categorical else "Give one for all columns, or one for each."
        raise ConfigError("bandwidth", f"{columns} numbers, one per column", f"{numbers.size}", hint)
    numbers = np.broadcast_to(numbers, columns).copy()
    for column, number in enumerate(numbers.tolist()):
        if column in categorical and not 0 <= number <= 1:
            hint = "0 keeps categories apart, 1 ignores the column."
            raise ConfigError("bandwidth", "a λ from 0 to 1 for a column of categories", f"{number:g}", hint)
        if column not in categorical and not 0 < number < math.inf:
            hint = f'Or "{CRITERIA[0]}".'
            raise ConfigError("bandwidth", "a finite number above 0", f"{bandwidth!r}", hint)
    return torch.from_numpy(numbers)
