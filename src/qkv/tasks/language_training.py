"""`qkv train generate`: from settings to a trained run folder."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, error_message, nearest
from qkv.models.decoder import DecoderConfig, LanguageModel
from qkv.tasks.language import LanguageTask
from qkv.tasks.recipe import ModelTable, Recipe, refuse_derived, without
from qkv.tasks.recipe import Settings as AllSettings
from qkv.tasks.settings import build
from qkv.tasks.text import Text, TextFiles, read_for_training

TASK = "generate"
_TRAINING: Mapping[str, object] = MappingProxyType(
    {
        "steps": 2000,
        "tokens": 2048,
        "optimizer": "muon",
        "learning_rate": 0.006,
        "schedule": "linear",
        "warmup": 50,
        "label_smoothing": 0.0,
        "validate_every": 250,
        "log_every": 25,
    }
)
"""Defaults for a million characters on a laptop; chosen on the validation part of tiny Shakespeare."""
_WORDS: Mapping[str, object] = MappingProxyType({"kind": "char", "minimum": 1})
_TOKENS: Mapping[str, str] = MappingProxyType({"characters": "char", "subwords": "bpe"})

LanguageSettings = AllSettings[TextFiles, DecoderConfig]


def token_kind(name: str | None) -> str | None:
    """Convert the name of a token type to the tokenizer's kind; None stays None.

    Raises:
        ConfigError: the name is unknown; the message suggests the closest one.

    Example:
        >>> token_kind("subwords")
        'bpe'
    """
    if name is None:
        return None
    if name not in _TOKENS:
        raise ConfigError(error_message("--tokens", "characters or subwords", f'"{name}"', nearest(name, _TOKENS)))
    return _TOKENS[name]


def build_language_model(table: Mapping[str, Any], size: int) -> LanguageModel:
    """Create a model from its settings, with new weights.

    Args:
        table: its sizes.
        size: vocabulary size.

    Returns:
        The model.

    Raises:
        ConfigError: a setting is invalid.
    """
    return LanguageModel(build(DecoderConfig, {**table, "size": size}, "model"))


def _config(table: Mapping[str, Any]) -> DecoderConfig:
    refuse_derived(table, ("size",), "The vocabulary comes from the training text (tokenizer.size).")
    return build(DecoderConfig, {"size": 1, **table}, "model")


def _table(config: DecoderConfig) -> dict[str, Any]:
    return without(config, "size")


def _read(settings: LanguageSettings, tokenizer: Tokenizer | None) -> Text:
    return read_for_training(settings.data, settings.tokenizer, settings.model.context, tokenizer)


def _build(config: DecoderConfig, text: Text) -> LanguageModel:
    return build_language_model(_table(config), text.tokenizer.size)


def _job(model: LanguageModel, text: Text, settings: LanguageSettings) -> LanguageTask:
    order, smoothing = settings.data.order, settings.training.label_smoothing
    return LanguageTask(model, text.tokenizer, text.train, text.valid, order, smoothing)


def _identity(text: Text, settings: LanguageSettings) -> dict[str, Any]:
    return {"order": settings.data.order, "text": text.fingerprints}


def _summary(text: Text) -> str:
    unknown = f", {text.valid.unknown:,} of them unknown" if text.valid.unknown else ""
    return f"{len(text.train.ids):,} training tokens, {len(text.valid.ids):,} validation tokens{unknown}"


RECIPE: Recipe[TextFiles, DecoderConfig, Text, LanguageModel] = Recipe(
    TASK,
    TextFiles,
    ModelTable(_config, _table),
    {"tokenizer": _WORDS, "training": _TRAINING},
    _read,
    _build,
    _job,
    _identity,
    _summary,
)
load_settings, show_settings, train = RECIPE.load_settings, RECIPE.show_settings, RECIPE.train
