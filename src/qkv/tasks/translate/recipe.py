"""`qkv train translate`: from settings to a trained run folder, or one for each model of an ensemble."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor

from qkv.data.batches import NO_LABEL, Batch, Example, collate, device_of
from qkv.data.corpus import Pair, fingerprint, stream_lines
from qkv.data.marked_pieces import joined_words
from qkv.data.tokenizer import Tokenizer
from qkv.data.word_table import WordTable
from qkv.errors import ConfigError, DataError, Place, on_command_line, quantity, setting
from qkv.hub.published import PublishedConfig
from qkv.metrics.figure import Figure
from qkv.metrics.ibm_model_1 import ExpectedLinks
from qkv.metrics.translation import WMT, BleuTokenizer, measures_bleu
from qkv.models.copying import CopyingTranslator
from qkv.models.monotonic import MonotonicTranslator
from qkv.settings import as_dict
from qkv.tasks.corpora.manifest import VALID_PAIRS
from qkv.tasks.corpora.pairs import PairBatches, PairCorpus, PairsInMemory, PreparedPairs
from qkv.tasks.corpora.prepared import held_out_pairs, open_for_training
from qkv.tasks.folds import Examples
from qkv.tasks.length import cut_share, expect_readable, length_defaults
from qkv.tasks.members import write_members
from qkv.tasks.notes import note, reporting
from qkv.tasks.pairs import PairSources, pair_examples, read_training_pairs
from qkv.tasks.recipe import Recipe, RecipeSettings
from qkv.tasks.tokenizing import Unknown, exceeds, sample_of
from qkv.tasks.translate.aligner import Aligner
from qkv.tasks.translate.data import examples_of, learn_tokenizers
from qkv.tasks.translate.limits import STORED, LengthLimit
from qkv.tasks.translate.model import (
    TranslationConfig,
    TranslationModel,
    build_model,
    expect_features,
)
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.scoring import judge
from qkv.tasks.translate.settings import TRANSLATE, Direction, MemberSettings, TranslateFiles, TranslateTokenizer
from qkv.training.loss import label_smoothed_loss, layer_loss
from qkv.training.processes import current
from qkv.values.plain_modules import is_watched

TranslationSettings = RecipeSettings[TranslateFiles, TranslationConfig]
_ENDS = 1
"""The begin token, beside which a decoder reads a whole target."""
_VALIDATION_TOKENS = 8192
_ALIGNED_CELLS = 500_000
"""Token pairs of the validation pairs on which weights are chosen for aligning: about 1,000 sentences of 20 words."""

COPYING: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"tokenizer": {"tokenizer": "word"}, "training": {"label_smoothing": 0.0}}
)
"""Defaults for a model that copies: whole words, and no label smoothing towards words that are not in the source."""

SYMBOLS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"tokenizer": {"tokenizer": "none", "minimum": 1, "unicode": "none"}}
)
"""Defaults for the columns of a table: each symbol is a token, a combining accent too if a character is a symbol."""


@final
@dataclass(frozen=True)
class Member:
    """One model of an ensemble, in place of the settings of the ensemble.

    Args:
        direction: in which it writes.
        split: the seed that selects the held-out pairs, the same for all members.
    """

    direction: Direction
    split: int


def _member(settings: TranslationSettings) -> Member:
    ensemble = settings.ensemble
    return ensemble if isinstance(ensemble, Member) else Member("ahead", settings.training.seed)


@final
@dataclass(frozen=True)
class TranslationTask(Recipe[TranslateFiles, TranslationConfig, TranslationModel]):
    """Training one translator or an ensemble, by the settings; an instance is parallel text.

    Args:
        tokenizer: learned from the training pairs.
        train: training pairs.
        valid: validation pairs.
        valid_examples: validation pairs as tokens.
        fingerprint: sha256 of the training pairs.
        table: the columns of the files, if they are tables.
        backward: whether the tokens of targets stand right to left, in the order that a model writes them.
    """

    settings = TRANSLATE
    published = PublishedConfig
    unit = "tokens"

    tokenizer: Tokenizer
    train: PairCorpus
    valid: list[Pair]
    valid_examples: PairsInMemory
    fingerprint: str
    table: WordTable | None = None
    backward: bool = False

    @classmethod
    def read(cls, settings: TranslationSettings, tokenizer: Tokenizer | None) -> "TranslationTask":
        """Read and tokenize the training and validation pairs."""
        member, files, words = _member(settings), settings.data, settings.tokenizer
        with reporting(files.skip):
            if files.prepared is not None:
                task = cls._prepared(settings, tokenizer)
            else:
                assert isinstance(words, TranslateTokenizer)
                copies = settings.model.copy != "none"
                pairs = read_training_pairs(files, member.split, table=files.table, count=files.holdout)
                if tokenizer is None:
                    tokenizer = learn_tokenizers(pairs.train, words)
                train, examples = examples_of(pairs.train, tokenizer, files.longest, pairs.names, copies)
                valid, of_valid = examples_of(pairs.valid, tokenizer, files.longest, pairs.valid_names, copies)
                task = cls(settings, tokenizer, examples, valid, of_valid, fingerprint(train), _resolved(files))
        if member.direction == "ahead":
            return task
        sides = task.train.right_to_left(), task.valid_examples.right_to_left()
        return replace(task, train=sides[0], valid_examples=sides[1], backward=True)

    @classmethod
    def inspect(cls, settings: TranslationSettings) -> None:
        """Read the pairs for a report, and tokenize only those that can be too long."""
        files, words = settings.data, settings.tokenizer
        assert isinstance(words, TranslateTokenizer)
        if files.prepared is not None:
            cls._prepared(settings, None)
            return
        pairs = read_training_pairs(files, settings.training.seed, table=files.table, count=files.holdout)
        parts = [
            ([pair for pair in part if exceeds([pair.source, pair.target], files.longest, words)], names)
            for part, names in ((pairs.train, pairs.names), (pairs.valid, pairs.valid_names))
        ]
        if any(part for part, _ in parts):
            tokenizer = learn_tokenizers(sample_of(pairs.train), words)
            for part, names in parts:
                examples_of(part, tokenizer, files.longest, names, copies=False)

    @classmethod
    def _prepared(cls, settings: TranslationSettings, tokenizer: Tokenizer | None) -> "TranslationTask":
        """Open a prepared corpus; validation pairs come from files, or are those that it holds out."""
        files = settings.data
        assert files.prepared is not None
        if PairSources.of(files) is not None or files.table is not None:
            hint = "Prepare these pairs too, or omit one of them."
            raise ConfigError(setting("prepared"), "no files or columns beside it", "both", hint)
        if settings.model.copy != "none":
            hint = "Train it from files, or without copying."
            raise ConfigError("copy", "none with a prepared corpus, which has tokens but no words", "some", hint)
        corpus = open_for_training(files.prepared, "pairs", tokenizer)
        train = PreparedPairs(corpus)
        if not len(train):
            raise DataError(Place(files.prepared), "pairs to train on", "none", "Prepare more pairs.")
        sources = PairSources.of(files, "valid_")
        valid = held_out_pairs(corpus.folder) if sources is None else sources.read()
        names = (str(corpus.folder / VALID_PAIRS),) * 2 if sources is None else sources.names
        valid, examples = examples_of(valid, corpus.tokenizer, files.longest, names, copies=False)
        return cls(settings, corpus.tokenizer, train, valid, examples, corpus.manifest.digest)

    def build(self) -> TranslationModel:
        """Create the model."""
        return build_model(self.chosen.model, self.tokenizer, self.table)

    def identity(self) -> dict[str, Any]:
        """Return the text by its digests, and what a translation needs of it."""
        fingerprints = {"train": self.fingerprint, "valid": fingerprint(self.valid)}
        table = {} if self.table is None else {"table": as_dict(self.table)}
        direction = {"direction": "back"} if self.backward else {}
        # Fields that only some runs need, so that others have the same configuration as in earlier versions.
        optional = {"bleu_tokenize": self._bleu_tokenizer, STORED: self.limit.to_json_value()}
        stored = {name: value for name, value in optional.items() if value not in (WMT, [])}
        return {**direction, "longest": self.chosen.data.longest, **stored, **table, "text": fingerprints}

    def summary(self, model: TranslationModel) -> str:
        """Count the pairs."""
        train, valid = quantity(len(self.train), "training pair"), quantity(len(self.valid), "validation pair")
        source = "" if self.tokenizer.shared else f"; source vocabulary of {self.tokenizer.source.size:,}"
        return f"{train} ({quantity(self.train.target_tokens, 'target token')}), {valid}{source}"

    def count_unknown(self) -> list[Unknown]:
        """Return the number of unknown tokens of the pairs, without those that a model can copy."""
        return [*self.train.count_unknown("training"), *self.valid_examples.count_unknown("validation")]

    def completed(self) -> TranslationSettings:
        """Return the settings with the figure that chooses the best checkpoint: BLEU, if it measures most answers."""
        # Also where another figure is monitored: a tokenizer that cannot be used is refused before the first step.
        measured = measures_bleu(joined_words([pair.target for pair in self.valid]), self._bleu_tokenizer)
        settings = self.chosen
        if settings.training.monitor is not None:
            return settings
        name = "bleu" if measured else "chrf"
        if not measured:
            flags = [on_command_line("bleu_tokenize", kind) for kind in ("zh", "ja-mecab", "char")]
            note(
                "qkv: most validation targets have fewer than the four words that BLEU counts: chrF chooses the best "
                f"checkpoint. If spaces do not separate words (Chinese, Japanese), use {' or '.join(flags)}."
            )
        return replace(settings, training=replace(settings.training, monitor=name))

    @property
    def _bleu_tokenizer(self) -> BleuTokenizer:
        return self.chosen.data.bleu_tokenize or WMT

    @staticmethod
    def defaults_of(config: TranslationConfig, files: TranslateFiles) -> Mapping[str, Mapping[str, object]]:
        """Return the defaults of a model that copies, or of columns of symbols."""
        if config.copy != "none":
            return COPYING
        return length_defaults(config, files, _ENDS) if files.table is None else SYMBOLS

    @staticmethod
    def check(settings: TranslationSettings) -> None:
        """Refuse settings that contradict each other, of copying and vocabulary, of features and what reads them."""
        expect_readable(settings, _ENDS)
        tokenizer, table, copies = settings.tokenizer, settings.data.table, settings.model.copy != "none"
        assert isinstance(tokenizer, TranslateTokenizer)
        if copies and not tokenizer.shared:
            both = setting("source_tokenizer") + " and " + setting("target_tokenizer")
            hint = "A copied word has one id on both sides: omit " + both + "."
            got = " and ".join(tokenizer.kinds)
            raise ConfigError("copy", "one vocabulary for both sides", got, hint)
        if table is not None and table.features == "separate":
            expect_features(settings.model)
            if tokenizer.kinds[0] != "none":
                hint = "Omit the tokenizer: each symbol and each feature is a token."
                expected = "none, with which each feature is a token"
                raise ConfigError("source_tokenizer", expected, tokenizer.kinds[0], hint)
        if copies and settings.training.label_smoothing:
            got, hint = f"{settings.training.label_smoothing}", "Omit it, or train without copying."
            raise ConfigError("label_smoothing", "0 for a model that copies", got, hint)

    @staticmethod
    def runs(settings: TranslationSettings, folder: Path) -> Iterator[tuple[TranslationSettings, Path]]:
        """Yield the training of one translator, or of each member of an ensemble; their seeds count up."""
        members: MemberSettings = settings.ensemble
        names = [f"{number}-{way}" for number, way in enumerate(members.directions)] if members.ensemble > 1 else []
        if current().leads:
            write_members(folder, names)
        if not names:
            yield settings, folder
            return
        for number, (name, way) in enumerate(zip(names, members.directions, strict=True)):
            seed = settings.training.seed + number
            note(f"Member {number + 1} of {len(names)}, seed {seed}: {folder / name}")
            training = replace(settings.training, seed=seed)
            yield replace(settings, training=training, ensemble=Member(way, settings.training.seed)), folder / name

    @staticmethod
    def examples(files: TranslateFiles) -> Examples:
        """Return the pairs to divide."""
        if files.prepared is not None or files.table is not None:
            got = "a prepared corpus" if files.prepared is not None else "a table of words"
            raise ConfigError(setting("folds"), "files of pairs to divide", got, "Compare by seeds.")
        return pair_examples(files)

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Sequence[Sequence[int]] | PairBatches:
        """Batch examples of about equal length."""
        return self.train.batches(tokens, seed, epoch, self.chosen.training.batch_size)

    def collate(self, indices: Sequence[int], device: torch.device) -> Batch:
        """Stack examples."""
        return self._stack(self.train.take(indices), device)

    def objective(self, model: TranslationModel, batch: Batch) -> tuple[Tensor, int]:
        """Compute the smoothed cross entropy of each next target token."""
        return _loss(model, batch, self.chosen.training.label_smoothing)

    def lines(self, indices: Sequence[int]) -> list[int]:
        """Return the line numbers of examples in the user's files."""
        return [example.index for example in self.train.take(indices)]

    def validate(self, model: TranslationModel) -> list[Figure]:
        """Compute the metrics of `judge`, the loss, the part that was cut, and how well attention aligns words."""
        translations = self.translator(model).translate_fully([pair.source for pair in self.valid])
        written = [translation.text for translation in translations]
        judged = judge(written, self.valid, self._bleu_tokenizer)
        cut = cut_share(translation.finished for translation in translations)
        return [*judged, self._validation_loss(model), *cut, *self._alignment_agreement(model)]

    def translator(self, model: TranslationModel) -> Translator:
        """Return a model as a translator."""
        longest, direction = self.chosen.data.longest, (self.backward,)
        return Translator(model, self.tokenizer, longest, right_to_left=direction, limit=self.limit)

    @cached_property
    def limit(self) -> LengthLimit:
        """How long a translation may become by default."""
        return LengthLimit.of(self.train.lengths())

    def _alignment_agreement(self, model: TranslationModel) -> list[Figure]:
        """Return the agreement of the best reading, which its signature names; none if there is nothing to align."""
        pairs, expected = self._alignable
        if not pairs or self.backward or model.alignment_layer is None:
            return []
        return [Aligner(self.translator(model)).choose_by_agreement(pairs, expected)[1]]

    @cached_property
    def _alignable(self) -> tuple[list[Pair], ExpectedLinks]:
        """The first validation pairs of several words on both sides, and the links that the words alone suggest."""
        pairs, cells = list[Pair](), 0
        for pair, example in zip(self.valid, self.valid_examples.examples, strict=True):
            source, target = len(pair.source.split()), len(pair.target.split())
            if min(source, target) > 1 and example.source and example.target:
                pairs.append(pair)
                cells += len(example.source) * len(example.target)
            if cells > _ALIGNED_CELLS:
                break
        return pairs, ExpectedLinks([(pair.source.split(), pair.target.split()) for pair in pairs])

    def _validation_loss(self, model: TranslationModel) -> Figure:
        examples, device = self.valid_examples, device_of(model)
        total, count = 0.0, 0
        for indices in examples.batches(max(_VALIDATION_TOKENS, 2 * self.chosen.data.longest), 0, 0):
            loss, tokens = _loss(model, self._stack(examples.take(indices), device), 0.0)
            total, count = total + float(loss), count + tokens
        return Figure("loss", total / count, "nats per target token", higher_is_better=False)

    def _stack(self, examples: Sequence[Example], device: torch.device) -> Batch:
        return collate(examples, self.tokenizer.pad, self.tokenizer.bos, self.tokenizer.eos, device)


def _resolved(files: TranslateFiles) -> WordTable | None:
    """Return the columns of symbols by their positions, which lines to translate have too."""
    if files.table is None or not isinstance(files.data, str | Path):
        return files.table
    return files.table.resolved(next(stream_lines(Path(files.data))), str(files.data))


def _loss(model: TranslationModel, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
    inputs = (batch.source, batch.source_lengths, batch.target[:, :-1])
    labels = batch.labels
    if isinstance(model, CopyingTranslator | MonotonicTranslator) or is_watched(model):
        return label_smoothed_loss(model(*inputs), labels, NO_LABEL, smoothing, batch.count)
    return layer_loss(model.states(*inputs), model.output, labels, NO_LABEL, smoothing, batch.count)


RECIPE = TranslationTask
"""Training one translator or an ensemble, by the settings."""
