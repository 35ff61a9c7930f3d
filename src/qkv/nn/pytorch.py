"""Our multi-head attention where PyTorch's layers expect theirs."""

from types import SimpleNamespace
from typing import Any, final

import torch
from torch import Tensor, nn

from qkv.errors import ShapeError, UnsupportedError
from qkv.masks.base import Dense, Mask
from qkv.masks.patterns import causal
from qkv.nn.multihead import MultiHeadAttention, refuse_weights_of_torch
from qkv.values.checked import checked
from qkv.values.execution import has_plain_memory
from qkv.values.parameters import expect_floats


@final
class _NoTensor:
    """Stands where PyTorch's fast path reads a weight: an argument that overrides functions disables that path."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


@checked
@final
class TorchMultiheadAttention(nn.Module):
    """A `MultiHeadAttention` with the arguments of `torch.nn.MultiheadAttention`.

    It replaces `self_attn` and `multihead_attn` of PyTorch's Transformer layers, with any score and normalizer:
    `layer.self_attn = TorchMultiheadAttention(MultiHeadAttention(width, heads, score="gaussian"))`. With the weights of
    PyTorch's layer it is `TorchMultiheadAttention(MultiHeadAttention.from_torch(layer.self_attn))`.
    A row that may see nothing gives 0, not NaN.

    Args:
        attention: the layer that computes.
        batch_first: whether inputs are (B, N, M); otherwise (N, B, M), PyTorch's default.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> layer.self_attn = TorchMultiheadAttention(MultiHeadAttention(8, 2, score="cosine"))
        >>> layer(torch.randn(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    in_proj_bias = None
    """PyTorch's encoder layers look for it before they skip the attention's own `forward`."""
    in_proj_weight = _NoTensor()
    out_proj = SimpleNamespace(weight=in_proj_weight, bias=None)
    """A stack of layers looks for these before it packs padded inputs, if it was made with PyTorch's attention."""
    _qkv_same_embed_dim = False

    def __init__(self, attention: MultiHeadAttention, *, batch_first: bool = True) -> None:
        super().__init__()
        self.attention = attention
        self.batch_first = batch_first
        self.embed_dim, self.num_heads = attention.width, attention.heads
        self.register_load_state_dict_pre_hook(refuse_weights_of_torch)  # type: ignore[no-untyped-call]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention.

        Args:
            query: (B, Q, M), or (Q, B, M), or (Q, M).
            key: (B, K, key width), likewise.
            value: (B, K, value width), likewise.
            key_padding_mask: (B, K); bool: True hides a key; float: added to the scores, and −∞ hides.
            need_weights: whether to return weights too, a full matrix, after dropout. Those by head are part of the
                output's graph, so that a loss on it has a gradient with respect to them.
            attn_mask: (Q, K) or (B·H, Q, K); bool: True hides a pair; float: added to the scores, and −∞ hides.
            average_attn_weights: whether weights are averaged over heads.
            is_causal: promises that `attn_mask` is the causal mask, which is then not read.

        Returns:
            The output, shaped like `query`, and the weights (B, Q, K) or (B, H, Q, K), or None.

        Raises:
            ShapeError: a mask does not fit.
            UnsupportedError: weights of a layer with an extra key.
        """
        for name, x in (("query", query), ("key", key), ("value", value)):
            expect_floats(name, x)
        self_attention, batched = query is key and key is value, query.ndim == 3
        q, k, v = (self._batch(x) for x in (query, key, value))
        padding = key_padding_mask if batched or key_padding_mask is None else key_padding_mask[None]
        mask, bias = masks_of(padding, attn_mask, q.shape[0], self.num_heads, is_causal)
        inner = self.attention
        projected, memory = (
            inner.extend(q, None) if self_attention else (inner.project_query(q), inner.project_memory(k, v))
        )
        if need_weights and inner.extra_key is not None:
            hint = "Pass need_weights=False, or qkv.record the layer."
            raise UnsupportedError("need_weights", "False with an extra key, which no column stands for", "True", hint)
        weights = None
        if need_weights:
            output, weights = inner.attend_with_weights(projected, memory, mask=mask, bias=bias)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            output = inner.attend(projected, memory, mask=mask, bias=bias)
        if not batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _batch(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)


def masks_of(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, batch: int, heads: int, is_causal: bool
) -> tuple[Mask | None, Tensor | None]:
    """Translate the masks of `torch.nn.MultiheadAttention`, where True hides.

    Args:
        key_padding_mask: (B, K), bool or float.
        attn_mask: (Q, K) or (B·H, Q, K), bool or float.
        batch, heads: B and H.
        is_causal: whether `attn_mask` is known to be the causal mask.

    Returns:
        The mask, and what is added to the scores; None for none.

    Raises:
        ShapeError: a mask does not have one of these shapes.

    Example:
        >>> masks_of(torch.tensor([[False, True]]), None, 1, 2, False)[0].tensor
        tensor([[[[ True, False]]]])
    """
    mask: Mask | None = causal() if is_causal else None
    bias: Tensor | None = None
    if key_padding_mask is not None:
        _expect("key_padding_mask", key_padding_mask, (batch,), 2)
        key_padding_mask = key_padding_mask[:, None, None, :]
    if attn_mask is not None and not is_causal:
        _expect("attn_mask", attn_mask, (batch * heads,) if attn_mask.ndim == 3 else (), max(attn_mask.ndim, 2))
        attn_mask = attn_mask.reshape(batch, heads, *attn_mask.shape[1:]) if attn_mask.ndim == 3 else attn_mask
    for table in (key_padding_mask, None if is_causal else attn_mask):
        if table is None:
            continue
        hidden = table if table.dtype == torch.bool else torch.isneginf(table)
        if table.dtype == torch.bool or not _all_zero(hidden):
            mask = Dense(~hidden) if mask is None else mask & Dense(~hidden)
        if table.dtype != torch.bool and not _all_zero(added := table.masked_fill(hidden, 0.0)):
            bias = added if bias is None else bias + added
    return mask, bias


def _all_zero(table: Tensor) -> bool:
    """Return whether a table changes nothing: False if it learns, or if its numbers may not be read, as in a graph."""
    return not table.requires_grad and has_plain_memory(table) and not bool(table.any())


def _expect(name: str, mask: Tensor, leading: tuple[int, ...], rank: int) -> None:
    if mask.ndim != rank or tuple(mask.shape[: len(leading)]) != leading:
        expected = "(B, K)" if name == "key_padding_mask" else "(Q, K) or (B·H, Q, K)"
        hint = "B·H counts the heads of the first item first."
        raise ShapeError(name, f"shape {expected}", str(tuple(mask.shape)), hint)
