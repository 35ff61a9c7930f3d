"""`qkv train point`: from lines of elements and positions to a trained run folder."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from qkv.checkpoint.plain import Plain
from qkv.data.fingerprints import fingerprint
from qkv.data.holdout import hold_out
from qkv.data.pointing import Elements, Pointed, parse_pairs
from qkv.errors import ConfigError, DataError, error_message
from qkv.models.pointer import PointerConfig, PointerNetwork
from qkv.tasks.choice import as_device
from qkv.tasks.launch import first_model, launch, run_folder, size_of
from qkv.tasks.origin import Origin
from qkv.tasks.parallel import Files, names_of, read_files
from qkv.tasks.pointing import Order, PointTask, Vocabulary
from qkv.tasks.settings import build, check_tables, plain
from qkv.train.outcome import Outcome
from qkv.train.settings import Settings as Training

task = TASK = "point"
UNKNOWN = "<unk>"
_TABLES = ("data", "model", "training")
_HELD_OUT = 1000
_DERIVED = ("features", "elements")
_MODEL: Mapping[str, object] = MappingProxyType(
    {"encoder": "transformer", "cell": "gru", "layers": 3, "heads": 4, "hidden": 64, "attention": 64}
)
"""Defaults that learn most in two minutes of a core: hulls of 10 points 89 % exact; bidirectional LSTMs reach 60 %."""
_TRAINING: Mapping[str, object] = MappingProxyType(
    {
        "steps": 5000,
        "tokens": 2048,
        "learning_rate": 2e-3,
        "schedule": "cosine",
        "warmup": 200,
        "weight_decay": 0.01,
        "label_smoothing": 0.0,
        "validate_every": 500,
        "log_every": 100,
    }
)


@dataclass(frozen=True)
class PointData:
    """Files of elements and positions, see `qkv.data.pointing`.

    Args:
        source, target: line N of one has the positions for line N of the other.
        data: or one file with `elements<TAB>positions` on each line.
        valid_source, valid_target, valid_data: likewise for validation; without them a part of the training lines is
            held out (a twentieth, at most 1,000).
        elements: what elements are; None for what those of the first line are.
        order: what makes an answer exact, see `judge_positions`.
        vocabulary: maximum number of words.
    """

    source: Path | None = None
    target: Path | None = None
    data: Path | None = None
    valid_source: Path | None = None
    valid_target: Path | None = None
    valid_data: Path | None = None
    elements: Elements | None = None
    order: Order = "sequence"
    vocabulary: int = 30_000


@dataclass(frozen=True)
class PointSettings:
    """All settings of a pointer training.

    Args:
        data: the files.
        model: model sizes; what the data decide is 1.
        training: training settings.
    """

    data: PointData
    model: PointerConfig
    training: Training


class PointLines(NamedTuple):
    """Lines ready for training.

    Attributes:
        elements: what elements are.
        vocabulary: words to ids; None for numbers.
        features: numbers per element, or number of words.
        train, valid: the lines.
        longest: most positions of a training target.
        fingerprint, valid_fingerprint: sha256 of the lines.
    """

    elements: Elements
    vocabulary: Vocabulary | None
    features: int
    train: list[Pointed]
    valid: list[Pointed]
    longest: int
    fingerprint: str
    valid_fingerprint: str


def load_settings(tables: Mapping[str, Mapping[str, Any]]) -> PointSettings:
    """Build settings from nested dicts, checking all of them.

    Args:
        tables: `data`, `model`, `training`; missing values get defaults.

    Returns:
        The settings.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.

    Example:
        >>> load_settings({"model": {"encoder": "lstm"}}).model.layers
        1
    """
    check_tables(tables, _TABLES)
    model = tables.get("model", {})
    for name in _DERIVED:
        if name in model:
            hint = "The training lines decide it; --elements overrides what they seem to be."
            raise ConfigError(error_message(f"model.{name}", "a known setting", "a setting derived from others", hint))
    recurrent = {"cell": model["encoder"], "layers": 1} if model.get("encoder") in ("lstm", "gru", "rnn") else {}
    data = build(PointData, tables.get("data", {}), "data")
    if data.vocabulary < 2:
        raise ConfigError(error_message("data.vocabulary", "at least 2", f"{data.vocabulary}", "Use more."))
    return PointSettings(
        data,
        build(PointerConfig, {"features": 1, **_MODEL, **recurrent, **model}, "model"),
        build(Training, {**_TRAINING, **tables.get("training", {})}, "training"),
    )


def show_settings(settings: PointSettings) -> dict[str, Any]:
    """Return the settings as nested dicts, the inverse of `load_settings`."""
    return {**plain(settings), "model": model_table(settings.model)}


def model_table(config: PointerConfig) -> dict[str, Any]:
    """Return the settings of a model that the data do not decide."""
    return {name: item for name, item in plain(config).items() if name not in _DERIVED}


def train(
    settings: PointSettings,
    out: Path | None,
    device: str = "cpu",
    *,
    tensorboard: bool = False,
    origin: Origin | None = None,
) -> Outcome:
    """Train a pointer network, or resume a run.

    Args:
        settings: files, model, training.
        out: the run folder.
        device: compute device.
        tensorboard: whether to also log to TensorBoard.
        origin: the run that provides initial weights and words; None to train from scratch.

    Returns:
        How it ended.

    Raises:
        QkvError: any bad input; nothing already saved is lost.
    """
    folder, place, seed = run_folder(out), as_device(device), settings.training.seed
    lines = read_lines(settings.data, settings.model.once, seed, _words_of(origin))
    model = first_model(lambda: _new_model(settings.model, lines), seed, place, origin)
    print(  # noqa: T201
        f"{len(lines.train):,} training lines, {len(lines.valid):,} validation lines; {_described(lines)}; "
        f"{size_of(model)}",
        file=sys.stderr,
    )
    smoothing = settings.training.label_smoothing
    task = PointTask(model, lines.vocabulary, lines.train, lines.valid, settings.data.order, lines.longest, smoothing)
    return launch(
        task,
        model,
        settings.training,
        out=folder,
        config=_config(settings, lines),
        tokenizer=None,
        origin=origin,
        tensorboard=tensorboard,
    )


def read_lines(data: PointData, once: bool, seed: int, words: Sequence[str] | None = None) -> PointLines:
    """Read the training and validation lines.

    Args:
        data: the files.
        once: whether each element is pointed at once.
        seed: selects what is held out if there are no validation files.
        words: a known vocabulary; None to collect one.

    Returns:
        The lines, ready for training.

    Raises:
        DataError: a file is invalid; the message gives file and line.
        ConfigError: files are missing, or too many are given.
    """
    given = Files(data.source, data.target, data.data)
    pairs, names = read_files(given), names_of(given)
    valid_given = Files(data.valid_source, data.valid_target, data.valid_data)
    valid_names = names
    if valid_given != Files():
        valid, valid_names = read_files(valid_given, "valid-"), names_of(valid_given)
    else:
        pairs, valid = hold_out(pairs, max(1, min(_HELD_OUT, len(pairs) // 20)), seed)
    train, kind = parse_pairs(pairs, names, data.elements)
    width = len(train[0].elements[0]) if kind == "numbers" else None
    held, _ = parse_pairs(valid, valid_names, kind, width)
    for items, name in ((train, names[1]), (held, valid_names[1])):
        if once:
            _expect_once(items, name)
    vocabulary, features = None, width or 1
    if kind == "words":
        vocabulary = Vocabulary(_frequent(train, data.vocabulary) if words is None else words)
        features = len(vocabulary.words)
    return PointLines(
        kind,
        vocabulary,
        features,
        train,
        held,
        max(len(item.target) for item in train),
        fingerprint(pairs),
        fingerprint(valid),
    )


def build_pointer(table: Mapping[str, Any], elements: str, features: int) -> PointerNetwork:
    """Create a pointer network from its settings, with new weights.

    Raises:
        ConfigError: a setting is invalid.
    """
    return PointerNetwork(build(PointerConfig, {**table, "elements": elements, "features": features}, "model"))


def _new_model(config: PointerConfig, lines: PointLines) -> PointerNetwork:
    model = PointerNetwork(replace(config, elements=lines.elements, features=lines.features))
    if lines.elements == "numbers":
        numbers = np.concatenate([item.elements for item in lines.train])
        model.encoder.standardize(torch.from_numpy(numbers.mean(0)), torch.from_numpy(numbers.std(0)))
    return model


def _expect_once(items: Sequence[Pointed], name: str) -> None:
    for item in items:
        if len(set(item.target)) < len(item.target):
            twice = next(place for place, count in Counter(item.target).items() if count > 1)
            hint = "If elements may be pointed at again, say so with --repeats."
            raise DataError(error_message(f"{name}:{item.line}", "each position at most once", f"{twice} twice", hint))


def _frequent(items: Sequence[Pointed], size: int) -> list[str]:
    counts = Counter(word for item in items for word in item.elements)
    words = sorted((str(word) for word in counts if word != UNKNOWN), key=lambda word: (-counts[word], word))
    return [UNKNOWN, *words[: size - 1]]


def _words_of(origin: Origin | None) -> list[str] | None:
    if origin is None:
        return None
    words = origin.trained.contents.config.get("words")
    return [str(word) for word in words] if isinstance(words, list) else None


def _config(settings: PointSettings, lines: PointLines) -> dict[str, Plain]:
    """Return what defines the run: the lines themselves, not the location of their files."""
    return {
        "task": TASK,
        "elements": lines.elements,
        "features": lines.features,
        "words": None if lines.vocabulary is None else list(lines.vocabulary.words),
        "order": settings.data.order,
        "longest": lines.longest,
        "text": {"train": lines.fingerprint, "valid": lines.valid_fingerprint},
        "model": model_table(settings.model),
        "training": plain(settings.training),
    }


def _described(lines: PointLines) -> str:
    if lines.vocabulary is not None:
        return f"{lines.features:,} words"
    return "numbers" if lines.features == 1 else f"vectors of {lines.features}"
