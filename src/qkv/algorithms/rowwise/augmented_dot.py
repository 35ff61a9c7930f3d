"""Squared distances as dot products of operands with one more column, for PyTorch's kernels of a plain softmax.

−‖q−k‖²/2h² = (q·k − ‖k‖²/2)/h² − ‖q‖²/2h², and the last term is the same for every key, so it cancels in the softmax.
Softmax over squared distances, and the Gaussian kernel divided by its sum, which is the same, are therefore softmax
over the dot products of (q, 1)/h² and (k, −‖k‖²/2). Only the rounding differs, if

- similar norms are small compared with h, so that no digits cancel: the guard of `qkv.algorithms.rowwise.rowwise`;
- each row has a key whose score is not far below 0: (‖q‖ + ‖k‖)²/2h² ≤ `DEPTH` for a visible key. Then no row loses all
  its weight because all its Gaussians underflow, and no log-sum-exp is so large that its rounding matters. A key so far
  away that its own Gaussian is 0 has the weight 0 under softmax as well.
"""

import torch
from torch import Tensor

from qkv.algorithms.sdpa import matmul_tiles, sdpa
from qkv.engine.backend import Result
from qkv.engine.problem import Call, Problem
from qkv.scores.pointwise import GaussianShape, Linear, NegativeHalf

DEPTH = 80.0
"""The largest depth of an exponent: e^−87 is the least normal number of float32."""


def products(problem: Problem) -> Problem | None:
    """Return the dot-product problem that has the same weights.

    Args:
        problem: a problem of squared distances.

    Returns:
        That problem, in float32; None if there is none that PyTorch's kernel supports.
    """
    mechanism = type(problem.pointwise), problem.normalizer
    if mechanism not in ((NegativeHalf, "softmax"), (GaussianShape, "sum")) or problem.bias != "none" or problem.state:
        return None
    if problem.sink:
        # The constant term cancels between scores only; relative to a sink it matters.
        return None
    found = problem._replace(
        core="dot", pointwise=Linear(), normalizer="softmax", width=problem.width + 1, dtype=torch.float32
    )
    return None if sdpa.refuses(found) else found


def shallow(far: tuple[float, float], of_key: Tensor, scale: float | Tensor, all_seen: bool) -> bool:
    """Return whether each row has a key whose score is not far below 0.

    Args:
        far: max‖q‖² and max‖k‖².
        of_key: ‖k‖², (..., K, 1).
        scale: 1/h².
        all_seen: whether every row may see every key, the nearest too.

    Returns:
        Whether (‖q‖ + ‖k‖)²/2h² ≤ `DEPTH` for all queries and the key of least norm or, if a row may not see that key,
        all keys; False if a norm is NaN.

    Example:
        >>> far = torch.tensor([[8.0], [8e4]])
        >>> shallow((8.0, 8e4), far, 0.1, True), shallow((8.0, 8e4), far, 0.1, False)
        (True, False)
    """
    steepest = float(scale.max()) if isinstance(scale, Tensor) else scale
    # Nearly always all keys are near enough, and the least norms need not be computed.
    return _above(far[0], far[1], steepest) or (
        all_seen and far[1] == far[1] and _above(far[0], float(of_key.amin(-2).max()), steepest)
    )


def _above(of_query: float, of_key: float, scale: float) -> bool:
    farthest: float = of_query**0.5 + of_key**0.5
    return farthest**2 * scale / 2 <= DEPTH


def tiled(problem: Problem) -> bool:
    """Return whether tiles are faster than PyTorch's fused kernel for the problem that `products` returned."""
    return matmul_tiles.serves(problem) and matmul_tiles.time(problem) < sdpa.cost(problem).time


def run(problem: Problem, call: Call, query: Tensor, key: Tensor, value: Tensor, scale: float | Tensor) -> Result:
    """Compute attention over squared distances as softmax attention over dot products.

    Args:
        problem: the problem that `products` returned.
        call: the call of the distance problem.
        query: (..., Q, F), float32.
        key: (..., K, F), float32.
        value: (..., K, V), float32.
        scale: 1/h²; (..., 1, 1) if it is a tensor.

    Returns:
        The output, and no row state.
    """
    half = key.square().sum(-1, keepdim=True) * -0.5
    augmented = torch.cat([query, query.new_ones(()).expand(*query.shape[:-1], 1)], -1)
    if isinstance(scale, Tensor):
        augmented, scale = augmented * scale, 1.0
    wider = torch.cat([key, half], -1)
    if tiled(problem):
        return Result(matmul_tiles.attend(problem, augmented, wider, value, scale), None)
    call = call._replace(query=augmented, key=wider, value=value)
    return sdpa.attend(problem, call, call.query, call.key, scale, "rowwise")
