"""`qkv train generate`: from settings to a trained run folder."""

from typing import Any

from qkv.data.tokenizer import Tokenizer
from qkv.errors import quantity
from qkv.tasks.generate.data import TrainingText, read_for_training
from qkv.tasks.generate.model import Config, build_model, read_config, table_of
from qkv.tasks.generate.objective import LanguageTask
from qkv.tasks.generate.scoring import TextModel
from qkv.tasks.generate.settings import GENERATE, GenerateFiles
from qkv.tasks.recipe import ModelTable, Recipe, RecipeSettings

LanguageSettings = RecipeSettings[GenerateFiles, Config]


def _read(settings: LanguageSettings, tokenizer: Tokenizer | None) -> TrainingText:
    context = settings.model.context
    assert context is not None
    return read_for_training(settings.data, settings.tokenizer, context, tokenizer)


def _build(config: Config, text: TrainingText) -> TextModel:
    return build_model(config, text.tokenizer.size)


def _job(model: TextModel, text: TrainingText, settings: LanguageSettings) -> LanguageTask:
    training = settings.training
    return LanguageTask(model, text, settings.data.order, training.label_smoothing, training.batch_size)


def _identity(text: TrainingText, settings: LanguageSettings) -> dict[str, Any]:
    return {"order": settings.data.order, "text": text.fingerprints}


def _summary(text: TrainingText, _: TextModel) -> str:
    unknown = f", {text.valid.unknown:,} of them unknown" if text.valid.unknown else ""
    train, valid = quantity(text.train.tokens, "training token"), quantity(text.valid.tokens, "validation token")
    return f"{train}, {valid}{unknown}"


RECIPE: Recipe[GenerateFiles, Config, TrainingText, TextModel] = Recipe(
    GENERATE,
    ModelTable(read_config, table_of),
    _read,
    _build,
    _job,
    _identity,
    _summary,
)
