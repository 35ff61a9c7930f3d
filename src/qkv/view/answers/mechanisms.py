"""The scores, normalizers and masks that can replace those of a head, by name and parameters."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from qkv.errors import ConfigError, nearest
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, lengths, window
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.base import Score
from qkv.scores.free import Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Cosine, Dot, ScaledDot
from qkv.view.answers.head import Head
from qkv.view.answers.listing import mask_name

T = TypeVar("T")
Numbers = Mapping[str, float]


class Knob(NamedTuple):
    """An adjustable number.

    Attributes:
        name: name of the parameter.
        default, low, high: initial value and range.
        step: step size; 1 for integers.
    """

    name: str
    default: float
    low: float
    high: float
    step: float


class MechanismKind(NamedTuple):
    """One mechanism: its numbers, and how to build it."""

    knobs: tuple[Knob, ...]
    make: Callable[[Numbers], Any]


_H = Knob("bandwidth", 1.0, 0.01, 100.0, 0.01)
SCORES: dict[str, MechanismKind] = {
    "scaled_dot": MechanismKind((), lambda n: ScaledDot()),
    "dot": MechanismKind((), lambda n: Dot()),
    "cosine": MechanismKind((Knob("scale", 1.0, 0.1, 100.0, 0.1),), lambda n: Cosine(n["scale"])),
    "squared_distance": MechanismKind((_H,), lambda n: SquaredDistance(n["bandwidth"])),
    "gaussian": MechanismKind((_H,), lambda n: Gaussian(n["bandwidth"])),
    "boxcar": MechanismKind((_H,), lambda n: Boxcar(n["bandwidth"])),
    "epanechnikov": MechanismKind(
        (_H, Knob("power", 2.0, 0.5, 4.0, 0.5)), lambda n: Epanechnikov(n["bandwidth"], n["power"])
    ),
    "uniform": MechanismKind((), lambda n: Uniform()),
}
NORMALIZERS: dict[str, MechanismKind] = {
    "softmax": MechanismKind((), lambda n: Softmax()),
    "sum": MechanismKind((), lambda n: Sum()),
    "mean": MechanismKind((), lambda n: Mean()),
    "hard": MechanismKind((), lambda n: Hard()),
    "identity": MechanismKind((), lambda n: Identity()),
    "sparsemax": MechanismKind((), lambda n: Sparsemax()),
    "entmax": MechanismKind((Knob("alpha", 1.5, 1.05, 4.0, 0.05),), lambda n: Entmax(n["alpha"])),
    "sigmoid": MechanismKind((), lambda n: Sigmoid()),
}


def mask_kinds(keys: int) -> dict[str, MechanismKind]:
    """Return the masks for rows of a number of keys."""
    most = float(keys)
    return {
        "none": MechanismKind((), lambda n: None),
        "causal": MechanismKind((Knob("offset", 0.0, -most, most, 1.0),), lambda n: causal(int(n["offset"]))),
        "window": MechanismKind(
            (Knob("left", 8.0, 0.0, most, 1.0), Knob("right", 8.0, 0.0, most, 1.0)),
            lambda n: window(int(n["left"]), int(n["right"])),
        ),
        "lengths": MechanismKind((Knob("keys", most, 0.0, most, 1.0),), lambda n: lengths(int(n["keys"]))),
    }


def mechanisms(head: Head) -> dict[str, Any]:
    """List the choices for a head, and its own mechanism."""
    tables = {"scores": SCORES, "normalizers": NORMALIZERS, "masks": mask_kinds(head.shape[1])}
    chosen = {name: [_listed(kind, table[kind].knobs) for kind in table] for name, table in tables.items()}
    own = {
        "score": {"name": _snake(head.score), "parameters": _numbers(head.score)},
        "normalizer": {"name": _snake(head.normalizer), "parameters": _numbers(head.normalizer)},
        "mask": {"name": mask_name(head), "parameters": {}},
    }
    return {**chosen, "recorded": own}


def chosen_score(choice: object, own: Score) -> Score:
    """Return the score named in a request, or the head's own."""
    found: Score = _chosen("score", choice, SCORES, own)
    return found


def chosen_normalizer(choice: object) -> Normalizer | None:
    """Return the normalizer named in a request; None for the score's default."""
    found: Normalizer | None = _chosen("normalizer", choice, NORMALIZERS, None)
    return found


def chosen_mask(choice: object, own: Mask | None, keys: int) -> Mask | None:
    """Return the mask named in a request, or the layer's own."""
    found: Mask | None = _chosen("mask", choice, mask_kinds(keys), own)
    return found


def _chosen(what: str, choice: object, table: Mapping[str, MechanismKind], own: Any) -> Any:
    if choice is None:
        return own
    if not isinstance(choice, dict) or not isinstance(choice.get("name"), str):
        raise ConfigError(what, "an object with a name", "something else", 'Example: {"name": "dot"}.')
    name, given = choice["name"], choice.get("parameters") or {}
    if name not in table or not isinstance(given, dict):
        raise ConfigError(what, "one of the available names", ascii(name[:40]), nearest(name[:40], table))
    known = {knob.name: knob for knob in table[name].knobs}
    for parameter in given:
        if parameter not in known:
            hint = nearest(parameter[:40], known) if known else "Omit it."
            raise ConfigError(f"{what}.parameters", f"parameters of {name}", ascii(parameter[:40]), hint)
    return table[name].make(
        {
            knob.name: checked(f"{what}.{knob.name}", given.get(knob.name, knob.default), knob.low, knob.high)
            for knob in known.values()
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


def _listed(name: str, knobs: tuple[Knob, ...]) -> dict[str, Any]:
    return {"name": name, "parameters": [knob._asdict() for knob in knobs]}


def _snake(owner: object) -> str:
    name = type(owner).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _numbers(owner: Score | Normalizer) -> dict[str, float]:
    """Return the parameters of a mechanism that are single numbers."""
    fields = vars(owner)
    return {
        name: float(value)
        for name, value in fields.items()
        if (isinstance(value, int | float) and not isinstance(value, bool))
        or (isinstance(value, Tensor) and value.numel() == 1)
    }
