"""A language model as a model of a page that computes."""

from typing import Any

from qkv.data.segments import SPECIALS
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.language_model import LanguageModel
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.tasks.generate.predict import Generator
from qkv.tasks.page_parts import embedding, page_model, stack
from qkv.view.live import LiveModel, lacks, rounded_to_int8


def in_page(generator: Generator) -> tuple[Generator, LiveModel]:
    """Return a language model with the weights of its page, and what the page needs; errors as for `ComputesInPage`."""
    model: Any = rounded_to_int8(generator.model)
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
    rounded, context = Generator(model, generator.tokenizer), generator.model.config.context
    never = tuple(range(len(SPECIALS)))
    return rounded, page_model(rounded.model, generator.tokenizer, context, parts, never=never)
