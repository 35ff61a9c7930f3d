"""Creating translation models from their configurations."""

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from qkv.data.tokenizer import Tokenizer
from qkv.data.word_table import MARK, WordTable
from qkv.errors import ConfigError, setting
from qkv.hub.published import PublishedConfig
from qkv.models.configs.checks import expect_attention_for_features
from qkv.models.configs.translator import MonotonicConfig, RecurrentConfig, TransformerConfig, TranslatorConfig

if TYPE_CHECKING:
    from qkv.models.copying import CopyingTranslator
    from qkv.models.monotonic import MonotonicTranslator
    from qkv.models.recurrent_translator import RecurrentTranslator
    from qkv.models.translator import TransformerTranslator

TranslationModel: TypeAlias = "RecurrentTranslator | TransformerTranslator | CopyingTranslator | MonotonicTranslator"
TranslationConfig = TranslatorConfig | PublishedConfig


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
        from qkv.hub.families.load import build_as
        from qkv.models.translator import TransformerTranslator

        return build_as(config, TransformerTranslator, "an encoder-decoder")
    config = replace(config, size=tokenizer.size)
    if not tokenizer.shared:
        config = replace(config, source_size=tokenizer.source.size)
    if separate:
        config = _with_features(config, tokenizer.source)
    # Only the class that is built is imported.
    if isinstance(config, MonotonicConfig):
        from qkv.models.monotonic import MonotonicTranslator

        return MonotonicTranslator(config, tokenizer.pad)
    plain_model = _plain_model(config)
    if config.copy == "none":
        return plain_model
    from qkv.models.copying import CopyingTranslator

    return CopyingTranslator(plain_model, tokenizer.unk)


def _plain_model(config: RecurrentConfig | TransformerConfig) -> "RecurrentTranslator | TransformerTranslator":
    if isinstance(config, RecurrentConfig):
        from qkv.models.recurrent_translator import RecurrentTranslator

        return RecurrentTranslator(config)
    from qkv.models.translator import TransformerTranslator

    return TransformerTranslator(config)


def _with_features(config: TranslatorConfig, tokenizer: Tokenizer) -> TranslatorConfig:
    expect_features(config)
    assert not isinstance(config, MonotonicConfig)
    mark = tokenizer.encode(MARK)
    if len(mark) != 1 or mark == [tokenizer.unk]:
        expected = f'a vocabulary with "{MARK}", which stands in front of separate features'
        hint = (
            "Train with " + setting("source_tokenizer", "none") + ", and not with the tokenizer of a run "
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
        hint = "It was made for one source: use " + setting("features", "front") + "."
        raise ConfigError(setting("from"), "a run of this library with separate features", "a published model", hint)
    if isinstance(config, MonotonicConfig):
        hint = "It reads one position and nothing else: use " + setting("features", "front") + "."
        raise ConfigError("alignment", "soft with separate features", f'"{config.alignment}"', hint)
    expect_attention_for_features(config.score)
