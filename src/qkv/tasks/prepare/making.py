"""Make one shard of a prepared corpus from the bytes of its lines: the work of each process of a preparation."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from qkv.checkpoint.disk import remove_leftovers, replace_file
from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode
from qkv.checkpoint.manifest import StoredFile
from qkv.data.corpus import (
    Pair,
    empty_side,
    expect_no_header,
    iterate_lines,
    names_columns,
    parse_pair,
    stream_lines,
)
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, DataError, Place, setting
from qkv.settings import build
from qkv.strict_json import parse_json
from qkv.tasks.corpora.manifest import INDEX, TOKENIZER, VALID_TEXT, CorpusKind, Shard, ids_name, index_name
from qkv.tasks.corpora.prepared import held_out_pairs, read_part
from qkv.tasks.prepare.input_files import LineBlock, is_objects, longest_line
from qkv.tasks.prepare.settings import PrepareFiles

WORK = "work.json"
"""File of the settings and inputs of a corpus that is not complete yet."""
NOTES = ".notes"
"""The folder of notes about shards that are complete, while others are made."""
LARGEST = 1 << 28
_CHARACTERS = 1 << 16
"""Characters of plain text that are tokenized at once."""


class ShardJob(NamedTuple):
    """A shard to make.

    Attributes:
        number: its number; -1 for the text that is held out.
        blocks: its lines.
    """

    number: int
    blocks: tuple[LineBlock, ...]

    @property
    def line(self) -> int:
        """The number of its first line, counted over all files."""
        return self.blocks[0].line

    @property
    def lines(self) -> int:
        """The number of its lines."""
        return sum(block.lines for block in self.blocks)


@final
@dataclass(frozen=True, eq=False)
class ShardMaker:
    """Makes shards of one corpus.

    Args:
        folder: the folder of the corpus.
        kind: text or pairs.
        files: the settings.
        tokenizer: text to tokens.
        width: the bytes of a token.
        held_out: sources that are held out; no pair with one of them is in a shard.
    """

    folder: Path
    kind: CorpusKind
    files: PrepareFiles
    tokenizer: Tokenizer
    width: int
    held_out: frozenset[str]

    @classmethod
    def load(cls, folder: Path) -> "ShardMaker":
        """Read what a corpus is made from.

        Raises:
            DataError: a file is missing or damaged.
        """
        work = read_work(folder)
        tokenizer = Tokenizer.from_json(read_part(folder, TOKENIZER, LARGEST).decode())
        files = build(PrepareFiles, work["settings"]["data"])
        held_out = held_out_pairs(folder) if work["apart"] and work["kind"] == "pairs" else []
        return cls(folder, work["kind"], files, tokenizer, width_of(tokenizer), frozenset(p.source for p in held_out))

    def make(self, job: ShardJob) -> Shard:
        """Tokenize the lines of a shard, and write its files.

        Args:
            job: the shard.

        Returns:
            What it is.

        Raises:
            DataError: a line is invalid; the message gives file and line.
            CheckpointError: the disk is full.
        """
        ids_file = VALID_TEXT if job.number < 0 else ids_name(job.number)
        tokens, rows, counts = self._text(job) if self.kind == "text" else self._pairs(job)
        ids = self._write(ids_file, tokens)
        index = None if self.kind == "text" else self._write(index_name(job.number), rows)
        shard = Shard(len(tokens), line=job.line, ids=ids, index=index, **counts)
        # The note comes last: a shard without one is made again.
        replace_file(note_of(self.folder, job.number), encode(shard.to_json_value(), "note"))
        return shard

    def _write(self, name: str, numbers: NDArray[Any]) -> StoredFile:
        data = numbers.tobytes()
        remove_leftovers(self.folder, name)
        replace_file(self.folder / name, data)
        return StoredFile.of(data)

    def _text(self, job: ShardJob) -> tuple[NDArray[Any], NDArray[Any], dict[str, int]]:
        parts, characters = [], 0
        for text, ids in self._passages(job):
            characters += len(text)
            parts.append(np.array(ids, dtype=f"<u{self.width}"))
        tokens = np.concatenate(parts) if parts else np.empty(0, f"<u{self.width}")
        characters -= len(self.tokenizer.decode(tokens[:1].tolist()))
        counts = {"targets": 0, "pairs": 0, "left_out": 0, "widest": 0, "characters": max(0, characters)}
        return tokens, tokens[:0], counts | {"unknown": int((tokens == self.tokenizer.unk).sum())}

    def _passages(self, job: ShardJob) -> Iterator[tuple[str, list[int]]]:
        """Yield pieces of a text and their tokens: those of the whole text, or of documents with their end."""
        for block in job.blocks:
            begins, documents = block.line == 1, is_objects(block.files[0])
            for text in texts_of(block, self.files):
                end = [self.tokenizer.eos] if documents else []
                yield text, self.tokenizer.encode(text, continued=not (begins or documents)) + end
                begins = False

    def _pairs(self, job: ShardJob) -> tuple[NDArray[Any], NDArray[Any], dict[str, int]]:
        tokens: list[NDArray[Any]] = []
        rows: list[tuple[int, int, int, int]] = []
        counts = dict.fromkeys(("targets", "pairs", "left_out", "widest", "characters", "unknown"), 0)
        start = 0
        for pair, where in pairs_of(job.blocks, self.files):
            if pair.source in self.held_out:
                continue
            sides = self.tokenizer.source.encode(pair.source), self.tokenizer.encode(pair.target, target=True)
            source, target = map(len, sides)
            if max(source, target) > self.files.longest:
                self._expect_leaving_out(max(source, target), where)
                counts["left_out"] += 1
                continue
            tokens.append(np.array([*sides[0], *sides[1]], dtype=f"<u{self.width}"))
            rows.append((start, source, target, pair.line - job.line))
            unknowns = (self.tokenizer.source.unk, self.tokenizer.unk)
            counts["unknown"] += sum(side.count(unk) for side, unk in zip(sides, unknowns, strict=True))
            counts["targets"] += target
            counts["widest"] = max(counts["widest"], source, target + 2)
            start += source + target
        counts["pairs"] = len(rows)
        ids = np.concatenate(tokens) if tokens else np.empty(0, f"<u{self.width}")
        return ids, np.array(rows, dtype="<u4").reshape(-1, len(INDEX)), counts

    def _expect_leaving_out(self, length: int, where: Place) -> None:
        if self.files.too_long == "refuse":
            hint = (
                "Shorten or remove the line, allow longer ones with " + setting("longest", length) + ", or leave them "
                "out with " + setting("too_long", "skip") + "."
            )
            raise DataError(where, f"at most {self.files.longest} tokens", f"{length}", hint)


def texts_of(block: LineBlock, files: PrepareFiles) -> Iterator[str]:
    """Return the documents of a block of JSON; of plain text its lines, joined to parts that follow one another.

    Raises:
        DataError: a line is invalid.
    """
    lines = lines_of(block, 0)
    if is_objects(block.files[0]):
        return (_fields(line, where, (files.field,))[0] for line, where in lines)
    return _in_parts(line for line, _ in lines)


def pairs_of(blocks: Iterable[LineBlock], files: PrepareFiles) -> Iterator[tuple[Pair, Place]]:
    """Parse pairs.

    Args:
        blocks: their lines.
        files: the settings.

    Returns:
        Each pair, with its line number counted over all files, and its line in its file.

    Raises:
        DataError: a line is invalid.
    """
    for block in blocks:
        yield from _parallel(block) if len(block.files) == 2 else _single_file_pairs(block, files)


def first_line_of(block: LineBlock) -> str | None:
    """Return the first line of a file with a pair on each line; None for other files and later blocks."""
    if block.first > 1 or len(block.files) > 1 or is_objects(block.files[0]):
        return None
    return block.bodies[0].partition(b"\n")[0].decode(errors="replace").removeprefix("\ufeff")


def _single_file_pairs(block: LineBlock, files: PrepareFiles) -> Iterator[tuple[Pair, Place]]:
    objects = is_objects(block.files[0])
    for index, (line, where) in enumerate(lines_of(block, 0)):
        number = block.line + index
        if objects:
            source, target = _fields(line, where, (files.source_field, files.target_field))
            for text, name in ((source, files.source_field), (target, files.target_field)):
                if not text.strip():
                    raise DataError(where, "text on both sides", f"an empty {name}", "Fill it or delete the line.")
            yield Pair(source, target, number), where
        elif block.first + index > 1 or not names_columns(line):
            headed = names_columns(line) and names_columns(next(stream_lines(Path(block.files[0]))))
            expect_no_header(line, where, headed=headed)
            yield parse_pair(line, where, number), where


def _parallel(block: LineBlock) -> Iterator[tuple[Pair, Place]]:
    for number, ((source, where), (target, _)) in enumerate(zip(lines_of(block, 0), lines_of(block, 1), strict=True)):
        if not source.strip() or not target.strip():
            raise empty_side(Path(block.files[0]), Path(block.files[1]), block.first + number, source, target)
        yield Pair(source, target, block.line + number), where


def lines_of(block: LineBlock, side: int) -> Iterator[tuple[str, Place]]:
    """Decode the lines of a block, with their places."""
    name = block.files[side]
    lines = iterate_lines(BytesIO(block.bodies[side]), name, longest=longest_line(name), first=block.first)
    for number, line in enumerate(lines, start=block.first):
        yield line, Place(name, number)


def _in_parts(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to texts of some size, each line followed by a newline."""
    part: list[str] = []
    size = 0
    for line in lines:
        part += (line, "\n")
        size += len(line) + 1
        if size >= _CHARACTERS:
            yield "".join(part)
            part, size = [], 0
    if part:
        yield "".join(part)


