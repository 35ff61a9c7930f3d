"""The tasks that are trained, by name: their settings and their recipes. `qkv.tasks.answerers` has what answers."""

from collections.abc import Mapping
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

            return translate.RECIPE
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
