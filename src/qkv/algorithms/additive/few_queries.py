"""Choose between factored and direct tanh for additive attention; without kernels, because the planner calls it too."""

FEW = 16
"""Computing the factors of a row costs as much as this many tanh evaluations of it."""


def few(queries: int, keys: int) -> bool:
    """Return whether each tanh is computed directly, because factors would cost more than they save.

    Args:
        queries, keys: Q and K.

    Returns:
        True if queries or keys are few.

    Example:
        >>> few(1, 50), few(50, 50)
        (True, False)
    """
    return queries * keys < FEW * (queries + keys)
