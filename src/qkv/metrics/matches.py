"""How often an answer is exactly right."""

from collections.abc import Sequence

from qkv.metrics.figure import Figure


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Figure:
    """The share of lines that equal their reference, 0 to 1.

    Args:
        hypotheses: one line for each reference.
        references: what is right.

    Returns:
        The figure.

    Example:
        >>> exact_match(["a", "b"], ["a", "c"]).value
        0.5
    """
    same = sum(ours == theirs for ours, theirs in zip(hypotheses, references, strict=True))
    return Figure("exact_match", same / max(1, len(references)), "share of lines equal to the reference")
