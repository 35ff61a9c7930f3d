"""Which way additive attention goes, by factors or by each tanh itself; without Numba, because the planner asks too."""

FEW = 16
"""Taking factors of a row costs as much as this many tanhs of it."""


def few(queries: int, keys: int) -> bool:
    """Say whether each tanh is taken by itself: factors would cost more than they save.

    Args:
        queries, keys: Q and K.

    Returns:
        Whether queries or keys are few.

    Example:
        >>> few(1, 50), few(50, 50)
        (True, False)
    """
    return queries * keys < FEW * (queries + keys)
