"""Which installed fonts can draw a text, determined before drawing, so that no glyph is missing."""

import logging
from collections.abc import Iterable, Sequence
from functools import cache

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

BASE = "DejaVu Sans"  # ships with matplotlib
_MISSING = "▯"
_UNSEEN = frozenset("\u200c\u200d\ufe0e\ufe0f")  # these only shape their neighbors: dropped if no font has them
_UPRIGHT = (400, "normal", "regular", "book")  # matplotlib warns about font families without it
_NOT_FOR_TEXT = ("Last Resort", "STIXSize", "STIXNonUnicode", "cm")


def drawable(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the fonts for some labels; characters that no installed font has become ▯.

    Args:
        names: the labels.

    Returns:
        The drawable labels, and the font families in order of preference.

    Example:
        >>> drawable(["Hund", "dog"])
        (('Hund', 'dog'), ('DejaVu Sans',))
    """
    characters = sorted({character for name in names for character in name})
    homes = {character: _home(character) for character in characters}
    table = {ord(c): "" if c in _UNSEEN else _MISSING for c, home in homes.items() if home is None}
    families = dict.fromkeys([BASE, *filter(None, homes.values())])
    return tuple(name.translate(table) or _MISSING for name in names), tuple(families)


@cache
def _home(character: str) -> str | None:
    code = ord(character)
    return next((family for family, font in _fonts() if font.get_char_index(code)), None)


@cache
def _fonts() -> tuple[tuple[str, FT2Font], ...]:
    return tuple((family, font) for family in _families() if (font := _opened(family)) is not None)


def _families() -> Iterable[str]:
    entries = font_manager.fontManager.ttflist
    installed = sorted({e.name for e in entries if e.style == "normal" and e.weight in _UPRIGHT})
    sans_first = sorted(installed, key=lambda name: "Sans" not in name)
    return dict.fromkeys([BASE, *(name for name in sans_first if not name.startswith(_NOT_FOR_TEXT))])


def _opened(family: str) -> FT2Font | None:
    try:
        font = FT2Font(font_manager.findfont(family, fallback_to_default=False))
    except (OSError, RuntimeError, ValueError) as error:  # a broken or vanished font file is not our problem
        logging.getLogger(__name__).debug("font %s cannot be used: %s", family, error)
        return None
    return font if font.scalable else None  # color emoji are bitmaps, which matplotlib cannot draw
