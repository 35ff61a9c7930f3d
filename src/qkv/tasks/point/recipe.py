"""`qkv train point`: from lines of elements and positions to a trained run folder."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qkv.data.tokenizer import Tokenizer
from qkv.errors import quantity
from qkv.models.configs.pointer import PointerConfig
from qkv.models.pointer import PointerNetwork
from qkv.tasks.origin import Origin
from qkv.tasks.point.data import ElementVocabulary, PointLines, examples, read_lines
from qkv.tasks.point.objective import PointTask
from qkv.tasks.point.settings import POINT, PointFiles
from qkv.tasks.recipe import Recipe, RecipeSettings

PointerSettings = RecipeSettings[PointFiles, PointerConfig]


def _read(settings: PointerSettings, _: Tokenizer | None) -> PointLines:
    return read_lines(settings.data, settings.model.once, settings.training.seed)


def _new_model(config: PointerConfig, lines: PointLines) -> PointerNetwork:
    """Create a model with new weights, which standardizes its elements by those of the training lines."""
    model = PointerNetwork(replace(config, elements=lines.elements, features=lines.features))
    if lines.elements == "numbers":
        numbers = np.concatenate([item.elements for item in lines.train])
        model.encoder.standardize(torch.from_numpy(numbers.mean(0)), torch.from_numpy(numbers.std(0)))
    return model


def _with_words(lines: PointLines, origin: Origin | None) -> PointLines:
    """Return the lines with the words of the run to start from, if it has any."""
    words = None if origin is None else origin.trained.contents.config.get("words")
    if lines.vocabulary is None or not isinstance(words, list):
        return lines
    return lines._replace(vocabulary=ElementVocabulary([str(word) for word in words]), features=len(words))


def _identity(lines: PointLines, settings: PointerSettings) -> dict[str, Any]:
    return {
        "elements": lines.elements,
        "features": lines.features,
        "words": None if lines.vocabulary is None else list(lines.vocabulary.words),
        "order": settings.data.order,
        "longest": lines.longest,
        "text": lines.fingerprints,
    }


def _summary(lines: PointLines, _: PointerNetwork) -> str:
    numbers = "numbers" if lines.features == 1 else f"vectors of {lines.features}"
    elements = numbers if lines.vocabulary is None else f"{quantity(lines.features, 'word')}{_unknown(lines)}"
    return f"{quantity(len(lines.train), 'training line')}, {quantity(len(lines.valid), 'validation line')}; {elements}"


def _unknown(lines: PointLines) -> str:
    assert lines.vocabulary is not None
    unknown = sum(lines.vocabulary.ids(item.elements).count(0) for item in lines.train)
    return f" ({unknown:,} of the training elements unknown)" if unknown else ""


RECIPE: Recipe[PointFiles, PointerConfig, PointLines, PointerNetwork] = Recipe(
    POINT,
    _read,
    _new_model,
    PointTask,
    _identity,
    _summary,
    adapt=_with_words,
    examples=examples,
)
