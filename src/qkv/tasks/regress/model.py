"""The kernel and its bandwidths: their settings, how they are fitted, and how their predictions are judged."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.data.table import Columns
from qkv.errors import DataError, UnsupportedError, expect_enough_memory, setting
from qkv.metrics.figure import Figure
from qkv.tasks.regress.settings import RegressModel

ESTIMATOR_METHODS: Mapping[str, str] = {"cross-validation": "leave-one-out", "learned": "gradient"}
"""How bandwidths are chosen, and what the estimator calls it."""


def fit(columns: Columns, model: RegressModel) -> Any:
    """Fit scikit-learn's estimator `qkv.models.NadarayaWatson`.

    Args:
        columns: inputs, then the target.
        model: the kernel.

    Returns:
        The fitted estimator.

    Raises:
        UnsupportedError: scikit-learn is not installed.
        ConfigError: a bandwidth is invalid.
        DataError: there are too few points to choose a bandwidth.
    """
    numbers = np.array(columns.rows)
    bandwidth = ESTIMATOR_METHODS.get(model.bandwidth, "") if isinstance(model.bandwidth, str) else model.bandwidth
    if isinstance(bandwidth, str) and len(numbers) < 2:
        hint = "Give more rows, or a bandwidth."
        raise DataError(setting("data"), "at least 2 points to choose a bandwidth", f"{len(numbers)}", hint)
    return estimator_class()(model.kernel, bandwidth, model.beyond).fit(numbers[:, :-1], numbers[:, -1])


def estimator_class() -> Any:
    """Return `qkv.models.NadarayaWatson`.

    Raises:
        UnsupportedError: scikit-learn is not installed.
    """
    try:
        from qkv.models.regression import NadarayaWatson
    except ImportError as error:
        expect_enough_memory(error)
        hint = "Install it: in the checkout, pip install '.[regression]'."
        raise UnsupportedError("regress", "scikit-learn", str(error), hint) from None
    return NadarayaWatson


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
