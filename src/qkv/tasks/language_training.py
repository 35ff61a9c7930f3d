"""`qkv train generate`: from settings to a trained run folder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, setting
from qkv.hub.families.load import PublishedConfig
from qkv.models.decoder import DecoderConfig, LanguageModel
from qkv.models.recurrent_decoder import RecurrentDecoderConfig, RecurrentLanguageModel
from qkv.settings import build, plain
from qkv.tasks.choice import Kind, expect_own
from qkv.tasks.generate.settings import GENERATE, GenerateFiles
from qkv.tasks.language import LanguageTask, TextModel
from qkv.tasks.recipe import ModelTable, Recipe, refuse_derived, without
from qkv.tasks.recipe import RecipeSettings as AllSettings
from qkv.tasks.text import TrainingText, read_for_training

_CONTEXT = 256
"""The default context of a published model in training, which could read far more than suits a laptop."""

Config = DecoderConfig | RecurrentDecoderConfig | PublishedConfig
LanguageSettings = AllSettings[GenerateFiles, Config]


def build_language_model(table: Mapping[str, Any], size: int) -> TextModel:
    """Create a model from its settings, with new weights.

    Args:
        table: its kind and sizes.
        size: vocabulary size.

    Returns:
        The model.

    Raises:
        ConfigError: a setting is invalid.
    """
    config = _configured(table, size)
    if isinstance(config, PublishedConfig):
        model = config.build()
        if not isinstance(model, LanguageModel):
            got = type(model).__name__
            raise ConfigError("model.settings", "a language model", got, "Use its own task.")
        return model
    return LanguageModel(config) if isinstance(config, DecoderConfig) else RecurrentLanguageModel(config)


def _configured(table: Mapping[str, Any], size: int) -> Config:
    if table.get("kind") == "published":
        return build(PublishedConfig, {name: item for name, item in table.items() if name != "kind"}, "model")
    kind = build(Kind, {"kind": table.get("kind", "transformer")}, "model").kind
    sizes = {"size": size, **{name: item for name, item in table.items() if name != "kind"}}
    if kind == "transformer":
        return build(DecoderConfig, sizes, "model")
    expect_own(sizes, RecurrentDecoderConfig, DecoderConfig, setting("model", "transformer"))
    return build(RecurrentDecoderConfig, {**sizes, "cell": kind}, "model")


def _config(table: Mapping[str, Any]) -> Config:
    refuse_derived(
        table, ("size", "cell"), f"The vocabulary comes from the training text ({setting('tokenizer.vocabulary')})."
    )
    config = _configured(table, 1)
    if isinstance(config, PublishedConfig) and config.context is None:
        return replace(config, context=min(_CONTEXT, config.described().config.context))
    return config


def _table(config: Config) -> dict[str, Any]:
    """Return the settings of a model as a dict; a Transformer's names no kind, as in earlier versions."""
    if isinstance(config, PublishedConfig):
        return {"kind": "published", **{name: item for name, item in plain(config).items() if item is not None}}
    table = without(config, "size")
    return {"kind": table.pop("cell"), **table} if "cell" in table else table


def _read(settings: LanguageSettings, tokenizer: Tokenizer | None) -> TrainingText:
    context = settings.model.context
    assert context is not None
    return read_for_training(settings.data, settings.tokenizer, context, tokenizer)


def _build(config: Config, text: TrainingText) -> TextModel:
    return build_language_model(_table(config), text.tokenizer.size)


def _job(model: TextModel, text: TrainingText, settings: LanguageSettings) -> LanguageTask:
    order, training = settings.data.order, settings.training
    return LanguageTask(
        model, text.tokenizer, text.train, text.valid, order, training.label_smoothing, training.batch_size
    )


def _identity(text: TrainingText, settings: LanguageSettings) -> dict[str, Any]:
    return {"order": settings.data.order, "text": text.fingerprints}


def _summary(text: TrainingText, _: TextModel) -> str:
    unknown = f", {text.valid.unknown:,} of them unknown" if text.valid.unknown else ""
    return f"{len(text.train.ids):,} training tokens, {len(text.valid.ids):,} validation tokens{unknown}"


RECIPE: Recipe[GenerateFiles, Config, TrainingText, TextModel] = Recipe(
    GENERATE,
    ModelTable(_config, _table),
    _read,
    _build,
    _job,
    _identity,
    _summary,
)
load_settings, show_settings, train = RECIPE.load_settings, RECIPE.show_settings, RECIPE.train
