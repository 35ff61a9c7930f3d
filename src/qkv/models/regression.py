"""Nadaraya-Watson kernel regression with scikit-learn's estimator interface; needs the extra `regression`."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, Self, final

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from qkv.errors import ConfigError, error_message, nearest
from qkv.functional import attention, attention_with_state
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.masks.base import Mask
from qkv.masks.patterns import window
from qkv.models.bandwidths import best_on_grid, by_gradient
from qkv.normalizers.dense import Hard
from qkv.scores.base import Score
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance

KERNELS: Mapping[str, Callable[[Any], Score]] = MappingProxyType(
    {
        "boxcar": Boxcar,
        "epanechnikov": Epanechnikov,
        "gaussian": Gaussian,
        "triangular": lambda bandwidth: Epanechnikov(bandwidth, power=1),
    }
)
"""The four kernels of the lectures, in which the triangular one is called Epanechnikov's."""

_CHOICES = ("leave-one-out", "gradient")


@final
class NadarayaWatson(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression by attention: f(x) = Σᵢ K((x − xᵢ)/h) yᵢ / Σⱼ K((x − xⱼ)/h).

    Queries are the points to predict, keys the training inputs, values the training targets.

    Args:
        kernel: K: "gaussian", "epanechnikov", "triangular" or "boxcar".
        bandwidth: h, or how to choose it: "leave-one-out" minimizes the squared error of predicting each training
            point from the others over a grid; "gradient" minimizes it by gradient descent.
        beyond: the prediction where no training point is within the kernel's support: the "nearest" point's target,
            the "mean" of all, or "nan".

    Attributes:
        bandwidth_: the h in use.
        error_: the mean squared leave-one-out error at that h; NaN if h was given.
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
        bandwidth: float | str = "leave-one-out",
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
            ConfigError: the kernel or an option is unknown, the bandwidth is not above 0, or "gradient" is used with
                the boxcar kernel, whose gradient is zero.
            ValueError: scikit-learn refuses the inputs.
        """
        _check(self.kernel, self.bandwidth, self.beyond)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.inputs_, self.targets_ = X, np.asarray(y, dtype=np.float64)
        self.error_ = math.nan
        if isinstance(self.bandwidth, str):
            search = best_on_grid if self.bandwidth == "leave-one-out" else by_gradient
            self.bandwidth_, self.error_ = search(self._leave_one_out, self._points()[0])
        else:
            self.bandwidth_ = float(self.bandwidth)
        return self

    def predict(self, X: Any) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Predict targets.

        Args:
            X: inputs (m, D).

        Returns:
            (m,), or (m, outputs) for several outputs.

        Raises:
            ValueError: scikit-learn refuses the inputs.
        """
        check_is_fitted(self)
        query = torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False).copy())
        predicted: np.ndarray[Any, np.dtype[np.float64]] = self._estimate(query, self.bandwidth_).numpy()
        return predicted[:, 0] if self.targets_.ndim == 1 else predicted

    def attention_map(self, X: Any) -> AttentionMap:
        """Return the weights of all training points in each prediction, as a lazy map.

        Args:
            X: inputs (m, D).

        Returns:
            A lazy (m, n) matrix.
        """
        check_is_fitted(self)
        query = torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False).copy())
        return attention_map(query, self._points()[0], score=KERNELS[self.kernel](self.bandwidth_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _points(self) -> tuple[Tensor, Tensor]:
        targets = self.targets_ if self.targets_.ndim == 2 else self.targets_[:, None]
        return torch.from_numpy(self.inputs_.copy()), torch.from_numpy(targets.copy())

    def _leave_one_out(self, bandwidth: Tensor | float) -> Tensor:
        """Compute the mean squared error of predicting each point from the others."""
        inputs, targets = self._points()
        return (self._estimate(inputs, bandwidth, ~window(0, 0)) - targets).square().mean()

    def _estimate(self, query: Tensor, bandwidth: Tensor | float, mask: Mask | None = None) -> Tensor:
        key, value = self._points()
        score = KERNELS[self.kernel](bandwidth)
        output, state = attention_with_state(query, key, value, score=score, mask=mask)
        lost = state.value == 0
        if not bool(lost.any()):
            return output
        return torch.where(lost[:, None], self._fill(query, key, value, mask), output)

    def _fill(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
        match self.beyond:
            case "nearest":
                return attention(query, key, value, score=SquaredDistance(), normalizer=Hard(), mask=mask)
            case "mean":
                return value.mean(0, keepdim=True).expand(query.shape[0], -1)
            case _:
                return torch.full_like(value[:1], torch.nan).expand(query.shape[0], -1)


def _check(kernel: str, bandwidth: float | str, beyond: str) -> None:
    if kernel not in KERNELS:
        raise ConfigError(error_message("kernel", "the name of a kernel", f'"{kernel}"', nearest(str(kernel), KERNELS)))
    if beyond not in ("nearest", "mean", "nan"):
        hint = nearest(str(beyond), ("nearest", "mean", "nan"))
        raise ConfigError(error_message("beyond", '"nearest", "mean" or "nan"', f'"{beyond}"', hint))
    if isinstance(bandwidth, str):
        if bandwidth not in _CHOICES:
            hint = nearest(bandwidth, _CHOICES)
            raise ConfigError(
                error_message("bandwidth", "a number, or the name of a way to choose it", f'"{bandwidth}"', hint)
            )
        if bandwidth == "gradient" and kernel == "boxcar":
            hint = 'Use "leave-one-out", which needs no gradient.'
            expected = "a kernel that is differentiable in its bandwidth"
            raise ConfigError(error_message("bandwidth", expected, '"gradient" for the boxcar kernel', hint))
    elif not 0 < bandwidth < math.inf:
        raise ConfigError(error_message("bandwidth", "a finite number above 0", repr(bandwidth), 'Or "leave-one-out".'))
