"""What a prepared corpus consists of: the settings it was made with, and size and sha256 of each file.

FOLDER/MANIFEST.json       this list, with a digest of itself
FOLDER/tokenizer.json      the tokenizer
FOLDER/valid.ids, .jsonl   what was held out: the tokens of a text, or pairs
FOLDER/shard-00000.ids     tokens, unsigned integers of 2 or 4 bytes, little-endian
FOLDER/shard-00000.pairs   of pairs also where each one is: four integers of 4 bytes, see `INDEX`
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any, Literal, cast, final, get_args

from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode, is_version
from qkv.checkpoint.manifest import StoredFile
from qkv.errors import CheckpointError, DataError, Place

NAME, TOKENIZER, VALID_TEXT, VALID_PAIRS = "MANIFEST.json", "tokenizer.json", "valid.ids", "valid.jsonl"
FORMAT, VERSION = "qkv prepared corpus", 1
LIMIT = 1 << 28
"""Maximum bytes of a manifest."""
CorpusKind = Literal["text", "pairs"]
INDEX = ("start", "source", "target", "line")
"""Of a pair: where its tokens start, how many those of its source and of its target are, its line in the shard."""
AGAIN = "Run the command again that prepared it: it makes damaged parts again."
_MOST = 2**53


@final
@dataclass(frozen=True)
class Shard:
    """A part of a corpus.

    Args:
        tokens: how many tokens it has.
        unknown: how many of them are unknown.
        targets: of pairs, how many of them are targets.
        pairs: how many pairs it has; 0 for text.
        left_out: how many pairs were left out, since they are too long.
        widest: the most tokens of a source, or of a target with its begin and end.
        characters: of text, in all tokens but the first.
        line: number of its first line, counted over all files.
        ids: the file of its tokens.
        index: the file that says where its pairs are; None for text.
    """

    tokens: int
    unknown: int
    targets: int
    pairs: int
    left_out: int
    widest: int
    characters: int
    line: int
    ids: StoredFile
    index: StoredFile | None = None

    def to_json_value(self) -> dict[str, JsonValue]:
        """Convert to names and numbers."""
        numbers: dict[str, JsonValue] = {name: getattr(self, name) for name in _NUMBERS}
        files = {"ids": self.ids, "index": self.index}
        return numbers | {name: file.to_json_value() for name, file in files.items() if file is not None}

    @classmethod
    def from_json_value(cls, value: object, path: str) -> "Shard":
        """Check what `to_json_value` returned.

        Raises:
            DataError: it could not have.
        """
        if not isinstance(value, Mapping) or set(value) - {"index"} != {*_NUMBERS, "ids"}:
            raise _refused(path, f"a shard with {', '.join(_NUMBERS)} and ids", repr(value)[:160])
        numbers = {name: _number(value[name], path) for name in _NUMBERS}
        return cls(
            **numbers,
            ids=_file(value["ids"], path),
            index=_file(value["index"], path) if "index" in value else None,
        )


_NUMBERS = tuple(shard_field.name for shard_field in fields(Shard) if shard_field.type is int)


@final
@dataclass(frozen=True)
class CorpusManifest:
    """The list of a corpus's files.

    Args:
        kind: text, or pairs of texts.
        documents: whether each text ends with the end token.
        work: what it was made from: settings and inputs.
        tokenizer: the file of the tokenizer.
        valid: what was held out: a shard of text, or the file of pairs.
        width: the bytes of each token.
        shards: its parts.
    """

    kind: CorpusKind
    documents: bool
    work: Mapping[str, JsonValue]
    tokenizer: StoredFile
    valid: Shard | StoredFile
    width: int
    shards: tuple[Shard, ...]

    @property
    def digest(self) -> str:
        """One sha256 that covers every byte of the corpus, in hexadecimal."""
        return sha256(encode(self._body(), NAME)).hexdigest()

    def to_bytes(self) -> bytes:
        """Serialize the list; the same list always gives the same bytes."""
        return encode(self._body() | {"digest": self.digest}, NAME)

    def files(self) -> dict[str, StoredFile]:
        """Return size and sha256 of every file by its name."""
        files = {TOKENIZER: self.tokenizer}
        if isinstance(self.valid, Shard):
            files[VALID_TEXT] = self.valid.ids
        else:
            files[VALID_PAIRS] = self.valid
        for number, shard in enumerate(self.shards):
            files |= files_of(number, shard)
        return files

    def _body(self) -> dict[str, JsonValue]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "documents": self.documents,
            "work": self.work,
            "tokenizer": self.tokenizer.to_json_value(),
            "valid": self.valid.to_json_value(),
            "width": self.width,
            "shards": [shard.to_json_value() for shard in self.shards],
        }


def ids_name(number: int) -> str:
    """Return the name of the file of a shard's tokens.

    Example:
        >>> ids_name(7)
        'shard-00007.ids'
    """
    return f"shard-{number:05d}.ids"


def index_name(number: int) -> str:
    """Return the name of the file that says where a shard's pairs are."""
    return f"shard-{number:05d}.pairs"


