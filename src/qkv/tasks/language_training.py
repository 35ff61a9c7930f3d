"""`qkv train generate`: from settings to a trained run folder."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qkv.errors import ConfigError, error_message, nearest
from qkv.models.decoder import DecoderConfig, LanguageModel
from qkv.tasks.choice import as_device
from qkv.tasks.language import LanguageTask
from qkv.tasks.launch import TABLES, first_model, launch, run_folder, size_of
from qkv.tasks.origin import Origin, first_tokenizer
from qkv.tasks.parallel import Words
from qkv.tasks.settings import build, check_tables, plain
from qkv.tasks.text import Text, TextFiles, read_for_training
from qkv.train.outcome import Outcome
from qkv.train.settings import Settings as Training

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


@dataclass(frozen=True)
class LanguageSettings:
    """All settings of a language model training.

    Args:
        data: the file.
        tokenizer: tokenizer settings.
        model: model sizes.
        training: training settings.
    """

    data: TextFiles
    tokenizer: Words
    model: DecoderConfig
    training: Training


def load_settings(tables: Mapping[str, Mapping[str, Any]]) -> LanguageSettings:
    """Build settings from nested dicts, checking all of them.

    Args:
        tables: `data`, `tokenizer`, `model`, `training`; missing values get defaults.

    Returns:
        The settings.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.

    Example:
        >>> load_settings({"model": {"context": 64}}).tokenizer.kind
        'char'
    """
    check_tables(tables, TABLES)
    model = tables.get("model", {})
    if "size" in model:
        hint = "The vocabulary comes from the training text (tokenizer.size)."
        raise ConfigError(error_message("model.size", "a known setting", "a setting derived from others", hint))
    return LanguageSettings(
        build(TextFiles, tables.get("data", {}), "data"),
        build(Words, {**_WORDS, **tables.get("tokenizer", {})}, "tokenizer"),
        build(DecoderConfig, {"size": 1, **model}, "model"),
        build(Training, {**_TRAINING, **tables.get("training", {})}, "training"),
    )


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


def show_settings(settings: LanguageSettings) -> dict[str, Any]:
    """Return the settings as nested dicts, the inverse of `load_settings`."""
    return {**plain(settings), "model": _model_table(settings.model)}


def train(
    settings: LanguageSettings,
    out: Path | None,
    device: str = "cpu",
    *,
    tensorboard: bool = False,
    origin: Origin | None = None,
) -> Outcome:
    """Train a language model, or resume a run.

    Args:
        settings: file, tokens, model, training.
        out: the run folder.
        device: compute device.
        tensorboard: whether to also log to TensorBoard.
        origin: the run that provides initial weights and tokenizer; None to train from scratch.

    Returns:
        How it ended.

    Raises:
        QkvError: any bad input; nothing already saved is lost.
    """
    folder = run_folder(out)
    place = as_device(device)
    text = read_for_training(settings.data, settings.tokenizer, settings.model.context, first_tokenizer(folder, origin))
    table, seed = _model_table(settings.model), settings.training.seed
    model = first_model(lambda: build_language_model(table, text.tokenizer.size), seed, place, origin)
    _announce(text, size_of(model))
    smoothing = settings.training.label_smoothing
    task = LanguageTask(model, text.tokenizer, text.train, text.valid, settings.data.order, smoothing)
    return launch(
        task,
        model,
        settings.training,
        out=folder,
        config=_config(settings, text),
        tokenizer=text.tokenizer,
        origin=origin,
        tensorboard=tensorboard,
    )


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


def _model_table(config: DecoderConfig) -> dict[str, Any]:
    return {name: item for name, item in plain(config).items() if name != "size"}


def _config(settings: LanguageSettings, text: Text) -> dict[str, Any]:
    """Return what defines the run: the text itself, not the location of its files."""
    return {
        "task": TASK,
        "order": settings.data.order,
        "text": text.fingerprints,
        "tokenizer": plain(settings.tokenizer),
        "model": _model_table(settings.model),
        "training": plain(settings.training),
    }


def _announce(text: Text, size: str) -> None:
    unknown = f", {text.valid.unknown:,} of them unknown" if text.valid.unknown else ""
    print(  # noqa: T201
        f"{len(text.train.ids):,} training tokens, {len(text.valid.ids):,} validation tokens{unknown}; "
        f"vocabulary of {text.tokenizer.size:,}; {size}",
        file=sys.stderr,
    )
