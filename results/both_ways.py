"""Pairs with targets from right to left, and models of both directions as one translator."""

from collections.abc import Sequence

from qkv.data.corpus import Pair
from qkv.tasks.decoding import Decoding
from qkv.tasks.translator import Translation, Translator


def turn(text: str) -> str:
    """Reverse the words of a text.

    Example:
        >>> turn("a b c")
        'c b a'
    """
    return " ".join(reversed(text.split()))


def turned(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs with reversed targets."""
    return [Pair(pair.source, turn(pair.target), pair.line) for pair in pairs]


def translate(ahead: Translator, back: Translator, lines: Sequence[str], beam: int) -> list[Translation]:
    """Translate lines with models that write left to right and models trained on reversed targets.

    Args:
        ahead: one or more models that write left to right.
        back: one or more models that write right to left.
        lines: sources.
        beam: number of translations that each side proposes.

    Returns:
        For each line the proposal with the largest mean of both sides' log-probabilities, words in normal order.
    """
    others = (*ahead.models[1:], *back.models)
    directions = [False] * len(ahead.models) + [True] * len(back.models)
    both = Translator(ahead.model, ahead.tokenizer, ahead.longest, others, back=directions)
    return both.translate_fully(lines, Decoding(beam, length_penalty=0.0, mean="log_probability"))
