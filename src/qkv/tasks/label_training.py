"""`qkv train classify` and `qkv train tag`: from settings to a trained run folder."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from qkv.errors import CheckpointError, ConfigError, error_message
from qkv.models.reader import ReaderConfig, TextClassifier, TextTagger
from qkv.tasks.choice import as_device
from qkv.tasks.labeled_text import Kind, LabeledFiles, LabeledText, read_for_training
from qkv.tasks.labeling import LabelModel, LabelTask
from qkv.tasks.launch import TABLES, first_model, launch, run_folder, size_of
from qkv.tasks.origin import Origin, first_tokenizer
from qkv.tasks.parallel import Words
from qkv.tasks.settings import build, check_tables, plain
from qkv.train.outcome import Outcome
from qkv.train.settings import Settings as Training

_TRAINING: Mapping[str, object] = MappingProxyType(
    {
        "steps": 2000,
        "tokens": 2048,
        "schedule": "cosine",
        "warmup": 100,
        "weight_decay": 0.1,
        "validate_every": 100,
        "log_every": 25,
        "patience": 10,
    }
)
"""Defaults for a few thousand sentences on a laptop; chosen on the validation part of SST-2."""
_WORDS: Mapping[Kind, Mapping[str, object]] = MappingProxyType(
    {"classify": {"kind": "word", "size": 30_000}, "tag": {"kind": "bpe", "size": 4000}}
)
"""Words determine a text's label; a tag can depend on a word's ending."""


@dataclass(frozen=True)
class LabelSettings:
    """All settings of a labeling training.

    Args:
        data: the files.
        tokenizer: tokenizer settings.
        model: model sizes.
        training: training settings.
    """

    data: LabeledFiles
    tokenizer: Words
    model: ReaderConfig
    training: Training


def load_label_settings(kind: Kind, tables: Mapping[str, Mapping[str, Any]]) -> LabelSettings:
    """Build settings from nested dicts, checking all of them.

    Args:
        kind: "classify" or "tag".
        tables: `data`, `tokenizer`, `model`, `training`; missing values get defaults.

    Returns:
        The settings.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.

    Example:
        >>> load_label_settings("tag", {"model": {"encoder": "lstm"}}).tokenizer.kind
        'bpe'
    """
    check_tables(tables, TABLES)
    model = tables.get("model", {})
    for name in ("size", "labels"):
        if name in model:
            hint = "The vocabulary and the labels come from the training text."
            raise ConfigError(error_message(f"model.{name}", "a known setting", "a setting derived from others", hint))
    if kind == "tag" and "wide" in model:
        hint = "Omit it: it only applies to whole texts."
        raise ConfigError(error_message("model.wide", "none for tagging", f"{model['wide']}", hint))
    return LabelSettings(
        build(LabeledFiles, tables.get("data", {}), "data"),
        build(Words, {**_WORDS[kind], **tables.get("tokenizer", {})}, "tokenizer"),
        build(ReaderConfig, {"size": 1, "labels": 1, **model}, "model"),
        build(Training, {**_TRAINING, **tables.get("training", {})}, "training"),
    )


def show_label_settings(settings: LabelSettings) -> dict[str, Any]:
    """Return the settings as nested dicts, the inverse of `load_label_settings`."""
    return {**plain(settings), "model": _model_table(settings.model)}


def train_labels(
    kind: Kind,
    settings: LabelSettings,
    out: Path | None,
    device: str = "cpu",
    *,
    tensorboard: bool = False,
    origin: Origin | None = None,
) -> Outcome:
    """Train a classifier or tagger, or resume a run.

    Args:
        kind: "classify" or "tag".
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
    seed = settings.training.seed
    begun, wide = first_tokenizer(folder, origin), settings.model.wide
    text = read_for_training(kind, settings.data, settings.tokenizer, seed, begun, wide)
    _expect_labels(text.labels, origin)
    table, marks = _model_table(settings.model), text.tokenizer
    model = first_model(lambda: build_reader(kind, table, marks.size, text.labels, marks.unk), seed, place, origin)
    _announce(text, size_of(model))
    task = LabelTask(model, text.tokenizer, text.labels, text.train, text.valid, settings.training.label_smoothing)
    return launch(
        task,
        model,
        settings.training,
        out=folder,
        config=_config(kind, settings, text),
        tokenizer=text.tokenizer,
        origin=origin,
        tensorboard=tensorboard,
    )


def _expect_labels(labels: tuple[str, ...], origin: Origin | None) -> None:
    """Refuse to start from a run with other labels: its outputs would mean something else."""
    if origin is None or not origin.weights:
        return
    theirs = origin.trained.contents.config.get("labels")
    if theirs != list(labels):
        shown = ", ".join(map(str, theirs)) if isinstance(theirs, list) else "none"
        hint = "Train on the same labels, or from scratch without --from."
        raise CheckpointError(error_message("--from", f"a run with the labels {', '.join(labels)}", shown, hint))


def build_reader(kind: Kind, table: Mapping[str, Any], size: int, labels: tuple[str, ...], unknown: int) -> LabelModel:
    """Create a model from its settings, with new weights.

    Args:
        kind: "classify" or "tag".
        table: its sizes.
        size: vocabulary size.
        labels: the names of the labels.
        unknown: the id of the unknown token.

    Returns:
        The model.

    Raises:
        ConfigError: a setting is invalid.
    """
    config = build(ReaderConfig, {**table, "size": size, "labels": len(labels)}, "model")
    return TextClassifier(config, unknown) if kind == "classify" else TextTagger(config, unknown)


def _model_table(config: ReaderConfig) -> dict[str, Any]:
    return {name: item for name, item in plain(config).items() if name not in ("size", "labels")}


def _config(kind: Kind, settings: LabelSettings, text: LabeledText) -> dict[str, Any]:
    """Return what defines the run: the text itself, not the location of its files."""
    return {
        "task": kind,
        "labels": list(text.labels),
        "longest": settings.data.longest,
        "text": {"train": text.fingerprint, "valid": text.valid_fingerprint},
        "tokenizer": plain(settings.tokenizer),
        "model": _model_table(settings.model),
        "training": plain(settings.training),
    }


def _announce(text: LabeledText, size: str) -> None:
    print(  # noqa: T201
        f"{len(text.train):,} training texts, {len(text.valid):,} validation texts; {len(text.labels)} labels; "
        f"vocabulary of {text.tokenizer.size:,}; {size}",
        file=sys.stderr,
    )


@final
@dataclass(frozen=True)
class LabelRecipe:
    """One of the two labeling tasks, as the command line uses it.

    Args:
        TASK: "classify" or "tag".
    """

    TASK: Kind

    def load_settings(self, tables: Mapping[str, Mapping[str, Any]]) -> LabelSettings:
        """See `load_label_settings`."""
        return load_label_settings(self.TASK, tables)

    def show_settings(self, settings: LabelSettings) -> dict[str, Any]:
        """See `show_label_settings`."""
        return show_label_settings(settings)

    def train(
        self, settings: LabelSettings, out: Path | None, device: str, *, tensorboard: bool, origin: Origin | None
    ) -> Outcome:
        """See `train_labels`."""
        return train_labels(self.TASK, settings, out, device, tensorboard=tensorboard, origin=origin)
