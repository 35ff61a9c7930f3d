"""Normalizers of whole rows that compiled loops compute faster than sorting: sparsemax and 1.5-entmax."""

import numpy as np
from numpy.typing import NDArray

from qkv.backends.kernels import pool
from qkv.backends.kernels.entmax_rows import entmax
from qkv.backends.kernels.sight import Array
from qkv.errors import UnsupportedError, complaint


def entmax_in_place(scores: Array, alpha: float) -> NDArray[np.float64]:
    """Turn rows of scores into the weights max(0, (α−1)s − τ)^(1/(α−1)) that sum to one.

    Args:
        scores: (R, K), C-contiguous, overwritten with the weights; −inf where a key is hidden.
        alpha: 2 for sparsemax, 1.5 for 1.5-entmax.

    Returns:
        τ of each row, float64 (R,); +inf where a row sees nothing (its weights are 0), NaN where it holds a NaN.

    Raises:
        UnsupportedError: another alpha.

    Source: Martins and Astudillo 2016, "From Softmax to Sparsemax"; Peters, Niculae and Martins 2019, "Sparse
        Sequence-to-Sequence Models"; Newton's method from the left: Condat 2016, "Fast Projection onto the Simplex and
        the l1 Ball", section 2.

    Example:
        >>> scores = np.array([[1.0, 0.5, -1.0]])
        >>> entmax_in_place(scores, 2.0), scores
        (array([0.25]), array([[0.75, 0.25, 0.  ]]))
    """
    if alpha not in (1.5, 2.0):
        mend = "Other values of alpha are served by qkv.normalizers.sparse.entmax_weights."
        raise UnsupportedError(complaint("alpha", "1.5 or 2", str(alpha), mend))
    rows, keys = scores.shape
    tau = np.full(rows, np.inf)
    code = entmax.at(scores.dtype)
    time = scores.size * 2e-3
    chunks = pool.chunks(time, rows)

    def work(chunk: int) -> None:
        start, stop = pool.share(chunk, chunks, rows)
        code(start, stop, alpha == 2.0, scores, tau, np.empty(keys + 1), np.empty(64, scores.dtype))

    pool.run(work, chunks, time)
    return tau
