"""`qkv train generate`: from settings to a trained run folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from qkv.data.batches import NO_LABEL
from qkv.data.corpus import Lines, fingerprint
from qkv.data.text import divide, read_text
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, quantity, setting
from qkv.hub.published import PublishedConfig
from qkv.metrics.figure import Figure
from qkv.models.language_model import LanguageModel
from qkv.tasks.corpora.prepared import open_for_training
from qkv.tasks.corpora.text import PreparedText, TextCorpus, TextInMemory, WindowBatches
from qkv.tasks.generate.model import Config, build_model
from qkv.tasks.generate.scoring import TextModel, judge
from qkv.tasks.generate.settings import GENERATE, GenerateFiles
from qkv.tasks.length import context_of
from qkv.tasks.notes import reporting, state
from qkv.tasks.recipe import Recipe, RecipeSettings
from qkv.tasks.settings import Texts
from qkv.tasks.tokenizing import Unknown, learn_tokenizer
from qkv.training.loss import label_smoothed_loss, layer_loss
from qkv.values.plain_modules import is_watched

_CONTEXT = 256
"""The default context of a published model in training, which could read far more than suits a laptop."""
LanguageSettings = RecipeSettings[GenerateFiles, Config]


@final
@dataclass(frozen=True)
class LanguageTask(Recipe[GenerateFiles, Config, TextModel]):
    """Training a language model on windows of a text.

    Args:
        tokenizer: built from the training part.
        train, valid: the two parts.
        fingerprints: sha256 of each part.
    """

    settings = GENERATE
    published = PublishedConfig
    unit = "tokens"

    tokenizer: Tokenizer
    train: TextCorpus
    valid: TextInMemory
    fingerprints: dict[str, str]

    @classmethod
    def read(cls, settings: LanguageSettings, tokenizer: Tokenizer | None) -> "LanguageTask":
        """Read and tokenize the training and validation text."""
        files, context = settings.data, settings.model.context
        assert context is not None
        with reporting(files.skip):
            if files.prepared is not None:
                return cls._prepared(settings, context, tokenizer)
            source, train, valid = _gather(files)
        if tokenizer is None:
            tokenizer = learn_tokenizer(settings.tokenizer, [train])
        learned, validation = TextInMemory.of(train, tokenizer), TextInMemory.of(valid, tokenizer)
        _expect_window(learned.tokens, context, Place(source), f"{len(learned.ids):,}")
        total = f"{len(validation.ids):,}"
        if files.valid_text is None:
            count = len(learned.ids) + len(validation.ids)
            total = f"{len(validation.ids):,} of {count:,}, the end of the text (" + setting("holdout") + ")"
        where = Place(source if files.valid_text is None else files.valid_text)
        _expect_window(validation.tokens, context, where, total)
        fingerprints = {"train": fingerprint([train]), "valid": fingerprint([valid])}
        return cls(settings, tokenizer, learned, validation, fingerprints)

    @classmethod
    def _prepared(cls, settings: LanguageSettings, context: int, tokenizer: Tokenizer | None) -> "LanguageTask":
        """Open a prepared corpus, with what it or a file holds out."""
        files = settings.data
        assert files.prepared is not None
        if files.text is not None:
            hint = "Prepare the text too, or omit one of them."
            raise ConfigError("text", "no prepared corpus beside it", "both", hint)
        corpus = open_for_training(files.prepared, "text", tokenizer)
        train = PreparedText(corpus)
        _expect_window(train.tokens, context, Place(files.prepared), f"{train.tokens:,}")
        if files.valid_text is None:
            (valid, digest), name = train.held_out(), "what is held out"
        else:
            text = read_text(_source_of(files.valid_text, "valid_text"))
            valid, digest, name = TextInMemory.of(text, corpus.tokenizer), fingerprint([text]), "the validation text"
        _expect_window(valid.tokens, context, name, f"{valid.tokens:,}")
        fingerprints = {"prepared": corpus.manifest.digest, "valid": digest}
        return cls(settings, corpus.tokenizer, train, valid, fingerprints)

    @classmethod
    def inspect(cls, settings: LanguageSettings) -> None:
        """Read the text for a report, without tokens."""
        if settings.data.prepared is not None:
            open_for_training(settings.data.prepared, "text", None)
        else:
            _gather(settings.data)

    def build(self) -> TextModel:
        """Create the model."""
        return build_model(self.chosen.model, self.tokenizer.size)

    def identity(self) -> dict[str, Any]:
        """Return the text by its digests."""
        return {"order": self.chosen.data.order, "text": self.fingerprints}

    def summary(self, model: TextModel) -> str:
        """Count the tokens."""
        unknown = f", {self.valid.unknown:,} of them unknown" if self.valid.unknown else ""
        train, valid = quantity(self.train.tokens, "training token"), quantity(self.valid.tokens, "validation token")
        return f"{train}, {valid}{unknown}"

    def count_unknown(self) -> list[Unknown]:
        """Return the number of unknown tokens of the two parts."""
        parts = {"training text": self.train, "validation text": self.valid}
        return [Unknown(name, part.unknown, part.tokens) for name, part in parts.items()]

    @staticmethod
    def defaults_of(config: Config, files: GenerateFiles) -> Mapping[str, Mapping[str, object]]:
        """Return the context of a published model."""
        if not isinstance(config, PublishedConfig) or config.context is not None:
            return {}
        return {"model": {"context": min(_CONTEXT, context_of(config))}}

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Sequence[Sequence[int]] | WindowBatches:
        """Batch windows of the context length."""
        rows = self.chosen.training.batch_size or max(1, tokens // self._context)
        return self.train.batches(self._context, rows, self.chosen.data.order, seed, epoch)

    def collate(self, indices: Sequence[int], device: torch.device) -> Tensor:
        """Stack windows with the token before each, (B, context + 1)."""
        return self.train.take(indices, self._context).to(device)

    def objective(self, model: TextModel, batch: Tensor) -> tuple[Tensor, int]:
        """Compute the smoothed cross entropy of each next token: windows have no padding."""
        count, smoothing = batch[:, 1:].numel(), self.chosen.training.label_smoothing
        capped = isinstance(model, LanguageModel) and model.parts.output_softcap is not None
        if capped or is_watched(model):
            # The bound of the logits comes between the output layer and the loss, and so do hooks of the model.
            return label_smoothed_loss(model(batch[:, :-1]), batch[:, 1:], NO_LABEL, smoothing, count)
        states = model.advance(batch[:, :-1])[0]
        return layer_loss(states, model.output, batch[:, 1:], NO_LABEL, smoothing, count)

    def lines(self, indices: Sequence[int]) -> list[int]:
        """Return the line numbers where windows begin."""
        return self.train.lines(indices)

    def validate(self, model: TextModel) -> list[Figure]:
        """Compute loss, perplexity and bits per character of the validation text."""
        return judge(model, self.valid)

    @property
    def _context(self) -> int:
        assert self.chosen.model.context is not None
        return self.chosen.model.context


def _gather(files: GenerateFiles) -> tuple[Path | Lines, str, str]:
    """Read the text to train on and that to validate on, and return where the first is from."""
    if files.text is None:
        hint = "Any plain text in UTF-8; .gz too."
        raise ConfigError(setting("text"), "a file of plain text", "none", hint)
    source = _source_of(files.text, "text")
    text = read_text(source, say=state)
    if files.valid_text is not None:
        valid = read_text(_source_of(files.valid_text, "valid_text"))
        if valid in text:
            state("the validation text is trained on too: figures say little about others.")
        return source, text, valid
    train, valid = divide(text, files.holdout)
    state(
        f"held out to validate on: the last {len(valid):,} of {len(text):,} characters, a share of {files.holdout:g}: "
        f"from within line {train.count(chr(10)) + 1:,} on"
    )
    return source, train, valid


def _source_of(data: Texts, name: str) -> Path | Lines:
    """Return what a reader takes: a file, or the lines of texts."""
    if isinstance(data, str | Path):
        return Path(data)
    lines: list[str] = []
    for number, item in enumerate(data, start=1):
        if not isinstance(item, str):
            raise DataError(Place(name, number), "a text", type(item).__name__, "Give strings.")
        lines += [line.removesuffix("\r") for line in item.split("\n")]
    return Lines(name, tuple(lines))


def _expect_window(tokens: int, context: int, name: str, got: str) -> None:
    if tokens <= context:
        hint = "Give a longer text, a validation text of its own (" + setting("valid_text") + "), or a smaller "
        hint += setting("context") + "."
        expected = f"more than {context:,} tokens, one window of the context"
        raise DataError(name, expected, got, hint)


RECIPE = LanguageTask
"""Training a language model."""
