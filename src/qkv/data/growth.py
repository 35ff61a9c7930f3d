"""How much longer the rules of a published tokenizer may make a text, computed from the rules alone."""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import tokenizers

from qkv.errors import DataError
from qkv.strict_json import parse_json

_MOST = 288
"""Characters that all rules may make of one. Those of published models make at most about 100, in the worst case, those
of an export of ours 288: normal form, final sigma, lower case, bytes."""
_MOST_ADDED = 1 << 10
"""Special tokens that a template may add to a text."""
_LONGEST_WORD = 1 << 10
"""Characters of a word that WordPiece may look up; it takes quadratic time. Published models say 100."""
_FACTORS = {
    # The longest decompositions: U+0390 and others, and U+FDFA.
    **dict.fromkeys(("NFD", "NFC"), 4),
    **dict.fromkeys(("NFKD", "NFKC"), 18),
    **dict.fromkeys(("Lowercase", "Metaspace"), 2),
    "BertNormalizer": 12,  # a decomposition, between two spaces
    "ByteLevel": 4,  # a character for each byte
    **dict.fromkeys(("WordPiece", "CTC", "BPEDecoder"), 2),  # a space before a piece
}


def expect_modest(tokenizer: tokenizers.Tokenizer, where: str) -> None:
    """Refuse a tokenizer whose rules could make a large text, or much work, of a small one.

    Three replacements of one letter by a thousand, five kilobytes of JSON, make gigabytes of that letter.

    Args:
        tokenizer: as the library understood it: of a file it accepts several spellings.
        where: the file's name in messages.

    Raises:
        DataError: it could; the message says by which part.

    Example:
        >>> made = tokenizers.Tokenizer(tokenizers.models.BPE())
        >>> made.normalizer = tokenizers.normalizers.Replace("a", "a" * 1000)
        >>> expect_modest(made, "tokenizer.json")
        Traceback (most recent call last):
        qkv.errors.DataError: tokenizer.json: expected rules that make at most 288 characters of one; got a normalizer
        that makes up to 1,000. ...
    """
    for parts in (("normalizer", "pre_tokenizer"), ("decoder",)):
        growth = {name: prod(map(_factor, _rules(getattr(tokenizer, name)))) for name in parts}
        if prod(growth.values()) > _MOST:
            name = max(growth, key=lambda name: growth[name])
            expected = f"rules that make at most {_MOST} characters of one"
            raise _refused(where, expected, f"a {name} that makes up to {growth[name]:,}")
    added = sum(map(_added, _rules(tokenizer.post_processor)))
    if added > _MOST_ADDED:
        raise _refused(where, f"at most {_MOST_ADDED:,} special tokens around a text", f"{added:,}")
    word = getattr(tokenizer.model, "max_input_chars_per_word", 0)
    if word > _LONGEST_WORD:
        raise _refused(where, f"words of at most {_LONGEST_WORD:,} characters", f"{word:,}")


def expect_modest_charsmap(charsmap: bytes, where: str) -> None:
    """Refuse compiled rules of SentencePiece that could make a large text of a small one.

    Args:
        charsmap: the rules.
        where: the file's name in messages.

    Raises:
        DataError: they could.
    """
    if (longest := _longest_replacement(charsmap)) > _MOST:
        raise _refused(where, f"rules that make at most {_MOST} characters of one", f"one that makes {longest:,}")


def _rules(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rules of a part, those of sequences one by one."""
    return iter(()) if part is None else _flattened(parse_json(part.__getstate__()))


def _flattened(rule: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if rule["type"] == "Sequence":
        for name in ("normalizers", "pretokenizers", "decoders", "processors"):
            for item in rule.get(name, ()):
                yield from _flattened(item)
    else:
        yield rule


def _factor(rule: Mapping[str, Any]) -> int:
    """Return an upper bound of how many characters a rule makes of one."""
    match rule:
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)} if text:
            return max(1, -(-len(content) // len(text)))
        case {"type": "Replace", "content": str(content)}:
            return 1 + len(content)  # an expression may match between any two characters
        case {"type": "Prepend", "prepend": str(prefix)}:
            return max(1, len(prefix))  # before each part between added tokens, which are a character or more
        case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
            return _longest_replacement(b64decode(charsmap))
    return _FACTORS.get(rule["type"], 1)


def _longest_replacement(charsmap: bytes) -> int:
    """Return the longest text's length in the compiled rules of SentencePiece: after a trie, texts end in zeros."""
    texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")
    return max(1, *map(len, texts))


def _added(rule: Mapping[str, Any]) -> int:
    """Return how many special tokens a template adds to a text."""
    tokens = rule.get("special_tokens", {})
    named = [piece["SpecialToken"]["id"] for piece in rule.get("single", ()) if "SpecialToken" in piece]
    return sum(len(tokens[name]["ids"]) for name in named if name in tokens)


def _refused(where: str, expected: str, got: str) -> DataError:
    return DataError(where, expected, got, "Use the tokenizer of a model from a source that you trust.")
