"""Map the setting names of commands and `qkv.train` to the tables of settings files."""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from qkv.errors import ConfigError
from qkv.training.settings import Settings

FILES = ("source", "target", "data", "text", "valid_source", "valid_target", "valid_data", "valid_text")
"""The settings whose values are data files."""
_COLUMNS = ("source_col", "target_col", "features_col", "source_sep", "target_sep", "features_sep", "features")
_PLACES: Mapping[str, str] = MappingProxyType(
    {
        "tokenizer": "tokenizer.kind",
        "source_tokenizer": "tokenizer.source",
        "target_tokenizer": "tokenizer.target",
        "vocabulary": "tokenizer.size",
        **{name: f"tokenizer.{name}" for name in ("lowercase", "minimum", "unicode")},
        **{field.name: f"training.{field.name}" for field in fields(Settings)},
        "batch_tokens": "training.tokens",
        **{name: f"data.{name}" for name in (*FILES, "holdout", "longest", *_COLUMNS)},
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


def with_settings(task: str, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return tables in which names of flags are replaced by those of settings, as in `batch_tokens` for `tokens`.

    Args:
        task: the name of the task.
        tables: settings by table and name.

    Raises:
        ConfigError: a setting is given by both names.

    Example:
        >>> with_settings("translate", {"training": {"batch_tokens": 512}, "model": {"model": "gru"}})
        {'training': {'tokens': 512}, 'model': {'kind': 'gru'}}
    """
    renamed: dict[str, dict[str, Any]] = {}
    for table, settings in tables.items():
        row = renamed.setdefault(table, {})
        for name, item in settings.items():
            place, _, inner = setting_of(task, name).partition(".")
            inner = inner if place == table else name
            if inner in row or (inner != name and inner in settings):
                hint = f"They set the same: omit {name}."
                raise ConfigError(f"{table}.{name}", f"no {table}.{inner} beside it", "both", hint)
            row[inner] = item
    return renamed


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
