"""Creating models of texts or words with labels from their configurations."""

from dataclasses import replace

from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.models.reader import TextClassifier, TextTagger
from qkv.tasks.classify.objective import ReaderModel


def build_model(config: ReaderConfig, size: int, labels: int, unknown: int) -> ReaderModel:
    """Create a model, with new weights.

    Args:
        config: its settings, without the sizes that the text determines; those of a classifier, or of a tagger.
        size: vocabulary size.
        labels: number of labels.
        unknown: the id of the unknown token.

    Returns:
        The model.
    """
    config = replace(config, size=size, labels=labels)
    return TextClassifier(config, unknown) if isinstance(config, ClassifierConfig) else TextTagger(config, unknown)
