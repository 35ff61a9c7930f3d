"""A prepared corpus that is open for reading: every byte is checked before it is used."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from qkv.checkpoint.manifest import StoredFile
from qkv.data.corpus import Pair
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.files import absolute, map_file, read_file
from qkv.settings import merge
from qkv.strict_json import parse_json
from qkv.tasks.corpora.manifest import (
    AGAIN,
    INDEX,
    LIMIT,
    NAME,
    TOKENIZER,
    VALID_PAIRS,
    CorpusKind,
    CorpusManifest,
    ids_name,
    index_name,
    parse,
)
from qkv.tasks.notes import counted, working
from qkv.tasks.settings import TaskSettings

_LARGEST_TOKENIZER = 1 << 28
_SHARED = ("longest",)
"""Settings of data that preparation and training share."""


@final
@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared corpus.

    Args:
        folder: its folder.
        manifest: the list of its files.
        tokenizer: the tokenizer that its tokens are of.
    """

    folder: Path
    manifest: CorpusManifest
    tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: Path, kind: CorpusKind) -> "PreparedCorpus":
        """Open a corpus. Its tokens are not read yet.

        Args:
            folder: what `qkv prepare` wrote.
            kind: text or pairs.

        Raises:
            DataError: there is none, it is incomplete or damaged, or of the other kind.
        """
        folder = absolute(folder)
        manifest = read_manifest(folder)
        if manifest.kind != kind:
            hint = {"text": "Prepare it without pairs.", "pairs": "Prepare it with " + setting("pairs") + "."}[kind]
            raise DataError(Place(folder), f"a prepared corpus of {kind}", f"one of {manifest.kind}", hint)
        data = read_part(folder, TOKENIZER, _LARGEST_TOKENIZER)
        expect_sum(folder / TOKENIZER, manifest.tokenizer)
        try:
            tokenizer = Tokenizer.from_json(data.decode())
        except (DataError, UnicodeDecodeError) as error:
            raise DataError(Place(folder / TOKENIZER), "a tokenizer", str(error)[:200], AGAIN) from None
        if max(tokenizer.size, tokenizer.source.size) > 1 << 8 * manifest.width:
            got = f"{tokenizer.size:,} tokens of {manifest.width} bytes"
            raise DataError(Place(folder / NAME), "a byte width that suits the tokenizer", got, AGAIN)
        return cls(folder, manifest, tokenizer)

    def verify(self) -> None:
        """Compare every file with its sha256.

        Raises:
            DataError: one was altered; the message names it.
        """
        files = list(self.manifest.files().items())
        for ((name, entry),) in counted([[item] for item in files]):
            expect_sum(self.folder / name, entry)

    def ids(self, number: int) -> NDArray[Any]:
        """Return the tokens of a shard as a memory-mapped array."""
        entry = self.manifest.shards[number].ids
        return mapped(self.folder / ids_name(number), entry, np.dtype(f"<u{self.manifest.width}"))

    def index(self, number: int) -> NDArray[np.uint32]:
        """Return where the pairs of a shard are, a memory-mapped array (N, 4); see `manifest.INDEX`."""
        entry = self.manifest.shards[number].index
        assert entry is not None
        return mapped(self.folder / index_name(number), entry, np.dtype("<u4")).reshape(-1, len(INDEX))

    def expect_ids(self, ids: NDArray[Any], size: int) -> None:
        """Check that tokens are in the vocabulary.

        Raises:
            DataError: one is not.
        """
        if ids.size and int(ids.max()) >= size:
            got = f"the number {int(ids.max()):,}"
            raise DataError(Place(self.folder), f"tokens below {size:,}, the size of the vocabulary", got, AGAIN)


def open_for_training(folder: Path, kind: CorpusKind, tokenizer: Tokenizer | None) -> PreparedCorpus:
    """Open a prepared corpus; a new run compares every file with its sha256, a resumed one does not.

    Args:
        folder: the corpus.
        kind: text or pairs.
        tokenizer: that of the run to resume or to start from; None for a new run.

    Raises:
        DataError: there is no such corpus, or it is damaged.
        ConfigError: it was made with another tokenizer.
    """
    from qkv.training.processes import current  # not where shards are made, which loads no PyTorch

    corpus = PreparedCorpus.load(folder, kind)
    if tokenizer is None:
        if current().leads:
            with working("verifying the files of the corpus"):
                corpus.verify()
    elif tokenizer.to_json() != corpus.tokenizer.to_json():
        got = f"{folder}, which has another one"
        hint = "Prepare it with that tokenizer (" + setting("tokenizer_from") + ")."
        raise ConfigError(setting("prepared"), "a corpus with the tokenizer of the run", got, hint)
    return corpus


