"""`qkv prepare`: from text files to a folder of tokenized shards, continued where an earlier call was stopped."""

import heapq
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, final

from qkv.checkpoint.disk import expect_writable, make_folder, remove_folder, remove_leftovers, replace_file, typed
from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode
from qkv.checkpoint.manifest import StoredFile
from qkv.checkpoint.run import expect_same, locked
from qkv.data.choices import MOST_HELD_OUT, SHARE
from qkv.data.corpus import header_message, names_columns, names_languages
from qkv.data.exchanged import exchanged_message
from qkv.data.hints import damage_messages, pairs_message, text_messages
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, DataError, Place, quantity, setting
from qkv.files import absolute, as_path
from qkv.settings import as_dict, build, check_tables, merge
from qkv.system import remove_file
from qkv.tasks.corpora.manifest import (
    NAME,
    TOKENIZER,
    VALID_PAIRS,
    VALID_TEXT,
    CorpusKind,
    CorpusManifest,
    Shard,
    files_of,
)
from qkv.tasks.corpora.prepared import read_manifest, read_part, sum_of
from qkv.tasks.generate.settings import GENERATE
from qkv.tasks.notes import Verbosity, note, use_verbosity, working
from qkv.tasks.origin import Origin, expect_tokenizer, open_origin, origin_tables
from qkv.tasks.pairs import divided
from qkv.tasks.prepare.input_files import InputFiles, LineBlock
from qkv.tasks.prepare.making import (
    LARGEST,
    NOTES,
    WORK,
    ShardJob,
    first_line_of,
    lines_of,
    note_of,
    pairs_of,
    read_work,
    texts_of,
    width_of,
    written_pairs,
)
from qkv.tasks.prepare.settings import PREPARE, PrepareFiles, PrepareOptions
from qkv.tasks.prepare.workers import make_shards
from qkv.tasks.settings import parameters, take_settings
from qkv.tasks.tokenizing import learn_tokenizer
from qkv.tasks.translate.data import learn_tokenizers
from qkv.tasks.translate.settings import TRANSLATE, TranslateTokenizer

_MIB = 1 << 20
_BLOCK = 1 << 16
"""Bytes of one block of the random sample."""


class Prepared(NamedTuple):
    """A corpus that is complete.

    Attributes:
        folder: its folder.
        digest: one sha256 over all of it.
        tokens: how many there are to train on.
        shards: in how many parts.
        made: how many files of tokens this call made; the others were complete.
    """

    folder: Path
    digest: str
    tokens: int
    shards: int
    made: int


