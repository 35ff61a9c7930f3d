"""Sparsemax and entmax of whole rows, by compiled loops that do not sort."""

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.rowwise.entmax_kernel import entmax, entmax_back
from qkv.compiled import thread_pool
from qkv.engine.key_ranges import Array

Doubles = NDArray[np.float64]


def _microseconds(scores: Array, alpha: Doubles) -> float:
    products = np.isin(alpha, (1.5, 2.0)).all()
    return scores.size * (2e-3 if products else 1e-2)


def project(scores: Array, alpha: Doubles) -> Doubles:
    """Compute the weights max(0, (α−1)s − τ)^(1/(α−1)), which sum to one, of rows of scores, in place.

    Args:
        scores: (L, h, K), C-contiguous, overwritten with the weights; −inf for a masked key.
        alpha: (L), above 1: 2 is sparsemax.

    Returns:
        τ of each row, (L, h); +inf for a row without visible keys (its weights are 0), NaN for a row that holds a NaN.

    Source: Martins and Astudillo 2016, "From Softmax to Sparsemax"; Peters, Niculae and Martins 2019, "Sparse
        Sequence-to-Sequence Models"; Newton's method from the left: Condat 2016, "Fast Projection onto the Simplex and
        the l1 Ball", section 2.

    Example:
        >>> scores = np.array([[[1.0, 0.5, -1.0]]])
        >>> project(scores, np.array([2.0])), scores
        (array([[0.25]]), array([[[0.75, 0.25, 0.  ]]]))
    """
    items, height, keys = scores.shape
    tau = np.empty((items, height))
    scratch = ((keys + 1,), np.float64), ((64,), scores.dtype)
    thread_pool.run_in_chunks(
        entmax, scores.dtype, tau.size, _microseconds(scores, alpha), (alpha, scores, tau), scratch
    )
    return tau


def project_back(
    weights: Array, grads: Array, tau: Doubles, g_tau: Doubles, alpha: Doubles, needs_alpha: bool
) -> Doubles:
    """Compute the gradients of the scores from those of the weights, in place.

    Args:
        weights: (L, h, K), as returned by `project`.
        grads: (L, h, K), C-contiguous, overwritten.
        tau: (L, h), as returned by `project`.
        g_tau: (L, h), the gradient of τ; of size zero if there is none.
        alpha: (L).
        needs_alpha: whether to compute the gradient of α.

    Returns:
        The gradient of α for each row (L, h); zeros if it is not needed.

    Source: Correia, Niculae and Martins 2019, "Adaptively Sparse Transformers", proposition 1.

    Example:
        >>> weights, grads = np.array([[[0.75, 0.25, 0.0]]]), np.array([[[1.0, 0.0, 5.0]]])
        >>> project_back(weights, grads, np.array([[0.25]]), np.empty((0, 0)), np.array([2.0]), False), grads
        (array([[0.]]), array([[[ 0.5, -0.5,  0. ]]]))
    """
    items, height, keys = grads.shape
    d_alpha = np.empty((items, height))
    arguments = alpha, needs_alpha, weights, tau, g_tau, grads, d_alpha
    scratch = ((keys,), grads.dtype), ((thread_pool.APART,), grads.dtype)
    thread_pool.run_in_chunks(entmax_back, grads.dtype, d_alpha.size, _microseconds(grads, alpha), arguments, scratch)
    return d_alpha
