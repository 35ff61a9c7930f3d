"""Find text that a program damaged by reading bytes in another encoding than they were written in."""

from collections.abc import Collection, Iterable, Iterator

from qkv.errors import brief

_REPLACEMENT = "\ufffd"
_BYTES = {
    ord(bytes([byte]).decode("cp1252")): byte for byte in range(0x80, 0xA0) if byte not in b"\x81\x8d\x8f\x90\x9d"
}
"""The bytes of the characters that Windows-1252 has where ISO-8859-1 has control characters; five have none."""


def repaired(text: str) -> str | None:
    """Decode UTF-8 that a program decoded as Windows-1252 or ISO-8859-1; None for text that was decoded correctly.

    Misread text becomes valid UTF-8 if it is encoded in the same way again. Other text beyond ASCII hardly ever does:
    every accented letter would have to be followed by a sign such as ¤ or ©.

    Example:
        >>> repaired("grÃ¶ÃŸer"), repaired("größer"), repaired("larger")
        ('größer', None, None)
    """
    if text.isascii():
        return None
    try:
        return text.translate(_BYTES).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return None


def damage_messages(texts: Iterable[tuple[int, str]]) -> Iterator[str]:
    r"""Say which lines hold U+FFFD, and which hold UTF-8 that was read in another encoding.

    Args:
        texts: texts with the numbers of their lines.

    Returns:
        A message for each kind of damage.

    Example:
        >>> for message in damage_messages([(1, "klein"), (2, "grÃ¶ÃŸer"), (3, "Stra\ufffde"), (4, "schÃ¶n")]):
        ...     print(message)
        U+FFFD in line 3: a program wrote it for bytes that it could not read. Make the file again from its source.
        UTF-8 seems to be read in another encoding in line 2 and in 1 more: "grÃ¶ÃŸer" for "größer".
    """
    lost, misread = set[int](), dict[int, tuple[str, str]]()
    for line, text in texts:
        if _REPLACEMENT in text:
            lost.add(line)
        elif (original := repaired(text)) is not None:
            misread.setdefault(line, (text, original))
    if lost:
        reason = "a program wrote it for bytes that it could not read. Make the file again from its source."
        yield f"U+FFFD in {_lines(lost)}: {reason}"
    if misread:
        text, original = misread[min(misread)]
        where = _lines(misread)
        yield f'UTF-8 seems to be read in another encoding in {where}: "{brief(text)}" for "{brief(original)}".'


def _lines(numbers: Collection[int]) -> str:
    first = f"line {min(numbers):,}"
    return first if len(numbers) == 1 else f"{first} and in {len(numbers) - 1:,} more"
