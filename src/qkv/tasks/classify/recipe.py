"""`qkv train classify`: from settings to a trained run folder; `qkv train tag` shares all but the reader."""

from collections.abc import Sequence
from typing import Any

from qkv.data.labeled import Unit
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, quantity, setting
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.tasks.classify.data import (
    LabeledText,
    LabelFiles,
    ReadTexts,
    as_lines,
    inspect,
    read_for_training,
    read_texts,
)
from qkv.tasks.classify.model import build_model
from qkv.tasks.classify.objective import LabelTask, ReaderModel
from qkv.tasks.classify.settings import CLASSIFY
from qkv.tasks.folds import Examples
from qkv.tasks.notes import reporting
from qkv.tasks.origin import Origin
from qkv.tasks.recipe import Recipe, RecipeSettings
from qkv.tasks.settings import TaskSettings
from qkv.tasks.streams import format_lines

LabelSettings = RecipeSettings[LabelFiles, ReaderConfig]
LabelRecipe = Recipe[LabelFiles, ReaderConfig, LabeledText, ReaderModel]


def label_recipe(settings: TaskSettings, read_texts: ReadTexts, unit: Unit) -> LabelRecipe:
    """Return the recipe of a task that labels.

    Args:
        settings: its tables of settings.
        read_texts: reads its data.
        unit: what a text is called.
    """

    def read(settings: LabelSettings, tokenizer: Tokenizer | None) -> LabeledText:
        seed, config = settings.training.seed, settings.model
        wide = config.wide if isinstance(config, ClassifierConfig) else None
        return read_for_training(read_texts, settings.data, settings.tokenizer, seed, tokenizer, wide, unit)

    def create(config: ReaderConfig, text: LabeledText) -> ReaderModel:
        return build_model(config, text.tokenizer.size, len(text.labels), text.tokenizer.unk)

    def inspect_texts(settings: LabelSettings) -> None:
        inspect(read_texts, settings.data, settings.tokenizer, settings.training.seed, unit)

    def examples(files: LabelFiles) -> Examples:
        with reporting(files.skip):
            texts = read_texts(files.data, "data", files.columns)
        whole = unit == "texts"

        def write(indices: Sequence[int]) -> str:
            return format_lines(line for index in indices for line in as_lines(texts[index], texts[index].labels, unit))

        kinds = [text.labels[0] if whole else "" for text in texts]
        plain = dict.fromkeys((*(f"{name}_col" for name in files.columns.names), "sep"))
        return Examples([text.words for text in texts], kinds, write, ".tsv" if whole else ".conll", plain)

    return Recipe(
        settings,
        read,
        create,
        _job,
        _identity,
        _summary,
        adapt=_expect_labels,
        inspect=inspect_texts,
        examples=examples,
    )


def _job(model: ReaderModel, text: LabeledText, settings: LabelSettings) -> LabelTask:
    smoothing, rows = settings.training.label_smoothing, settings.training.batch_size
    return LabelTask(model, text.tokenizer, text.labels, text.train, text.valid, smoothing, rows)


def _identity(text: LabeledText, settings: LabelSettings) -> dict[str, Any]:
    fingerprints = {"train": text.fingerprint, "valid": text.valid_fingerprint}
    return {"labels": list(text.labels), "longest": settings.data.longest, "text": fingerprints}


def _summary(text: LabeledText, _: ReaderModel) -> str:
    train, valid = quantity(len(text.train), "training text"), quantity(len(text.valid), "validation text")
    return f"{train}, {valid}; {quantity(len(text.labels), 'label')}"


def _expect_labels(text: LabeledText, origin: Origin | None) -> LabeledText:
    """Refuse to start from a run with other labels: its outputs would mean something else."""
    if origin is None or not origin.weights:
        return text
    theirs = origin.trained.contents.config.get("labels")
    if theirs != list(text.labels):
        names = ", ".join(map(str, theirs)) if isinstance(theirs, list) else "none"
        hint = "Train on the same labels, or from scratch without " + setting("from") + "."
        expected = f"a run with the labels {', '.join(text.labels)}"
        raise CheckpointError(setting("from"), expected, names, hint)
    return text


RECIPE = label_recipe(CLASSIFY, read_texts, "texts")
