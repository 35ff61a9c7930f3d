"""The language model: its settings, and how it is created."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.errors import setting
from qkv.hub.families.load import PUBLISHED, PublishedConfig
from qkv.models.language_model import DecoderConfig, LanguageModel
from qkv.models.recurrent_language_model import RecurrentDecoderConfig, RecurrentLanguageModel
from qkv.settings import build
from qkv.tasks.generate.objective import TextModel
from qkv.tasks.recipe import Kind, refuse_derived, refuse_settings_of, without

_CONTEXT = 256
"""The default context of a published model in training, which could read far more than suits a laptop."""


Config = DecoderConfig | RecurrentDecoderConfig | PublishedConfig


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
        return config.build_as(LanguageModel, "a language model")
    return LanguageModel(config) if isinstance(config, DecoderConfig) else RecurrentLanguageModel(config)


def _configured(table: Mapping[str, Any], size: int) -> Config:
    if table.get("kind") == PUBLISHED:
        return PublishedConfig.from_table(table)
    kind = build(Kind, {"kind": table.get("kind", "transformer")}, "model").kind
    sizes = {"size": size, **{name: item for name, item in table.items() if name != "kind"}}
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
    config = _configured(table, 1)
    if isinstance(config, PublishedConfig) and config.context is None:
        return replace(config, context=min(_CONTEXT, config.described().config.context))
    return config


def table_of(config: Config) -> dict[str, Any]:
    """Return the settings of a model as a dict; a Transformer's names no kind, as in earlier versions."""
    if isinstance(config, PublishedConfig):
        return config.to_table()
    table = without(config, "size")
    return {"kind": table.pop("cell"), **table} if "cell" in table else table
