"""Models that were trained here, as models of a family that computes the same."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.data.segments import SPECIALS
from qkv.errors import UnsupportedError
from qkv.hub.families.family import ACTIVATIONS
from qkv.models.decoder import DecoderConfig, LanguageModel
from qkv.models.parts import PositionParts, TransformerParts
from qkv.models.transformer import TransformerConfig, TransformerTranslator
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.norms import NormParts
from qkv.nn.positions import sinusoidal

_THEIRS = {ours: theirs for theirs, ours in reversed(list(ACTIVATIONS.items()))}
_EPS = 1e-5
_MARKS = {f"{name}_token_id": SPECIALS.index(f"<{name}>") for name in ("pad", "bos", "eos")}
_LONGEST = 1024
"""Positions of an encoder-decoder, whose sinusoids go on without end here."""


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


def of_language_model(model: LanguageModel) -> Counterpart:
    """Return a language model as GPT-NeoX, or with added positions as GPT-2.

    Raises:
        UnsupportedError: a part has no counterpart in them; the message names it.
    """
    config = model.config
    _expect_plain(config, "window", "key_heads")
    if config.positions not in ("rotary", "learned", "sinusoidal", "none"):
        raise _none("positions", f"{config.positions}", "rotary, learned, sinusoidal or none")
    rotary = config.positions == "rotary"
    parts = TransformerParts(
        config.size,
        config.width,
        config.heads,
        config.heads,
        config.width // config.heads,
        config.feed_forward,
        config.layers,
        context=config.context,
        norms=NormParts("layer", _EPS),
        positions=PositionParts("rotary" if rotary else "learned"),
        activation=config.activation,
        attention_bias=config.bias if rotary else True,
        tied=config.tied,
    )
    tensors = _with_biases(model.state_dict(), parts)
    if not rotary and config.positions != "learned":
        tensors["positions.weight"] = (
            sinusoidal(config.context, config.width)
            if config.positions == "sinusoidal"
            else torch.zeros(config.context, config.width)
        )
    return Counterpart(_neox(config) if rotary else _gpt2(config), parts, tensors)


def of_translator(model: TransformerTranslator) -> Counterpart:
    """Return a translator as Pegasus, or with norms after each sublayer as Marian.

    Both have all sines of the positions before all cosines, so that the features of all states are permuted.

    Raises:
        UnsupportedError: a part has no counterpart in them; the message names it.
    """
    config = model.config
    _expect_plain(config, "window", "copy", "encoder", "positions", "cross_score", "cross_normalizer")
    parts = TransformerParts(
        config.size,
        config.width,
        config.heads,
        config.heads,
        config.width // config.heads,
        config.feed_forward,
        config.encoder_layers,
        decoder_layers=config.decoder_layers,
        norms=NormParts("layer", _EPS, "before" if config.norm_first else "after", final=config.norm_first),
        positions=PositionParts("halves"),
        tied=config.tied,
        output_bias=True,
    )
    order = torch.cat([torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)])
    tensors = {name: _permuted(name, tensor, order) for name, tensor in model.state_dict().items()}
    waves = sinusoidal(_LONGEST, config.width)[:, order]
    sides = ("encoder", "decoder") if config.norm_first else ()
    extra = {f"model.{side}.embed_positions.weight": waves.clone() for side in sides}
    return Counterpart(_bart(config), parts, tensors, extra)


def _permuted(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """Permute the dimension of a tensor that stands for the features of states."""
    if name == "output.bias" or (".projections." in name and name.endswith("bias")) or name.endswith("expand.bias"):
        return tensor
    writes = name.endswith(("attention.output.weight", "contract.weight")) or tensor.ndim == 1
    return tensor[order] if writes else tensor[:, order]


def _with_biases(tensors: Mapping[str, Tensor], config: TransformerParts) -> dict[str, Tensor]:
    """Add zero biases where the family has some and the model has none."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        bias = name.removesuffix("weight") + "bias"
        linear = ".feed_forward." in name or (config.attention_bias and ".self_attention." in name)
        if linear and name.endswith(".weight"):
            found.setdefault(bias, tensor.new_zeros(tensor.shape[0]))
    return found


def _neox(config: DecoderConfig) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    return {
        "model_type": "gpt_neox",
        **_MARKS,
        "vocab_size": config.size,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feed_forward,
        "hidden_act": _THEIRS[config.activation],
        "max_position_embeddings": config.context,
        "layer_norm_eps": _EPS,
        "use_parallel_residual": False,
        "attention_bias": config.bias,
        "rotary_pct": 1.0,
        "rotary_emb_base": 10_000.0,
        "rope_parameters": rope,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tied,
    }


def _gpt2(config: DecoderConfig) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        **_MARKS,
        "vocab_size": config.size,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.feed_forward,
        "n_positions": config.context,
        "activation_function": _THEIRS[config.activation],
        "layer_norm_epsilon": _EPS,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "tie_word_embeddings": config.tied,
    }


def _bart(config: TransformerConfig) -> dict[str, Any]:
    sides: dict[str, Any] = {}
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        sides |= {f"{side}_layers": layers, f"{side}_attention_heads": config.heads}
        sides[f"{side}_ffn_dim"] = config.feed_forward
    return {
        "model_type": "pegasus" if config.norm_first else "marian",
        "is_encoder_decoder": True,
        **_MARKS,
        "decoder_start_token_id": _MARKS["bos_token_id"],
        "vocab_size": config.size,
        "d_model": config.width,
        **sides,
        "max_position_embeddings": _LONGEST,
        "activation_function": "relu",
        "scale_embedding": True,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "forced_eos_token_id": None,
        "tie_word_embeddings": config.tied,
    }


def _expect_plain(config: DecoderConfig | TransformerConfig, *names: str) -> None:
    """Refuse other scores than the scaled dot product under softmax, and settings that differ from their default."""
    if config.replaced() != MechanismConfig():
        got = ", ".join(f"{name} {getattr(config, name)}" for name in ("score", "normalizer", "sinks"))
        raise _none("score", got, "the scaled dot product under softmax")
    for name in names:
        given, usual = getattr(config, name), type(config).__dataclass_fields__[name].default
        if given != usual and not (name == "key_heads" and given == config.heads):
            raise _none(name, f"{given}", f"{usual}")


def _none(name: str, got: str, expected: str) -> UnsupportedError:
    hint = "No family of transformers computes the same: train without it, or see docs/how_to/export.md."
    return UnsupportedError(f"model.{name}", expected, got, hint)
