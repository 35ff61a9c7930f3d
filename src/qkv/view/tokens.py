"""Tokens as labels: what can be read, whatever the token holds."""

import re
import unicodedata

JOINERS = "\u200c\u200d"
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180e\u2800\u3164\uffa0")
_PICTURES = {"\n": "↵", "\t": "⇥"}
_MOST_MARKS = 6
_OUTSIDE = re.compile(r"</?s>|<(?:bos|eos|pad)>|\[(?:CLS|SEP|PAD)\]")
_BYTES = re.compile("(?:<[0-9A-F]{2}>)+")


def label(token: str) -> str:
    """Turn a token into a label that can be read on any surface and does nothing there.

    Spaces become ␣, line ends ↵, tabs ⇥, and whatever else is invisible or reorders text (controls, right-to-left
    overrides, lone surrogates, non-characters) its code point, so that no token looks like nothing. A mark without a
    letter gets a dotted circle to stand on. Letters of every script, and emoji, stay as they are.

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
    return _grounded("".join(map(_visible, token)))


def sentence(tokens: tuple[str, ...]) -> str:
    """Join tokens into one line that a person recognizes the sentence by.

    Args:
        tokens: the tokens of one side; a word boundary is marked by "▁" or "Ġ", or stands between any two tokens
            unless all are single characters.

    Returns:
        The line without tokens that stand outside of the text, such as `<eos>`; controls are made visible as in
        `label`, spaces stay.

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


def _grounded(text: str) -> str:
    """Stand marks on a letter, and cut towers of them that would reach into the neighboring rows."""
    out, height = [], 0
    for character in text:
        height = height + 1 if _is_mark(character) else 0
        if height <= _MOST_MARKS:
            out.append(character)
        elif height == _MOST_MARKS + 1:
            out.append("…")
    return ("◌" if _is_mark(text[0]) else "") + "".join(out)
