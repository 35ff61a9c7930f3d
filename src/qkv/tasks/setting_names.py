"""Map the setting names of commands and `qkv.train` to the tables of settings files."""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from qkv.train.settings import Settings

FILES = ("source", "target", "data", "text", "valid_source", "valid_target", "valid_data", "valid_text")
"""The settings whose values are data files."""
_DATA = ("longest", "source_col", "target_col", "features_col", "source_sep", "target_sep", "features_sep", "features")
_PLACES: Mapping[str, str] = MappingProxyType(
    {
        "tokenizer": "tokenizer.kind",
        "source_tokenizer": "tokenizer.source",
        "target_tokenizer": "tokenizer.target",
        "vocabulary": "tokenizer.size",
        **{name: f"tokenizer.{name}" for name in ("lowercase", "minimum", "unicode")},
        **{field.name: f"training.{field.name}" for field in fields(Settings)},
        "batch_tokens": "training.tokens",
        **{name: f"data.{name}" for name in (*FILES, *_DATA)},
    }
)
"""The dotted setting of each name in any task; names that are not here belong to the model."""
_KIND = {"model": "model.kind", "decoder": "model.kind"}
_PLACES_IN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "translate": {**_KIND, "ensemble": "ensemble.models", "both_directions": "ensemble.both_directions"},
        "generate": _KIND,
        "classify": {"model": "model.encoder"},
        "tag": {"model": "model.encoder"},
        "point": {
            **{name: f"data.{name}" for name in ("elements", "order", "vocabulary")},
            "model": "model.encoder",
            "decoder": "model.cell",
            "width": "model.hidden",
        },
        "regress": {name: f"data.{name}" for name in ("x", "y", "decimal", "missing")},
    }
)
"""The dotted settings of names whose meaning depends on the task."""


def setting_of(task: str, name: str) -> str:
    """Return the dotted setting of a name.

    Example:
        >>> setting_of("generate", "batch_tokens"), setting_of("generate", "model"), setting_of("point", "score")
        ('training.tokens', 'model.kind', 'model.score')
    """
    return _PLACES_IN.get(task, {}).get(name) or _PLACES.get(name) or f"model.{name}"


def as_tables(task: str, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return settings by table and name.

    Args:
        task: the name of the task.
        given: settings by the names that commands and `qkv.train` use; None where they were not given.

    Example:
        >>> as_tables("translate", {"score": "dot", "seed": 1, "steps": None})
        {'model': {'score': 'dot'}, 'training': {'seed': 1}}
    """
    found: dict[str, dict[str, Any]] = {}
    for name, item in given.items():
        if item is not None:
            table, _, inner = setting_of(task, name).partition(".")
            found.setdefault(table, {})[inner] = item
    return found
