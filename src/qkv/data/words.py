"""What separates words: one rule for tokenizers, tagged and aligned words, elements, and error rates."""

import re

NO_BREAK = "\u00a0\u2007\u202f"
"""White space that belongs to the word around it, as in "10 km": no line breaks there (Unicode Annex #14, class GL)."""
SEPARATORS = "".join(character for character in map(chr, range(0x3001)) if character.isspace()).translate(
    dict.fromkeys(map(ord, NO_BREAK))
)
"""All other white space. Zero-width characters are no white space, and separate nothing."""
_WORD = re.compile(f"[^{SEPARATORS}]+")


def split_words(text: str) -> list[str]:
    r"""Split a text at white space, except at no-break spaces.

    Example:
        >>> split_words(" 10\u00a0km\tto\u3000Ulm\n")
        ['10\xa0km', 'to', 'Ulm']
    """
    return _WORD.findall(text)
