"""The settings of a model that tags words."""

from collections.abc import Mapping
from typing import Any

from qkv.errors import ConfigError
from qkv.models.reader import ReaderConfig
from qkv.tasks.classify import model


def read_config(table: Mapping[str, Any]) -> ReaderConfig:
    """Check the settings of a model, and fill in its defaults.

    Raises:
        ConfigError: as for a classifier; or the setting is one of whole texts.
    """
    if "wide" in table:
        hint = "Omit it: it only applies to whole texts."
        raise ConfigError("model.wide", "none for tagging", f"{table['wide']}", hint)
    config = model.read_config(table)
    # Nothing is pooled: the mechanism is that of a Transformer's blocks, or of nothing.
    model.stored_config({**table, "pool": "mean"})
    return config
