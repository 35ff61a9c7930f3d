"""The models of `transformers` themselves: made from a seed, and asked for logits and generated ids."""

import os
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from tests.hub.published import CASES, END, FILLERS, LABELERS, PAIRS, STEPS, Inputs, padded_left


@cache
def name_of_cache() -> str:
    """What this version calls the cache, in arguments of models and in their outputs."""
    from transformers import LlamaForCausalLM

    return next(name for name in ("cache", "past_key_values") if name in signature(LlamaForCausalLM.forward).parameters)


def make(name: str, seed: int = 0) -> Any:
    """A model with random weights, large enough that each part matters.

    Its attention is the equation: until some version after 5.6 their fused one left out the soft cap of Gemma 2.
    """
    import transformers

    case = CASES[name]
    torch.manual_seed(seed)
    config = getattr(transformers, case.config)(**case.settings, attn_implementation="eager")
    model = getattr(transformers, case.model)(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "embed_positions" not in path or name not in PAIRS:
                parameter.normal_(0, 0.6 if parameter.ndim > 1 else 0.3)
        for path, buffer in model.named_buffers():
            if path.endswith("final_logits_bias"):
                buffer.normal_(0, 0.3)
    return model


def write(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, save_original_format=True)


@torch.no_grad()
def logits(model: Any, name: str, given: Inputs) -> Tensor:
    """The logits of all real positions, zeros for padding."""
    real = torch.arange(given.tokens.shape[1]) < given.lengths[:, None]
    if name in PAIRS:
        found: Tensor = model(input_ids=given.tokens, attention_mask=real.long(), decoder_input_ids=given.target).logits
        return found
    if name in (*FILLERS, *LABELERS):
        ids = given.tokens.where(real, model.config.pad_token_id)
        found = model(input_ids=ids, attention_mask=real.long()).logits
        return found * real[..., None] if found.ndim == 3 else found
    tokens, padding = padded_left(given)
    seen = torch.arange(tokens.shape[1]) >= padding[:, None]
    places = (seen.long().cumsum(-1) - 1).clamp(min=0)
    found = model(input_ids=tokens, attention_mask=seen.long(), position_ids=places).logits
    return found * seen[..., None]


@torch.no_grad()
def continued(model: Any, name: str, given: Inputs, beam: int, *, end: int = END) -> list[tuple[int, ...]]:
    """The generated ids of each row, without the end token."""
    if name in PAIRS:
        tokens, real = given.tokens, torch.arange(given.tokens.shape[1]) < given.lengths[:, None]
        skipped = 1
    else:
        tokens, padding = padded_left(given)
        real, skipped = torch.arange(tokens.shape[1]) >= padding[:, None], tokens.shape[1]
    pad = model.config.pad_token_id or 0
    rows = model.generate(
        input_ids=tokens.where(real, pad),
        attention_mask=real.long(),
        max_new_tokens=STEPS,
        num_beams=beam,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=pad,
        early_stopping=False,
    )[:, skipped:].tolist()
    return [tuple(row[: row.index(end)]) if end in row else tuple(row) for row in rows]
