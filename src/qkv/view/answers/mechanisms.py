"""The scores, normalizers and masks that can replace those of a head, by name and parameters."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from qkv.errors import ConfigError, nearest
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, lengths, window
from qkv.normalizers.base import Normalizer
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.base import Score
from qkv.scores.catalog import SCORES
from qkv.values.catalog import Catalog, Number
from qkv.view.answers.head import Head
from qkv.view.answers.listing import mask_name


class MechanismKind(NamedTuple):
    """One mechanism: its numbers, and how to build it."""

    numbers: tuple[Number, ...]
    make: Callable[..., Any]


def _numeric_kinds(catalog: Catalog[Any]) -> dict[str, MechanismKind]:
    """Return what numbers alone make: a tensor or a function cannot be typed into the page."""
    return {name: MechanismKind(entry.numbers, entry.make) for name, entry in catalog.items() if entry.only_numbers}


def mask_kinds(keys: int) -> dict[str, MechanismKind]:
    """Return the masks for rows of a number of keys."""

    def number(name: str, default: float, low: float = 0.0) -> Number:
        return Number(name, default, low, high=float(keys), step=1.0, above=low - 1)

    return {
        "none": MechanismKind((), lambda: None),
        "causal": MechanismKind((number("offset", 0.0, -float(keys)),), lambda offset: causal(int(offset))),
        "window": MechanismKind(
            (number("left", 8.0), number("right", 8.0)), lambda left, right: window(int(left), int(right))
        ),
        "lengths": MechanismKind((number("keys", float(keys)),), lambda keys: lengths(int(keys))),
    }


def mechanisms(head: Head) -> dict[str, Any]:
    """List the choices for a head, and its own mechanism."""
    tables = {
        "scores": _numeric_kinds(SCORES),
        "normalizers": _numeric_kinds(NORMALIZERS),
        "masks": mask_kinds(head.shape[1]),
    }
    choices = {name: [_kind_as_json(kind, table[kind].numbers) for kind in table] for name, table in tables.items()}
    recorded = {
        "score": _original_as_json(SCORES, head.score),
        "normalizer": _original_as_json(NORMALIZERS, head.normalizer),
        "mask": {"name": mask_name(head), "parameters": {}},
    }
    return {**choices, "recorded": recorded}


def chosen_score(choice: object, original: Score) -> Score:
    """Return the score named in a request, or the head's own."""
    score: Score = _replacement("score", choice, _numeric_kinds(SCORES), original)
    return score


def chosen_normalizer(choice: object) -> Normalizer | None:
    """Return the normalizer named in a request; None for the score's default."""
    normalizer: Normalizer | None = _replacement("normalizer", choice, _numeric_kinds(NORMALIZERS), None)
    return normalizer


def chosen_mask(choice: object, original: Mask | None, keys: int) -> Mask | None:
    """Return the mask named in a request, or the layer's own."""
    mask: Mask | None = _replacement("mask", choice, mask_kinds(keys), original)
    return mask


def _replacement(what: str, choice: object, table: Mapping[str, MechanismKind], original: Any) -> Any:
    if choice is None:
        return original
    if not isinstance(choice, dict) or not isinstance(choice.get("name"), str):
        raise ConfigError(what, "an object with a name", "something else", 'Example: {"name": "dot"}.')
    name, parameters = choice["name"], choice.get("parameters") or {}
    if name not in table or not isinstance(parameters, dict):
        raise ConfigError(what, "one of the available names", ascii(name[:40]), nearest(name[:40], table))
    numbers = {number.name: number for number in table[name].numbers}
    for parameter in parameters:
        if parameter not in numbers:
            hint = nearest(parameter[:40], numbers) if numbers else "Omit it."
            raise ConfigError(f"{what}.parameters", f"parameters of {name}", ascii(parameter[:40]), hint)
    return table[name].make(
        **{
            number.name: checked(
                f"{what}.{number.name}", parameters.get(number.name, number.default), number.low, number.high
            )
            for number in numbers.values()
        }
    )


def checked(what: str, value: object, low: float, high: float) -> float:
    """Check that a number is within its range.

    Raises:
        ConfigError: it is not a number, or is outside the range.
    """
    fine = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not fine:
        got = ascii(value)[:40]
        raise ConfigError(what, f"a number from {low:g} to {high:g}", got, "Choose a number in that range.")
    return float(value)  # type: ignore[arg-type]


def _kind_as_json(name: str, numbers: tuple[Number, ...]) -> dict[str, Any]:
    parameters = [
        {"name": number.name, "default": number.default, "low": number.low, "high": number.high, "step": number.step}
        for number in numbers
    ]
    return {"name": name, "parameters": parameters}


def _original_as_json(catalog: Catalog[Any], mechanism: Score | Normalizer) -> dict[str, Any]:
    entry, numbers = catalog.of(mechanism), _numbers(mechanism)
    if entry is None:
        return {"name": type(mechanism).__name__, "parameters": numbers}
    return {
        "name": entry.name,
        "parameters": {name: number for name, number in numbers.items() if name not in entry.fixed},
    }


def _numbers(mechanism: Score | Normalizer) -> dict[str, float]:
    """Return the parameters of a mechanism that are single numbers."""
    return {
        name: float(value)
        for name, value in vars(mechanism).items()
        if (isinstance(value, int | float) and not isinstance(value, bool))
        or (isinstance(value, Tensor) and value.numel() == 1)
    }
