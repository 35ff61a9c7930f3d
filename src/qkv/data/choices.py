"""The names that settings of data choose from, and defaults. It imports nothing: commands read it when they start."""

from typing import Literal

TokenizerKind = Literal["bpe", "unigram", "word", "char", "none"]
"""Kinds of tokenizers."""
Form = Literal["none", "NFC", "NFD", "NFKC", "NFKD"]
"""Normal forms of Unicode (Unicode Standard Annex 15); "none" leaves text as it is."""
WindowOrder = Literal["random", "sequential"]
"""Orders of an epoch's windows of a text."""
Elements = Literal["numbers", "words"]
"""What a pointer network points at: numbers or vectors of them, or words."""
Decimal = Literal["point", "comma"]
"""What separates decimals."""
Thousands = Literal["comma", "point", "space", "apostrophe"]
"""What groups thousands."""
Separator = Literal["tab", "semicolon", "comma"]
"""What separates the fields of a table of texts."""
Missing = Literal["refuse", "skip"]
"""What happens to rows that lack a number."""
LineKind = Literal[
    "encoding",
    "columns",
    "empty",
    "invalid",
    "swapped",
    "long",
    "duplicates",
    "identical",
    "ratio",
    "entities",
    "script",
]
"""Kinds of lines that a report on data counts, and that can be left out."""
SHARE, LABELED_SHARE, MOST_HELD_OUT = 20, 10, 1000
"""Held out for validation by default: one example in `SHARE`, one labeled text in `LABELED_SHARE`; 1,000 at most."""
HELD_OUT = f"one in {SHARE}, at most {MOST_HELD_OUT:,}"
"""The same, for help."""
LABELED_HELD_OUT = f"one in {LABELED_SHARE} is held out if not given, at most {MOST_HELD_OUT:,}"
