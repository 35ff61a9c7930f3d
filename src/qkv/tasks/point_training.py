"""`qkv train point`: from lines of elements and positions to a trained run folder."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from qkv.data.fingerprints import fingerprint
from qkv.data.pointing import Elements, Pointed, parse_pairs
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.models.pointer import PointerConfig, PointerNetwork
from qkv.tasks.origin import Origin
from qkv.tasks.parallel import Files, divided, names_of, read_files
from qkv.tasks.pointing import ElementVocabulary, Order, PointTask
from qkv.tasks.recipe import ModelTable, Recipe, refuse_derived, without
from qkv.tasks.recipe import RecipeSettings as AllSettings
from qkv.tasks.settings import build

TASK = "point"
UNKNOWN = "<unk>"
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
            held out (a twentieth, at most 1,000, see `qkv.data.holdout`).
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


PointSettings = AllSettings[PointData, PointerConfig]


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
    vocabulary: ElementVocabulary | None
    features: int
    train: list[Pointed]
    valid: list[Pointed]
    longest: int
    fingerprint: str
    valid_fingerprint: str


def read_lines(data: PointData, once: bool, seed: int) -> PointLines:
    """Read the training and validation lines.

    Args:
        data: the files.
        once: whether each element is pointed at once.
        seed: selects what is held out if there are no validation files.

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
        pairs, valid = divided(pairs, seed, names=("lines", "inputs"))
    train, kind = parse_pairs(pairs, names, data.elements)
    width = len(train[0].elements[0]) if kind == "numbers" else None
    held, _ = parse_pairs(valid, valid_names, kind, width)
    for items, name in ((train, names[1]), (held, valid_names[1])):
        if once:
            _expect_once(items, name)
    vocabulary, features = None, width or 1
    if kind == "words":
        vocabulary = ElementVocabulary(_frequent(train, data.vocabulary))
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
            hint = f"If elements may be pointed at again, say so with {setting('repeats')}."
            raise DataError(Place(name, item.line), "each position at most once", f"{twice} twice", hint)


def _frequent(items: Sequence[Pointed], size: int) -> list[str]:
    counts = Counter(word for item in items for word in item.elements)
    words = sorted((str(word) for word in counts if word != UNKNOWN), key=lambda word: (-counts[word], word))
    return [UNKNOWN, *words[: size - 1]]


def _config(table: Mapping[str, Any]) -> PointerConfig:
    hint = f"The training lines decide it; {setting('elements')} overrides what they seem to be."
    refuse_derived(table, _DERIVED, hint)
    recurrent = {"cell": table["encoder"], "layers": 1} if table.get("encoder") in ("lstm", "gru", "rnn") else {}
    config = build(PointerConfig, {"features": 1, **_MODEL, **recurrent, **table}, "model")
    if config.encoder != "transformer" and config.heads != _MODEL["heads"]:
        hint = f"It belongs to self-attention: omit it, or choose {setting('model', 'transformer')}."
        raise ConfigError("model.heads", "a Transformer", f"{config.heads} with {config.encoder}", hint)
    return config


def _table(config: PointerConfig) -> dict[str, Any]:
    return without(config, *_DERIVED)


def _expect_words(settings: PointSettings) -> None:
    size = settings.data.vocabulary
    if size < 2:
        raise ConfigError("data.vocabulary", "at least 2", f"{size}", "Use more.")


def _read(settings: PointSettings, _: Tokenizer | None) -> PointLines:
    return read_lines(settings.data, settings.model.once, settings.training.seed)


def _with_words(lines: PointLines, origin: Origin | None) -> PointLines:
    """Return the lines with the words of the run to start from, if it has any."""
    words = None if origin is None else origin.trained.contents.config.get("words")
    if lines.vocabulary is None or not isinstance(words, list):
        return lines
    return lines._replace(vocabulary=ElementVocabulary([str(word) for word in words]), features=len(words))


def _job(model: PointerNetwork, lines: PointLines, settings: PointSettings) -> PointTask:
    order, training = settings.data.order, settings.training
    return PointTask(
        *(model, lines.vocabulary, lines.train, lines.valid, order, lines.longest),
        *(training.label_smoothing, training.batch_size),
    )


def _identity(lines: PointLines, settings: PointSettings) -> dict[str, Any]:
    return {
        "elements": lines.elements,
        "features": lines.features,
        "words": None if lines.vocabulary is None else list(lines.vocabulary.words),
        "order": settings.data.order,
        "longest": lines.longest,
        "text": {"train": lines.fingerprint, "valid": lines.valid_fingerprint},
    }


def _summary(lines: PointLines, _: PointerNetwork) -> str:
    numbers = "numbers" if lines.features == 1 else f"vectors of {lines.features}"
    elements = numbers if lines.vocabulary is None else f"{lines.features:,} words"
    return f"{len(lines.train):,} training lines, {len(lines.valid):,} validation lines; {elements}"


RECIPE: Recipe[PointData, PointerConfig, PointLines, PointerNetwork] = Recipe(
    TASK,
    PointData,
    ModelTable(_config, _table),
    {"training": _TRAINING},
    _read,
    _new_model,
    _job,
    _identity,
    _summary,
    tables=("data", "model", "training"),
    check=_expect_words,
    adapt=_with_words,
)
load_settings, show_settings, train = RECIPE.load_settings, RECIPE.show_settings, RECIPE.train
