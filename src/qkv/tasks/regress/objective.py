"""How predictions of a regression are judged."""

import math
from typing import Any

import numpy as np

from qkv.metrics.figure import Figure


def judge_regression(predicted: Any, truth: Any, signature: str) -> tuple[Figure, ...]:
    """Score predictions; used by both training and `qkv evaluate`.

    Args:
        predicted: predictions (n,).
        truth: the targets (n,).
        signature: how they were predicted.

    Returns:
        Root mean squared error, mean absolute error, and R², of 1, over the points that have a prediction; if some have
        none (NaN), the signature says how many have one.

    Example:
        >>> import numpy
        >>> [figure.value for figure in judge_regression(numpy.array([1.0, 2.0]), numpy.array([1.0, 4.0]), "")]
        [1.4142..., 1.0, 0.111...]
    """
    known = np.isfinite(predicted)
    if not known.all():
        signature = ", ".join(filter(None, (signature, f"{known.sum():,} of {len(known):,} points")))
    if not known.any():
        return (Figure("rmse", math.nan, signature, higher_is_better=False),)
    truth = np.asarray(truth)[known]
    errors = truth - np.asarray(predicted)[known]
    spread = float(np.square(truth - np.mean(truth)).mean())
    explained = 1 - float(np.square(errors).mean()) / spread if spread else math.nan
    return (
        Figure("rmse", float(np.sqrt(np.square(errors).mean())), signature, higher_is_better=False),
        Figure("mae", float(np.abs(errors).mean()), signature, higher_is_better=False),
        Figure("r2", explained, signature),
    )
