"""The language model: its settings, and how it is created."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.errors import setting
from qkv.hub.families.load import PUBLISHED, PublishedConfig
from qkv.models.language_model import DecoderConfig, LanguageModel
from qkv.models.recurrent_language_model import RecurrentDecoderConfig, RecurrentLanguageModel
from qkv.settings import build
from qkv.tasks.generate.scoring import TextModel
from qkv.tasks.recipe import kind_of, refuse_derived, refuse_settings_of, without

_CONTEXT = 256
"""The default context of a published model in training, which could read far more than suits a laptop."""


Config = DecoderConfig | RecurrentDecoderConfig | PublishedConfig


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
    if table.get("model") == PUBLISHED:
        return PublishedConfig.from_table(table)
    kind = kind_of(table)
    sizes = {"size": 1, **{name: item for name, item in table.items() if name != "model"}}
    if kind == "transformer":
        return build(DecoderConfig, sizes, "model")
    refuse_settings_of(sizes, RecurrentDecoderConfig, DecoderConfig, setting("model", "transformer"))
    return build(RecurrentDecoderConfig, {**sizes, "model": kind}, "model")


def read_config(table: Mapping[str, Any]) -> Config:
    """Check the settings of a model, and fill in its defaults.

    Raises:
        ConfigError: a name is unknown, a value is invalid, or a setting does not apply.
    """
    refuse_derived(
        table, ("size",), f"The vocabulary comes from the training text ({setting('tokenizer.vocabulary')})."
    )
    config = stored_config(table)
    if isinstance(config, PublishedConfig) and config.context is None:
        return replace(config, context=min(_CONTEXT, config.described().config.context))
    return config


def table_of(config: Config) -> dict[str, Any]:
    """Return the settings of a model as a dict, the inverse of `read_config`."""
    if isinstance(config, PublishedConfig):
        return config.to_table()
    return without(config, "size")
