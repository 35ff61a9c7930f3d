"""The attention that models of `transformers` call: it translates their arguments to those of `qkv.attention`."""

import sys
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from qkv.biases import Bias
from qkv.errors import AttachError
from qkv.hub.lazy_mask import LazyMask
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.masks.base import Mask
from qkv.masks.patterns import causal
from qkv.nn.attention import SEAM, Attention
from qkv.normalizers.dense import Softmax
from qkv.scores.products import ScaledDot

CALLED: WeakSet[nn.Module] = WeakSet()
"""The `Attention`s that were called; `attach` verifies with it that every module comes here."""
_WITHOUT_EFFECT = {
    "cache_position",
    "deterministic",
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "sliding_window",
    "use_cache",
}
"""Arguments that change nothing here: a sliding window is in the mask, positions are in the queries and keys."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, AttentionMap | None]:
    """Compute the attention of a module of `transformers`.

    Args:
        module: the module; the call runs through its `Attention`, which hooks see.
        query: (B, H, Q, D).
        key: (B, G, K, D).
        value: (B, G, K, V).
        attention_mask: lazy, bool (True may attend) or float (added to the scores); broadcasts to (B, H, Q, K).
        dropout: the fraction of weights dropped.
        scaling: factor of the dot products; None for 1/√D.
        is_causal: whether a missing mask means causal; None for the module's own answer.
        softcap: the limit c of c·tanh(s/c).
        s_aux: sinks, (H,).
        position_bias: added to the scores.
        others: arguments of other implementations.

    Returns:
        The output (B, Q, H, V); and the weights as a lazy map, if `output_attentions` is set.

    Raises:
        AttachError: an argument that would change the result is unknown.
    """
    sinks = others.pop("sinks", None)
    sinks = s_aux if sinks is None else sinks
    for name, argument in others.items():
        if argument is not None and name not in _WITHOUT_EFFECT:
            got = f"{name}={type(argument).__name__}"
            hint = "Its effect on attention is not known here: use the model's own implementation."
            raise AttachError(type(module).__name__, "arguments that qkv knows", got, hint)
    mask, bias = _mask(attention_mask), _bias(attention_mask, position_bias)
    if attention_mask is None and query.shape[2] > 1:
        default = getattr(module, "is_causal", True)
        mask = causal() if (default if is_causal is None else is_causal) else None
    seam = seam_of(module)
    if not torch.compiler.is_compiling():
        CALLED.add(seam)
    if seam.dropout != dropout:
        seam.dropout = dropout
    options: dict[str, Any] = {
        "score": ScaledDot(None if scaling == query.shape[-1] ** -0.5 else scaling, softcap),  # 1/√D by its name
        "normalizer": None if sinks is None else Softmax(sinks.reshape(-1)),
        "mask": mask,
        "bias": bias,
        "enable_gqa": key.shape[1] != query.shape[1],
    }
    output = seam(query, key, value, **options).transpose(1, 2).contiguous()
    with_weights = others.get("output_attentions") or _collected()
    return output, attention_map(query, key, **options) if with_weights else None


def _collected() -> bool:
    """Return whether the running model collects weights; not every model passes that on to its attention."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    names = None if collector is None else collector.get()
    return names is not None and any("attention" in name for name in names)


def seam_of(module: nn.Module) -> Attention:
    """Return the `Attention` of an attached module, created at the first call if `attach` did not create it."""
    seam = module._modules.get(SEAM)
    if not isinstance(seam, Attention):
        seam = Attention().train(module.training)
        module.add_module(SEAM, seam)
    return seam


def _mask(attention_mask: Tensor | None) -> Mask | Tensor | None:
    if isinstance(attention_mask, LazyMask):
        return attention_mask.mask
    return attention_mask if attention_mask is not None and attention_mask.dtype == torch.bool else None


def _bias(attention_mask: Tensor | None, position_bias: Tensor | None) -> Tensor | Bias | None:
    """Return what is added to the scores: a float mask, a bias, or their sum."""
    if attention_mask is None or attention_mask.dtype == torch.bool:
        return position_bias
    return attention_mask if position_bias is None else attention_mask + position_bias
