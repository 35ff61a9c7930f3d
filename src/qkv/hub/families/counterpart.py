"""Models that were trained here, as models of a family that computes the same."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.data.segments import SPECIALS
from qkv.errors import UnsupportedError
from qkv.hub.families.family import Family
from qkv.hub.families.load import FAMILIES
from qkv.models.language_model import LanguageModel
from qkv.models.parts import PositionParts, TransformerParts
from qkv.models.translator import TransformerTranslator
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.positions import sinusoidal

_MARKS = {f"{name}_token_id": SPECIALS.index(f"<{name}>") for name in ("pad", "bos", "eos")}
_SETTINGS = {"mechanism": "score", "cross": "cross_score", "recurrent": "encoder", "windowed": "window"}
"""Parts whose settings have other names."""


class Counterpart(NamedTuple):
    """A model in the form of a family.

    Attributes:
        table: its config.json.
        config: its parts.
        tensors: our names and tensors.
        extra: further tensors that the family stores, by their names.
    """

    table: dict[str, Any]
    config: TransformerParts
    tensors: Mapping[str, Tensor]
    extra: Mapping[str, Tensor] = {}


def counterpart(model: LanguageModel | TransformerTranslator) -> Counterpart:
    """Return a model as one of the family that computes the same.

    A language model becomes GPT-NeoX, or with added positions GPT-2; a translator Pegasus, or with norms after each
    sublayer Marian. The family's settings are written from the model's parts and read again: what then differs has no
    counterpart.

    Raises:
        UnsupportedError: a part has no counterpart; the message names it.
    """
    translates = isinstance(model, TransformerTranslator)
    parts = _as_families_state(model.parts, translates)
    if translates:
        family = FAMILIES["pegasus" if parts.norms.place == "before" else "marian"]
    else:
        family = FAMILIES["gpt_neox" if parts.positions.kind == "rotary" else "gpt2"]
    assert family.write is not None
    begin = {"decoder_start_token_id": _MARKS["bos_token_id"]} if translates else {}
    table = {"model_type": family.name, **_MARKS, **begin, **family.write(parts)}
    _expect_same(parts, family.configure(family.settings(table, "config.json")), family)
    copy = getattr(model.config, "copy", "none")
    if copy != "none":
        raise _refusal("copy", copy, "none")
    if translates:
        return Counterpart(table, parts, *_in_halves(parts, model.state_dict()))
    return Counterpart(table, parts, _with_biases(parts, _with_positions(model.parts, model.state_dict())))


def _as_families_state(parts: TransformerParts, translates: bool) -> TransformerParts:
    """Return the parts of the same model as their families state them.

    The default mechanism is not named; positions are learned ones, or in a translator sinusoids by halves; biases that
    a family always has are 0.
    """
    positions, attention_bias = parts.positions, parts.attention_bias
    if translates and positions.kind == "sinusoidal":
        positions = PositionParts("halves")
    elif not translates and positions.kind in ("sinusoidal", "none"):
        positions = PositionParts("learned")
    return replace(
        parts,
        mechanism=None if parts.mechanism == MechanismConfig() else parts.mechanism,
        cross=None if parts.cross in (MechanismConfig(), parts.mechanism) else parts.cross,
        positions=positions,
        attention_bias=attention_bias or positions.kind != "rotary",
        feed_forward_bias=True,
    )


def _with_positions(parts: TransformerParts, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add a table of learned positions that holds the sinusoids, or zeros for no positions."""
    shape = parts.context, parts.width
    match parts.positions.kind:
        case "sinusoidal":
            return {**tensors, "positions.weight": sinusoidal(*shape)}
        case "none":
            return {**tensors, "positions.weight": torch.zeros(shape, device="cpu")}
        case _:
            return dict(tensors)


def _with_biases(parts: TransformerParts, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add zero biases where the family has some and the model has none."""
    biased = dict(tensors)
    for name, tensor in tensors.items():
        linear = ".feed_forward." in name or (parts.attention_bias and ".self_attention." in name)
        if linear and name.endswith(".weight"):
            biased.setdefault(f"{name.removesuffix('weight')}bias", tensor.new_zeros(tensor.shape[0]))
    return biased


def _in_halves(parts: TransformerParts, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Permute the features of all states, for sinusoids with all sines before all cosines.

    Returns:
        The tensors by our names, and the tables of sinusoids by theirs.
    """
    order = torch.cat([torch.arange(0, parts.width, 2, device="cpu"), torch.arange(1, parts.width, 2, device="cpu")])
    waves = sinusoidal(parts.context, parts.width)[:, order]
    sides = ("encoder", "decoder") if parts.norms.place == "before" else ()
    tables = {f"model.{side}.embed_positions.weight": waves.clone() for side in sides}
    return {name: _permuted(name, tensor, order) for name, tensor in tensors.items()}, tables


def _permuted(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """Permute that dimension of a tensor which holds the features of states."""
    if name == "output.bias" or (".projections." in name and name.endswith("bias")) or name.endswith("expand.bias"):
        return tensor
    writes = name.endswith(("attention.output.weight", "contract.weight")) or tensor.ndim == 1
    return tensor[order] if writes else tensor[:, order]


def _expect_same(parts: TransformerParts, read: TransformerParts, family: Family) -> None:
    """Refuse a model whose parts differ from those that the settings of its family describe.

    Raises:
        UnsupportedError: a part differs; the message names it.
    """
    for field in fields(parts):
        ours, theirs = getattr(parts, field.name), getattr(read, field.name)
        if ours != theirs:
            raise _refusal(
                _SETTINGS.get(field.name, field.name),
                _described(ours),
                f"{_described(theirs)}, as {family.name} has it",
            )


def _described(part: object) -> str:
    if isinstance(part, MechanismConfig):
        return ", ".join(f"{name} {getattr(part, name)}" for name in ("score", "normalizer", "sinks"))
    if isinstance(part, PositionParts):
        return part.kind
    return "the usual" if part is None else f"{part}"


def _refusal(name: str, got: str, expected: str) -> UnsupportedError:
    hint = "No family of transformers computes the same: train without it, or see docs/how_to/export.md."
    return UnsupportedError(name, expected, got, hint)
