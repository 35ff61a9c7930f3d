"""Creating translation models from the settings of a configuration file or a checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from qkv.data.tokenizer import Tokenizer
from qkv.data.word_table import MARK, WordTable
from qkv.errors import ConfigError, expect_name, setting
from qkv.hub.families.load import PUBLISHED, PublishedConfig
from qkv.models.checks import expect_attention_for_features
from qkv.models.copying import CopyingTranslator
from qkv.models.monotonic import MonotonicConfig, MonotonicTranslator
from qkv.models.recurrent_translator import RecurrentConfig, RecurrentTranslator
from qkv.models.translator import TransformerConfig, TransformerTranslator
from qkv.settings import build
from qkv.tasks.recipe import kind_of, refuse_derived, refuse_settings_of, without

TranslationModel = RecurrentTranslator | TransformerTranslator | CopyingTranslator | MonotonicTranslator
_QkvConfig = RecurrentConfig | TransformerConfig | MonotonicConfig
TranslationConfig = _QkvConfig | PublishedConfig
Alignment = Literal["soft", "monotonic-0", "monotonic-1"]
_DERIVED = ("size", "source_size", "features_mark")
"""Settings of a model that follow from the vocabulary."""


def read_config(table: Mapping[str, Any]) -> TranslationConfig:
    """Check the settings of a model, and fill in its defaults.

    Args:
        table: `model`, the kind of the decoder, `alignment`, and any field of the configuration that they choose;
            `width` for a recurrent one sets all its widths.

    Returns:
        The configuration.

    Raises:
        ConfigError: the kind or a field is unknown (the message suggests the closest one), or a value is outside its
            range.

    Example:
        >>> read_config({"model": "lstm", "hidden": 64}).model
        'lstm'
    """
    if table.get("model") == PUBLISHED:
        return PublishedConfig.from_table(table)
    table = dict(table)
    if "decoder" in table:
        table["model"] = table.pop("decoder")
    kind = kind_of(table)
    alignment = _alignment(table.get("alignment", "soft"), kind)
    sizes = {name: item for name, item in table.items() if name not in ("model", "alignment")}
    refuse_derived(sizes, _DERIVED, f"The text decides it; {setting('tokenizer.vocabulary')} limits the vocabulary.")
    if kind == "transformer":
        refuse_settings_of(sizes, TransformerConfig, RecurrentConfig, f"{setting('model', 'gru')}, lstm or rnn")
        return build(TransformerConfig, {"size": 1, **sizes}, "model")
    if "width" in sizes:
        widths = _recurrent_widths(width := sizes.pop("width"))
        if all(name in sizes for name in widths) and any(sizes[name] != number for name, number in widths.items()):
            got = ", ".join(f"{name} {sizes[name]}" for name in widths)
            hint = "They are all that it sets: omit it, change them, or train from scratch."
            raise ConfigError("model.width", f"{width}, in all sizes beside it", got, hint)
        sizes = {**widths, **sizes}
    if alignment != "soft":
        refuse_settings_of(sizes, MonotonicConfig, RecurrentConfig, setting("alignment", "soft"))
        return build(MonotonicConfig, {"size": 1, "model": kind, "alignment": alignment, **sizes}, "model")
    refuse_settings_of(sizes, RecurrentConfig, TransformerConfig, setting("model", "transformer"))
    refuse_settings_of(sizes, RecurrentConfig, MonotonicConfig, setting("alignment", "monotonic-1"))
    return build(RecurrentConfig, {"size": 1, "model": kind, **sizes}, "model")


def _recurrent_widths(width: object) -> dict[str, int]:
    """Return the sizes of a recurrent model of some width: embeddings and additive scores have half of it."""
    if not isinstance(width, int) or isinstance(width, bool) or width < 2:
        hint = "It is the width of the decoder's state."
        raise ConfigError("model.width", "an integer, at least 2", f"{width}", hint)
    return {"hidden": width, "embedding": width // 2, "attention": width // 2}


def table_of(config: TranslationConfig) -> dict[str, Any]:
    """Return the settings of a model as a dict, the inverse of `read_config`."""
    if isinstance(config, PublishedConfig):
        return config.to_table()
    return without(config, *_DERIVED)


def build_model(config: TranslationConfig, tokenizer: Tokenizer, words: WordTable | None = None) -> TranslationModel:
    """Create a model, with new weights.

    Args:
        config: its settings, without the sizes that the text determines.
        tokenizer: gives the vocabulary sizes.
        words: the columns of its texts, if they are a table; gives the mark in front of separate features.

    Returns:
        The model.

    Raises:
        ConfigError: the model cannot read separate features, or the vocabulary has no mark.
    """
    separate = words is not None and words.features == "separate"
    if isinstance(config, PublishedConfig):
        if separate:
            expect_features(config)
        return config.build_as(TransformerTranslator, "an encoder-decoder")
    config = replace(config, size=tokenizer.size)
    if not tokenizer.shared:
        config = replace(config, source_size=tokenizer.source.size)
    if separate:
        config = _with_features(config, tokenizer.source)
    if isinstance(config, MonotonicConfig):
        return MonotonicTranslator(config, tokenizer.pad)
    plain_model = RecurrentTranslator(config) if isinstance(config, RecurrentConfig) else TransformerTranslator(config)
    return plain_model if config.copy == "none" else CopyingTranslator(plain_model, tokenizer.unk)


def _with_features(config: _QkvConfig, tokenizer: Tokenizer) -> _QkvConfig:
    expect_features(config)
    assert not isinstance(config, MonotonicConfig)
    mark = tokenizer.encode(MARK)
    if len(mark) != 1 or mark == [tokenizer.unk]:
        expected = f'a vocabulary with "{MARK}", which stands in front of separate features'
        hint = (
            f"Train with {setting('source_tokenizer', 'none')}, and not with the tokenizer of a run "
            "without separate features."
        )
        raise ConfigError("tokenizer", expected, "one without it", hint)
    return replace(config, features_mark=mark[0])


def expect_features(config: TranslationConfig) -> None:
    """Refuse a model that cannot attend to features as a second source.

    Raises:
        ConfigError: its alignment is hard, it has no attention, or it is a published model.
    """
    if isinstance(config, PublishedConfig):
        hint = f"It was made for one source: use {setting('features', 'front')}."
        raise ConfigError(setting("from"), "a run of this library with separate features", "a published model", hint)
    if isinstance(config, MonotonicConfig):
        hint = f"It reads one position and nothing else: use {setting('features', 'front')}."
        raise ConfigError("model.alignment", "soft with separate features", f'"{config.alignment}"', hint)
    expect_attention_for_features(config.score)


def _alignment(name: object, kind: str) -> Alignment:
    alignment: Alignment = expect_name("model.alignment", name, get_args(Alignment), "one of its names")
    if alignment != "soft" and kind == "transformer":
        expected = f'gru, lstm or rnn with the alignment "{alignment}"'
        hint = f"Use {setting('model', 'gru')}: the decoder may not attend to anything but the aligned position."
        raise ConfigError("model.model", expected, kind, hint)
    return alignment
