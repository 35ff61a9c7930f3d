"""Whether one system is better than another beyond chance: the paired bootstrap."""

import numpy as np

from qkv.errors import ShapeError

SAMPLES = 10_000
"""Resamples, by default: the standard error of a share near 0.05 is then 0.002."""


def paired_bootstrap(
    first: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    second: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    samples: int = SAMPLES,
    seed: int = 0,
) -> float:
    """Return the p-value of "the first system is no better than the second" on examples that both answered.

    Args:
        first, second: how good each answer is, (N,).
        samples: number of resamples.
        seed: random seed.

    Returns:
        The part of resamples of the N examples in which the mean of the first is not above that of the second, with 1
        added to both counts, so that it is never 0.

    Raises:
        ShapeError: the sizes differ, or there is no example.

    Source: Koehn, "Statistical Significance Tests for Machine Translation Evaluation", 2004, section 3; the added one:
    Davison and Hinkley, "Bootstrap Methods and their Application", 1997, eq. 4.11.

    Example:
        >>> better, worse = np.array([1.0, 1, 1, 1, 1, 1, 1, 0]), np.array([0.0, 0, 0, 0, 1, 0, 0, 0])
        >>> paired_bootstrap(better, worse) < 0.01, paired_bootstrap(better, better)
        (True, 1.0)
    """
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        got = f"{first.shape} and {second.shape}"
        raise ShapeError("credits", "one number for each of the same examples", got, "Score both on the same files.")
    difference, random = first - second, np.random.default_rng(seed)
    rows = max(1, (1 << 20) // len(difference))  # memory does not grow with the number of resamples
    not_above = 0
    for start in range(0, samples, rows):
        drawn = random.integers(len(difference), size=(min(rows, samples - start), len(difference)))
        not_above += int((difference[drawn].sum(1) <= 0).sum())
    return (not_above + 1) / (samples + 1)
