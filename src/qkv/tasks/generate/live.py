"""A language model as a model of a page that computes."""

from typing import Any

from torch import nn

from qkv.data.segments import SPECIALS
from qkv.data.tokenizer import Tokenizer
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.language_model import LanguageModel
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.tasks.page_parts import embedding, page_model, stack
from qkv.view.live import LiveModel, lacks


def page_of(model: nn.Module, tokenizer: Tokenizer) -> LiveModel:
    """Return what a page needs of a language model.

    Args:
        model: the network, with weights of `rounded_to_int8`.
        tokenizer: text to tokens and back.

    Raises:
        UnsupportedError: it has a part that a page cannot compute.
    """
    parts: dict[str, Any] = {"task": "generate", "pool": None, "encoder": None, "norm": "norm"}
    if isinstance(model, LanguageModel) and isinstance(model.config, DecoderConfig):
        of_model = model.parts
        first = embedding("embed", of_model.embed_scale, of_model.positions.kind)
        parts |= {"embedding": first, "stack": stack("blocks", of_model.layers, of_model)}
    elif isinstance(model, RecurrentLanguageModel):
        config = model.config
        attention = None if model.self_attention is None else "self_attention.attention"
        cells = {"cell": config.model, "layers": config.layers, "attention": attention, "window": config.window}
        parts |= {"embedding": embedding("embed"), "cells": cells}
    else:
        raise lacks(f"a {type(model).__name__}", "Give a language model that was trained here.")
    return page_model(model, tokenizer, model.config.context, parts, never=tuple(range(len(SPECIALS))))
