"""Texts longer than a model reads are refused."""

from qkv.data.tokenizer import Tokenizer
from qkv.errors import DataError, setting


def expect_length(name: str, tokens: int, longest: int, tokenizer: Tokenizer) -> None:
    """Refuse a text of too many tokens, with a hint that fits where the model comes from.

    Args:
        name: of the text.
        tokens: how many it has.
        longest: how many the model reads.
        tokenizer: the model's; a published one comes with a model whose limit no training changes.

    Raises:
        DataError: the text is too long.

    Example:
        >>> expect_length("line 3", 5, 4, Tokenizer.learn(["abc"], kind="char"))
        Traceback (most recent call last):
        qkv.errors.DataError: line 3: expected at most 4 tokens; got 5. Shorten or split it, or train with longest=5.
    """
    if tokens > longest:
        retrain = f", or train with {setting('longest', f'{tokens}')}" if tokenizer.published is None else ""
        raise DataError(name, f"at most {longest} tokens", f"{tokens}", f"Shorten or split it{retrain}.")
