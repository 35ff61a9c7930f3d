"""Settings whose names have changed: runs that were written before are read with today's names."""

from collections.abc import Mapping
from types import MappingProxyType

from qkv.checkpoint.json_values import JsonValue

_OF_ALL = {
    "tokenizer.kind": "tokenizer",
    "tokenizer.size": "vocabulary",
    "training.tokens": "batch_tokens",
    "model.kind": "model",
}
FORMER_NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "translate": {
            **_OF_ALL,
            "model.decoder": "model",
            "tokenizer.source": "source_tokenizer",
            "tokenizer.target": "target_tokenizer",
            "ensemble.models": "ensemble",
        },
        "generate": _OF_ALL,
        "classify": {**_OF_ALL, "model.encoder": "model"},
        "tag": {**_OF_ALL, "model.encoder": "model", "model.pool": ""},
        "point": {**_OF_ALL, "model.encoder": "model", "model.cell": "decoder", "model.hidden": "width"},
    }
)
"""By task: the dotted name that a setting once had, and today's name in the same table; "" if it did nothing."""


def with_todays_names(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the configuration of a run with today's names of its settings.

    Example:
        >>> with_todays_names({"task": "generate", "model": {"kind": "gru"}, "training": {"tokens": 512}})
        {'task': 'generate', 'model': {'model': 'gru'}, 'training': {'batch_tokens': 512}}
    """
    former = FORMER_NAMES.get(str(config.get("task")), {})
    return {table: _renamed(table, rows, former) for table, rows in config.items()}


def _renamed(table: str, rows: JsonValue, former: Mapping[str, str]) -> JsonValue:
    if not isinstance(rows, dict):
        return rows
    today = {name: former.get(f"{table}.{name}", name) for name in rows}
    named = {today[name] if today[name] not in rows else name: item for name, item in rows.items()}
    return {name: item for name, item in named.items() if name}
