"""The passes over the rows of a tile, forward and backward, shared out among threads."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.rowwise import gradients_kernel, weights_kernel
from qkv.compiled import thread_pool
from qkv.compiled.kernels import Kernel
from qkv.engine.key_ranges import Array

Doubles = NDArray[np.float64]
SHAPES = {"Linear": 0, "NegativeHalf": 1, "GaussianShape": 2, "BoxcarShape": 3, "EpanechnikovShape": 4}
RULES = {"softmax": 0, "sum": 1, "mean": 2, "identity": 3, "scores": 4, "gaussian": 5}


@final
@dataclass(frozen=True)
class RowMechanism:
    """What happens to a row.

    Attributes:
        shape: of `SHAPES`, what follows a dot product (Linear) or a squared distance.
        power: of an Epanechnikov kernel.
        rule: of `RULES`; `scores` leaves normalizing to another kernel.
        drop: seed, threshold and the bits of 1/(1 − p) of dropout, empty for none.
    """

    shape: str
    power: float
    rule: str
    drop: NDArray[np.uint64]

    def cost(self, pairs: int) -> float:
        """Microseconds for so many pairs on one thread, roughly."""
        return pairs * (1.1e-3 if self.drop.size else 6e-4)


class Tile(NamedTuple):
    """What is known of the rows of a tile of L items, h rows and c columns.

    Attributes:
        scale, sink: (L), the first multiplies the products; no sink is −inf.
        first, last: int32 (L, h), the keys that each row may see.
        mask: bool (1 or L, 1 or h, c), of size zero where there is none.
        bias: likewise, added to the scores; or the diagonals of a relative bias, (1 or L, 1, h + c − 1).
        number: int64 (L), the number of each item's first row in the whole problem.
        left: the key in the first column.
    """

    scale: Doubles
    sink: Doubles
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    mask: NDArray[np.bool_]
    bias: Array
    number: NDArray[np.int64]
    left: int


def weigh(mechanism: RowMechanism, tile: Tile, products: Array, weights: Array) -> Doubles:
    """Turn products into weights.

    Args:
        mechanism: what happens to a row.
        tile: what is known of the rows.
        products: (L, h, c), float64 where weights are float32 and distances need it.
        weights: out, (L, h, c).

    Returns:
        The row states, (L, h).

    Source: the equations of `qkv.normalizers`; Condat 2016, "Fast Projection onto the Simplex and the l1 Ball".

    Example:
        >>> whole, none, zeros = np.full((1, 1), 2, np.int32), np.zeros((0, 0, 0)), np.zeros(1, np.int64)
        >>> tile = Tile(np.ones(1), np.full(1, -np.inf), 0 * whole, whole, none.astype(bool), none, zeros, 0)
        >>> mechanism = RowMechanism("Linear", 0.0, "softmax", np.zeros(0, np.uint64))
        >>> weights = np.empty((1, 1, 2))
        >>> state = weigh(mechanism, tile, np.zeros((1, 1, 2)), weights)
        >>> weights, state
        (array([[[0.5, 0.5]]]), array([[0.69314718]]))
    """
    state = np.empty(products.shape[:2])
    head = SHAPES[mechanism.shape], mechanism.power, RULES[mechanism.rule], weights.dtype == np.float32
    given = *head, products, *tile[:6], mechanism.drop, *tile[6:], weights, state
    scratch = ((products.shape[2],), products.dtype), ((64,), products.dtype)
    kernel, time = _kernel(weights_kernel, products, weights), mechanism.cost(products.size)
    thread_pool.run_in_chunks(kernel, weights.dtype, state.size, time, given, scratch)
    return state


class Pulled(NamedTuple):
    """Gradients of what a row's weights depend on beside the products: (L, h) each."""

    sink: Doubles
    scale: Doubles


def unweigh(
    mechanism: RowMechanism,
    tile: Tile,
    products: Array,
    weights: Array,
    state: Doubles,
    grads: Array,
    of_state: Doubles,
    learns_scale: bool,
) -> Pulled:
    """Turn gradients of weights into those of products, in place.

    Args:
        mechanism, tile: as given to `weigh`.
        products: (L, h, c); become their gradients.
        weights: (L, h, c), as `weigh` gave them without dropout; become those that are applied.
        state: what `weigh` gave.
        grads: (L, h, c), of the weights that are applied; become those of the scores.
        of_state: (L, h), the gradient of the state; of size zero where there is none.
        learns_scale: whether the gradient of the scale is wanted.

    Returns:
        The gradients of sink and scale, of each row.

    Source: the equations of `qkv.algorithms.tiled.row_rules`.

    Example:
        >>> whole, none, zeros = np.full((1, 1), 2, np.int32), np.zeros((0, 0, 0)), np.zeros(1, np.int64)
        >>> tile = Tile(np.ones(1), np.full(1, -np.inf), 0 * whole, whole, none.astype(bool), none, zeros, 0)
        >>> mechanism = RowMechanism("Linear", 0.0, "softmax", np.zeros(0, np.uint64))
        >>> weights, products, grads = np.full((3, 1, 1, 2), 0.5)
        >>> grads[..., 0] = 1.5
        >>> unweigh(mechanism, tile, products, weights, np.zeros((1, 1)), grads, np.zeros((0, 0)), True)
        Pulled(sink=array([[0.]]), scale=array([[0.]]))
        >>> products
        array([[[ 0.25, -0.25]]])
    """
    found = Pulled(np.empty(products.shape[:2]), np.empty(products.shape[:2]))
    keys, kinds = products.shape[2], (products.dtype, weights.dtype)
    head = SHAPES[mechanism.shape], mechanism.power, RULES[mechanism.rule], weights.dtype == np.float32
    given = *head, products, *tile[:5], mechanism.drop, *tile[6:], weights, state, grads, of_state, learns_scale, *found
    scratch = ((keys,), kinds[1]), ((keys,), kinds[0]), *(((thread_pool.APART,), kind) for kind in kinds[::-1])
    kernel, time = _kernel(gradients_kernel, products, weights), mechanism.cost(products.size)
    thread_pool.run_in_chunks(kernel, weights.dtype, state.size, time, given, scratch)
    return found


def _kernel(module: Any, products: Array, weights: Array) -> Kernel:
    found: Kernel = module.same if products.dtype == weights.dtype else module.wider
    return found
