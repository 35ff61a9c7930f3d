"""Squared distances as dot products of operands with one more column, for kernels of a plain softmax.

−‖q−k‖²/2h² = (q·k − ‖k‖²/2)/h² − ‖q‖²/2h², and the last part is the same for every key: softmax forgets it. So softmax
over squared distances, and the Gaussian kernel divided by its sum, which is the same, are softmax over the dot
products of (q, 1)/h² and (k, −‖k‖²/2). Nothing but the rounding differs, as long as

- norms that are alike are small against h, so that nothing cancels: the guard of `qkv.algorithms.rowwise.rowwise`;
- each row has a key whose score is not far below 0: (‖q‖ + ‖k‖)²/2h² ≤ `DEPTH` for one that it may see. Then no row is
  left without weight because all its Gaussians underflow, and no log-sum-exp is so large that its rounding counts. A
  key so far that its own Gaussian is 0 has the weight 0 under softmax as well.
"""

import torch
from torch import Tensor

from qkv.algorithms.sdpa import matmul_tiles, sdpa
from qkv.engine.backend import Result
from qkv.engine.problem import Call, Problem
from qkv.scores.pointwise import GaussianShape, Linear, NegativeHalf

DEPTH = 80.0
"""The largest exponent: e^−87 is the least normal number of float32."""


def products(problem: Problem) -> Problem | None:
    """Say which problem of dot products has the same weights.

    Args:
        problem: of squared distances.

    Returns:
        That problem, in float32; None where there is none that PyTorch's kernel serves.
    """
    mechanism = type(problem.pointwise), problem.normalizer
    if mechanism not in ((NegativeHalf, "softmax"), (GaussianShape, "sum")) or problem.bias != "none" or problem.state:
        return None
    if problem.sink:
        # What softmax forgets, it forgets of scores alone; beside a sink it counts.
        return None
    found = problem._replace(
        core="dot", pointwise=Linear(), normalizer="softmax", width=problem.width + 1, dtype=torch.float32
    )
    return None if sdpa.refuses(found) else found


def shallow(far: tuple[float, float], of_key: Tensor, scale: float | Tensor, all_seen: bool) -> bool:
    """Say whether each row has a key whose score is not far below 0.

    Args:
        far: max‖q‖² and max‖k‖².
        of_key: ‖k‖², (..., K, 1).
        scale: 1/h².
        all_seen: whether every row may see every key, the nearest too.

    Returns:
        Whether (‖q‖ + ‖k‖)²/2h² ≤ `DEPTH` for all queries, and the key of least norm or, where a row may not see that
        one, all keys; False where a norm is NaN.

    Example:
        >>> far = torch.tensor([[8.0], [8e4]])
        >>> shallow((8.0, 8e4), far, 0.1, True), shallow((8.0, 8e4), far, 0.1, False)
        (True, False)
    """
    steepest = float(scale.max()) if isinstance(scale, Tensor) else scale
    # Nearly always all keys are near enough, and the least norms need not be looked for.
    return _above(far[0], far[1], steepest) or (
        all_seen and far[1] == far[1] and _above(far[0], float(of_key.amin(-2).max()), steepest)
    )


def _above(of_query: float, of_key: float, scale: float) -> bool:
    farthest: float = of_query**0.5 + of_key**0.5
    return farthest**2 * scale / 2 <= DEPTH


def tiled(problem: Problem) -> bool:
    """Whether tiles are faster than PyTorch's fused kernel at what `products` gave."""
    return matmul_tiles.serves(problem) and matmul_tiles.time(problem) < sdpa.cost(problem).time


def run(problem: Problem, call: Call, query: Tensor, key: Tensor, value: Tensor, scale: float | Tensor) -> Result:
    """Attend by dot products.

    Args:
        problem: what `products` gave.
        call: of the distances.
        query: (..., Q, F), float32.
        key: (..., K, F), float32.
        value: (..., K, V), float32.
        scale: 1/h²; (..., 1, 1) where it is a tensor.

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
