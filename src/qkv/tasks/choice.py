"""Which translation model: a name and its sizes, from a configuration file or a checkpoint."""

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
    """The name of a model; checks it, and gives the nearest valid one."""

    kind: Literal["transformer", "gru", "lstm", "rnn"] = "transformer"


def model_settings(table: Mapping[str, Any], size: int = 1) -> RecurrentConfig | TransformerConfig:
    """Check the settings of a model, and fill in its defaults.

    Args:
        table: `kind`, and any field of that kind's configuration.
        size: vocabulary size.

    Returns:
        The configuration.

    Raises:
        ConfigError: an unknown kind or field, with the nearest valid one; or a value outside its range.

    Example:
        >>> model_settings({"kind": "lstm", "hidden": 64}).cell
        'lstm'
    """
    kind = build(Kind, {"kind": table.get("kind", "transformer")}, "model").kind
    sizes = {name: item for name, item in table.items() if name != "kind"}
    for name in ("size", "cell"):
        if name in sizes:
            hint = 'The vocabulary is learnt from the text (tokenizer.size), the cell is the model\'s kind ("lstm").'
            raise ConfigError(error_message(f"model.{name}", "a known setting", "one that follows from others", hint))
    if kind == "transformer":
        return build(TransformerConfig, {"size": size, **sizes}, "model")
    return build(RecurrentConfig, {"size": size, "cell": kind, **sizes}, "model")


def model_table(config: RecurrentConfig | TransformerConfig) -> dict[str, Any]:
    """The settings of a model as names and numbers, the inverse of `model_settings`."""
    table = plain(config)
    table.pop("size")
    return {"kind": table.pop("cell", "transformer"), **table}


def build_model(table: Mapping[str, Any], tokenizer: Tokenizer) -> TranslationModel:
    """Make a model of its settings, weights drawn anew.

    Args:
        table: as `model_table` gave it.
        tokenizer: for the size of the vocabulary.

    Returns:
        The model.

    Raises:
        ConfigError: as `model_settings`.
    """
    config = model_settings(table, tokenizer.size)
    plain_model = RecurrentTranslator(config) if isinstance(config, RecurrentConfig) else TransformerTranslator(config)
    return plain_model if config.copy == "none" else CopyingTranslator(plain_model, tokenizer.unk)


def as_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ConfigError: no such device here.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" has tensors, but no numbers in them
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        got = str(error).splitlines()[0]
        raise ConfigError(
            error_message("--device", "a device of this machine", f"{name}: {got}", 'Use "cpu".')
        ) from None
    return device
