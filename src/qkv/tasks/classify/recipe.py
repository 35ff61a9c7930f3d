"""`qkv train classify` and `qkv train tag`, which share all but the reader: from settings to a trained run folder."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from qkv.data.labeled import Unit
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, quantity, setting
from qkv.models.reader import ReaderConfig, TextClassifier, TextTagger
from qkv.settings import build
from qkv.tasks.classify.data import (
    LabeledText,
    LabelFiles,
    Labeling,
    ReadTexts,
    read_for_training,
    read_sentences,
    read_texts,
)
from qkv.tasks.classify.objective import LabelTask, ReaderModel
from qkv.tasks.classify.settings import CLASSIFY, TAG
from qkv.tasks.origin import Origin
from qkv.tasks.recipe import ModelTable, Recipe, RecipeSettings, refuse_derived, refuse_heads, without
from qkv.tasks.settings import TaskSettings

LabelSettings = RecipeSettings[LabelFiles, ReaderConfig]
LabelRecipe = Recipe[LabelFiles, ReaderConfig, LabeledText, ReaderModel]


def build_model(kind: Labeling, config: ReaderConfig, size: int, labels: int, unknown: int) -> ReaderModel:
    """Create a model, with new weights.

    Args:
        kind: "classify" or "tag".
        config: its settings, without the sizes that the text determines.
        size: vocabulary size.
        labels: number of labels.
        unknown: the id of the unknown token.

    Returns:
        The model.
    """
    config = replace(config, size=size, labels=labels)
    return TextClassifier(config, unknown) if kind == "classify" else TextTagger(config, unknown)


def stored_config(table: Mapping[str, Any]) -> ReaderConfig:
    """Read the settings of a model from a checkpoint.

    Raises:
        ConfigError: a name is unknown, or a value is invalid.
    """
    return build(ReaderConfig, {"size": 1, "labels": 1, **table}, "model")


def read_config(table: Mapping[str, Any]) -> ReaderConfig:
    """Check the settings of a model, and fill in its defaults.

    Raises:
        ConfigError: a name is unknown, a value is invalid, or a setting does not apply.
    """
    refuse_derived(table, ("size", "labels"), "The vocabulary and the labels come from the training text.")
    config = stored_config(table)
    refuse_heads(config.encoder, config.heads, ReaderConfig.heads)
    return config


def read_tagger_config(table: Mapping[str, Any]) -> ReaderConfig:
    """Check the settings of a model, and fill in its defaults.

    Raises:
        ConfigError: as for a classifier; or the setting is one of whole texts.
    """
    if "wide" in table:
        hint = "Omit it: it only applies to whole texts."
        raise ConfigError("model.wide", "none for tagging", f"{table['wide']}", hint)
    config = read_config(table)
    # Nothing is pooled: the mechanism is that of a Transformer's blocks, or of nothing.
    stored_config({**table, "pool": "mean"})
    return config


def table_of(config: ReaderConfig) -> dict[str, Any]:
    """Return the settings of a model as a dict, the inverse of `read_config`."""
    return without(config, "size", "labels")


def _label_recipe(
    kind: Labeling,
    settings: TaskSettings,
    read_config: Callable[[Mapping[str, Any]], ReaderConfig],
    read_texts: ReadTexts,
    unit: Unit,
) -> LabelRecipe:
    """Return the recipe of a task that labels.

    Args:
        kind: "classify" or "tag".
        settings: its tables of settings.
        read_config: checks the settings of its model.
        read_texts: reads its data.
        unit: what a text is called.
    """

    def read(settings: LabelSettings, tokenizer: Tokenizer | None) -> LabeledText:
        seed, wide = settings.training.seed, settings.model.wide
        return read_for_training(read_texts, settings.data, settings.tokenizer, seed, tokenizer, wide, unit)

    def create(config: ReaderConfig, text: LabeledText) -> ReaderModel:
        return build_model(kind, config, text.tokenizer.size, len(text.labels), text.tokenizer.unk)

    table = ModelTable(read_config, table_of)
    return Recipe(settings, table, read, create, _job, _identity, _summary, adapt=_expect_labels)


def _job(model: ReaderModel, text: LabeledText, settings: LabelSettings) -> LabelTask:
    smoothing, rows = settings.training.label_smoothing, settings.training.batch_size
    return LabelTask(model, text.tokenizer, text.labels, text.train, text.valid, smoothing, rows)


def _identity(text: LabeledText, settings: LabelSettings) -> dict[str, Any]:
    fingerprints = {"train": text.fingerprint, "valid": text.valid_fingerprint}
    return {"labels": list(text.labels), "longest": settings.data.longest, "text": fingerprints}


def _summary(text: LabeledText, _: ReaderModel) -> str:
    train, valid = quantity(len(text.train), "training text"), quantity(len(text.valid), "validation text")
    return f"{train}, {valid}; {quantity(len(text.labels), 'label')}"


def _expect_labels(text: LabeledText, origin: Origin | None) -> LabeledText:
    """Refuse to start from a run with other labels: its outputs would mean something else."""
    if origin is None or not origin.weights:
        return text
    theirs = origin.trained.contents.config.get("labels")
    if theirs != list(text.labels):
        names = ", ".join(map(str, theirs)) if isinstance(theirs, list) else "none"
        hint = f"Train on the same labels, or from scratch without {setting('from')}."
        expected = f"a run with the labels {', '.join(text.labels)}"
        raise CheckpointError(setting("from"), expected, names, hint)
    return text


CLASSIFY_RECIPE = _label_recipe("classify", CLASSIFY, read_config, read_texts, "texts")
TAG_RECIPE = _label_recipe("tag", TAG, read_tagger_config, read_sentences, "sentences")