def read_manifest(folder: Path) -> CorpusManifest:
    """Read the list of a corpus's files.

    Raises:
        DataError: there is none, or it is damaged.
    """
    return parse(read_part(folder, NAME, LIMIT), str(folder / NAME))


def read_part(folder: Path, name: str, limit: int) -> bytes:
    """Read a small file of a corpus.

    Raises:
        DataError: it is missing, larger, or no regular file.
    """
    try:
        return read_file(folder / name, limit, links=False)
    except OSError as error:
        raise _unreadable(folder / name, error) from None


def held_out_pairs(folder: Path) -> list[Pair]:
    """Read the pairs that are held out.

    Raises:
        DataError: the file is missing or damaged.
    """
    pairs = []
    for number, line in enumerate(read_part(folder, VALID_PAIRS, LIMIT).splitlines(), start=1):
        try:
            value = parse_json(line)
        except (ValueError, RecursionError):
            value = None
        match value:
            case {"source": str(source), "target": str(target), "line": int(line_number)}:
                pairs.append(Pair(source, target, line_number))
            case _:
                where = Place(folder / VALID_PAIRS, number)
                raise DataError(where, "a pair that was held out", "something else", AGAIN)
    return pairs


def mapped(path: Path, entry: StoredFile, kind: "np.dtype[Any]") -> NDArray[Any]:
    """Map a file of numbers into memory.

    Args:
        path: the file.
        entry: its size.
        kind: of its numbers.

    Raises:
        DataError: it is missing, or of another size.
    """
    try:
        return np.frombuffer(map_file(path, entry.bytes), kind)
    except OSError as error:
        raise _unreadable(path, error) from None


def sum_of(path: Path) -> StoredFile:
    """Return size and sha256 of a file.

    Raises:
        DataError: it is missing, or no regular file.
    """
    try:
        return StoredFile.at(path, links=False)
    except OSError as error:
        raise _unreadable(path, error) from None


def expect_sum(path: Path, entry: StoredFile) -> None:
    """Compare a file with its size and sha256.

    Raises:
        DataError: it is missing, or was altered.
    """
    actual = sum_of(path)
    if actual != entry:
        got = f"{actual.bytes:,} bytes of sha256 {actual.sha256[:16]}…"
        raise DataError(Place(path), f"{entry.bytes:,} bytes of sha256 {entry.sha256[:16]}…", got, AGAIN)


def _unreadable(path: Path, error: OSError) -> DataError:
    hint = "Give the folder that `qkv prepare` wrote; if it was interrupted, run the same command again."
    return DataError(Place(path), "a file of a prepared corpus", error.strerror or str(error), hint)


def with_corpus(tables: Mapping[str, Any], task: TaskSettings) -> dict[str, Any]:
    """Return the settings of a training with those that its prepared corpus determines, if it has one.

    Args:
        tables: the settings that were given, by table and name.
        task: the task.

    Raises:
        ConfigError: one of them differs from that of the corpus, or the corpus is a file.
        DataError: there is no such corpus, or it is damaged.
    """
    data = tables.get("data")
    prepared = data.get("prepared") if isinstance(data, Mapping) and "prepared" in task.table_of else None
    if prepared is None:
        return dict(tables)
    folder = Path(str(prepared))
    if folder.is_file():
        flag = "text" if "text" in task.table_of else "data"
        hint = "To train from a file of text, write " + setting(flag, str(folder)) + "."
        raise ConfigError("prepared", "a folder that `qkv prepare` wrote", "a file", hint)
    settings = read_manifest(absolute(folder)).work.get("settings")
    ours: dict[str, dict[str, Any]] = {}
    for table, names in (("data", _SHARED), ("tokenizer", task.table_of)):
        rows = settings.get(table) if isinstance(settings, Mapping) else None
        for name, item in rows.items() if isinstance(rows, Mapping) else ():
            if name not in names or task.table_of.get(name) != table:
                continue
            value = tables.get(table, {}).get(name, item)
            if value != item:
                hint = "Omit it, or prepare the corpus with it."
                raise ConfigError(name, f"{item}, as the corpus was prepared", f"{value}", hint)
            ours.setdefault(table, {})[name] = item
    return merge(tables, ours)
