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
"""What suits some thousand sentences on a laptop; chosen on the validation part of SST-2."""
_WORDS: Mapping[Kind, Mapping[str, object]] = MappingProxyType(
    {"classify": {"kind": "word", "size": 30_000}, "tag": {"kind": "bpe", "size": 4000}}
)
"""Words carry a text's label; a tag may hang on how a word ends."""


@dataclass(frozen=True)
class LabelSettings:
    """All settings of a training on labels.

    Args:
        data: the files.
        tokenizer: how text becomes tokens.
        model: its sizes.
        training: how to train.
    """

    data: LabeledFiles
    tokenizer: Words
    model: ReaderConfig
    training: Training


def load_label_settings(kind: Kind, tables: Mapping[str, Mapping[str, Any]]) -> LabelSettings:
    """Build settings from nested names and values, checking all of them.

    Args:
        kind: "classify" or "tag".
        tables: `data`, `tokenizer`, `model`, `training`; what is left out has its default.

    Returns:
        The settings.

    Raises:
        ConfigError: an unknown name, with the nearest valid one; or a value that does not fit.

    Example:
        >>> load_label_settings("tag", {"model": {"encoder": "lstm"}}).tokenizer.kind
        'bpe'
    """
    check_tables(tables, TABLES)
    model = tables.get("model", {})
    for name in ("size", "labels"):
        if name in model:
            hint = "The vocabulary and the labels are learnt from the text."
            raise ConfigError(error_message(f"model.{name}", "a known setting", "one that follows from others", hint))
    if kind == "tag" and "wide" in model:
        hint = "Leave it out: it reads a text as a whole."
        raise ConfigError(error_message("model.wide", "none where words are tagged", f"{model['wide']}", hint))
    return LabelSettings(
        build(LabeledFiles, tables.get("data", {}), "data"),
        build(Words, {**_WORDS[kind], **tables.get("tokenizer", {})}, "tokenizer"),
        build(ReaderConfig, {"size": 1, "labels": 1, **model}, "model"),
        build(Training, {**_TRAINING, **tables.get("training", {})}, "training"),
    )


def show_label_settings(settings: LabelSettings) -> dict[str, Any]:
    """The settings as nested names and values, which `load_label_settings` takes back."""
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
    """Train a model that labels texts or words, or go on with a run.

    Args:
        kind: "classify" or "tag".
        settings: files, tokens, model, training.
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
    """Refuse a start that learnt other labels: its outputs would mean something else."""
    if origin is None or not origin.weights:
        return
    theirs = origin.trained.contents.config.get("labels")
    if theirs != list(labels):
        shown = ", ".join(map(str, theirs)) if isinstance(theirs, list) else "none"
        hint = "Train on the same labels, or anew without --from."
        raise CheckpointError(error_message("--from", f"a run with the labels {', '.join(labels)}", shown, hint))


def build_reader(kind: Kind, table: Mapping[str, Any], size: int, labels: tuple[str, ...], unknown: int) -> LabelModel:
    """Make a model of its settings, weights drawn anew.

    Args:
        kind: "classify" or "tag".
        table: its sizes.
        size: vocabulary size.
        labels: the names of the labels.
        unknown: the id of the unknown token.

    Returns:
        The model.

    Raises:
        ConfigError: a setting that does not fit.
    """
    config = build(ReaderConfig, {**table, "size": size, "labels": len(labels)}, "model")
    return TextClassifier(config, unknown) if kind == "classify" else TextTagger(config, unknown)


def _model_table(config: ReaderConfig) -> dict[str, Any]:
    return {name: item for name, item in plain(config).items() if name not in ("size", "labels")}


def _config(kind: Kind, settings: LabelSettings, text: LabeledText) -> dict[str, Any]:
    """What defines the run: the text itself rather than where its files lie."""
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
        f"{len(text.train):,} texts to train on, {len(text.valid):,} to validate on; {len(text.labels)} labels; "
        f"{text.tokenizer.size:,} pieces; {size}",
        file=sys.stderr,
    )


@final
@dataclass(frozen=True)
class LabelRecipe:
    """One of the two tasks, as the command line wants it.

    Args:
        TASK: "classify" or "tag".
    """

    TASK: Kind

    def load_settings(self, tables: Mapping[str, Mapping[str, Any]]) -> LabelSettings:
        """As `load_label_settings`."""
        return load_label_settings(self.TASK, tables)

    def show_settings(self, settings: LabelSettings) -> dict[str, Any]:
        """As `show_label_settings`."""
        return show_label_settings(settings)

    def train(
        self, settings: LabelSettings, out: Path | None, device: str, *, tensorboard: bool, origin: Origin | None
    ) -> Outcome:
        """As `train_labels`."""
        return train_labels(self.TASK, settings, out, device, tensorboard=tensorboard, origin=origin)
