"""`qkv train translate`: from settings to a trained run folder, or one for each model of an ensemble."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from qkv.data.corpus import fingerprint
from qkv.data.marked_pieces import joined_words
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, on_command_line, quantity, setting
from qkv.hub.published import PublishedConfig
from qkv.metrics.translation import WMT, BleuTokenizer, measures_bleu
from qkv.settings import as_dict
from qkv.tasks.folds import Examples
from qkv.tasks.length import expect_readable, length_defaults
from qkv.tasks.members import write_members
from qkv.tasks.notes import note
from qkv.tasks.pairs import pair_examples
from qkv.tasks.recipe import Recipe
from qkv.tasks.translate.data import Parallel, inspect, read_training
from qkv.tasks.translate.limits import STORED
from qkv.tasks.translate.model import (
    TranslationConfig,
    TranslationModel,
    build_model,
    expect_features,
)
from qkv.tasks.translate.objective import TranslationSettings, TranslationTask
from qkv.tasks.translate.settings import TRANSLATE, Direction, MemberSettings, TranslateFiles, TranslateTokenizer
from qkv.training.processes import current

COPYING: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"tokenizer": {"tokenizer": "word"}, "training": {"label_smoothing": 0.0}}
)
"""Defaults for a model that copies: whole words, and no label smoothing towards words that are not in the source."""

SYMBOLS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"tokenizer": {"tokenizer": "none", "minimum": 1, "unicode": "none"}}
)
"""Defaults for the columns of a table: each symbol is a token, a combining accent too if a character is a symbol."""


_ENDS = 1
"""The begin token, beside which a decoder reads a whole target."""


@final
@dataclass(frozen=True)
class Member:
    """One model of an ensemble, in place of the settings of the ensemble.

    Args:
        direction: in which it writes.
        split: the seed that selects the held-out pairs, the same for all members.
    """

    direction: Direction
    split: int


def _member(settings: TranslationSettings) -> Member:
    ensemble = settings.ensemble
    return ensemble if isinstance(ensemble, Member) else Member("ahead", settings.training.seed)


def _read(settings: TranslationSettings, tokenizer: Tokenizer | None) -> Parallel:
    copies, member = settings.model.copy != "none", _member(settings)
    assert isinstance(settings.tokenizer, TranslateTokenizer)
    text = read_training(settings.data, settings.tokenizer, member.split, tokenizer, copies=copies)
    return text.right_to_left() if member.direction == "back" else text


def _inspect(settings: TranslationSettings) -> None:
    assert isinstance(settings.tokenizer, TranslateTokenizer)
    inspect(settings.data, settings.tokenizer, settings.training.seed)


def _build(config: TranslationConfig, text: Parallel) -> TranslationModel:
    return build_model(config, text.tokenizer, text.table)


def _identity(text: Parallel, settings: TranslationSettings) -> dict[str, Any]:
    fingerprints = {"train": text.fingerprint, "valid": fingerprint(text.valid)}
    table = {} if text.table is None else {"table": as_dict(text.table)}
    direction = {"direction": "back"} if text.backward else {}
    # Fields that only some runs need, so that others have the same configuration as in earlier versions.
    optional = {"bleu_tokenize": _bleu_tokenizer(settings), STORED: text.limit.to_json_value()}
    stored = {name: value for name, value in optional.items() if value not in (WMT, [])}
    return {**direction, "longest": settings.data.longest, **stored, **table, "text": fingerprints}


def _bleu_tokenizer(settings: TranslationSettings) -> BleuTokenizer:
    return settings.data.bleu_tokenize or WMT


def _monitored(settings: TranslationSettings, text: Parallel) -> TranslationSettings:
    """Return the settings with the figure that chooses the best checkpoint: BLEU, if it measures most answers."""
    # Also where another figure is monitored: a tokenizer that cannot be used is refused before the first step.
    measured = measures_bleu(joined_words([pair.target for pair in text.valid]), _bleu_tokenizer(settings))
    if settings.training.monitor is not None:
        return settings
    name = "bleu" if measured else "chrf"
    if not measured:
        flags = [on_command_line("bleu_tokenize", kind) for kind in ("zh", "ja-mecab", "char")]
        note(
            "qkv: most validation targets have fewer than the four words that BLEU counts: chrF chooses the best "
            f"checkpoint. If spaces do not separate words (Chinese, Japanese), use {' or '.join(flags)}."
        )
    return replace(settings, training=replace(settings.training, monitor=name))


def _summary(text: Parallel, _: TranslationModel) -> str:
    train, valid = quantity(len(text.train), "training pair"), quantity(len(text.valid), "validation pair")
    source = "" if text.tokenizer.shared else f"; source vocabulary of {text.tokenizer.source.size:,}"
    return f"{train} ({quantity(text.train.target_tokens, 'target token')}), {valid}{source}"


def _check(settings: TranslationSettings) -> None:
    """Refuse settings that contradict each other: of copying and the vocabulary, of features and what reads them."""
    expect_readable(settings, _ENDS)
    tokenizer, table, copies = settings.tokenizer, settings.data.table, settings.model.copy != "none"
    assert isinstance(tokenizer, TranslateTokenizer)
    if copies and not tokenizer.shared:
        both = setting("source_tokenizer") + " and " + setting("target_tokenizer")
        hint = "A copied word has one id on both sides: omit " + both + "."
        got = " and ".join(tokenizer.kinds)
        raise ConfigError("copy", "one vocabulary for both sides", got, hint)
    if table is not None and table.features == "separate":
        expect_features(settings.model)
        if tokenizer.kinds[0] != "none":
            hint = "Omit the tokenizer: each symbol and each feature is a token."
            expected = "none, with which each feature is a token"
            raise ConfigError("source_tokenizer", expected, tokenizer.kinds[0], hint)
    if copies and settings.training.label_smoothing:
        got, hint = f"{settings.training.label_smoothing}", "Omit it, or train without copying."
        raise ConfigError("label_smoothing", "0 for a model that copies", got, hint)


def _defaults_of(config: TranslationConfig, files: TranslateFiles) -> Mapping[str, Mapping[str, object]]:
    if config.copy != "none":
        return COPYING
    return length_defaults(config, files, _ENDS) if files.table is None else SYMBOLS


def _runs(settings: TranslationSettings, out: Path) -> Iterator[tuple[TranslationSettings, Path]]:
    """Yield the training of one translator, or of each member of an ensemble; their seeds count up."""
    members: MemberSettings = settings.ensemble
    names = [f"{number}-{way}" for number, way in enumerate(members.directions)] if members.ensemble > 1 else []
    if current().leads:
        write_members(out, names)
    if not names:
        yield settings, out
        return
    for number, (name, way) in enumerate(zip(names, members.directions, strict=True)):
        seed = settings.training.seed + number
        note(f"Member {number + 1} of {len(names)}, seed {seed}: {out / name}")
        training = replace(settings.training, seed=seed)
        yield replace(settings, training=training, ensemble=Member(way, settings.training.seed)), out / name


def _examples(files: TranslateFiles) -> Examples:
    if files.prepared is not None or files.table is not None:
        got = "a prepared corpus" if files.prepared is not None else "a table of words"
        raise ConfigError(setting("folds"), "files of pairs to divide", got, "Compare by seeds.")
    return pair_examples(files)


RECIPE: Recipe[TranslateFiles, TranslationConfig, Parallel, TranslationModel] = Recipe(
    TRANSLATE,
    _read,
    _build,
    TranslationTask,
    _identity,
    _summary,
    defaults_of=_defaults_of,
    check=_check,
    completed=_monitored,
    published=PublishedConfig,
    runs=_runs,
    examples=_examples,
    inspect=_inspect,
)
"""Training one translator or an ensemble, by the settings."""
