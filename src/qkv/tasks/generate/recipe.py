"""`qkv train generate`: from settings to a trained run folder."""

from collections.abc import Mapping
from typing import Any

from qkv.data.tokenizer import Tokenizer
from qkv.errors import quantity
from qkv.hub.published import PublishedConfig
from qkv.tasks.generate.data import TrainingText, inspect, read_for_training
from qkv.tasks.generate.model import Config, build_model
from qkv.tasks.generate.objective import LanguageTask
from qkv.tasks.generate.scoring import TextModel
from qkv.tasks.generate.settings import GENERATE, GenerateFiles
from qkv.tasks.length import context_of
from qkv.tasks.recipe import Recipe, RecipeSettings

_CONTEXT = 256
"""The default context of a published model in training, which could read far more than suits a laptop."""
LanguageSettings = RecipeSettings[GenerateFiles, Config]


def _read(settings: LanguageSettings, tokenizer: Tokenizer | None) -> TrainingText:
    context = settings.model.context
    assert context is not None
    return read_for_training(settings.data, settings.tokenizer, context, tokenizer)


def _inspect(settings: LanguageSettings) -> None:
    inspect(settings.data)


def _build(config: Config, text: TrainingText) -> TextModel:
    return build_model(config, text.tokenizer.size)


def _identity(text: TrainingText, settings: LanguageSettings) -> dict[str, Any]:
    return {"order": settings.data.order, "text": text.fingerprints}


def _defaults_of(config: Config, files: GenerateFiles) -> Mapping[str, Mapping[str, object]]:
    if not isinstance(config, PublishedConfig) or config.context is not None:
        return {}
    return {"model": {"context": min(_CONTEXT, context_of(config))}}


def _summary(text: TrainingText, _: TextModel) -> str:
    unknown = f", {text.valid.unknown:,} of them unknown" if text.valid.unknown else ""
    train, valid = quantity(text.train.tokens, "training token"), quantity(text.valid.tokens, "validation token")
    return f"{train}, {valid}{unknown}"


RECIPE: Recipe[GenerateFiles, Config, TrainingText, TextModel] = Recipe(
    GENERATE,
    _read,
    _build,
    LanguageTask,
    _identity,
    _summary,
    defaults_of=_defaults_of,
    published=PublishedConfig,
    inspect=_inspect,
)
