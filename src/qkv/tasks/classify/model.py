"""The model of texts or words with labels: its settings, and how it is created."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.models.reader import ReaderConfig, TextClassifier, TextTagger
from qkv.settings import build
from qkv.tasks.classify.data import Labeling
from qkv.tasks.classify.objective import ReaderModel
from qkv.tasks.recipe import refuse_derived, refuse_heads, without


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
    refuse_heads(config.model, config.heads, ReaderConfig.heads)
    return config


def table_of(config: ReaderConfig) -> dict[str, Any]:
    """Return the settings of a model as a dict, the inverse of `read_config`."""
    return without(config, "size", "labels")
