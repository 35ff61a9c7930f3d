"""`qkv train classify` and `qkv train tag`: from settings to a trained run folder."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, setting
from qkv.models.reader import ReaderConfig, TextClassifier, TextTagger
from qkv.settings import build
from qkv.tasks.classify import settings as classify
from qkv.tasks.classify.settings import ClassifyFiles
from qkv.tasks.labeled_text import Kind, LabeledText, read_for_training
from qkv.tasks.labeling import LabelModel, LabelTask
from qkv.tasks.origin import Origin
from qkv.tasks.recipe import ModelTable, Recipe, refuse_derived, without
from qkv.tasks.recipe import RecipeSettings as AllSettings
from qkv.tasks.settings import TaskSettings
from qkv.tasks.tag import settings as tag
from qkv.tasks.tag.settings import TagFiles

LabelSettings = AllSettings[ClassifyFiles | TagFiles, ReaderConfig]
LabelRecipe = Recipe[ClassifyFiles | TagFiles, ReaderConfig, LabeledText, LabelModel]


def build_reader(kind: Kind, table: Mapping[str, Any], size: int, labels: tuple[str, ...], unknown: int) -> LabelModel:
    """Create a model from its settings, with new weights.

    Args:
        kind: "classify" or "tag".
        table: its sizes.
        size: vocabulary size.
        labels: the names of the labels.
        unknown: the id of the unknown token.

    Returns:
        The model.

    Raises:
        ConfigError: a setting is invalid.
    """
    config = build(ReaderConfig, {**table, "size": size, "labels": len(labels)}, "model")
    return TextClassifier(config, unknown) if kind == "classify" else TextTagger(config, unknown)


def _config(kind: Kind, table: Mapping[str, Any]) -> ReaderConfig:
    refuse_derived(table, ("size", "labels"), "The vocabulary and the labels come from the training text.")
    if kind == "tag" and "wide" in table:
        hint = "Omit it: it only applies to whole texts."
        raise ConfigError("model.wide", "none for tagging", f"{table['wide']}", hint)
    config = build(ReaderConfig, {"size": 1, "labels": 1, **table}, "model")
    if config.encoder != "transformer" and config.heads != ReaderConfig.heads:
        hint = f"It belongs to self-attention: omit it, or choose {setting('model', 'transformer')}."
        raise ConfigError("model.heads", "a Transformer", f"{config.heads} with {config.encoder}", hint)
    if kind == "tag":
        # Nothing is pooled: the mechanism is that of a Transformer's blocks, or of nothing.
        build(ReaderConfig, {"size": 1, "labels": 1, **table, "pool": "mean"}, "model")
    return config


def _table(config: ReaderConfig) -> dict[str, Any]:
    return without(config, "size", "labels")


def _read(kind: Kind, settings: LabelSettings, tokenizer: Tokenizer | None) -> LabeledText:
    seed, wide = settings.training.seed, settings.model.wide
    return read_for_training(kind, settings.data, settings.tokenizer, seed, tokenizer, wide)


def _build(kind: Kind, config: ReaderConfig, text: LabeledText) -> LabelModel:
    return build_reader(kind, _table(config), text.tokenizer.size, text.labels, text.tokenizer.unk)


def _job(model: LabelModel, text: LabeledText, settings: LabelSettings) -> LabelTask:
    smoothing, rows = settings.training.label_smoothing, settings.training.batch_size
    return LabelTask(model, text.tokenizer, text.labels, text.train, text.valid, smoothing, rows)


def _identity(text: LabeledText, settings: LabelSettings) -> dict[str, Any]:
    fingerprints = {"train": text.fingerprint, "valid": text.valid_fingerprint}
    return {"labels": list(text.labels), "longest": settings.data.longest, "text": fingerprints}


def _summary(text: LabeledText, _: LabelModel) -> str:
    return f"{len(text.train):,} training texts, {len(text.valid):,} validation texts; {len(text.labels)} labels"


def _expect_labels(text: LabeledText, origin: Origin | None) -> LabeledText:
    """Refuse to start from a run with other labels: its outputs would mean something else."""
    if origin is None or not origin.weights:
        return text
    theirs = origin.trained.contents.config.get("labels")
    if theirs != list(text.labels):
        shown = ", ".join(map(str, theirs)) if isinstance(theirs, list) else "none"
        hint = f"Train on the same labels, or from scratch without {setting('from')}."
        expected = f"a run with the labels {', '.join(text.labels)}"
        raise CheckpointError(setting("from"), expected, shown, hint)
    return text


def _recipe(kind: Kind, settings: TaskSettings) -> LabelRecipe:
    return Recipe(
        settings,
        ModelTable(partial(_config, kind), _table),
        partial(_read, kind),
        partial(_build, kind),
        _job,
        _identity,
        _summary,
        adapt=_expect_labels,
    )


CLASSIFY, TAG = _recipe("classify", classify.CLASSIFY), _recipe("tag", tag.TAG)
RECIPES: Mapping[Kind, LabelRecipe] = MappingProxyType({"classify": CLASSIFY, "tag": TAG})
