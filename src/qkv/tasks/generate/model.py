"""Creating language models from their configurations."""

from dataclasses import replace

from qkv.hub.published import PublishedConfig
from qkv.models.configs.language_model import DecoderConfig, LanguageModelConfig
from qkv.models.language_model import LanguageModel
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.tasks.generate.scoring import TextModel

Config = LanguageModelConfig | PublishedConfig


def build_model(config: Config, size: int) -> TextModel:
    """Create a model, with new weights.

    Args:
        config: its settings, without the size of the vocabulary.
        size: vocabulary size.

    Returns:
        The model.

    Raises:
        ConfigError: it is a published model of another task.
    """
    if isinstance(config, PublishedConfig):
        from qkv.hub.families.load import build_as

        return build_as(config, LanguageModel, "a language model")
    config = replace(config, size=size)
    return LanguageModel(config) if isinstance(config, DecoderConfig) else RecurrentLanguageModel(config)
