"""`qkv train translate`: from settings to a trained run folder."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qkv.data.fingerprints import fingerprint
from qkv.errors import ConfigError, error_message
from qkv.tasks.choice import TranslationConfig, as_device, build_model, model_settings, model_table
from qkv.tasks.launch import TABLES, first_model, launch, run_folder, size_of
from qkv.tasks.members import Direction, Members, write_members
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

SYMBOLS: Mapping[str, Mapping[str, object]] = MappingProxyType({"tokenizer": {"kind": "none", "minimum": 1}})
"""Defaults for the columns of a table: each symbol is a token."""


@dataclass(frozen=True)
class Settings:
    """All settings of a translation training.

    Args:
        data: the files.
        tokenizer: tokenizer settings.
        model: kind and sizes of the model.
        training: training settings.
        ensemble: how many models are trained.
    """

    data: Files
    tokenizer: Words
    model: TranslationConfig
    training: Training
    ensemble: Members


def load_settings(tables: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Build settings from nested dicts, checking all of them.

    Args:
        tables: `data`, `tokenizer`, `model`, `training`, `ensemble`; missing values get defaults.

    Returns:
        The settings.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.

    Example:
        >>> load_settings({"model": {"kind": "gru"}}).model.score
        'additive'
    """
    check_tables(tables, (*TABLES, "ensemble"))
    model = model_settings(tables.get("model", {}))
    files = build(Files, tables.get("data", {}), "data")
    own = COPYING if model.copy != "none" else {} if files.table is None else SYMBOLS
    settings = Settings(
        files,
        build(Words, {**own.get("tokenizer", {}), **tables.get("tokenizer", {})}, "tokenizer"),
        model,
        build(Training, {**DEFAULTS, **own.get("training", {}), **tables.get("training", {})}, "training"),
        build(Members, tables.get("ensemble", {}), "ensemble"),
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
    """Train a translation model or an ensemble, or resume.

    Args:
        settings: files, tokens, model, training, ensemble.
        out: the run folder; for an ensemble the folder of its runs, one for each member.
        device: compute device.
        tensorboard: whether to also log to TensorBoard.
        origin: the run that provides initial weights and tokenizer; None to train from scratch.

    Returns:
        How it ended; of an ensemble, the last member that was trained.

    Raises:
        QkvError: any bad input; nothing already saved is lost.
    """
    folder = run_folder(out)
    members = settings.ensemble
    names = [f"{place}-{way}" for place, way in enumerate(members.directions)] if members.models > 1 else []
    write_members(folder, names)
    if not names:
        return _train(settings, folder, device, "ahead", settings.training.seed, tensorboard, origin)
    for place, (name, way) in enumerate(zip(names, members.directions, strict=True)):
        seed = settings.training.seed + place
        print(f"Member {place + 1} of {len(names)}, seed {seed}: {folder / name}", file=sys.stderr)  # noqa: T201
        one = replace(settings, training=replace(settings.training, seed=seed))
        outcome = _train(one, folder / name, device, way, settings.training.seed, tensorboard, origin)
        if outcome.exit_code:
            break
    return outcome


def _train(
    settings: Settings,
    folder: Path,
    device: str,
    way: Direction,
    split: int,
    tensorboard: bool,
    origin: Origin | None,
) -> Outcome:
    """Train one model that writes in one direction; `split` is the seed of the pairs that are held out."""
    place = as_device(device)
    text = read_training(
        settings.data,
        settings.tokenizer,
        split,
        first_tokenizer(folder, origin),
        copies=settings.model.copy != "none",
    )
    text = text.turned() if way == "back" else text
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
        way == "back",
    )
    return launch(
        task,
        model,
        settings.training,
        out=folder,
        config=_config(settings, text, way),
        tokenizer=text.tokenizer,
        origin=origin,
        tensorboard=tensorboard,
    )


def _config(settings: Settings, text: Parallel, way: Direction) -> dict[str, Any]:
    """Return what defines the run: the text itself, not the location of its files."""
    return {
        "task": TASK,
        **({} if way == "ahead" else {"direction": way}),
        "longest": settings.data.longest,
        **({} if settings.data.table is None else {"table": plain(settings.data.table)}),
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
