"""How well a model predicts text."""

import math

from qkv.errors import DataError
from qkv.metrics.figure import Figure


def perplexity(loss: float, tokens: int) -> Figure:
    """Compute the exponential of the mean loss.

    Args:
        loss: the sum over all tokens of the negative log-likelihood, in nats, without label smoothing.
        tokens: number of predicted tokens, `eos` included.

    Returns:
        The figure "perplexity", lower is better; only comparable between models with the same tokens.

    Raises:
        DataError: there are no tokens.

    Example:
        >>> round(perplexity(4 * math.log(10), 4).value, 6)
        10.0
    """
    mean = loss / _counted("tokens", tokens)
    try:
        value = math.exp(mean)
    except OverflowError:
        value = math.inf
    return Figure("perplexity", value, "unit:token", higher_is_better=False)


def bits_per_character(loss: float, characters: int) -> Figure:
    """Compute the loss in bits per character of the text, which is comparable between tokenizers.

    Args:
        loss: the sum over all tokens of the negative log-likelihood, in nats.
        characters: number of characters of the text.

    Returns:
        The figure "bits_per_character", lower is better.

    Raises:
        DataError: there are no characters.

    Example:
        >>> round(bits_per_character(8 * math.log(2), 4).value, 6)
        2.0
    """
    value = loss / math.log(2) / _counted("characters", characters)
    return Figure("bits_per_character", value, "unit:character", higher_is_better=False)


def _counted(name: str, count: int) -> int:
    if count < 1:
        raise DataError(name, "at least 1", str(count), "There is nothing to measure.")
    return count
