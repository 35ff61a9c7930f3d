"""What text was this: a digest to compare data by."""

from collections.abc import Iterable
from hashlib import sha256

from qkv.data.corpus import Pair


def fingerprint(texts: Iterable[str | Pair]) -> str:
    """Make one short name for a sequence of texts: another text, order or division gives another name.

    Args:
        texts: plain texts, or pairs, whose line numbers do not count.

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
        # Each text is preceded by its length in bytes: no two sequences feed the same bytes.
        for part in (text,) if isinstance(text, str) else (text.source, text.target):
            body = part.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(body))
            digest.update(body)
        digest.update(b"." if isinstance(text, str) else b";")
    return digest.hexdigest()