@final
@dataclass(frozen=True)
class Preparation:
    """What is prepared, and how.

    Args:
        inputs: the files.
        kind: text or pairs.
        files: how they are read and divided.
        words: tokenizer settings.
        origin: the run whose tokenizer is used; None to learn one.
    """

    inputs: InputFiles
    kind: CorpusKind
    files: PrepareFiles
    words: TranslateTokenizer
    origin: Origin | None = None

    @classmethod
    def of(
        cls, files: Sequence[Path], tables: Mapping[str, Mapping[str, Any]], tokenizer_from: Path | None = None
    ) -> "Preparation":
        """Check the settings of a preparation.

        Args:
            files: text files, or files of pairs.
            tables: the settings by table and name.
            tokenizer_from: a run whose tokenizer is used.

        Raises:
            ConfigError: a setting is unknown, invalid, or contradicts another one; or there are no files.
            CheckpointError: there is no such run.
        """
        check_tables(tables, PREPARE.tables)
        settings = build(PrepareFiles, tables.get("data", {}), "data")
        two = settings.source is not None or settings.target is not None
        kind: CorpusKind = "pairs" if settings.pairs or two else "text"
        inputs = _inputs(files, settings)
        _expect_used(settings, inputs, kind)
        origin = open_origin(None, PREPARE.name, tokenizer_from)
        task = GENERATE if kind == "text" else TRANSLATE
        if origin is not None:
            if origin.trained.tokenizer.imported is not None:
                hint = "Its rules decide about whole texts: train from files."
                expected = "a run of qkv, which learned its tokenizer"
                raise ConfigError(setting("tokenizer_from"), expected, "a published model", hint)
            expect_tokenizer(origin, tables, task)
        words = build(TranslateTokenizer, merge(origin_tables(origin, task), tables).get("tokenizer", {}), "tokenizer")
        if kind == "text" and not words.shared:
            hint = "Only pairs have sources and targets (" + setting("pairs") + ")."
            raise ConfigError("source_tokenizer", "one tokenizer for a text", "one for each side", hint)
        return cls(inputs, kind, replace(settings, pairs=kind == "pairs"), words, origin)

    def prepare(self, out: Path | None, processes: int = 1) -> Prepared:
        """Prepare the corpus, or continue where an earlier call was stopped, or check that it is complete.

        Args:
            out: the folder of the corpus.
            processes: how many tokenize; any number gives the same bytes.

        Raises:
            DataError: a file is invalid, or was changed meanwhile.
            ConfigError: the folder is not given, holds something else, or a corpus of other files or settings.
            CheckpointError: the folder cannot be written, or another process prepares it.
            QkvError: a process ended.
        """
        build(PrepareOptions, {"processes": processes})
        folder = _new_folder(out)
        with locked(folder, "a folder in which no other process prepares a corpus"):
            remove_leftovers(folder)
            survey = self._survey()
            self._begin(folder, survey)
            shards, count = self._shards(folder, survey, processes)
            return self._finish(folder, shards, count)

    @property
    def _settings(self) -> dict[str, JsonValue]:
        """The settings that define the corpus, by table."""
        files = {name: item for name, item in as_dict(self.files).items() if name not in ("source", "target")}
        words = {name: item for name, item in as_dict(self.words).items() if item is not None}
        source = {} if self.origin is None else {"tokenizer_from": self.origin.digest}
        return {"data": files, "tokenizer": words, **source}

    def _survey(self) -> "Survey":
        sample = Sample(int(self.files.sample * _MIB), self.files.seed)
        sums: dict[str, StoredFile] = {}
        lines = 0
        with working("reading lines") as progress:
            for block in self.inputs.blocks(self._block, sums):
                self._report_header(block)
                sample.offer(block)
                lines += block.lines
                progress.done = lines
        return Survey(sums, lines, sample.blocks(), self._held_from(lines, sample.blocks()))

    def _report_header(self, block: LineBlock) -> None:
        """Report that the first line of a file of pairs is skipped, or that it seems to be a header."""
        line = first_line_of(block) if self.kind == "pairs" else None
        if line is not None and names_columns(line):
            note(f"qkv: {header_message(block.files[0], 1, line)}")
        elif line is not None and (message := names_languages(line)) is not None:
            note(f"qkv: {block.files[0]}:1: {message}")

    def _report_sample(self, sample: Sequence[LineBlock]) -> None:
        """Report what is damaged in the lines of a sample, and texts that seem to be pairs, for each file."""
        sides: dict[str, list[tuple[LineBlock, int]]] = {}
        for block in sample:
            for side, name in enumerate(block.files):
                sides.setdefault(name, []).append((block, side))
        for name, parts in sides.items():
            lines = [line for block, side in parts for line in lines_of(block, side)]
            numbers, texts = [where.line or 0 for _, where in lines], [text for text, _ in lines]
            seems_pairs = pairs_message(texts) if self.kind == "text" else None
            is_read_whole = not self.inputs.documents
            odd = text_messages(numbers, texts) if is_read_whole else damage_messages(zip(numbers, texts, strict=True))
            for message in (seems_pairs, *odd):
                if message is not None:
                    note(f"qkv: {name}: {message}")

    @property
    def _block(self) -> int:
        return max(1, min(_BLOCK, self._shard))

    @property
    def _shard(self) -> int:
        return max(1, int(self.files.shard_size * _MIB))

    def _begin(self, folder: Path, survey: "Survey") -> None:
        """Learn the tokenizer and choose what is held out, or refuse a folder that was begun with something else."""
        described: dict[str, JsonValue] = {
            "settings": self._settings,
            "inputs": {name: file.to_json_value() for name, file in survey.sums.items()},
        }
        before = _work_of(folder)
        if before is not None:
            expect_same(folder, _by_flag(before), _by_flag(described))
        make_folder(folder / NOTES)
        has_held_out = self.kind == "text" or (
            before is not None and _is_unaltered(folder, VALID_PAIRS, before.get("valid"))
        )
        if before is not None and has_held_out and _is_unaltered(folder, TOKENIZER, before.get("tokenizer")):
            _write(folder, WORK, encode(before, WORK))
            return
        self._report_sample(survey.sample)
        # The tokenizer is learned from the lines that are trained on.
        sample = [part for block in survey.sample if (part := _divided(block, survey.held_from)[0]) is not None]
        with working("learning the tokenizer"):
            tokenizer, excludes_held_out, valid = self._learned(sample)
        work: dict[str, JsonValue] = {
            **described,
            "kind": self.kind,
            "documents": self.inputs.documents,
            "lines": survey.lines,
            "held_from": survey.held_from if self.kind == "text" else None,
            "sample": {"lines": sum(b.lines for b in sample), "bytes": sum(b.size for b in sample)},
            "apart": excludes_held_out,
            "tokenizer": _write(folder, TOKENIZER, tokenizer.to_json().encode()).to_json_value(),
        }
        if self.kind == "pairs":
            work["valid"] = _write(folder, VALID_PAIRS, valid).to_json_value()
        _write(folder, WORK, encode(work, WORK))

    def _held_from(self, lines: int, sample: Sequence[LineBlock]) -> int:
        """Return the first of the lines at the end of a text that are held out; of pairs a line beyond the last."""
        if self.kind == "pairs":
            return lines + 1
        if lines < 2:
            for block in sample:
                list(texts_of(block, self.files))  # refuses files that are no text, such as archives
            where = Place(self.inputs.files[0][0])
            raise DataError(where, "at least two lines, one of them to hold out", "one", "Give more text.")
        count = self.files.holdout or max(1, min(lines // SHARE, MOST_HELD_OUT))
        if count >= lines:
            hint = "Hold out fewer, or give more text."
            raise ConfigError("holdout", f"fewer lines than the text has, {lines:,}", f"{count:,}", hint)
        return lines - count + 1

    def _learned(self, sample: Sequence[LineBlock]) -> tuple[Tokenizer, bool, bytes]:
        """Return the tokenizer, whether held-out pairs are left out of training, and the bytes of their file."""
        existing = None if self.origin is None else self.origin.trained.tokenizer
        if self.kind == "text":
            texts = (text for block in sample for text in texts_of(block, self.files))
            return existing or learn_tokenizer(self.words, texts), True, b""
        pairs = [pair for pair, _ in pairs_of(sample, self.files)]
        if (message := exchanged_message(pairs)) is not None:
            note(f"qkv: {message}")
        train, valid = divided(pairs, self.files.seed, self.files.holdout, when=" when you train")
        tokenizer = existing or learn_tokenizers(train, self.words)
        return tokenizer, len(train) + len(valid) == len(pairs), written_pairs(valid)

    def _shards(self, folder: Path, survey: "Survey", processes: int) -> tuple[dict[int, Shard], int]:
        """Make the missing shards, and return all shards and the number of new ones."""
        finished, shards = _finished_shards(folder), dict[int, Shard]()
        sums: dict[str, StoredFile] = {}

        def missing() -> Iterator[ShardJob]:
            for job in self._jobs(survey, sums):
                progress.done += job.lines
                shard = finished.get(job.number)
                if shard is not None and _is_complete(folder, job.number, shard):
                    shards[job.number] = shard
                else:
                    yield job

        count = 0
        with working("tokenizing lines") as progress:
            progress.total = survey.lines
            for number, shard in make_shards(folder, missing(), processes):
                shards[number] = shard
                count += 1
        changed = [name for name, entry in survey.sums.items() if sums.get(name) != entry]
        if changed:
            hint = "Run the command again once nothing writes to it."
            got = "one that changed while it was read"
            raise DataError(changed[0].partition(" ")[2], "a file that nobody writes", got, hint)
        return shards, count

    def _jobs(self, survey: "Survey", sums: dict[str, StoredFile]) -> Iterator[ShardJob]:
        """Divide the files into shards, and what is held out of a text at the end."""
        blocks: list[LineBlock] = []
        held_blocks: list[LineBlock] = []
        number = size = 0
        for block in self.inputs.blocks(self._block, sums):
            before, after = _divided(block, survey.held_from)
            held_blocks += [] if after is None else [after]
            if before is None:
                continue
            blocks.append(before)
            size += before.size
            if size >= self._shard:
                yield ShardJob(number, tuple(blocks))
                number, size = number + 1, 0
                blocks.clear()
        if blocks:
            yield ShardJob(number, tuple(blocks))
        if held_blocks:
            yield ShardJob(-1, tuple(held_blocks))

    def _finish(self, folder: Path, shards: dict[int, Shard], count: int) -> Prepared:
        """Write the manifest, and remove temporary files."""
        work = read_work(folder)
        tokenizer = Tokenizer.from_json(read_part(folder, TOKENIZER, LARGEST).decode())
        held_out = shards.pop(-1) if self.kind == "text" else sum_of(folder / VALID_PAIRS)
        listed = tuple(shards[number] for number in range(len(shards)))
        parts = sum_of(folder / TOKENIZER), held_out, width_of(tokenizer), listed
        manifest = CorpusManifest(self.kind, self.inputs.documents, work, *parts)
        _write(folder, NAME, manifest.to_bytes())
        remove_folder(folder / NOTES)
        with typed(folder, "a writable folder"):
            remove_file(folder / WORK)
        tokens = sum(shard.tokens for shard in listed)
        _report_summary(self.kind, listed, held_out, tokenizer, work)
        return Prepared(folder, manifest.digest, tokens, len(listed), count)


class Survey(NamedTuple):
    """The results of one pass over all files.

    Attributes:
        sums: size and sha256 of each file, by its number and name.
        lines: how many lines they have.
        sample: the blocks of the sample, in order.
        held_from: the first line that is held out at the end of a text.
    """

    sums: dict[str, StoredFile]
    lines: int
    sample: list[LineBlock]
    held_from: int


@final
class Sample:
    """A uniform random sample of blocks of lines, determined by a seed.

    Args:
        size: bytes of the sample; more only if the last block is larger than what is missing.
        seed: random seed.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._most, self._seed = size, seed
        self._size = self._offered = 0
        self._sampled: list[tuple[int, int, LineBlock]] = []

    def offer(self, block: LineBlock) -> None:
        """Consider the next block."""
        draw = sha256(f"sample:{self._seed}:{self._offered}".encode()).digest()
        heapq.heappush(self._sampled, (-int.from_bytes(draw[:8], "little"), self._offered, block))
        self._offered += 1
        self._size += block.size
        while self._size - self._sampled[0][2].size >= self._most:
            self._size -= heapq.heappop(self._sampled)[2].size

    def blocks(self) -> list[LineBlock]:
        """Return the blocks that are drawn, in the order in which they came."""
        return [block for _, _, block in sorted(self._sampled, key=lambda item: item[1])]


def _by_flag(work: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return settings and inputs such that a setting has the dotted name by which its flag is known."""
    settings = work.get("settings")
    return {**(settings if isinstance(settings, dict) else {}), "inputs": work.get("inputs")}


def _expect_used(files: PrepareFiles, inputs: InputFiles, kind: CorpusKind) -> None:
    """Refuse settings that would change nothing.

    Raises:
        ConfigError: there is one; the message names it.
    """
    objects = inputs.documents
    pairs, json_lines = "pairs (" + setting("pairs") + ")", "files named .jsonl"
    needs = {
        "longest": (kind == "pairs", pairs, "texts"),
        "too_long": (kind == "pairs", pairs, "texts"),
        "field": (objects and kind == "text", f"texts in {json_lines}", "others"),
        "source_field": (objects and kind == "pairs", f"pairs in {json_lines}", "others"),
        "target_field": (objects and kind == "pairs", f"pairs in {json_lines}", "others"),
    }
    for name, (used, expected, got) in needs.items():
        if not used and getattr(files, name) != getattr(PrepareFiles, name):
            raise ConfigError(name, expected, got, "Omit it: it would change nothing.")


def _inputs(files: Sequence[Path], settings: PrepareFiles) -> InputFiles:
    two = settings.source, settings.target
    if any(file is not None for file in two):
        if files or settings.source is None or settings.target is None:
            got = "files as well" if files else "one of them"
            hint = "Line N of one corresponds to line N of the other."
            raise ConfigError(setting("source"), setting("source") + " and " + setting("target"), got, hint)
        return InputFiles(((settings.source, settings.target),))
    if not files:
        hint = "For example `qkv prepare corpus.txt --out corpus`."
        raise ConfigError("FILES", "at least one file", "none", hint)
    first: dict[Path, Path] = {}
    for file in map(Path, files):
        if (earlier := first.setdefault(file.resolve(), file)) is not file:
            hint = "Name each file once: text that comes twice is held out and trained on."
            raise ConfigError("FILES", "files that differ", f"{earlier} and {file}, one file", hint)
    return InputFiles(tuple((Path(file),) for file in files))


def _new_folder(out: Path | None) -> Path:
    """Return the folder of a corpus, made if it is missing; refuse one that holds something else."""
    if out is None:
        hint = "For example " + setting("out", "corpus") + ". Run the same command again to continue."
        raise ConfigError(setting("out"), "a folder for the corpus", "none", hint)
    folder = absolute(out)
    expect_writable(folder)
    make_folder(folder)
    with typed(folder, "a readable folder"):
        entries = sorted(os.listdir(folder))
    visible = [name for name in entries if not name.startswith(".")]
    if visible and not {NAME, WORK, TOKENIZER} & set(entries):
        hint = "Give another " + setting("out") + ": nothing in this folder was changed."
        got = f"a folder that contains {visible[0]!r}"
        raise ConfigError(setting("out", str(folder)), "a prepared corpus, or a new or empty folder", got, hint)
    return folder


def _work_of(folder: Path) -> dict[str, Any] | None:
    """Return what the corpus in a folder is made from; None if it was not begun, or its file is damaged."""
    for read in (read_work, lambda folder: dict(read_manifest(folder).work)):
        if os.path.lexists(folder / (WORK if read is read_work else NAME)):
            try:
                return read(folder)
            except DataError as error:
                note(f"qkv: {error}")
    return None


def _finished_shards(folder: Path) -> dict[int, Shard]:
    """Return the shards that were made before, by number, whether their files are complete or not."""
    shards: dict[int, Shard] = {}
    if os.path.lexists(folder / NAME):
        try:
            manifest = read_manifest(folder)
        except DataError:
            return shards
        shards = dict(enumerate(manifest.shards))
        return shards | ({-1: manifest.valid} if isinstance(manifest.valid, Shard) else {})
    for name in os.listdir(folder / NOTES):
        number = name.removesuffix(".json")
        if number.lstrip("-").isdigit():
            path = note_of(folder, int(number))
            try:
                value = decode_mapping(read_part(path.parent, path.name, LARGEST), str(path))
                shards[int(number)] = Shard.from_json_value(value, str(path))
            except (DataError, CheckpointError):  # it is made again
                continue
    return shards


def _is_complete(folder: Path, number: int, shard: Shard) -> bool:
    """Return whether the files of a shard are those that its note describes."""
    files = {VALID_TEXT: shard.ids} if number < 0 else files_of(number, shard)
    return all(_is_unaltered(folder, name, file.to_json_value()) for name, file in files.items())


def _is_unaltered(folder: Path, name: str, entry: object) -> bool:
    try:
        return sum_of(folder / name).to_json_value() == entry
    except DataError:
        return False


def _write(folder: Path, name: str, data: bytes) -> StoredFile:
    """Write a file, unless it has this content already."""
    file = StoredFile.of(data)
    if not _is_unaltered(folder, name, file.to_json_value()):
        replace_file(folder / name, data)
    return file


def _divided(block: LineBlock, first: int) -> tuple[LineBlock | None, LineBlock | None]:
    """Return the lines of a block before a line, and those from it on."""
    count = first - block.line
    if count >= block.lines:
        return block, None
    return (None, block) if count <= 0 else block.split(count)


def _report_summary(
    kind: CorpusKind, shards: Sequence[Shard], held_out: Shard | StoredFile, tokenizer: Tokenizer, work: Any
) -> None:
    tokens, pairs, unknown, left_out = (
        sum(getattr(shard, name) for shard in shards) for name in ("tokens", "pairs", "unknown", "left_out")
    )
    parts = [quantity(pairs, "pair")] if kind == "pairs" else []
    parts += [
        f"{quantity(tokens, 'token')} in {quantity(len(shards), 'shard')}",
        f"vocabulary of {tokenizer.size:,}",
    ]
    parts += [f"{unknown:,} unknown"] if unknown else []
    parts += [f"{quantity(left_out, 'longer pair')} left out"] if left_out else []
    parts += [f"{quantity(held_out.tokens, 'token')} held out"] if isinstance(held_out, Shard) else []
    note(f"qkv: {'; '.join(parts)}")


def prepare(
    files: str | Path | Sequence[str | Path] = (),
    *,
    out: str | Path,
    tokenizer_from: str | Path | None = None,
    processes: int = 1,
    quiet: bool = False,
    **settings: Any,
) -> Prepared:
    """Prepare a corpus for trainings that read it from disk, or continue where an earlier call was stopped.

    Args:
        files: text files, or files of pairs; none if `source` and `target` are given.
        out: the folder of the corpus, for `qkv.train("generate", prepared=...)` or "translate".
        tokenizer_from: a run whose tokenizer is used; None to learn one.
        processes: how many tokenize; any number gives the same bytes.
        quiet: whether to show no progress on standard error.
        settings: the flags of `qkv prepare`.

    Returns:
        The corpus: its folder and sha256, how many tokens and shards it has, and how many of these were made now.

    Raises:
        ConfigError: a setting is unknown (the message suggests the closest one), or its value is invalid; or the folder
            holds a corpus of other files or settings.
        DataError: a file is invalid; the message gives file and line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     text = Path(folder, "text")
        ...     _ = text.write_text("To be, or not to be.\\n" * 50)
        ...     prepare(text, out=Path(folder, "corpus"), tokenizer="char", quiet=True).tokens
        1008
    """
    PREPARE.expect_settings(settings)
    paths = [files] if isinstance(files, str | Path) else files
    with use_verbosity(Verbosity("quiet" if quiet else "normal")):
        origin = None if tokenizer_from is None else as_path(tokenizer_from, "tokenizer_from")
        preparation = Preparation.of([as_path(path, "files") for path in paths], PREPARE.in_tables(settings), origin)
        return preparation.prepare(as_path(out, "out"), processes)


take_settings(prepare, parameters([PREPARE]))
