"""The tasks by name. A task is registered here: its settings, how it is trained, and what answers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from qkv.tasks.classify.settings import CLASSIFY
from qkv.tasks.generate.settings import GENERATE
from qkv.tasks.point.settings import POINT
from qkv.tasks.regress.settings import REGRESS
from qkv.tasks.settings import TaskSettings
from qkv.tasks.tag.settings import TAG
from qkv.tasks.translate.settings import TRANSLATE

TASKS: Mapping[str, TaskSettings] = MappingProxyType(
    {task.name: task for task in (TRANSLATE, CLASSIFY, TAG, GENERATE, POINT, REGRESS)}
)
"""The settings of the tasks that are trained, in the order of the help; they import nothing large."""


def recipe_of(task: str) -> Any:
    """Return how a task is trained, see `qkv.tasks.recipe`, importing its models alone."""
    match task:
        case "translate":
            from qkv.tasks.translate import recipe as translate

            return translate.ENSEMBLES
        case "generate":
            from qkv.tasks.generate import recipe as generate

            return generate.RECIPE
        case "classify":
            from qkv.tasks.classify import recipe as classify

            return classify.RECIPE
        case "tag":
            from qkv.tasks.tag import recipe as tag

            return tag.RECIPE
        case "point":
            from qkv.tasks.point import recipe as point

            return point.RECIPE
        case _:
            from qkv.tasks.regress import recipe as regress

            return regress.RECIPE


def _translator() -> Any:
    from qkv.tasks.translate.predict import Translator

    return Translator


def _generator() -> Any:
    from qkv.tasks.generate.predict import Generator

    return Generator


def _classifier() -> Any:
    from qkv.tasks.classify.predict import Classifier

    return Classifier


def _tagger() -> Any:
    from qkv.tasks.tag.predict import Tagger

    return Tagger


def _pointer() -> Any:
    from qkv.tasks.point.predict import ElementPointer

    return ElementPointer


def _regressor() -> Any:
    from qkv.tasks.regress.predict import Regressor

    return Regressor


def _mask_filler() -> Any:
    from qkv.tasks.fill import MaskFiller

    return MaskFiller


ANSWERERS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "translate": _translator,
        "generate": _generator,
        "classify": _classifier,
        "tag": _tagger,
        "point": _pointer,
        "regress": _regressor,
        "fill": _mask_filler,
    }
)
"""What imports and returns the class of a task's trained models; masks are filled by published models alone."""
