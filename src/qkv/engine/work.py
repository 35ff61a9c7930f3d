"""Counts of work that several algorithms share."""

from qkv.engine.problem import Problem


def pairs_of(problem: Problem) -> int:
    """Return the number of (query, key) pairs over all leading dimensions."""
    return problem.rows * problem.queries * problem.keys


def product_operations(problem: Problem) -> int:
    """Return the floating-point operations of scores and weighted values, forward."""
    return 2 * pairs_of(problem) * (problem.width + problem.value_width)


def passes(problem: Problem) -> float:
    """Return how often the two products are computed: 1 forward, 3.5 with a backward pass that recomputes scores."""
    return 3.5 if problem.gradient else 1.0


def memory_traffic(problem: Problem) -> dict[str, float]:
    """Return the numbers read from queries and from keys and values."""
    width = problem.width + problem.value_width
    return {
        "numbers of queries": problem.rows * problem.queries * width,
        "numbers of keys": problem.rows * problem.keys * width,
    }


def is_hidden(problem: Problem) -> bool:
    """Return whether some rows see fewer keys than others."""
    return problem.mask not in ("all", "keys")
