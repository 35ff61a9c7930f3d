"""`qkv train translate`: from settings to a trained run folder."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qkv.data.fingerprints import fingerprint
from qkv.errors import ConfigError, error_message
from qkv.models.recurrent import RecurrentConfig
from qkv.models.transformer import TransformerConfig
from qkv.tasks.choice import as_device, build_model, model_settings, model_table
from qkv.tasks.launch import TABLES, first_model, launch, run_folder, size_of
from qkv.tasks.origin import Origin, first_tokenizer
from qkv.tasks.parallel import Files, Parallel, Words, read_training
from qkv.tasks.settings import build, check_tables, plain
from qkv.tasks.translation import TranslationTask
from qkv.train.outcome import Outcome
from qkv.train.settings import Settings as Training

TASK = "translate"
DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "steps": 3000,
        "tokens": 2048,
        "schedule": "cosine",
        "validate_every": 250,
        "log_every": 25,
        "monitor": "bleu",
    }
)
"""Defaults for tens of thousands of sentence pairs on a laptop; chosen on the validation part of Multi30k."""

COPYING: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"tokenizer": {"kind": "word"}, "training": {"label_smoothing": 0.0}}
)
"""Defaults for a model that copies: whole words, and no label smoothing towards words that are not in the source."""


@dataclass(frozen=True)
class Settings:
    """All settings of a translation training.

    Args:
        data: the files.
        tokenizer: tokenizer settings.
        model: kind and sizes of the model.
        training: training settings.
    """

    data: Files
    tokenizer: Words
    model: RecurrentConfig | TransformerConfig
    training: Training


def load_settings(tables: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Build settings from nested dicts, checking all of them.

    Args:
        tables: `data`, `tokenizer`, `model`, `training`; missing values get defaults.

    Returns:
        The settings.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.

    Example:
        >>> load_settings({"model": {"kind": "gru"}}).model.score
        'additive'
    """
    check_tables(tables, TABLES)
    model = model_settings(tables.get("model", {}))
    own = {} if model.copy == "none" else COPYING
    settings = Settings(
        build(Files, tables.get("data", {}), "data"),
        build(Words, {**own.get("tokenizer", {}), **tables.get("tokenizer", {})}, "tokenizer"),
        model,
        build(Training, {**DEFAULTS, **own.get("training", {}), **tables.get("training", {})}, "training"),
    )
    if model.copy != "none" and settings.training.label_smoothing:
        got, hint = f"{settings.training.label_smoothing}", "Omit it, or train without copying."
        raise ConfigError(error_message("training.label_smoothing", "0 for a model that copies", got, hint))
    return settings


def show_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as nested dicts, the inverse of `load_settings`."""
    return {**plain(settings), "model": model_table(settings.model)}


def train(
    settings: Settings,
    out: Path | None,
    device: str = "cpu",
    *,
    tensorboard: bool = False,
    origin: Origin | None = None,
) -> Outcome:
    """Train a translation model, or resume a run.

    Args:
        settings: files, tokens, model, training.
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
    text = read_training(
        settings.data,
        settings.tokenizer,
        settings.training.seed,
        first_tokenizer(folder, origin),
        copies=settings.model.copy != "none",
    )
    table, seed = model_table(settings.model), settings.training.seed
    model = first_model(lambda: build_model(table, text.tokenizer), seed, place, origin)
    _announce(text, size_of(model))
    task = TranslationTask(
        model,
        text.tokenizer,
        text.train,
        text.valid,
        text.valid_examples,
        settings.training.label_smoothing,
        settings.data.longest,
    )
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


def _config(settings: Settings, text: Parallel) -> dict[str, Any]:
    """Return what defines the run: the text itself, not the location of its files."""
    return {
        "task": TASK,
        "longest": settings.data.longest,
        "text": {"train": text.fingerprint, "valid": fingerprint(text.valid)},
        "tokenizer": plain(settings.tokenizer),
        "model": model_table(settings.model),
        "training": plain(settings.training),
    }


def _announce(text: Parallel, size: str) -> None:
    tokens = sum(len(example.target) + 1 for example in text.train)
    print(  # noqa: T201
        f"{len(text.train):,} training pairs ({tokens:,} target tokens), {len(text.valid):,} validation pairs; "
        f"vocabulary of {text.tokenizer.size:,}; {size}",
        file=sys.stderr,
    )
