"""Creating translation models by name and sizes, from a configuration file or a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, error_message
from qkv.models.copying import CopyingTranslator
from qkv.models.recurrent import RecurrentConfig, RecurrentTranslator
from qkv.models.transformer import TransformerConfig, TransformerTranslator
from qkv.tasks.settings import build, plain

TranslationModel = RecurrentTranslator | TransformerTranslator | CopyingTranslator
KINDS = ("transformer", "gru", "lstm", "rnn")


@dataclass(frozen=True)
class Kind:
    """Check the name of a model; the error suggests the closest valid one."""

    kind: Literal["transformer", "gru", "lstm", "rnn"] = "transformer"


def model_settings(table: Mapping[str, Any], size: int = 1) -> RecurrentConfig | TransformerConfig:
    """Check the settings of a model, and fill in its defaults.

    Args:
        table: `kind`, and any field of that kind's configuration.
        size: vocabulary size.

    Returns:
        The configuration.

    Raises:
        ConfigError: the kind or a field is unknown (the message suggests the closest one), or a value is outside its
            range.

    Example:
        >>> model_settings({"kind": "lstm", "hidden": 64}).cell
        'lstm'
    """
    kind = build(Kind, {"kind": table.get("kind", "transformer")}, "model").kind
    sizes = {name: item for name, item in table.items() if name != "kind"}
    for name in ("size", "cell"):
        if name in sizes:
            hint = 'tokenizer.size limits the vocabulary; the model\'s kind ("lstm") sets the cell.'
            raise ConfigError(error_message(f"model.{name}", "a known setting", "a setting derived from others", hint))
    if kind == "transformer":
        return build(TransformerConfig, {"size": size, **sizes}, "model")
    return build(RecurrentConfig, {"size": size, "cell": kind, **sizes}, "model")


def model_table(config: RecurrentConfig | TransformerConfig) -> dict[str, Any]:
    """Return the settings of a model as a dict, the inverse of `model_settings`."""
    table = plain(config)
    table.pop("size")
    return {"kind": table.pop("cell", "transformer"), **table}


def build_model(table: Mapping[str, Any], tokenizer: Tokenizer) -> TranslationModel:
    """Create a model from its settings, with new weights.

    Args:
        table: as returned by `model_table`.
        tokenizer: gives the vocabulary size.

    Returns:
        The model.

    Raises:
        ConfigError: as for `model_settings`.
    """
    config = model_settings(table, tokenizer.size)
    plain_model = RecurrentTranslator(config) if isinstance(config, RecurrentConfig) else TransformerTranslator(config)
    return plain_model if config.copy == "none" else CopyingTranslator(plain_model, tokenizer.unk)


def as_device(name: str) -> torch.device:
    """Return the device with a name.

    Raises:
        ConfigError: the device is not available.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" tensors hold no numbers
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        got = str(error).splitlines()[0]
        raise ConfigError(error_message("--device", "an available device", f"{name}: {got}", 'Use "cpu".')) from None
    return device
