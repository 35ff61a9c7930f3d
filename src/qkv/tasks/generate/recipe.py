"""`qkv train generate`: the language model, and from settings to a trained run folder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.data.tokenizer import Tokenizer
from qkv.errors import quantity, setting
from qkv.hub.families.load import PUBLISHED, PublishedConfig
from qkv.models.language_model import DecoderConfig, LanguageModel
from qkv.models.recurrent_language_model import RecurrentDecoderConfig, RecurrentLanguageModel
from qkv.settings import build
from qkv.tasks.generate.data import TrainingText, read_for_training
from qkv.tasks.generate.objective import LanguageTask, TextModel
from qkv.tasks.generate.settings import GENERATE, GenerateFiles
from qkv.tasks.recipe import ModelTable, Recipe, RecipeSettings, kind_of, refuse_derived, refuse_settings_of, without

_CONTEXT = 256
"""The default context of a published model in training, which could read far more than suits a laptop."""
Config = DecoderConfig | RecurrentDecoderConfig | PublishedConfig
LanguageSettings = RecipeSettings[GenerateFiles, Config]


def build_model(config: Config, size: int) -> TextModel:
    """Create a model, with new weights.

    Args:
        config: its settings, without the size of the vocabulary.
        size: vocabulary size.

    Returns:
        The model.

    Raises:
        ConfigError: it is a published model of another task.
    """
    if isinstance(config, PublishedConfig):
        return config.build_as(LanguageModel, "a language model")
    config = replace(config, size=size)
    return LanguageModel(config) if isinstance(config, DecoderConfig) else RecurrentLanguageModel(config)


def stored_config(table: Mapping[str, Any]) -> Config:
    """Read the settings of a model from a checkpoint.

    Raises:
        ConfigError: a name is unknown, or a value is invalid.
    """
    if table.get("kind") == PUBLISHED:
        return PublishedConfig.from_table(table)
    kind = kind_of(table)
    sizes = {"size": 1, **{name: item for name, item in table.items() if name != "kind"}}
    if kind == "transformer":
        return build(DecoderConfig, sizes, "model")
    refuse_settings_of(sizes, RecurrentDecoderConfig, DecoderConfig, setting("model", "transformer"))
    return build(RecurrentDecoderConfig, {**sizes, "cell": kind}, "model")


def read_config(table: Mapping[str, Any]) -> Config:
    """Check the settings of a model, and fill in its defaults.

    Raises:
        ConfigError: a name is unknown, a value is invalid, or a setting does not apply.
    """
    refuse_derived(
        table, ("size", "cell"), f"The vocabulary comes from the training text ({setting('tokenizer.vocabulary')})."
    )
    config = stored_config(table)
    if isinstance(config, PublishedConfig) and config.context is None:
        return replace(config, context=min(_CONTEXT, config.described().config.context))
    return config


def table_of(config: Config) -> dict[str, Any]:
    """Return the settings of a model as a dict; a Transformer's names no kind, as in earlier versions."""
    if isinstance(config, PublishedConfig):
        return config.to_table()
    table = without(config, "size")
    return {"kind": table.pop("cell"), **table} if "cell" in table else table


def _read(settings: LanguageSettings, tokenizer: Tokenizer | None) -> TrainingText:
    context = settings.model.context
    assert context is not None
    return read_for_training(settings.data, settings.tokenizer, context, tokenizer)


def _build(config: Config, text: TrainingText) -> TextModel:
    return build_model(config, text.tokenizer.size)


def _job(model: TextModel, text: TrainingText, settings: LanguageSettings) -> LanguageTask:
    training = settings.training
    return LanguageTask(model, text, settings.data.order, training.label_smoothing, training.batch_size)


def _identity(text: TrainingText, settings: LanguageSettings) -> dict[str, Any]:
    return {"order": settings.data.order, "text": text.fingerprints}


def _summary(text: TrainingText, _: TextModel) -> str:
    unknown = f", {text.valid.unknown:,} of them unknown" if text.valid.unknown else ""
    train, valid = quantity(text.train.tokens, "training token"), quantity(text.valid.tokens, "validation token")
    return f"{train}, {valid}{unknown}"


RECIPE: Recipe[GenerateFiles, Config, TrainingText, TextModel] = Recipe(
    GENERATE,
    ModelTable(read_config, table_of),
    _read,
    _build,
    _job,
    _identity,
    _summary,
)
