"""The tasks that are trained, by name: settings, recipes and commands. `qkv.tasks.answerers` has what answers."""

from collections.abc import Callable
from typing import Any

from qkv._lazy import imported_later
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

RECIPES: dict[str, Callable[[], Any]] = {name: imported_later(f"qkv.tasks.{name}.recipe", "RECIPE") for name in TASKS}
"""Functions that import and return the recipe of each task, see `qkv.tasks.recipe`."""

ANSWERS: dict[str, Callable[[], Any]] = {
    name: imported_later(f"qkv.tasks.{name}.answers", "open_answers") for name in TASKS
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
        recipe: imports and returns how it is trained, a class that extends `qkv.tasks.recipe.Recipe`.
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
