"""Exporting a Transformer to CTranslate2."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, UnsupportedError, expect_enough_memory, setting
from qkv.models.configs.translator import TransformerConfig
from qkv.models.translator import TransformerTranslator
from qkv.nn.blocks import TransformerBlock
from qkv.nn.feed_forward import FeedForward
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.positions import sinusoidal
from qkv.values.plain_modules import plain_weights

_SCALES = {"scaled_dot": None, "dot": 1.0}


def to_ctranslate2(
    model: TransformerTranslator,
    pieces: Sequence[str],
    out: Path,
    *,
    bos: int,
    eos: int,
    unk: int,
    positions: int,
    source_pieces: Sequence[str] | None = None,
    alignment: tuple[int, int | None] = (-1, None),
) -> None:
    """Write a Transformer in CTranslate2's format.

    Args:
        model: the model to export.
        pieces: the vocabulary, in the order of ids.
        out: the output folder; created if missing; files of an earlier export are replaced.
        bos, eos, unk: the special tokens.
        positions: length of the table of sinusoids: the longest source or target that can be read.
        source_pieces: the vocabulary of sources; None for the same one.
        alignment: the layer of the decoder and the head whose attention `return_attention=True` gives, None for the
            mean of heads.

    Raises:
        ConfigError: the library is not installed.
        UnsupportedError: CTranslate2 does not compute this score, or another part of the model.
    """
    specs = _library()
    score = model.config.score
    _check_parts(model)
    spec = specs.TransformerSpec.from_config(
        (model.config.encoder_layers, model.config.decoder_layers),
        model.config.heads,
        pre_norm=model.config.norm_first,
    )
    table = sinusoidal(positions, model.config.width).numpy()
    for side, blocks, norm, embed in (
        (spec.encoder, _blocks(model), model.encoder_norm, model.source_embedding),
        (spec.decoder, model.decoder, model.decoder_norm, model.embed),
    ):
        side.scale_embeddings = np.dtype("float32").type(model.config.width**0.5)
        side.position_encodings.encodings = table
        embedding = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embedding.weight = _array(embed.weight)
        if isinstance(norm, nn.LayerNorm):
            _norm(side.layer_norm, norm)
        for layer, block in zip(side.layer, blocks, strict=True):
            _block(layer, block, _SCALES[score])
    _linear(spec.decoder.projection, *plain_weights(model.output, "output"))
    _special_tokens(spec, pieces, source_pieces or pieces, bos, eos, unk)
    return_heads(spec.decoder, alignment, model.config.heads)
    out.mkdir(parents=True, exist_ok=True)
    spec.validate()
    spec.save(str(out))


def return_heads(decoder: Any, alignment: tuple[int, int | None], heads: int) -> None:
    """Choose the attention that `return_attention=True` gives.

    CTranslate2 averages the first heads of a layer, so a chosen head becomes the first.

    Args:
        decoder: the decoder in CTranslate2's form, with its weights.
        alignment: the layer and the head; None for the mean of heads.
        heads: H.
    """
    index, head = alignment
    count = heads if head is None else 1
    decoder.alignment_layer, decoder.alignment_heads = map(np.dtype("int16").type, (index, count))
    if head is None:
        return
    query, keys_and_values, output = decoder.layer[index].attention.linear
    width = query.weight.shape[0] // heads
    order = [head * width + place for place in range(width)]
    order += [place for place in range(heads * width) if place // width != head]
    for linear, rows in ((query, order), (keys_and_values, [*order, *(len(order) + place for place in order)])):
        linear.weight = linear.weight[rows]
        if not isinstance(linear.bias, str):  # a name stands for no bias
            linear.bias = linear.bias[rows]
    output.weight = output.weight[:, order]


def _blocks(model: TransformerTranslator) -> nn.ModuleList:
    assert isinstance(model.encoder, nn.ModuleList)
    return model.encoder


def _check_parts(model: TransformerTranslator) -> None:
    config, plain = model.config, MechanismConfig()
    hint = "Export to ONNX, which supports any score, or train with " + setting("score", "scaled-dot") + "."
    for mechanism in (config.replaced(), config.cross):
        if mechanism.score not in _SCALES or mechanism != plain.replaced(mechanism.score):
            got = mechanism.score if mechanism.score not in _SCALES else _changed_settings(mechanism)
            raise UnsupportedError(setting("to"), "a score that CTranslate2 computes", got, hint)
    for name in ("encoder", "window", "positions", "features_mark"):
        got, usual = getattr(config, name), TransformerConfig.__dataclass_fields__[name].default
        if got != usual:
            hint = (
                "Train with " + setting("features", "front") + "."
                if name == "features_mark"
                else "Train without " + setting(name) + "."
            )
            raise UnsupportedError(setting("to"), "what CTranslate2 computes", f"{name} {got}", hint)


def _library() -> Any:
    try:
        from ctranslate2.specs import transformer_spec
    except ImportError as error:
        expect_enough_memory(error)
        hint = "Install it: in the checkout, pip install '.[export]'."
        raise ConfigError(setting("to"), "an installed library", f"ctranslate2: {error}", hint) from None
    return transformer_spec


def _special_tokens(spec: Any, pieces: Sequence[str], source: Sequence[str], bos: int, eos: int, unk: int) -> None:
    spec.register_source_vocabulary(list(source))
    spec.register_target_vocabulary(list(pieces))
    spec.config.bos_token = spec.config.decoder_start_token = pieces[bos]
    spec.config.eos_token, spec.config.unk_token = pieces[eos], pieces[unk]
    spec.config.layer_norm_epsilon = nn.LayerNorm(1).eps


def _block(layer: Any, block: nn.Module, scale: float | None) -> None:
    assert isinstance(block, TransformerBlock)
    _attention(layer.self_attention, block.self_attention, scale, fused=True)
    _norm(layer.self_attention.layer_norm, block.around_self.norm)
    if block.cross_attention is not None and block.around_cross is not None:
        _attention(layer.attention, block.cross_attention, scale, fused=False)
        _norm(layer.attention.layer_norm, block.around_cross.norm)
    _feed_forward(layer.ffn, block.feed_forward)
    _norm(layer.ffn.layer_norm, block.around_feed.norm)


def _attention(spec: Any, attention: MultiHeadAttention, scale: float | None, *, fused: bool) -> None:
    (weight, bias), rows = _joint(attention), attention.width
    if fused:
        _linear(spec.linear[0], weight, bias)
    else:
        _linear(spec.linear[0], weight[:rows], bias[:rows])
        _linear(spec.linear[1], weight[rows:], bias[rows:])
    assert attention.output is not None
    _linear(spec.linear[-1], *plain_weights(attention.output, "output"))
    if scale is not None:
        spec.queries_scale = np.dtype("float32").type(scale)


def _joint(attention: MultiHeadAttention) -> tuple[Tensor, Tensor]:
    parts = [attention.projections.part(index) for index in range(3)]
    weights = [weight for weight, _ in parts if weight is not None]
    biases = [bias for _, bias in parts if bias is not None]
    return torch.cat(weights), torch.cat(biases)


def _feed_forward(spec: Any, layer: nn.Module) -> None:
    assert isinstance(layer, FeedForward)
    _linear(spec.linear_0, *plain_weights(layer.expand, "expand"))
    _linear(spec.linear_1, *plain_weights(layer.contract, "contract"))


def _linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    assert bias is not None
    spec.weight, spec.bias = _array(weight), _array(bias)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()


def _changed_settings(mechanism: MechanismConfig) -> str:
    """Name the settings of a mechanism that differ from the defaults."""
    default = MechanismConfig()
    return ", ".join(
        f"{setting.name} {getattr(mechanism, setting.name)}"
        for setting in fields(MechanismConfig)
        if getattr(mechanism, setting.name) != getattr(default, setting.name)
    )
