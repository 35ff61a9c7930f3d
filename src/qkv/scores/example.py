"""An example of each named score, for planning and questions about its kind; the values of its tensors are ones."""

import torch

from qkv.errors import ConfigError
from qkv.scores.base import Score
from qkv.scores.catalog import SCORES


def example(name: str, width: int = 1, dtype: torch.dtype = torch.float32) -> Score:
    """Build a score by name; its tensors are ones.

    Args:
        name: a name in `SCORES`, except one whose class takes a function.
        width: of queries and keys, and of a hidden layer.
        dtype: of the tensors.

    Returns:
        The score.

    Raises:
        ConfigError: the class of the score takes a function.

    Example:
        >>> example("additive", 3)
        Additive(vector=tensor([1., 1., 1.]), query_weight=None, key_weight=None)
    """
    entry = SCORES[name]
    if not entry.only_numbers and not entry.tensors:
        raise ConfigError("score", "a score of numbers and tensors", f'"{name}"', "Pass a function (query, key).")
    tensors = {
        field: torch.ones((width,) * len(letters), dtype=dtype, device="cpu")
        for field, letters in entry.tensors.items()
    }
    return entry.make(**tensors)
