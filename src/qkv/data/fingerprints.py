"""Digests for comparing texts."""

from collections.abc import Iterable
from hashlib import sha256

from qkv.data.corpus import Pair


def fingerprint(texts: Iterable[str | Pair]) -> str:
    """Compute a digest of a sequence of texts; any other text, order or division gives another digest.

    Args:
        texts: plain texts, or pairs, whose line numbers are ignored.

    Returns:
        A sha256 in hexadecimal, 64 characters.

    Example:
        >>> len(fingerprint(["ab", "c"]))
        64
        >>> fingerprint(["ab", "c"]) == fingerprint(["a", "bc"])
        False
    """
    digest = sha256()
    for text in texts:
        # Each text is preceded by its length in bytes, so different sequences never hash the same bytes.
        for part in (text,) if isinstance(text, str) else (text.source, text.target):
            body = part.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(body))
            digest.update(body)
        digest.update(b"." if isinstance(text, str) else b";")
    return digest.hexdigest()
