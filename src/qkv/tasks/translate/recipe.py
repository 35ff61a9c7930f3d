"""`qkv train translate`: from settings to a trained run folder."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from qkv.data.corpus import fingerprint
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, quantity, setting
from qkv.metrics.translation import bleu
from qkv.settings import plain
from qkv.tasks.notes import note
from qkv.tasks.recipe import ModelTable, Recipe, RecipeSettings
from qkv.tasks.translate.data import Parallel, read_training
from qkv.tasks.translate.model import (
    TranslationConfig,
    TranslationModel,
    build_model,
    expect_features,
    read_config,
    table_of,
)
from qkv.tasks.translate.objective import TranslationTask
from qkv.tasks.translate.settings import TRANSLATE, Direction, TranslateFiles, TranslateTokenizer

COPYING: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"tokenizer": {"tokenizer": "word"}, "training": {"label_smoothing": 0.0}}
)
"""Defaults for a model that copies: whole words, and no label smoothing towards words that are not in the source."""

SYMBOLS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"tokenizer": {"tokenizer": "none", "minimum": 1, "unicode": "none"}}
)
"""Defaults for the columns of a table: each symbol is a token, a combining accent too if a character is a symbol."""

TranslationSettings = RecipeSettings[TranslateFiles, TranslationConfig]


def _read(settings: TranslationSettings, tokenizer: Tokenizer | None) -> Parallel:
    copies = settings.model.copy != "none"
    assert isinstance(settings.tokenizer, TranslateTokenizer)
    return read_training(settings.data, settings.tokenizer, settings.training.seed, tokenizer, copies=copies)


def _build(config: TranslationConfig, text: Parallel) -> TranslationModel:
    return build_model(config, text.tokenizer, text.table)


def _job(model: TranslationModel, text: Parallel, settings: TranslationSettings) -> TranslationTask:
    training = settings.training
    return TranslationTask(model, text, training.label_smoothing, settings.data.longest, training.batch_size)


def _identity(text: Parallel, settings: TranslationSettings) -> dict[str, Any]:
    fingerprints = {"train": text.fingerprint, "valid": fingerprint(text.valid)}
    table = {} if settings.data.table is None else {"table": plain(settings.data.table)}
    return {"longest": settings.data.longest, **table, "text": fingerprints}


def _monitored(settings: TranslationSettings, text: Parallel) -> TranslationSettings:
    """Return the settings with the figure that chooses the best checkpoint: BLEU, unless it is 0 for every answer."""
    if settings.training.monitor is not None:
        return settings
    targets = [pair.target for pair in text.valid]
    name = "bleu" if bleu(targets, targets).value else "chrf"
    if name != "bleu":
        note("qkv: no validation target has four words, so that BLEU is always 0: chrF chooses the best checkpoint.")
    return replace(settings, training=replace(settings.training, monitor=name))


def _summary(text: Parallel, _: TranslationModel) -> str:
    train, valid = quantity(len(text.train), "training pair"), quantity(len(text.valid), "validation pair")
    source = "" if text.tokenizer.shared else f"; source vocabulary of {text.tokenizer.source.size:,}"
    return f"{train} ({quantity(text.target_tokens, 'target token')}), {valid}{source}"


def _check(settings: TranslationSettings) -> None:
    """Refuse settings that contradict each other: of copying and the vocabulary, of features and what reads them."""
    tokenizer, table, copies = settings.tokenizer, settings.data.table, settings.model.copy != "none"
    assert isinstance(tokenizer, TranslateTokenizer)
    if copies and not tokenizer.shared:
        hint = (
            f"A copied word has one id on both sides: omit {setting('source_tokenizer')} and "
            f"{setting('target_tokenizer')}."
        )
        got = " and ".join(tokenizer.kinds)
        raise ConfigError("model.copy", "one vocabulary for both sides", got, hint)
    if table is not None and table.features == "separate":
        expect_features(settings.model)
        if tokenizer.kinds[0] != "none":
            hint = "Omit the tokenizer: each symbol and each feature is a token."
            expected = "none, with which each feature is a token"
            raise ConfigError("tokenizer.source_tokenizer", expected, tokenizer.kinds[0], hint)
    if copies and settings.training.label_smoothing:
        got, hint = f"{settings.training.label_smoothing}", "Omit it, or train without copying."
        raise ConfigError("training.label_smoothing", "0 for a model that copies", got, hint)


def _defaults_of(config: TranslationConfig, files: TranslateFiles) -> Mapping[str, Mapping[str, object]]:
    if config.copy != "none":
        return COPYING
    return {} if files.table is None else SYMBOLS


TranslationRecipe = Recipe[TranslateFiles, TranslationConfig, Parallel, TranslationModel]
RECIPE: TranslationRecipe = Recipe(
    TRANSLATE,
    ModelTable(read_config, table_of),
    _read,
    _build,
    _job,
    _identity,
    _summary,
    defaults_of=_defaults_of,
    check=_check,
    completed=_monitored,
)
load_settings, show_settings, train = RECIPE.load_settings, RECIPE.show_settings, RECIPE.train


def member(direction: Direction, split: int) -> TranslationRecipe:
    """Return the task of one model of an ensemble.

    Args:
        direction: in which it writes.
        split: the seed that selects the held-out pairs, the same for all members.

    Returns:
        The task; its run says the direction if that is right to left.

    Example:
        >>> member("back", split=0).task
        'translate'
    """
    back = direction == "back"

    def read(settings: TranslationSettings, tokenizer: Tokenizer | None) -> Parallel:
        text = _read(replace(settings, training=replace(settings.training, seed=split)), tokenizer)
        return text.right_to_left() if back else text

    def job(model: TranslationModel, text: Parallel, settings: TranslationSettings) -> TranslationTask:
        return replace(_job(model, text, settings), back=back)

    def identity(text: Parallel, settings: TranslationSettings) -> dict[str, Any]:
        return {**({"direction": direction} if back else {}), **_identity(text, settings)}

    return replace(RECIPE, read=read, job=job, identity=identity)
