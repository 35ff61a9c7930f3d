"""A translator as a model of a page that computes."""

from typing import Any

from torch import nn

from qkv.data.tokenizer import Tokenizer
from qkv.errors import setting
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.encoders import SelfAttentionEncoder
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.tasks.page_parts import DEFAULTS, embedding, encoder, page_model, stack
from qkv.tasks.translate.limits import LengthLimit
from qkv.tasks.translate.settings import MORE_TOKENS, TOKENS_PER_SOURCE_TOKEN
from qkv.view.live import LiveModel, lacks


def page_of(model: nn.Module, tokenizer: Tokenizer, longest: int, limit: LengthLimit) -> LiveModel:
    """Return what a page needs of a translator.

    Args:
        model: the network, with weights of `rounded_to_int8`.
        tokenizer, longest, limit: of the translator.

    Raises:
        UnsupportedError: it has a part that a page cannot compute.
    """
    if isinstance(model, TransformerTranslator) and isinstance(model.config, TransformerConfig):
        parts = _transformer(model)
    elif isinstance(model, RecurrentTranslator):
        parts = _recurrent(model)
    else:
        raise lacks(f"a {type(model).__name__}", "Train without " + setting("copy") + " and monotonic alignments.")
    limits = {"each": TOKENS_PER_SOURCE_TOKEN, "more": MORE_TOKENS, "longest": limit.to_json_value()}
    return page_model(model, tokenizer, longest, parts | {"task": "translate", "pool": None, "limit": limits})


def _source_embedding(model: TransformerTranslator | RecurrentTranslator) -> str:
    return "embed" if model.embed_source is None else "embed_source"


def _transformer(model: TransformerTranslator) -> dict[str, Any]:
    parts, source = model.parts, _source_embedding(model)
    if parts.features_mark is not None:
        raise lacks("separate features", DEFAULTS)
    if parts.recurrent is not None:
        cells = {"name": "encoder.layer", "cell": parts.recurrent, "layers": parts.layers}
        reader = encoder(embedding(source), "encoder_norm", cells=cells)
    else:
        first = embedding(source, parts.embed_scale, parts.positions.kind)
        reader = encoder(first, "encoder_norm", stack=stack("encoder", parts.layers, parts))
    return {
        "encoder": reader,
        "embedding": embedding("embed", parts.embed_scale, parts.positions.kind),
        "stack": stack("decoder", parts.decoder_layers, parts),
        "norm": "decoder_norm",
    }


def _recurrent(model: RecurrentTranslator) -> dict[str, Any]:
    config: RecurrentConfig = model.config
    if config.features_mark is not None or model.head_values is not None:
        raise lacks("separate features or several heads of a location", DEFAULTS)
    source = _source_embedding(model)
    if isinstance(model.encoder, SelfAttentionEncoder):
        first = embedding(source, config.embedding**0.5, config.positions or "sinusoidal")
        blocks = {"name": "encoder.blocks", "blocks": config.encoder_layers, "place": "before"}
        reader = encoder(first, "encoder.norm", stack=blocks | {"activation": "relu", "window": config.window})
    else:
        cells = {"name": "encoder", "cell": config.encoder or config.model, "layers": config.encoder_layers}
        reader = encoder(embedding(source), "", cells=cells)
    decoder = {
        "cell": config.model,
        "layers": config.decoder_layers,
        "wiring": config.wiring,
        "directions": 1 if isinstance(model.encoder, SelfAttentionEncoder) else 2,
        "split": config.memory == "split",
        "narrow": model.narrow is not None,
        "attention": model.alignment_layer,
        "window": None,
    }
    return {"encoder": reader, "embedding": embedding("embed"), "cells": decoder, "norm": ""}
