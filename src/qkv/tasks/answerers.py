"""The class of the trained models of each task, imported on demand and without the training code."""

from collections.abc import Callable
from typing import Any

from qkv._lazy import imported_later

CLASSES = {
    "translate": ("qkv.tasks.translate.predict", "Translator"),
    "generate": ("qkv.tasks.generate.predict", "Generator"),
    "classify": ("qkv.tasks.classify.predict", "Classifier"),
    "tag": ("qkv.tasks.tag.predict", "Tagger"),
    "point": ("qkv.tasks.point.predict", "ElementPointer"),
    "regress": ("qkv.tasks.regress.predict", "Regressor"),
    "fill": ("qkv.tasks.fill", "MaskFiller"),
}
"""Where the class of a task's trained models is."""


ANSWERERS: dict[str, Callable[[], Any]] = {
    task: imported_later(module, name) for task, (module, name) in CLASSES.items()
}
"""Functions that import and return the class of a task's trained models."""
COMMANDS = {"fill": "embed"}
"""Tasks of published models alone, without a training: the command that uses them."""
