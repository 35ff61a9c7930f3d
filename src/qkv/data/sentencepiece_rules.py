"""What SentencePiece does to a text before it splits it: compiled rules of characters, and white space."""

import re
import struct
from collections.abc import Sequence
from typing import final

from qkv.data.growth import expect_modest_charsmap
from qkv.errors import DataError

SPACE = "▁"
"""What stands for a space in pieces."""
_LONGEST_RULE = 1 << 10
"""Bytes that a rule may read: in a damaged file, rules can lead in a circle."""
_UNKNOWN_CHARACTER = "\ufffd"


@final
class CharacterRules:
    """Replacements of sequences of characters, the longest first, in the compiled form of SentencePiece.

    The longest sequence is found in the bytes of the text as it stands. (`Precompiled` of the library `tokenizers`
    looks up user-perceived characters first, and single code points then, so that it leaves many decomposed.)

    Args:
        charsmap: a double array of units, and the replacements, each ended by a zero byte; empty for no rules.
        name: the file's name in messages.

    Raises:
        DataError: it is damaged.

    Source: Kudo and Richardson 2018, "SentencePiece", section 3.2; Yata et al. 2007 (double arrays; the layout of
        units is that of Darts-clone).
    """

    __slots__ = ("_name", "_replacements", "_texts", "_units")

    def __init__(self, charsmap: bytes, name: str) -> None:
        """Read compiled rules."""
        self._name = name
        self._units: tuple[int, ...] = ()
        self._replacements, self._texts = b"", dict[int, str]()
        if charsmap:
            size = int.from_bytes(charsmap[:4], "little")
            if size % 4 or not 0 < size < len(charsmap) - 3:
                raise self._damaged(f"{size:,} bytes of rules in {len(charsmap):,}")
            expect_modest_charsmap(charsmap, name)
            self._units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
            self._replacements = charsmap[4 + size :]

    def longest(self, body: bytes, at: int) -> tuple[str, int] | None:
        """Return the replacement of the longest sequence that begins at a byte, and the sequence's bytes.

        Raises:
            DataError: the rules lead nowhere.
        """
        if not self._units:
            return None
        units, result = self._units, None
        try:
            node = _offset(units[0])
            for end in range(at, len(body)):
                node ^= body[end]
                unit = units[node]
                if unit & 0x800000FF != body[end]:
                    break
                if end - at > _LONGEST_RULE:
                    raise self._damaged(f"rules of more than {_LONGEST_RULE:,} bytes")
                node ^= _offset(unit)
                if unit & 0x100:
                    result = units[node] & 0x7FFFFFFF, end + 1 - at
        except IndexError:
            raise self._damaged("rules that lead nowhere") from None
        return None if result is None else (self._text(result[0]), result[1])

    def _text(self, start: int) -> str:
        if start not in self._texts:
            body = self._replacements[start:].partition(b"\0")[0]
            try:
                self._texts[start] = body.decode()
            except UnicodeDecodeError:
                raise self._damaged("a replacement that is not UTF-8") from None
        return self._texts[start]

    def _damaged(self, got: str) -> DataError:
        hint = "Copy the file again from its source."
        return DataError(self._name, "compiled rules of characters", got, hint)


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


@final
class TextRules:
    """What is done to a text before it is split.

    Args:
        characters: compiled rules.
        dummy_prefix: whether a space is added.
        remove_extra: whether spaces at both ends, and spaces after others, are removed.
        escape: whether spaces become "▁".
        suffix: whether the space is added at the end.
        untouched: texts that stay as they are.
    """

    __slots__ = ("_characters", "_dummy_prefix", "_remove_extra", "_space", "_suffix", "_untouched")

    def __init__(
        self,
        characters: CharacterRules,
        *,
        dummy_prefix: bool,
        remove_extra: bool,
        escape: bool,
        suffix: bool = False,
        untouched: Sequence[str] = (),
    ) -> None:
        """Keep the rules."""
        self._characters = characters
        self._dummy_prefix, self._remove_extra, self._suffix = dummy_prefix, remove_extra, suffix
        self._space = SPACE if escape else " "
        longest_first = sorted(untouched, key=len, reverse=True)
        self._untouched = re.compile(b"|".join(re.escape(text.encode()) for text in longest_first) or b"(?!)")

    def normalize(self, text: str) -> tuple[str, list[int]]:
        """Return a text as it is split.

        Args:
            text: any text.

        Returns:
            The text, and for each of its characters, and for its end, the place of the character that it comes from.

        Raises:
            DataError: the compiled rules are damaged.

        Example:
            >>> rules = TextRules(CharacterRules(b"", ""), dummy_prefix=True, remove_extra=True, escape=True)
            >>> rules.normalize(" a  b ")
            ('▁a▁b', [1, 1, 2, 4, 5])
        """
        body, at = text.encode(), 0
        while self._remove_extra and at < len(body):
            prefix, size = self._prefix(body, at)
            if prefix != " ":
                break
            at += size
        if at == len(body):
            return "", [len(text)]
        written, origins = list[str](), list[int]()
        if self._dummy_prefix and not self._suffix:
            written, origins = [self._space], [at]
        after_space = self._remove_extra
        while at < len(body):
            prefix, size = self._prefix(body, at)
            kept = prefix.lstrip(" ") if after_space else prefix
            if kept:
                written += kept.replace(" ", self._space)
                origins += [at] * len(kept)
                after_space = self._remove_extra and kept.endswith(" ")
            at += size
        while self._remove_extra and written and written[-1] == self._space:
            written.pop()
            at = origins.pop()
        if self._dummy_prefix and self._suffix:
            written.append(self._space)
            origins.append(at)
        return "".join(written), _in_characters(text, [*origins, at])

    def _prefix(self, body: bytes, at: int) -> tuple[str, int]:
        """Return what becomes of the text that begins at a byte, and how many bytes it has."""
        if match := self._untouched.match(body, at):
            return match[0].decode(), len(match[0])
        if (replaced := self._characters.longest(body, at)) is not None:
            return replaced
        lead = body[at]
        if 0x80 <= lead < 0xC0:  # rules may end within a character
            return _UNKNOWN_CHARACTER, 1
        size = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
        return body[at : at + size].decode(), size


def _in_characters(text: str, places: Sequence[int]) -> list[int]:
    """Turn places in the bytes of a text into places in its characters."""
    if text.isascii():
        return list(places)
    characters = [index for index, character in enumerate(text) for _ in character.encode()]
    return [*map([*characters, len(text)].__getitem__, places)]
