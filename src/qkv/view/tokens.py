"""Readable labels for any token."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

JOINERS = "\u200c\u200d"
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180e\u2800\u3164\uffa0")
_STARTS, _UNKNOWN = ("▁", "Ġ"), "<unk>"
_PICTURES = {"\n": "↵", "\t": "⇥"}
_MOST_MARKS = 6
_LONGEST = 200
"""The most characters of a token that its label shows: browsers need seconds to lay out a line of 100,000."""
_OUTSIDE = re.compile(r"</?s>|<(?:bos|eos|pad)>|\[(?:CLS|SEP|PAD)\]")
_BYTES = re.compile("(?:<[0-9A-F]{2}>)+")


def label(token: str) -> str:
    """Convert a token to a label that is visible and harmless anywhere.

    Spaces become ␣, line ends ↵, tabs ⇥. Anything else that is invisible or reorders text (controls, right-to-left
    overrides, lone surrogates, non-characters) becomes its code point, so that no token looks empty. A combining mark
    without a letter gets a dotted circle. Letters of every script, and emoji, are unchanged.

    Args:
        token: any string.

    Returns:
        The label, never empty, without controls, surrogates or bidirectional overrides.

    Example:
        >>> label("Hund"), label("\\n"), label("\\u202eevil"), label("")
        ('Hund', '↵', '‹U+202E›evil', '∅')
    """
    if not token:
        return "∅"
    if token.isascii() and token.isprintable():
        return token.replace(" ", "␣")
    if not token.strip(JOINERS):
        return "".join(map(_code, token))
    return _with_mark_bases("".join(map(_visible, token)))


def labels(tokens: Sequence[str], indices: Iterable[int] | None = None) -> tuple[str, ...]:
    """Convert the tokens of a sequence to labels.

    Tokenizers that mark the start of a word with "▁" or "Ġ" show words as they are written; the other pieces of a word
    begin with "·". The first word of a text is a start without a mark. Of a token only the first 200 characters are
    shown.

    Args:
        tokens: all tokens of the sequence.
        indices: those to convert; None for all.

    Returns:
        One label per token, as from `label`.

    Example:
        >>> labels(("▁A", "▁mead", "ow", "▁", "<eos>")), labels(("m", "▁")), labels(("a", "Ġdog"))
        (('A', 'mead', '·ow', '␣', '<eos>'), ('m', '␣'), ('a', 'dog'))
    """
    start = _word_start_mark(tokens)
    first = next((index for index, token in enumerate(tokens) if token and not _OUTSIDE.fullmatch(token)), 0)
    selected = range(len(tokens)) if indices is None else indices
    return tuple(_word_piece_label(_cut(tokens[index]), start, first=index == first) for index in selected)


def _word_start_mark(tokens: Sequence[str]) -> str:
    """Return the character that marks the start of a word in these tokens; "" if there is none."""
    return next((mark for mark in _STARTS if any(len(token) > 1 and token.startswith(mark) for token in tokens)), "")


def _cut(token: str) -> str:
    return token if len(token) <= _LONGEST else f"{token[:_LONGEST]}…"


def _word_piece_label(token: str, start: str, *, first: bool) -> str:
    if not token or token == _UNKNOWN or _OUTSIDE.fullmatch(token):
        return label(token)
    bare = token.lstrip(start or "▁")
    spaces = "␣" * (len(token) - len(bare))
    if not bare:
        return spaces
    if not start:
        return label(token)
    if spaces:
        return spaces[1:] + label(bare)
    return f"·{label(token)}" if token[0].isalnum() and not first else label(token)


def sentence(tokens: tuple[str, ...]) -> str:
    """Join tokens to one readable line.

    Args:
        tokens: the tokens of one side; word boundaries are marked by "▁" or "Ġ", or are between any two tokens unless
            all are single characters.

    Returns:
        The line, without tokens that are not text, such as `<eos>`; controls are shown as in `label`, spaces are kept.

    Example:
        >>> sentence(("▁ein", "▁H", "<C3>", "<BC>", "nd", "<eos>")), sentence(("3", " ", "M", "a", "y"))
        ('ein Hünd', '3 May')
    """
    words = [token for token in tokens if not _OUTSIDE.fullmatch(token)]
    marked = any(word.startswith(("▁", "Ġ")) for word in words)
    glue = "" if marked or all(len(word) == 1 or word == "<unk>" for word in words) else " "
    text = glue.join(words)
    if marked:
        text = _BYTES.sub(_decoded, re.sub("[▁Ġ]", " ", text))
    return " ".join(label(word) for word in text.split(" ") if word) or "∅"


def _decoded(pieces: re.Match[str]) -> str:
    return bytes.fromhex(re.sub("[<>]", "", pieces[0])).decode("utf-8", "replace")


def _visible(character: str) -> str:
    code = ord(character)
    if character in _PICTURES:
        return _PICTURES[character]
    if character in JOINERS or 0xE0020 <= code <= 0xE007F:  # they shape Persian, Indic scripts, emoji and flags
        return character
    match unicodedata.category(character):
        case "Zs":
            return "␣"
        case "Cc" | "Cf" | "Cs" | "Zl" | "Zp":
            return _code(character)
    return _code(character) if character in _INVISIBLE or _is_noncharacter(code) else character


def _code(character: str) -> str:
    return f"‹U+{ord(character):04X}›"


def _is_noncharacter(code: int) -> bool:
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) in {"Mn", "Me", "Mc"}


def _with_mark_bases(text: str) -> str:
    """Attach combining marks to a letter, and cut stacks of them that would reach into neighboring rows."""
    out, height = [], 0
    for character in text:
        height = height + 1 if _is_mark(character) else 0
        if height <= _MOST_MARKS:
            out.append(character)
        elif height == _MOST_MARKS + 1:
            out.append("…")
    return ("◌" if _is_mark(text[0]) else "") + "".join(out)
