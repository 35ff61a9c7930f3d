"""The OpenAPI description of a server, made from the settings of its tasks."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

from qkv._version import VERSION
from qkv.serving.models import MOST, MOST_INPUTS, Model
from qkv.settings import choices_of, help_of, hints_of, options_of

_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}
_STATUSES = {
    "400": "The request is not one; the message says what is wrong and how to fix it.",
    "401": "The token is missing.",
    "403": "Another host, or a page of another site.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "429": "As many inputs wait as may; come back after the seconds in Retry-After.",
    "503": "No memory is left.",
    "504": "The answer took too long.",
}
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>qkv serve</title>
<h1>qkv serve</h1><p>POST application/json to a model. <a href="openapi.json">openapi.json</a> describes every setting;
<a href="health">health</a> and <a href="metrics">metrics</a> say how the server does.</p>
"""


def openapi(models: Mapping[str, Model]) -> dict[str, Any]:
    """Return the description of a server with these models, OpenAPI 3.1.

    Example:
        >>> openapi({})["openapi"]
        '3.1.0'
    """
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    refusals = {
        status: {"description": text, "content": {"application/json": {"schema": error}}}
        for status, text in _STATUSES.items()
    }
    paths: dict[str, Any] = {
        "/health": {"get": {"summary": "Which models answer", "responses": {"200": {"description": "They do."}}}},
        "/metrics": {"get": {"summary": "Figures for Prometheus", "responses": {"200": {"description": "Text."}}}},
    }
    for name, model in models.items():
        answers = {
            "type": "array",
            "items": {"type": "object"},
            "description": f"One for each input, as `qkv {model.task} --json` writes it",
        }
        answered = {"type": "object", "properties": {"answers": answers}, "required": ["answers"]}
        content = {"application/json": {"schema": answered}}
        if model.stream is not None:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        paths[f"/models/{name}"] = {
            "post": {
                "summary": f"{model.task} by {name}",
                "requestBody": {"required": True, "content": {"application/json": {"schema": _request(model)}}},
                "responses": {"200": {"description": "The answers.", "content": content}, **refusals},
            }
        }
    return {"openapi": "3.1.0", "info": {"title": "qkv serve", "version": VERSION}, "paths": paths}


def _request(model: Model) -> dict[str, Any]:
    one: dict[str, Any] = {"type": "string"}
    if model.table.rows:  # numbers, and names of categories
        one = {"type": "array", "items": {"type": ["number", "string"]}}
    inputs = {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_INPUTS}
    properties: dict[str, Any] = {"inputs": inputs}
    if model.stream is not None:
        properties["stream"] = {"type": "boolean", "description": "Send the answer piece by piece, as events."}
    table: Any = model.table
    properties |= {name: _setting(table, name) for name in options_of(table)}
    return {"type": "object", "properties": properties, "required": ["inputs"], "additionalProperties": False}


def _setting(table: Any, name: str) -> dict[str, Any]:
    """Describe a setting: its type, its range, its help."""
    option, choices = options_of(table)[name], choices_of(hints_of(table)[name])
    names = [choice for choice in choices if isinstance(choice, str)]
    types = ["string"] if names else [_TYPES[choice] for choice in choices if choice is not NoneType]
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types, "description": help_of(table, name)}
    bounds = {
        "minimum": option.least,
        "maximum": MOST.get(name, option.most),
        "exclusiveMinimum": option.above,
        "exclusiveMaximum": option.below,
        "enum": names or None,
    }
    return schema | {key: bound for key, bound in bounds.items() if bound is not None}
