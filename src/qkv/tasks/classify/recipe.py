"""`qkv train classify`: from settings to a trained run folder; `qkv train tag` shares all but the reader."""

from collections.abc import Sequence
from typing import Any

from qkv.data.labeled import Unit
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, quantity, setting
from qkv.hub.published import PublishedConfig
from qkv.models.configs.reader import ClassifierConfig
from qkv.tasks.classify.data import (
    LabeledText,
    LabelFiles,
    ReadTexts,
    as_lines,
    inspect,
    read_for_training,
    read_texts,
)
from qkv.tasks.classify.model import Config, build_model
from qkv.tasks.classify.objective import LabelTask, ReaderModel
from qkv.tasks.classify.settings import CLASSIFY
from qkv.tasks.folds import Examples
from qkv.tasks.length import expect_readable, length_defaults
from qkv.tasks.notes import reporting
from qkv.tasks.origin import Origin
from qkv.tasks.recipe import Recipe, RecipeSettings
from qkv.tasks.settings import TaskSettings
from qkv.tasks.streams import format_lines

LabelSettings = RecipeSettings[LabelFiles, Config]
LabelRecipe = Recipe[LabelFiles, Config, LabeledText, ReaderModel]


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

    def create(config: Config, text: LabeledText) -> ReaderModel:
        return build_model(config, text.tokenizer.size, text.labels, text.tokenizer.unk)

    def inspect_texts(settings: LabelSettings) -> None:
        inspect(read_texts, settings.data, settings.tokenizer, settings.training.seed, unit)

    def examples(files: LabelFiles) -> Examples:
        with reporting(files.skip):
            texts = read_texts(files.data, "data", files.columns)
        whole = unit == "texts"

        def write(indices: Sequence[int]) -> str:
            return format_lines(line for index in indices for line in as_lines(texts[index], texts[index].tags, unit))

        kinds = [text.tags[0] if whole else "" for text in texts]
        plain = dict.fromkeys((*(f"{name}_col" for name in files.columns.names), "sep"))
        return Examples([text.words for text in texts], kinds, write, ".tsv" if whole else ".conll", plain)

    return Recipe(
        settings,
        read,
        create,
        LabelTask,
        _identity,
        _summary,
        defaults_of=length_defaults,
        check=expect_readable,
        adapt=_expect_labels,
        published=PublishedConfig,
        inspect=inspect_texts,
        examples=examples,
    )


def _identity(text: LabeledText, settings: LabelSettings) -> dict[str, Any]:
    return {"labels": list(text.labels), "longest": settings.data.longest, "text": text.fingerprints}


def _summary(text: LabeledText, _: ReaderModel) -> str:
    train, valid = quantity(len(text.train), "training text"), quantity(len(text.valid), "validation text")
    return f"{train}, {valid}; {quantity(len(text.labels), 'label')}"


def _expect_labels(text: LabeledText, origin: Origin | None) -> LabeledText:
    """Take the labels in the order of the run to start from.

    One with other labels is refused, as its outputs would mean something else; a published model gets a new output
    layer.
    """
    if origin is None or not origin.weights:
        return text
    theirs = origin.trained.contents.config.get("labels")
    if isinstance(theirs, list) and sorted(map(str, theirs)) == sorted(text.labels):
        labels, place = tuple(map(str, theirs)), {label: number for number, label in enumerate(theirs)}
        train, valid = (
            [one._replace(labels=tuple(place[text.labels[number]] for number in one.labels)) for one in texts]
            for texts in (text.train, text.valid)
        )
        return text._replace(labels=labels, train=train, valid=valid)
    if not origin.trained.is_published:
        names = ", ".join(map(str, theirs)) if isinstance(theirs, list) else "none"
        hint = "Train on the same labels, or from scratch without " + setting("from") + "."
        expected = f"a run with the labels {', '.join(text.labels)}"
        raise CheckpointError(setting("from"), expected, names, hint)
    return text


RECIPE = label_recipe(CLASSIFY, read_texts, "texts")
