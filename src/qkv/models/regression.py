"""Nadaraya-Watson kernel regression with scikit-learn's estimator interface; needs the extra `regression`."""

import math
from collections.abc import Sequence
from typing import Any, Literal, Self, final

import numpy as np
import torch
from torch import Tensor

from qkv.errors import ConfigError, expect_enough_memory, expect_name

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    expect_enough_memory(error)
    raise ImportError("kernel regression needs scikit-learn; in the checkout: pip install '.[regression]'") from error

from qkv.functional import attention
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.masks.base import Mask
from qkv.masks.patterns import window
from qkv.models.bandwidths import best_on_grid, by_gradient
from qkv.models.intervals import bootstrap_interval, normal_interval, unsupported
from qkv.models.smoother import KernelSmoother
from qkv.normalizers.dense import Hard
from qkv.scores.catalog import KERNELS, SCORES
from qkv.scores.kernels import SquaredDistance

_CHOICES = ("leave-one-out", "gradient")
_OTHERS = ~window(0, 0)
"""The mask of leave-one-out: each point sees all others."""
Array = np.ndarray[Any, np.dtype[np.float64]]


@final
class NadarayaWatson(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression by attention: f(x) = Σᵢ K((x − xᵢ)/h) yᵢ / Σⱼ K((x − xⱼ)/h).

    Queries are the points to predict, keys the training inputs, values the training targets.

    Args:
        kernel: K, a name in `qkv.scores.catalog.KERNELS`: "gaussian", "triangular", ...
        bandwidth: h, one for all columns or one for each; or how to choose them: "leave-one-out" minimizes the squared
            error of predicting each training point from the others over a grid, at first of multiples of the columns'
            standard deviations, then column by column; "gradient" minimizes it by gradient descent.
        beyond: the prediction where no training point is within the kernel's support: the "nearest" point's target,
            the "mean" of all, or "nan". Bandwidths are chosen as with "mean" then, so that a point far from all
            others does not widen them. A Gaussian has weight everywhere, and is normalized in log space: for that
            kernel `beyond` never applies.

    Attributes:
        bandwidth_: the h in use; an array (D,) for more than one column.
        error_: the mean squared leave-one-out error at that h, with "mean" in place of "nan"; NaN if h was given, or
            if there is a single point.
        n_features_in_: the width of an input.

    Source: Nadaraya 1964, "On estimating regression"; Watson 1964, "Smooth regression analysis"; leave-one-out:
        Härdle 1990, "Applied nonparametric regression", section 5.1.

    Example:
        >>> import numpy
        >>> x = numpy.linspace(0, 5, 50)[:, None]
        >>> model = NadarayaWatson("epanechnikov").fit(x, numpy.sin(x[:, 0]))
        >>> model.predict([[1.5]]).round(1), model.bandwidth_ < 1
        (array([1.]), True)
    """

    def __init__(
        self,
        kernel: str = "gaussian",
        bandwidth: float | Sequence[float] | str = "leave-one-out",
        beyond: Literal["nearest", "mean", "nan"] = "nearest",
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.beyond = beyond

    def fit(self, X: Any, y: Any) -> Self:
        """Store the training points, and choose the bandwidth.

        Args:
            X: inputs (n, D).
            y: targets (n,) or (n, outputs).

        Returns:
            The estimator.

        Raises:
            ConfigError: the kernel or an option is unknown, a bandwidth is not above 0, there are not as many as
                columns, or "gradient" is used with the boxcar kernel, whose gradient is zero.
            ValueError: scikit-learn refuses the inputs.
        """
        _check(self.kernel, self.bandwidth, self.beyond)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.inputs_, self.targets_ = X, np.asarray(y, dtype=np.float64)
        self.error_ = math.nan
        self._left_out: Tensor | None = None
        if isinstance(self.bandwidth, str):
            search = best_on_grid if self.bandwidth == "leave-one-out" else by_gradient
            chosen, least = search(self._error, torch.from_numpy(X.copy()))
            self.error_ = least if math.isfinite(least) else math.nan
            bandwidths = chosen.numpy()
        else:
            bandwidths = _per_column(self.bandwidth, X.shape[1])
        self.bandwidth_ = float(bandwidths[0]) if len(bandwidths) == 1 else bandwidths
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
        query = self._query(X)
        return self._like_targets(self._estimate(query, self.smoother(), self.beyond))

    def interval(
        self, X: Any, level: float = 0.95, how: Literal["normal", "bootstrap"] = "normal", seed: int = 0
    ) -> tuple[Array, Array]:
        """Return pointwise confidence intervals of predictions.

        Args:
            X: inputs (m, D).
            level: the probability of covering the smoothed curve.
            how: "normal", from the errors of leave-one-out predictions nearby, see `normal_interval`; or "bootstrap",
                see `bootstrap_interval`.
            seed: random seed of the bootstrap.

        Returns:
            The lower and the upper ends, each like predictions; NaN where no interval is known, see
            `qkv.models.intervals.unsupported`.

        Raises:
            ConfigError: the level is outside its range, or the way is unknown.
            ValueError: scikit-learn refuses the inputs.
        """
        expect_name("interval", how, ("normal", "bootstrap"))
        query, smoother = self._query(X), self.smoother()
        if how == "normal":
            low, high = normal_interval(smoother, query, self._stored_residuals(), level)
        else:
            low, high = bootstrap_interval(smoother, query, level, seed=seed)
        return self._like_targets(low), self._like_targets(high)

    def residuals(self) -> Array:
        """Return the leave-one-out residuals, each target minus its prediction from the other points, like targets.

        NaN for a single point, and with `beyond="nan"` where no other point is within the kernel's support.
        """
        return self._like_targets(self._stored_residuals())

    def without_interval(self, X: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return where there is no interval: far from all training points, or where a single one has all the weight.

        Args:
            X: inputs (m, D).

        Returns:
            (m,).
        """
        smoother = self.smoother()
        outside: np.ndarray[Any, np.dtype[np.bool_]] = unsupported(smoother, self._query(X)).numpy()
        return outside

    def attention_map(self, X: Any) -> AttentionMap:
        """Return the weights of all training points in each prediction, as a lazy map.

        Args:
            X: inputs (m, D).

        Returns:
            A lazy (m, n) matrix.
        """
        query, key, score = self.smoother().scaled(self._query(X))
        return attention_map(query, key, score=score)

    @classmethod
    def of(cls, smoother: KernelSmoother, beyond: Literal["nearest", "mean", "nan"] = "nearest") -> Self:
        """Return the fitted estimator of a smoother with one output, such as one from a file."""
        bandwidths, inputs = smoother.get_buffer("bandwidths").numpy(), smoother.get_buffer("inputs").numpy()
        targets = smoother.get_buffer("targets").numpy()[:, 0]
        return cls(smoother.kernel, bandwidths, beyond).fit(inputs, targets)  # type: ignore[arg-type]

    def smoother(self) -> KernelSmoother:
        """Return the fitted estimate as a module, whose attention can be recorded."""
        check_is_fitted(self)
        return self._smoother(torch.as_tensor(np.atleast_1d(self.bandwidth_), dtype=torch.float64, device="cpu"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _query(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False).copy())

    def _smoother(self, bandwidths: Tensor) -> KernelSmoother:
        targets = self.targets_ if self.targets_.ndim == 2 else self.targets_[:, None]
        inputs = torch.from_numpy(self.inputs_.copy())
        return KernelSmoother(inputs, torch.from_numpy(targets.copy()), self.kernel, bandwidths)

    def _like_targets(self, predictions: Tensor) -> Array:
        array: Array = predictions.numpy()
        return array[:, 0] if self.targets_.ndim == 1 else array

    def _error(self, bandwidths: Tensor) -> Tensor:
        """Compute the mean squared error of predicting each point from the others."""
        # A bandwidth as wide as the data predicts the mean of the others: widening it for a far point gains nothing.
        beyond = "mean" if self.beyond == "nan" else self.beyond
        return self._residuals(self._smoother(bandwidths), beyond).square().mean()

    def _stored_residuals(self) -> Tensor:
        """Return the residuals at the fitted bandwidth, which take an attention of all points, computed once."""
        smoother = self.smoother()
        if self._left_out is None:
            self._left_out = self._residuals(smoother)
        return self._left_out

    def _residuals(self, smoother: KernelSmoother, beyond: str | None = None) -> Tensor:
        """Return each target minus the estimate from the other points (n, outputs)."""
        inputs, targets = smoother.get_buffer("inputs"), smoother.get_buffer("targets")
        if len(inputs) == 1:
            return torch.full_like(targets, torch.nan)
        return targets - self._estimate(inputs, smoother, beyond or self.beyond, _OTHERS)

    def _estimate(self, query: Tensor, smoother: KernelSmoother, beyond: str, mask: Mask | None = None) -> Tensor:
        output, state = smoother(query, mask)
        weightless = state.weightless
        if not bool(weightless.any()):
            return output  # type: ignore[no-any-return]
        scaled, points, _ = smoother.scaled(query)
        targets = smoother.get_buffer("targets")
        return torch.where(weightless[:, None], self._fill(scaled, points, targets, beyond, mask), output)

    def _fill(self, query: Tensor, key: Tensor, value: Tensor, beyond: str, mask: Mask | None) -> Tensor:
        match beyond:
            case "nearest":
                return attention(query, key, value, score=SquaredDistance(), normalizer=Hard(), mask=mask)
            case "mean" if mask is not None:  # of the other points
                return (value.sum(0, keepdim=True) - value) / (len(value) - 1)
            case "mean":
                return value.mean(0, keepdim=True).expand(query.shape[0], -1)
            case _:
                return torch.full_like(value[:1], torch.nan).expand(query.shape[0], -1)


def _check(kernel: str, bandwidth: float | Sequence[float] | str, beyond: str) -> None:
    expect_name("kernel", kernel, KERNELS, "the name of a kernel")
    expect_name("beyond", beyond, ("nearest", "mean", "nan"))
    if not isinstance(bandwidth, str):
        return
    expect_name("bandwidth", bandwidth, _CHOICES, "a number, or the name of a way to choose it")
    if bandwidth == "gradient" and SCORES[kernel].cls.piecewise_constant:
        hint = 'Use "leave-one-out", which needs no gradient.'
        expected = "a kernel that is differentiable in its bandwidth"
        raise ConfigError("bandwidth", expected, f'"gradient" for the {kernel} kernel', hint)


def _per_column(bandwidth: float | Sequence[float], columns: int) -> Array:
    numbers = np.atleast_1d(np.asarray(bandwidth, dtype=np.float64))
    if numbers.ndim != 1 or len(numbers) not in (1, columns):
        hint = "Give one for all columns, or one for each."
        raise ConfigError("bandwidth", f"{columns} numbers, one per column", f"{numbers.size}", hint)
    if not all(0 < number < math.inf for number in numbers.tolist()):
        hint = 'Or "leave-one-out".'
        raise ConfigError("bandwidth", "a finite number above 0", f"{bandwidth!r}", hint)
    return np.broadcast_to(numbers, columns).copy()
