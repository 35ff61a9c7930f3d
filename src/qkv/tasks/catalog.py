"""The tasks that are trained, by name: settings, recipes and commands. `qkv.tasks.answerers` has what answers."""

from collections.abc import Callable
from typing import Any

from qkv.errors import ConfigError
from qkv.tasks.answerers import ANSWERERS
from qkv.tasks.classify.settings import CLASSIFY
from qkv.tasks.generate.settings import GENERATE
from qkv.tasks.point.settings import POINT
from qkv.tasks.regress.settings import REGRESS
from qkv.tasks.settings import TaskSettings
from qkv.tasks.tag.settings import TAG
from qkv.tasks.translate.settings import TRANSLATE

TASKS: dict[str, TaskSettings] = {task.name: task for task in (TRANSLATE, CLASSIFY, TAG, GENERATE, POINT, REGRESS)}
"""The settings of the tasks that are trained, in the order of the help; they import nothing large."""


def _translate() -> Any:
    from qkv.tasks.translate.recipe import RECIPE

    return RECIPE


def _generate() -> Any:
    from qkv.tasks.generate.recipe import RECIPE

    return RECIPE


def _classify() -> Any:
    from qkv.tasks.classify.recipe import RECIPE

    return RECIPE


def _tag() -> Any:
    from qkv.tasks.tag.recipe import RECIPE

    return RECIPE


def _point() -> Any:
    from qkv.tasks.point.recipe import RECIPE

    return RECIPE


def _regress() -> Any:
    from qkv.tasks.regress.recipe import RECIPE

    return RECIPE


RECIPES: dict[str, Callable[[], Any]] = {
    "translate": _translate,
    "classify": _classify,
    "tag": _tag,
    "generate": _generate,
    "point": _point,
    "regress": _regress,
}
"""Functions that import and return the recipe of each task, see `qkv.tasks.recipe`."""


def _translate_answers() -> Any:
    from qkv.tasks.translate.answers import open_answers

    return open_answers


def _classify_answers() -> Any:
    from qkv.tasks.classify.answers import open_answers

    return open_answers


def _tag_answers() -> Any:
    from qkv.tasks.tag.answers import open_answers

    return open_answers


def _generate_answers() -> Any:
    from qkv.tasks.generate.answers import open_answers

    return open_answers


def _point_answers() -> Any:
    from qkv.tasks.point.answers import open_answers

    return open_answers


def _regress_answers() -> Any:
    from qkv.tasks.regress.answers import open_answers

    return open_answers


ANSWERS: dict[str, Callable[[], Any]] = {
    "translate": _translate_answers,
    "classify": _classify_answers,
    "tag": _tag_answers,
    "generate": _generate_answers,
    "point": _point_answers,
    "regress": _regress_answers,
}
"""Functions that import and return what the command of each task's name does, see `qkv.tasks.task.OpenAnswers`."""


def recipe_of(task: str) -> Any:
    """Return how a task is trained, importing its models alone.

    Raises:
        KeyError: there is no such task.
    """
    return RECIPES[task]()


def register(
    settings: TaskSettings,
    recipe: Callable[[], Any],
    answerer: Callable[[], Any],
    answers: Callable[[], Any] | None = None,
) -> None:
    """Add a task: to `qkv train` and `qkv.train`, `qkv.load`, the commands that use a trained model, and the help.

    Args:
        settings: its name, its help and its tables of settings.
        recipe: imports and returns how it is trained, a `qkv.tasks.recipe.Recipe`.
        answerer: imports and returns the class of its trained models, a `qkv.tasks.task.Answerer`.
        answers: imports and returns what the command `qkv NAME` does, a `qkv.tasks.task.OpenAnswers`; its flags are the
            table `answers` of the settings. None for no command.

    Raises:
        ConfigError: there is a task of this name.

    Example: see docs/how_to/extend.md, "A task".
    """
    if settings.name in ANSWERERS:
        raise ConfigError("settings", "the name of a new task", f'"{settings.name}"', "Give it another name.")
    TASKS[settings.name], RECIPES[settings.name], ANSWERERS[settings.name] = settings, recipe, answerer
    if answers is not None:
        ANSWERS[settings.name] = answers