def _fields(line: str, where: Place, names: tuple[str, ...]) -> list[str]:
    """Return texts of a JSON object.

    Raises:
        DataError: it is none, or has no such text.
    """
    try:
        value = parse_json(line)
    except (ValueError, RecursionError) as error:
        hint = "Each line must be a JSON object."
        raise DataError(where, "a JSON object", str(error)[:200] or "nested too deeply", hint) from None
    if not isinstance(value, dict):
        raise DataError(where, "a JSON object", type(value).__name__, "Each line must be a JSON object.")
    return [_field(value, where, name) for name in names]


def _field(value: Mapping[str, Any], where: Place, name: str) -> str:
    item: Any = value
    for part in [name] if name in value else name.split("."):
        item = item.get(part) if isinstance(item, Mapping) else None
    if not isinstance(item, str):
        got = "none" if item is None else type(item).__name__
        hint = f"The line has {', '.join(value)[:200] or 'none'}."
        raise DataError(where, f'a text in the field "{name}"', got, hint)
    if "\0" in item:
        raise DataError(where, f'a text in the field "{name}"', "one with a NUL", "Remove the NUL: no text has one.")
    return item


def width_of(tokenizer: Tokenizer) -> int:
    """Return the bytes of each token."""
    return 2 if max(tokenizer.size, tokenizer.source.size) <= 1 << 16 else 4


def note_of(folder: Path, number: int) -> Path:
    """Return the file of the note about a shard."""
    return folder / NOTES / f"{number}.json"


def read_work(folder: Path) -> dict[str, Any]:
    """Read what a corpus is made from.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return decode_mapping(read_part(folder, WORK, LARGEST), str(folder / WORK))
    except CheckpointError as error:
        raise DataError(*error.args) from None


def written_pairs(pairs: Iterable[Pair]) -> bytes:
    """Return pairs as lines of JSON."""
    rows: list[dict[str, JsonValue]] = [{"source": p.source, "target": p.target, "line": p.line} for p in pairs]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
