"""Creating models of texts or words with labels from their configurations."""

from collections.abc import Sequence
from dataclasses import replace

from qkv.errors import ConfigError
from qkv.hub.published import PublishedConfig
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.models.reader import TextClassifier, TextTagger
from qkv.tasks.classify.labeling import ReaderModel

Config = ReaderConfig | PublishedConfig


def build_model(config: Config, size: int, labels: Sequence[str], unknown: int) -> ReaderModel:
    """Create a model, with new weights.

    Args:
        config: its settings, without the sizes that the text determines; those of a classifier, or of a tagger.
        size: vocabulary size.
        labels: the names of the labels.
        unknown: the id of the unknown token.

    Returns:
        The model.

    Raises:
        ConfigError: it is a published model of another task.
    """
    if isinstance(config, PublishedConfig):
        from qkv.hub.families.load import build, described, with_labels

        model = build(*described(with_labels(config, labels)))
        if not isinstance(model, ReaderModel):
            raise ConfigError("settings", "a model that labels", type(model).__name__, "Use its own task.")
        return model
    config = replace(config, size=size, labels=len(labels))
    return TextClassifier(config, unknown) if isinstance(config, ClassifierConfig) else TextTagger(config, unknown)
