"""Counts of work that several algorithms share."""

import torch

from qkv.engine.problem import Problem
from qkv.engine.ties import FEW

IN_CACHE = 1 << 22
"""How many numbers of queries, keys and values stay in the cache from one operation to the next: 16 MiB in float32."""


def pairs_of(problem: Problem) -> int:
    """Return the number of (query, key) pairs over all leading dimensions."""
    return problem.rows * problem.queries * problem.keys


def product_operations(problem: Problem) -> int:
    """Return the floating-point operations of the scores and the weighted sums of values, forward."""
    return 2 * pairs_of(problem) * (problem.width + problem.value_width)


def full_tensor(problem: Problem) -> int:
    """Return how many numbers the equation holds at once: one per pair, or one per pair and hidden feature."""
    return pairs_of(problem) * (problem.width if problem.core in ("tanh_sum", "distance") else 1)


DIFFERENCES = 1 << 16
"""How many numbers a tensor of differences may have to be faster than products, forward and backward."""


def distances_by_products(problem: Problem) -> bool:
    """Return whether a full matrix of distances is made from products in float64, unless points are too far apart."""
    return (
        problem.core == "distance"
        and problem.mode == "eager"
        and problem.dtype != torch.float64
        and problem.device == "cpu"
        and full_tensor(problem) > DIFFERENCES
    )


def matrix_numbers(problem: Problem) -> int:
    """Return how many numbers the full matrix holds at once, where the values of a call allow products."""
    return pairs_of(problem) if distances_by_products(problem) else full_tensor(problem)


def passes(problem: Problem) -> float:
    """Return how often the two products are computed: 1 forward, 3.5 with a backward pass that recomputes scores."""
    return 3.5 if problem.gradient else 1.0


def memory_traffic(problem: Problem) -> dict[str, float]:
    """Return the numbers read from queries and from keys and values, by whether they stay in the cache."""
    width, where = problem.width + problem.value_width, _where(problem)
    return {
        f"numbers of queries {where}": problem.rows * problem.queries * width,
        f"numbers of keys {where}": problem.rows // problem.repeats * problem.keys * width,
    }


def normalizing(problem: Problem, rule: str) -> dict[str, float]:
    """Count the work on the score matrix between the two matrix products: bias, normalizer and dropout.

    Args:
        problem: the problem.
        rule: the name of its normalizer in the counts.
    """
    pairs = pairs_of(problem)
    return {
        "biased pairs": pairs if problem.bias != "none" else 0,
        f"calls of {rule}": 1,
        f"pairs of {rule}": pairs,
        f"pairs of {rule} in float64": pairs if problem.dtype.itemsize == 8 else 0,
        "calls with dropout": 1 if problem.dropout else 0,
        "pairs dropped": pairs if problem.dropout else 0,
        **comparing(problem),
    }


def comparing(problem: Problem) -> dict[str, float]:
    """Count the keys that are sorted to find equal ones: under `hard`, a tie goes to the first key."""
    keys = problem.rows * problem.keys
    return {"keys compared": keys} if problem.normalizer == "hard" and keys > FEW else {}


def reading_once(problem: Problem) -> dict[str, float]:
    """Count the key elements that are read for a single query, a product that memory bandwidth limits."""
    if problem.queries != 1:
        return {}
    wide = " in float64" if problem.dtype.itemsize == 8 or distances_by_products(problem) else ""
    return {f"numbers of keys for one query{wide}": problem.rows * problem.keys * problem.width}


def spreading(problem: Problem) -> dict[str, float]:
    """Count the key and value elements that PyTorch's matmul copies for each query head of a group."""
    numbers = problem.rows * problem.keys * (problem.width + problem.value_width)
    return {"numbers of keys copied to heads": numbers} if problem.repeats > 1 else {}


def preparing(problem: Problem) -> dict[str, float]:
    """Count the operations that project or normalize queries and keys before the core."""
    if problem.mapped == "none":
        return {}
    how, rows = f"{problem.mapped} of {problem.core}", problem.rows * (problem.queries + problem.keys)
    columns = 1 if problem.mapped == "norms" or problem.core == "relu_sum" else problem.width
    return {f"calls mapped by {how}": 1, f"operations mapped by {how}": rows * problem.width * columns}


def zeroing(problem: Problem) -> dict[str, float]:
    """Return the numbers of keys and values that are written anew, to zero those that no query may see."""
    if problem.mask == "all" or (problem.mask == "causal" and problem.keys <= problem.queries):
        return {}
    numbers = problem.rows * problem.keys * (problem.width + problem.value_width)
    return {"calls that zero keys": 1, f"numbers of keys zeroed {_where(problem)}": numbers}


def _where(problem: Problem) -> str:
    numbers = problem.rows * (problem.queries + problem.keys) * (problem.width + problem.value_width)
    return "in memory" if numbers > IN_CACHE else "in cache"


def is_hidden(problem: Problem) -> bool:
    """Return whether some rows see fewer keys than others."""
    return problem.mask not in ("all", "keys")
