"""The pointer network: its settings, and how it is created."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from qkv.errors import setting
from qkv.models.pointer import PointerConfig, PointerNetwork
from qkv.settings import build
from qkv.tasks.point.data import PointLines
from qkv.tasks.recipe import refuse_derived, refuse_heads, without

_DERIVED = ("features", "elements")


_MODEL: Mapping[str, object] = MappingProxyType(
    {"model": "transformer", "decoder": "gru", "layers": 3, "heads": 4, "width": 64, "attention": 64}
)
"""Defaults that learn most in two minutes of a core: hulls of 10 points 89 % exact; bidirectional LSTMs reach 60 %."""


def build_pointer(table: Mapping[str, Any], elements: str, features: int) -> PointerNetwork:
    """Create a pointer network from its settings, with new weights.

    Raises:
        ConfigError: a setting is invalid.
    """
    return PointerNetwork(build(PointerConfig, {**table, "elements": elements, "features": features}, "model"))


def new_model(config: PointerConfig, lines: PointLines) -> PointerNetwork:
    """Create a model with new weights, which standardizes its elements by those of the training lines."""
    model = PointerNetwork(replace(config, elements=lines.elements, features=lines.features))
    if lines.elements == "numbers":
        numbers = np.concatenate([item.elements for item in lines.train])
        model.encoder.standardize(torch.from_numpy(numbers.mean(0)), torch.from_numpy(numbers.std(0)))
    return model


def read_config(table: Mapping[str, Any]) -> PointerConfig:
    """Check the settings of a model, and fill in its defaults.

    Raises:
        ConfigError: a name is unknown, a value is invalid, or a setting does not apply.
    """
    hint = f"The training lines decide it; {setting('elements')} overrides what they seem to be."
    refuse_derived(table, _DERIVED, hint)
    recurrent = {"decoder": table["model"], "layers": 1} if table.get("model") in ("lstm", "gru", "rnn") else {}
    config = build(PointerConfig, {"features": 1, **_MODEL, **recurrent, **table}, "model")
    refuse_heads(config.model, config.heads, PointerConfig.heads)
    return config


def table_of(config: PointerConfig) -> dict[str, Any]:
    """Return the settings of a model as a dict, the inverse of `read_config`."""
    return without(config, *_DERIVED)
