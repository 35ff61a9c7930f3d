"""`qkv align`: align files of sentences, with one model or with two models of opposite directions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from torch import Tensor

from qkv.data.corpus import Pair, read_lines
from qkv.data.word_table import WordTable
from qkv.data.words import split_words
from qkv.errors import ConfigError, DataError, on_command_line, setting
from qkv.files import as_path
from qkv.metrics.alignment import (
    Link,
    Links,
    alignment_error_rate,
    alignment_precision,
    alignment_recall,
    expect_inside,
    lacks_first_words,
    parse_alignments,
)
from qkv.metrics.ibm_model_1 import ExpectedLinks
from qkv.tasks.align.settings import AlignSettings
from qkv.tasks.as_trained import as_in_training
from qkv.tasks.members import expect_single
from qkv.tasks.notes import note
from qkv.tasks.pairs import PairSources
from qkv.tasks.runs import answerer_of, expect_task, open_members
from qkv.tasks.tokenizing import report_unknown
from qkv.tasks.translate.aligner import MUTUAL, Aligner, join, likeliest
from qkv.tasks.translate.alignment_reading import AlignmentReading
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.settings import ReadingSettings
from qkv.view.alignment import Alignment


@dataclass(frozen=True)
class Aligned:
    """The result of an alignment.

    Args:
        pairs: the sentences.
        links: the links of each.
        weights: those that the links were read from, of the first model: (T, S) of each pair.
        report: what is read from each model, and the figures, line by line.
    """

    pairs: list[Pair]
    links: list[set[Link]]
    weights: list[Tensor]
    report: list[str]

    def alignments(self) -> Iterator[Alignment]:
        """Yield the words of each pair and the weights between them, for pictures."""
        for pair, weights in zip(self.pairs, self.weights, strict=True):
            yield Alignment(tuple(split_words(pair.source)), tuple(split_words(pair.target)), weights.double())

    def as_pharaoh(self) -> list[str]:
        """Format lines such as "0-0 1-2"."""
        return [" ".join(f"{source}-{target}" for source, target in sorted(links)) for links in self.links]

    def as_json(self) -> list[str]:
        """Format one JSON object per pair: its words and its links."""
        return [
            json.dumps(
                {"source": split_words(pair.source), "target": split_words(pair.target), "links": sorted(links)},
                ensure_ascii=False,
            )
            for pair, links in zip(self.pairs, self.links, strict=True)
        ]


@final
class FileAligner:
    """Aligns files of sentences with one model, or with two models of opposite directions.

    Args:
        run: a translation model.
        settings: the model of the other direction if there is one, the sentences for choosing layer, head and step, or
            what is fixed of them, and how two directions are joined.

    Attributes:
        report: what is read from each model, and why.

    Raises:
        ConfigError: settings are inconsistent, or the models read other columns.
        DataError: a file is invalid; the message gives file and line.
        CheckpointError: a checkpoint is invalid.
    """

    def __init__(self, run: Path, settings: AlignSettings) -> None:
        reverse, device = settings.reverse, settings.device
        chooses = any(getattr(settings, name) for name in _FILES_TO_CHOOSE)
        _expect_choice(settings, chooses=chooses)
        self._method = settings.symmetrize
        first, self._columns = _loaded(run, device)
        self._table = first.table
        trial = self._read(settings, "valid_") if chooses else None
        self._forward = _Direction.of(first, trial, settings)
        self._backward: _Direction | None = None
        self.report = [f"read from {self._forward.reading}: {self._forward.reason}"]
        if reverse is not None:
            second, _ = _loaded(reverse, device)
            _expect_swapped(self._table, second.table)
            swapped = None if trial is None else trial.swapped()
            self._backward = _Direction.of(second, swapped, settings)
            self.report.append(f"reverse: read from {self._backward.reading}: {self._backward.reason}")

    @property
    def readings(self) -> list[str]:
        """What is read from each model."""
        return [str(direction.reading) for direction in (self._forward, self._backward) if direction is not None]

    def align(self, files: AlignSettings) -> Aligned:
        """Align the sentences of two files.

        Args:
            files: what to align: `source` and `target`, or `data`; with manual alignments (`gold`), the error rate is
                reported. Of `data` the columns of the training are read, where they are not given.

        Returns:
            The links.

        Raises:
            ConfigError: files are missing, or too many are given.
            DataError: a file is invalid; the message gives file and line.
        """
        texts = self._read(files)
        aligner = self._forward.aligner
        ids = (side for pair in texts.pairs for side in aligner.encode(pair))
        report_unknown(ids, aligner.translator.tokenizer.unk, file=files.data)
        there = self._forward.weights(texts)
        if self._backward is None:
            links = [likeliest(weights) for weights in there]
        else:
            links = join(self._method, there, self._backward.weights(texts.swapped()))
        figures = (alignment_error_rate, alignment_precision, alignment_recall)
        judged = [] if texts.gold is None else [str(figure(links, texts.gold)) for figure in figures]
        return Aligned(texts.pairs, links, there, [*self.report, *judged])

    def _read(self, files: AlignSettings, prefix: str = "") -> "_Sentences":
        with as_in_training(files, self._columns, prefix) as its_files:
            return _read(its_files, prefix, self._table)


def _loaded(run: Path, device: str) -> tuple[Translator, Mapping[str, Any]]:
    """Return the model of a run, and the columns of its training."""
    expect_single(as_path(run, "run"))
    members = open_members(run)
    expect_task(members[0][1], "translate")
    return answerer_of(members, device), members[0][1].columns


def _expect_choice(settings: AlignSettings, *, chooses: bool) -> None:
    fixed = [name for name in ("layer", "head", "when") if getattr(settings, name) is not None]
    if fixed and chooses:
        hint = "Either give " + setting(fixed[0]) + ", or choose it by these sentences."
        raise ConfigError(setting(fixed[0]), "no " + setting("valid_source"), "both", hint)
    if settings.symmetrize != MUTUAL and settings.reverse is None:
        hint = "It combines two directions: give " + setting("reverse", "RUN") + ", or omit it."
        raise ConfigError(setting("symmetrize"), setting("reverse") + " as well", "none", hint)


class _Sentences(NamedTuple):
    """Sentences with the files that they come from, and manual alignments if there are any."""

    pairs: list[Pair]
    gold: list[Links] | None
    names: tuple[str, str]

    @property
    def expected(self) -> ExpectedLinks:
        """The links that the words alone suggest."""
        return ExpectedLinks([(pair.source.split(), pair.target.split()) for pair in self.pairs])

    def swapped(self) -> "_Sentences":
        """Return the sentences with source and target swapped."""
        gold = None if self.gold is None else _swapped(self.gold)
        return _Sentences([Pair(pair.target, pair.source, pair.line) for pair in self.pairs], gold, self.names[::-1])


class _Direction(NamedTuple):
    """A model, the weights to read from it, and the reason for that choice."""

    aligner: Aligner
    reading: AlignmentReading
    reason: str

    @classmethod
    def of(
        cls,
        model: Translator,
        trial: _Sentences | None,
        asked: ReadingSettings,
    ) -> "_Direction":
        aligner = Aligner(model)
        if trial is not None and trial.gold is not None:
            reading, figure = aligner.choose(trial.pairs, trial.gold, trial.names)
            return cls(aligner, reading, f"{figure.value:.2f} % alignment error on the validation sentences")
        if trial is not None:
            reading, figure = aligner.choose_by_agreement(trial.pairs, trial.expected, trial.names)
            return cls(aligner, reading, f"{figure.value:.2f} % agreement on the validation sentences")
        if any(part is not None for part in (asked.layer, asked.head, asked.when)):
            return cls(aligner, aligner.default.replaced(asked), "as asked")
        return cls(aligner, aligner.default, "as chosen in training" if model.chosen else "by default")

    def weights(self, sentences: _Sentences) -> list[Tensor]:
        return self.aligner.weights(sentences.pairs, self.reading, sentences.names)


_FILES_TO_CHOOSE = ("valid_source", "valid_target", "valid_data", "valid_gold")
_CHECKED_SENTENCES = 5
"""Sentences of which at least one has a link of its first word, if words are counted from 0."""


def _read(files: AlignSettings, prefix: str, table: WordTable | None) -> _Sentences:
    sources = PairSources.of(files, prefix) or PairSources(prefix=prefix)
    pairs, file = sources.read(files.with_default(table)), getattr(files, f"{prefix}gold")
    if file is None:
        return _Sentences(pairs, None, sources.names)
    gold = parse_alignments(read_lines(file, blank=True), str(file), files.gold_from)
    if len(gold) != len(pairs):
        got = f"{len(gold):,} for {len(pairs):,} sentences"
        raise DataError(
            str(file), "one line of links per sentence", got, "Give one line per sentence; it can be empty."
        )
    expect_inside(gold, [(len(split_words(pair.source)), len(split_words(pair.target))) for pair in pairs], str(file))
    linked = sum(bool(links.possible) for links in gold)
    if files.gold_from == 0 and linked >= _CHECKED_SENTENCES and lacks_first_words(gold):
        note(
            f"qkv: {file}: no link of {linked:,} sentences has a 0, the number of a first word. If the file "
            f"counts words from 1, give {on_command_line('gold_from', '1')}."
        )
    return _Sentences(pairs, gold, sources.names)


def _expect_swapped(table: WordTable | None, other: WordTable | None) -> None:
    """Refuse a model of the other direction whose words are not those of the first one."""
    if table is None and other is None:
        return
    if table is not None and other is not None:
        turned = (table.source_sep, table.target_sep) == (other.target_sep, other.source_sep)
        if turned and not table.features_col and not other.features_col:
            return
    hint = "Features have no reverse: train both directions on two columns, with the same separators."
    expected = "a run of the same symbols in the other direction"
    raise ConfigError(setting("reverse"), expected, "one of others", hint)


def _swapped(gold: Sequence[Links]) -> list[Links]:
    return [
        Links(frozenset((j, i) for i, j in links.sure), frozenset((j, i) for i, j in links.possible)) for links in gold
    ]
