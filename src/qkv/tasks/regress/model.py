"""How a kernel and its bandwidths are fitted, and how their predictions are judged."""

import math
from typing import Any

import numpy as np

from qkv.errors import DataError, setting
from qkv.metrics.figure import Figure
from qkv.tasks.regress.data import RegressTable
from qkv.tasks.regress.settings import RegressModel


def fit(table: RegressTable, model: RegressModel) -> Any:
    """Fit scikit-learn's estimator `qkv.models.KernelRegression`.

    Args:
        table: the rows.
        model: the kernel.

    Returns:
        The fitted estimator.

    Raises:
        UnsupportedError: scikit-learn is not installed.
        ConfigError: a bandwidth is invalid.
        DataError: there are too few points to choose a bandwidth.
    """
    if isinstance(model.bandwidth, str) and len(table.rows) < 2:
        hint = "Give more rows, or a bandwidth."
        raise DataError(setting("data"), "at least 2 points to choose a bandwidth", f"{len(table.rows)}", hint)
    estimator = estimator_class()(
        model.kernel,
        model.bandwidth,
        model.beyond,
        degree=model.degree,
        neighbors=model.neighbors,
        categorical=[table.x.index(name) for name in table.categories],
    )
    return estimator.fit(table.inputs, table.targets, table.weights)


def estimator_class() -> Any:
    """Return `qkv.models.KernelRegression`; scikit-learn is imported only where it is used."""
    from qkv.models.regression import KernelRegression

    return KernelRegression


def judge_regression(predicted: Any, truth: Any, signature: str) -> tuple[Figure, ...]:
    """Score predictions; used by both training and `qkv evaluate`.

    Args:
        predicted: predictions (n,).
        truth: the targets (n,).
        signature: how they were predicted.

    Returns:
        Root mean squared error, mean absolute error, and R², of 1, over the points that have a prediction; if some have
        none (NaN), the signature says how many have one. There is no R² of equal targets, which have no variance.

    Example:
        >>> import numpy
        >>> [figure.value for figure in judge_regression(numpy.array([1.0, 2.0]), numpy.array([1.0, 4.0]), "")]
        [1.4142..., 1.0, 0.111...]
    """
    finite = np.isfinite(predicted)
    if not finite.all():
        signature = ", ".join(filter(None, (signature, f"{finite.sum():,} of {len(finite):,} points")))
    if not finite.any():
        return (Figure("rmse", math.nan, signature, higher_is_better=False),)
    truth = np.asarray(truth)[finite]
    errors = truth - np.asarray(predicted)[finite]
    squared = float(np.square(errors).mean())
    figures = (
        Figure("rmse", math.sqrt(squared), signature, higher_is_better=False),
        Figure("mae", float(np.abs(errors).mean()), signature, higher_is_better=False),
    )
    if np.ptp(truth) == 0:
        return figures
    return *figures, Figure("r2", 1 - squared / float(np.var(truth)), signature)
