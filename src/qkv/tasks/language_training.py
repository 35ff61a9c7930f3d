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
"""What suits a million characters on a laptop; chosen on the validation part of tiny Shakespeare."""
_WORDS: Mapping[str, object] = MappingProxyType({"kind": "char", "minimum": 1})
_TOKENS: Mapping[str, str] = MappingProxyType({"characters": "char", "subwords": "bpe"})


@dataclass(frozen=True)
class LanguageSettings:
    """All settings of a training on plain text.

    Args:
        data: the file.
        tokenizer: how text becomes tokens.
        model: its sizes.
        training: how to train.
    """

    data: TextFiles
    tokenizer: Words
    model: DecoderConfig
    training: Training


def load_settings(tables: Mapping[str, Mapping[str, Any]]) -> LanguageSettings:
    """Build settings from nested names and values, checking all of them.

    Args:
        tables: `data`, `tokenizer`, `model`, `training`; what is left out has its default.

    Returns:
        The settings.

    Raises:
        ConfigError: an unknown name, with the nearest valid one; or a value that does not fit.

    Example:
        >>> load_settings({"model": {"context": 64}}).tokenizer.kind
        'char'
    """
    check_tables(tables, TABLES)
    model = tables.get("model", {})
    if "size" in model:
        hint = "The vocabulary is learnt from the text (tokenizer.size)."
        raise ConfigError(error_message("model.size", "a known setting", "one that follows from others", hint))
    return LanguageSettings(
        build(TextFiles, tables.get("data", {}), "data"),
        build(Words, {**_WORDS, **tables.get("tokenizer", {})}, "tokenizer"),
        build(DecoderConfig, {"size": 1, **model}, "model"),
        build(Training, {**_TRAINING, **tables.get("training", {})}, "training"),
    )


def token_kind(name: str | None) -> str | None:
    """The tokenizer's kind of a word for it; None stays None.

    Raises:
        ConfigError: an unknown word; gives the nearest.

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
    """The settings as nested names and values, which `load_settings` takes back."""
    return {**plain(settings), "model": _model_table(settings.model)}


def train(
    settings: LanguageSettings,
    out: Path | None,
    device: str = "cpu",
    *,
    tensorboard: bool = False,
    origin: Origin | None = None,
) -> Outcome:
    """Train a language model, or go on with a run.

    Args:
        settings: file, tokens, model, training.
        out: the run folder.
        device: where to compute.
        tensorboard: whether to log for TensorBoard too.
        origin: the run whose weights and tokenizer are the start; None to start anew.

    Returns:
        How it ended.

    Raises:
        QkvError: bad input of any kind; nothing that was saved is lost.
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
    """Make a model of its settings, weights drawn anew.

    Args:
        table: its sizes.
        size: vocabulary size.

    Returns:
        The model.

    Raises:
        ConfigError: a setting that does not fit.
    """
    return LanguageModel(build(DecoderConfig, {**table, "size": size}, "model"))


def _model_table(config: DecoderConfig) -> dict[str, Any]:
    return {name: item for name, item in plain(config).items() if name != "size"}


def _config(settings: LanguageSettings, text: Text) -> dict[str, Any]:
    """What defines the run: the text itself rather than where its files lie."""
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
        f"{len(text.train.ids):,} tokens to train on, {len(text.valid.ids):,} to validate on{unknown}; "
        f"{text.tokenizer.size:,} pieces; {size}",
        file=sys.stderr,
    )