def files_of(number: int, shard: Shard) -> dict[str, StoredFile]:
    """Return size and sha256 of the files of a shard by name."""
    return {ids_name(number): shard.ids} | ({} if shard.index is None else {index_name(number): shard.index})


def parse(data: bytes, path: str) -> CorpusManifest:
    """Parse and check the list of a corpus's files.

    Args:
        data: at most `LIMIT` bytes.
        path: its name in messages.

    Raises:
        DataError: any byte of it was altered, or a newer qkv wrote it.
    """
    try:
        value = decode_mapping(data, path)
    except CheckpointError as error:
        raise DataError(*error.args[:3], AGAIN) from None
    if value.get("format") != FORMAT or not is_version(value.get("version"), VERSION):
        got = f"{value.get('format')!r}, {value.get('version')!r}"[:80]
        hint = "Use the version of qkv that prepared it, or a newer one."
        raise DataError(Place(path), f'"format": "{FORMAT}", "version": {VERSION}', got, hint)
    manifest = _built(value, path)
    if manifest.to_bytes() != data:
        raise _refused(path, f"the digest {manifest.digest[:16]}…", "altered content")
    return manifest


def _built(value: Mapping[str, Any], path: str) -> CorpusManifest:
    kind, documents, work, width = (value.get(name) for name in ("kind", "documents", "work", "width"))
    if (
        not isinstance(kind, str)
        or kind not in get_args(CorpusKind)
        or not isinstance(documents, bool)
        or not isinstance(work, Mapping)
    ):
        raise _refused(path, "documents and work", f"{documents!r}, {work!r}"[:80])
    if type(width) is not int or width not in (2, 4):
        raise _refused(path, "tokens of 2 or 4 bytes", repr(width)[:80])
    listed, valid = value.get("shards"), value.get("valid")
    if not isinstance(listed, list):
        raise _refused(path, "a list of shards", type(listed).__name__)
    shards = tuple(Shard.from_json_value(item, path) for item in listed)
    for shard in shards:
        _expect_sizes(shard, kind, width, path)
    held_out = Shard.from_json_value(valid, path) if kind == "text" else _file(valid, path)
    if isinstance(held_out, Shard):
        _expect_sizes(held_out, kind, width, path)
    return CorpusManifest(
        cast("CorpusKind", kind), documents, work, _file(value.get("tokenizer"), path), held_out, width, shards
    )


def _expect_sizes(shard: Shard, kind: str, width: int, path: str) -> None:
    row = len(INDEX) * 4
    index = None if shard.index is None else shard.index.bytes
    if shard.ids.bytes != shard.tokens * width or index != (shard.pairs * row if kind == "pairs" else None):
        raise _refused(path, f"files of {shard.tokens:,} tokens and {shard.pairs:,} pairs", "others")


def _file(value: object, path: str) -> StoredFile:
    file = StoredFile.from_json_value(value)
    if file is None:
        raise _refused(path, "size and sha256 of a file", repr(value)[:160])
    return file


def _number(value: object, path: str) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise _refused(path, "integers that are not negative", repr(value)[:80])
    return value


def _refused(path: str, expected: str, got: str) -> DataError:
    return DataError(Place(path), expected, got, AGAIN)
