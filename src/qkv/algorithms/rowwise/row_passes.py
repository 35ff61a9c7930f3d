"""Compiled passes over the rows of a tile, forward and backward, with the rows divided among threads."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.rowwise import gradients_kernel, weights_kernel
from qkv.algorithms.rowwise.entmax_kernel import entmax, entmax_back
from qkv.compiled import thread_pool
from qkv.compiled.kernels import Kernel
from qkv.engine.key_ranges import Array

Doubles = NDArray[np.float64]
SHAPES = {"Linear": 0, "NegativeHalf": 1, "GaussianShape": 2, "BoxcarShape": 3, "EpanechnikovShape": 4}
RULES = {"softmax": 0, "sum": 1, "mean": 2, "identity": 3, "scores": 4}


@final
@dataclass(frozen=True)
class RowOperation:
    """The function that turns a row of products into weights.

    Attributes:
        shape: a key of `SHAPES`, the function that follows a dot product (Linear) or a squared distance.
        power: the power of an Epanechnikov kernel.
        rule: a key of `RULES`, the normalizer; `scores` leaves normalizing to `project`.
        drop: seed, threshold and the bits of 1/(1 − p) of dropout; empty for no dropout.
    """

    shape: str
    power: float
    rule: str
    drop: NDArray[np.uint64]

    def cost(self, pairs: int) -> float:
        """Estimate the microseconds that one thread needs for some pairs."""
        return pairs * (1.1e-3 if self.drop.size else 6e-4)


class RowInputs(NamedTuple):
    """The parameters and masks of the rows of a tile, which has L items, h rows and c columns.

    Attributes:
        scale: (L), multiplies the products.
        sink: (L), −inf for no sink.
        first, last: int32 (L, h), the keys that each row may see.
        mask: bool (1 or L, 1 or h, c); of size zero for no mask.
        bias: added to the scores, of the same shape; or the diagonals of a relative bias, (1 or L, 1, h + c − 1).
        row_offset: int64 (L), the number of each item's first row, counted over the whole problem.
        column_offset: the number of the key in the first column.
    """

    scale: Doubles
    sink: Doubles
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    mask: NDArray[np.bool_]
    bias: Array
    row_offset: NDArray[np.int64]
    column_offset: int


def rows_forward(operation: RowOperation, rows: RowInputs, products: Array, weights: Array) -> Doubles:
    """Compute the weights of some rows from products of queries and keys.

    Args:
        operation: the function of a row.
        rows: parameters and masks of the rows.
        products: (L, h, c); float64 beside float32 weights where distances need it.
        weights: (L, h, c), written.

    Returns:
        The row states, (L, h).

    Source: the equations of `qkv.normalizers`; Condat 2016, "Fast Projection onto the Simplex and the l1 Ball".

    Example:
        >>> whole, none, zeros = np.full((1, 1), 2, np.int32), np.zeros((0, 0, 0)), np.zeros(1, np.int64)
        >>> rows = RowInputs(np.ones(1), np.full(1, -np.inf), 0 * whole, whole, none.astype(bool), none, zeros, 0)
        >>> operation = RowOperation("Linear", 0.0, "softmax", np.zeros(0, np.uint64))
        >>> weights = np.empty((1, 1, 2))
        >>> state = rows_forward(operation, rows, np.zeros((1, 1, 2)), weights)
        >>> weights, state
        (array([[[0.5, 0.5]]]), array([[0.69314718]]))
    """
    state = np.empty(products.shape[:2])
    codes = SHAPES[operation.shape], operation.power, RULES[operation.rule], weights.dtype == np.float32
    arguments = *codes, products, *rows[:6], operation.drop, *rows[6:], weights, state
    scratch = ((products.shape[2],), products.dtype), ((64,), products.dtype)
    kernel, time = _kernel(weights_kernel, products, weights), operation.cost(products.size)
    thread_pool.run_in_chunks(kernel, weights.dtype, state.size, time, arguments, scratch)
    return state


class ParameterGradients(NamedTuple):
    """The gradients of sink and scale, as each row contributes to them, (L, h)."""

    sink: Doubles
    scale: Doubles


def rows_backward(
    operation: RowOperation,
    rows: RowInputs,
    products: Array,
    weights: Array,
    state: Doubles,
    grads: Array,
    g_state: Doubles,
    needs_scale: bool,
) -> ParameterGradients:
    """Compute the gradients of scores and products from those of weights, in place.

    Args:
        operation, rows: as for `rows_forward`.
        products: (L, h, c); overwritten with their gradients.
        weights: (L, h, c), as `rows_forward` computed them without dropout; overwritten with the weights after dropout.
        state: as returned by `rows_forward`.
        grads: (L, h, c), the gradients of the weights after dropout; overwritten with those of the scores.
        g_state: (L, h), the gradient of the state; of size zero for none.
        needs_scale: whether to compute the gradient of the scale.

    Returns:
        The gradients of sink and scale for each row.

    Source: the equations of `qkv.algorithms.tiled.row_rules`.

    Example:
        >>> whole, none, zeros = np.full((1, 1), 2, np.int32), np.zeros((0, 0, 0)), np.zeros(1, np.int64)
        >>> rows = RowInputs(np.ones(1), np.full(1, -np.inf), 0 * whole, whole, none.astype(bool), none, zeros, 0)
        >>> operation = RowOperation("Linear", 0.0, "softmax", np.zeros(0, np.uint64))
        >>> weights, products, grads = np.full((3, 1, 1, 2), 0.5)
        >>> grads[..., 0] = 1.5
        >>> rows_backward(operation, rows, products, weights, np.zeros((1, 1)), grads, np.zeros((0, 0)), True)
        ParameterGradients(sink=array([[0.]]), scale=array([[0.]]))
        >>> products
        array([[[ 0.25, -0.25]]])
    """
    gradients = ParameterGradients(np.empty(products.shape[:2]), np.empty(products.shape[:2]))
    keys = products.shape[2]
    codes = SHAPES[operation.shape], operation.power, RULES[operation.rule], weights.dtype == np.float32
    parameters = *rows[:5], operation.drop, *rows[6:]
    arguments = *codes, products, *parameters, weights, state, grads, g_state, needs_scale, *gradients
    scratch = (
        ((keys,), weights.dtype),
        ((keys,), products.dtype),
        ((thread_pool.APART,), weights.dtype),
        ((thread_pool.APART,), products.dtype),
    )
    kernel, time = _kernel(gradients_kernel, products, weights), operation.cost(products.size)
    thread_pool.run_in_chunks(kernel, weights.dtype, state.size, time, arguments, scratch)
    return gradients


def _kernel(module: Any, products: Array, weights: Array) -> Kernel:
    kernel: Kernel = module.same_dtype if products.dtype == weights.dtype else module.float64_products
    return kernel


def _entmax_microseconds(scores: Array, alpha: Doubles) -> float:
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
        entmax, scores.dtype, tau.size, _entmax_microseconds(scores, alpha), (alpha, scores, tau), scratch
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
    thread_pool.run_in_chunks(
        entmax_back, grads.dtype, d_alpha.size, _entmax_microseconds(grads, alpha), arguments, scratch
    )
    return d_alpha
