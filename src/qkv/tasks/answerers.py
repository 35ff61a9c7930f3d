"""The class of the trained models of each task, imported on demand and without the training code."""

from collections.abc import Callable
from typing import Any


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


ANSWERERS: dict[str, Callable[[], Any]] = {
    "translate": _translator,
    "generate": _generator,
    "classify": _classifier,
    "tag": _tagger,
    "point": _pointer,
    "regress": _regressor,
    "fill": _mask_filler,
}
"""Functions that import and return the class of a task's trained models; only published models fill masks."""
