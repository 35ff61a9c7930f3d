"""Error rates by insertions, deletions and substitutions."""

from collections.abc import Hashable, Sequence

from qkv.data.words import split_words
from qkv.errors import DataError
from qkv.metrics.figure import Figure, require_same_length


def word_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> Figure:
    """Compute edits of words per reference word, over all texts together.

    Args:
        hypotheses: one text per item; words are separated by white space other than no-break spaces.
        references: one text per item.

    Returns:
        The figure "word_error_rate" in percent, lower is better; it can exceed 100.

    Raises:
        DataError: the numbers of texts differ, or there is no reference word.

    Example:
        >>> word_error_rate(["the cat sat"], ["the cat sat down"]).value
        25.0
    """
    value = _rate(list(map(split_words, hypotheses)), list(map(split_words, references)))
    return Figure("word_error_rate", value, "unit:word|case:mixed|average:corpus", higher_is_better=False)


def character_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> Figure:
    """Compute edits of characters per reference character, over all texts together.

    Args:
        hypotheses: one text per item.
        references: one text per item.

    Returns:
        The figure "character_error_rate" in percent, lower is better.

    Raises:
        DataError: the numbers of texts differ, or there is no reference character.

    Example:
        >>> round(character_error_rate(["kitten"], ["sitting"]).value, 2)
        42.86
    """
    value = _rate(hypotheses, references)
    return Figure("character_error_rate", value, "unit:character|case:mixed|average:corpus", higher_is_better=False)


def token_error_rate(hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]) -> Figure:
    """Compute edits of tokens, phonemes for example, per reference token, over all sequences together.

    Args:
        hypotheses: one sequence per item.
        references: one sequence per item.

    Returns:
        The figure "token_error_rate" in percent, lower is better.

    Raises:
        DataError: the numbers of sequences differ, or there is no reference token.

    Example:
        >>> token_error_rate([["k", "æ"]], [["k", "æ", "t", "s"]]).value
        50.0
    """
    return Figure("token_error_rate", _rate(hypotheses, references), "unit:token|average:corpus", False)


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Count the minimum number of insertions, deletions and substitutions that turn one sequence into the other.

    A column of the distance table is one integer whose bits encode where the distance rises and falls from one row to
    the next, so a column costs a few operations on integers with as many bits as `left` has elements.

    Args:
        left: a sequence.
        right: another one.

    Returns:
        The count.

    Source: Levenshtein 1966; Hyyrö 2003, "A Bit-Vector Algorithm for Computing Levenshtein and Damerau Edit
        Distances", figure 3 (after Myers 1999).

    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    if not left:
        return len(right)
    all_bits, last_bit = (1 << len(left)) - 1, 1 << (len(left) - 1)
    positions_of: dict[Hashable, int] = {}  # bit i is set if element i of `left` equals the key
    for index, element in enumerate(left):
        positions_of[element] = positions_of.get(element, 0) | 1 << index
    rises, falls, distance = all_bits, 0, len(left)
    for element in right:
        same = positions_of.get(element, 0)
        diagonal = (((same & rises) + rises) ^ rises) | same | falls
        increases, decreases = falls | (all_bits & ~(diagonal | rises)), diagonal & rises
        distance += 1 if increases & last_bit else -1 if decreases & last_bit else 0
        increases, decreases = (increases << 1 | 1) & all_bits, (decreases << 1) & all_bits
        rises, falls = decreases | (all_bits & ~(diagonal | increases)), increases & diagonal
    return distance


def _rate(hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]) -> float:
    require_same_length(hypotheses, references)
    length = sum(map(len, references))
    if not length:
        hint = "An error rate is relative to the number of reference tokens."
        raise DataError("references", "at least one token in total", "only empty ones", hint)
    edits = sum(edit_distance(h, r) for h, r in zip(hypotheses, references, strict=True))
    return 100 * edits / length
