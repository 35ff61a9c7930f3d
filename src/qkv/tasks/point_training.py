"""`qkv train point`: from lines of elements and positions to a trained run folder."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from qkv.data.choices import Elements
from qkv.data.fingerprints import fingerprint
from qkv.data.pointing import Pointed, parse_pairs
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.models.pointer import PointerConfig, PointerNetwork
from qkv.settings import build
from qkv.tasks.origin import Origin
from qkv.tasks.pairs import PairSources, divided
from qkv.tasks.point.settings import POINT, PointFiles
from qkv.tasks.pointing import ElementVocabulary, PointTask
from qkv.tasks.recipe import ModelTable, Recipe, refuse_derived, without
from qkv.tasks.recipe import RecipeSettings as AllSettings
from qkv.tasks.values import pair_line, text_line

UNKNOWN = "<unk>"
_DERIVED = ("features", "elements")
_MODEL: Mapping[str, object] = MappingProxyType(
    {"encoder": "transformer", "cell": "gru", "layers": 3, "heads": 4, "hidden": 64, "attention": 64}
)
"""Defaults that learn most in two minutes of a core: hulls of 10 points 89 % exact; bidirectional LSTMs reach 60 %."""
PointSettings = AllSettings[PointFiles, PointerConfig]


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


def read_lines(data: PointFiles, once: bool, seed: int) -> PointLines:
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
    sources = PairSources.of(data, "", _line, _pair) or PairSources()
    pairs, names = sources.read(), sources.names
    valid_sources = PairSources.of(data, "valid_", _line, _pair)
    valid_names = (valid_sources or sources).names
    if valid_sources is not None:
        valid = valid_sources.read()
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


def _line(side: Any, where: str) -> str:
    """Return elements or positions as a line: apart by spaces, the numbers of a vector by commas."""
    if isinstance(side, str) or not isinstance(side, Iterable):
        return text_line(side, where)
    parts = (",".join(map(str, one)) if isinstance(one, tuple | list) else str(one) for one in side)
    return text_line(" ".join(parts), where)


def _pair(item: Any, where: str) -> str:
    return pair_line(item, where, _line)


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


RECIPE: Recipe[PointFiles, PointerConfig, PointLines, PointerNetwork] = Recipe(
    POINT,
    ModelTable(_config, _table),
    _read,
    _new_model,
    _job,
    _identity,
    _summary,
    check=_expect_words,
    adapt=_with_words,
)
load_settings, show_settings, train = RECIPE.load_settings, RECIPE.show_settings, RECIPE.train
