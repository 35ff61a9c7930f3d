"""Arguments that compiled kernels share: the keys that each row may see, biases, and dropout."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from qkv.engine.dropout import threshold

Array = NDArray[np.floating]
Rule = Literal["softmax", "identity", "sigmoid"]
_RULES = {"softmax": 0, "identity": 1, "sigmoid": 2}


@final
@dataclass(frozen=True)
class KeyRanges:
    """The keys that each row may see, the bias, and which entries of shared data belong to an item.

    Attributes:
        first, last: int32 (P, Q): a row sees keys from first up to, not including, last.
        owner: int64 (N, 5): for each item its index into the vectors (C), the bounds (P), the masks (M) and the biases
            (S), and the diagonal with which row 0 begins: Q − 1, or 0 for a bias without diagonals.
        mask: bool (M, 1 or Q, K); of size zero for none.
        bias: (S, 1 or Q, K), added to the scores, or the diagonals of a relative bias, (S, 1, Q + K − 1); of size zero
            for none.
    """

    first: NDArray[np.int32]
    last: NDArray[np.int32]
    owner: NDArray[np.int64]
    mask: NDArray[np.bool_]
    bias: Array


class Drop(NamedTuple):
    """Dropout on weights, by the bits of `qkv.engine.dropout`.

    Attributes:
        seed: an int64.
        probability: the probability of dropping a weight.
    """

    seed: int
    probability: float


def key_ranges(
    dtype: np.dtype[np.floating],
    items: int,
    queries: int,
    keys: int,
    *,
    heads: int = 1,
    first: NDArray[np.int32] | None = None,
    last: NDArray[np.int32] | None = None,
    mask: NDArray[np.bool_] | None = None,
    bias: Array | None = None,
) -> KeyRanges:
    """Return the key ranges of items that share data by heads and batch entries.

    Args:
        dtype: of queries and keys.
        items: N, counted over (..., H).
        queries, keys: Q and K.
        heads: the number of vectors; item n has vector n mod heads.
        first, last: int32 (P, 1 or Q); None for 0 and K. P, M and S divide N: all heads of a batch entry share one
            entry.
        mask: bool (M, 1 or Q, K).
        bias: (S, 1 or Q, K), or the diagonals of a relative bias, (S, 1, Q + K − 1).

    Returns:
        The key ranges.

    Example:
        >>> key_ranges(np.dtype("f4"), 4, 3, 5, heads=2, last=np.array([[5], [2]], np.int32)).owner.tolist()
        [[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0]]
    """
    first = np.zeros((1, 1), np.int32) if first is None else first
    last = np.full((1, 1), keys, np.int32) if last is None else last
    bounds = max(first.shape[0], last.shape[0])
    shape = (bounds, queries)
    mask = np.zeros((0, 0, 0), np.bool_) if mask is None else np.ascontiguousarray(mask)
    bias = np.zeros((0, 0, 0), dtype) if bias is None else np.ascontiguousarray(bias)
    n = np.arange(items)
    counts = (bounds, max(mask.shape[0], 1), max(bias.shape[0], 1))
    columns = [
        n % heads,
        *(n * count // max(items, 1) for count in counts),
        np.full(items, first_diagonal(bias, queries, keys)),
    ]
    return KeyRanges(
        np.array(np.broadcast_to(first, shape), np.int32),
        np.array(np.broadcast_to(last, shape), np.int32),
        np.ascontiguousarray(np.stack(columns, -1).astype(np.int64)),
        mask,
        bias,
    )


def first_diagonal(bias: Array, queries: int, keys: int) -> int:
    """Return the diagonal with which row 0 begins; 0 for a bias without diagonals.

    Example:
        >>> first_diagonal(np.zeros((1, 1, 6)), 2, 5), first_diagonal(np.zeros((1, 1, 5)), 2, 5)
        (1, 0)
    """
    return queries - 1 if bias.size and bias.shape[2] > keys else 0


class Weighting(NamedTuple):
    """How scores become weights.

    Attributes:
        ranges: the keys that each row may see, and the bias.
        rule: the normalizer: `softmax`, `identity` (also for the mean, which is divided afterwards) or `sigmoid`.
        shift: (N, Q), added to the scores of a sigmoid.
        drop: dropout on the weights.
    """

    ranges: KeyRanges
    rule: Rule = "softmax"
    shift: Array | None = None
    drop: Drop | None = None

    @property
    def code(self) -> int:
        """The rule as kernels take it."""
        return _RULES[self.rule]

    def arguments(self, dtype: np.dtype[np.floating]) -> tuple[object, ...]:
        """Return the kernels' arguments from the bounds to the scale of weights under dropout, in their order.

        Args:
            dtype: of the arrays.

        Returns:
            first, last, mask, bias, owner, shift, drop (seed and threshold, or nothing), scale.

        Example:
            >>> Weighting(key_ranges(np.dtype("f4"), 1, 2, 3), drop=Drop(7, 0.5)).arguments(np.dtype("f4"))[-1]
            np.float32(2.0)
        """
        ranges, _, shift, drop = self
        bits = np.zeros(0, np.uint64)
        if drop is not None:
            bits = np.array([drop.seed % 2**64, threshold(drop.probability)], np.uint64)
        scale = dtype.type(1.0 if drop is None else 1.0 / (1.0 - drop.probability))
        shift = np.zeros((ranges.owner.shape[0], ranges.first.shape[1]), dtype) if shift is None else shift
        return ranges.first, ranges.last, ranges.mask, ranges.bias, ranges.owner, shift, bits, scale


def summed(rows: NDArray[np.float64], owner: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Sum the items' gradients of the parameters that they share.

    Args:
        rows: (N, A), the gradient of each item.
        owner: (N,), the index of its parameter.
        count: C, the number of parameters.

    Returns:
        (C, A).

    Example:
        >>> summed(np.ones((3, 2)), np.array([0, 1, 1]), 2).tolist()
        [[1.0, 1.0], [2.0, 2.0]]
    """
    sums = np.zeros((count, rows.shape[1]))
    if count == 1:  # ten times as fast as the general case
        np.sum(rows, 0, out=sums[0])
    else:
        np.add.at(sums, owner, rows)
    return sums
