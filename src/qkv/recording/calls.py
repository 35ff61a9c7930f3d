"""One recorded call of an attention: of ours, or of PyTorch's own multi-head attention."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.engine.describe import Arguments
from qkv.errors import UnsupportedError
from qkv.functional import attention_with_weights_alone
from qkv.masks.base import Mask
from qkv.masks.lower import matrix, part
from qkv.masks.patterns import Causal
from qkv.nn.projections import projections_of_torch
from qkv.nn.pytorch import masks_of
from qkv.normalizers.row_state import RowState
from qkv.scores.products import SCALED_DOT
from qkv.values.pytree import tensors_in
from qkv.values.sharded import ACTIVE, is_sharded

_SIGNATURE = signature(nn.MultiheadAttention.forward)


class LastInputs(NamedTuple):
    """The last inputs of a layer's projections, detached.

    Attributes:
        query, key, value: (B, N, width); one object where they are the same tensor.
        moment: index of the last change of the batch before the keys were given.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    moment: int


@final
@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One call of an attention: its inputs, detached.

    Args:
        query, key, value: the inputs of the layer.
        options: score, normalizer, mask, bias and enable_gqa, if given.
        state: row state, (..., Q); None if the backend returned none.
        moment: index of the last change of the batch before the call (see `Lineage`); −1 if the model does not report
            rows.
        self_attention: whether queries and keys come from one sequence.
        inputs: the inputs of the projections before it; None if there are none.
        start: position of the first query in its text, as the model's cache counts; None if the model does not say.
        ids: token ids of the queries, (B, Q); None if unknown.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    options: Mapping[str, Any]
    state: RowState | None = None
    moment: int = -1
    self_attention: bool = False
    inputs: LastInputs | None = None
    start: int | None = None
    ids: Tensor | None = None
    _versions: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (self.query, self.key, self.value))):
            hint = "Record a call without vmap, grad or jvp, whose tensors end with it."
            raise UnsupportedError("record", "a call outside of torch.func", "a transformed one", hint)
        object.__setattr__(self, "_versions", self._now())

    @torch.no_grad()
    def weights(self) -> Tensor:
        """Return the weights (..., Q, K) of this call, without dropout.

        Raises:
            UnsupportedError: as for `check`.
        """
        self.check()
        # Weights do not depend on values: one column suffices to compute them.
        column = self.value[..., :1] if self.value.shape[-1] else self.value
        return attention_with_weights_alone(self.query, self.key, column, self.arguments, "auto")[1]

    @property
    def arguments(self) -> Arguments:
        """The arguments of the call besides its tensors, without dropout."""
        defaults = {"score": SCALED_DOT, "normalizer": None, "mask": None, "bias": None, "enable_gqa": False}
        return Arguments(dropout=0.0, generator=None, **(defaults | dict(self.options)))

    @property
    def unchanged(self) -> bool:
        """Whether recorded tensors and parameters are as they were."""
        return self._versions == self._now()

    def first(self, count: int) -> "RecordedCall":
        """Select the first queries, and if these see no later keys of their own sequence, the keys up to there.

        Args:
            count: how many queries.
        """
        queries, keys = self.query.shape[-2], self.key.shape[-2]
        mask, bias = self.options.get("mask"), self.options.get("bias")
        visible = (
            torch.ones(queries, keys, dtype=torch.bool, device=self.query.device) if mask is None else self._table(mask)
        )
        visible, last = visible[..., :count, :], keys - (queries - count)
        cut = self.self_attention and not bool(visible[..., last:].any())
        columns = last if cut else keys
        options = dict(self.options)
        if mask is not None and not (isinstance(mask, Causal) and mask.align == "start"):
            options["mask"] = visible[..., :columns]
        if isinstance(bias, Tensor):
            options["bias"] = part(bias, slice(count), slice(columns))
        inputs = None if self.inputs is None else self.inputs._replace(query=self.inputs.query[:, :count])
        if cut and inputs is not None:
            inputs = inputs._replace(key=inputs.key[:, :columns], value=inputs.value[:, :columns])
        return replace(
            self,
            query=self.query[..., :count, :],
            key=self.key[..., :columns, :],
            value=self.value[..., :columns, :],
            options=options,
            state=None if self.state is None else self.state.map(lambda x: x[..., :count]),
            inputs=inputs,
            ids=None if self.ids is None else self.ids[:, :count],
        )

    def _table(self, mask: Mask | Tensor) -> Tensor:
        return matrix(mask, self.query.shape[-2], self.key.shape[-2], tuple(self.query.shape[:-2]))

    def of_query(self, query: int, item: int) -> "RecordedCall":
        """Select one query per item; rows that share their keys are adjacent queries.

        Args:
            query: index of the query.
            item: its item; if a table maps queries to keys, only the keys that this query sees are kept.

        Raises:
            UnsupportedError: as for `check`.
        """
        self.check()
        single = slice(query, query + 1)
        state = None if self.state is None else self.state.map(lambda x: x[..., single])
        inputs = None if self.inputs is None else self.inputs._replace(query=self.inputs.query[:, single])
        if self.self_attention and inputs is not None:
            inputs = inputs._replace(key=inputs.key[:, single], value=inputs.value[:, single])
        part = replace(self, query=self.query[..., single, :], state=state, inputs=inputs)
        mask = self.options.get("mask")
        if not isinstance(mask, Tensor) or mask.shape[-2] == 1:
            return part
        visible = mask[item].flatten(0, -3)[0, query] if mask.ndim > 3 else mask[item, query]
        options = {name: option for name, option in self.options.items() if name != "mask"}
        return replace(part, key=self.key[..., visible, :], value=self.value[..., visible, :], options=options)

    def check(self) -> None:
        """Check that recorded tensors and parameters, which are not copied, have not changed.

        Keys and values that are a part of a longer tensor are assumed unchanged: a cache that grows in place writes
        after them.

        Raises:
            UnsupportedError: a tensor was changed in place, as an optimizer does with parameters.
        """
        if not self.unchanged:
            hint = "Look at a trace, or save it, before the optimizer's next step; generate without a static cache."
            raise UnsupportedError("trace", "unchanged recorded tensors", "a tensor that was changed in place", hint)

    def _now(self) -> tuple[int, ...]:
        memory = [tensor for tensor in (self.key, self.value) if _is_complete(tensor)]
        tensors = [self.query, *memory, *tensors_in(list(self.options.values()))]
        return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)


def over_all_processes(call: RecordedCall) -> RecordedCall:
    """Return the call of the whole sequence, of which a shard gave this process a part: mask and bias speak of it."""
    if not ACTIVE:
        return call
    join = ACTIVE[-1].join
    query, key, value = (join(x) for x in (call.query, call.key, call.value))
    inputs = call.inputs
    if inputs is not None:
        parts = inputs.query, inputs.key, inputs.value
        whole = {name: join(x) for name, x in {id(x): x for x in parts}.items()}
        inputs = LastInputs(whole[id(parts[0])], whole[id(parts[1])], whole[id(parts[2])], inputs.moment)
    state = None if call.state is None else call.state.map(lambda x: join(x, -1))
    return replace(call, query=query, key=key, value=value, inputs=inputs, state=state)


def _is_complete(tensor: Tensor) -> bool:
    """Return whether a tensor covers all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


class TorchLayerInputs(NamedTuple):
    """What PyTorch's layer attends with in one forward pass.

    Attributes:
        query, key, value: by head, (B, H, N, D).
        options: mask and bias, if there are any.
        inputs: the inputs of the projections, (B, N, width).
        self_attention: whether queries and keys come from one sequence.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]
    inputs: tuple[Tensor, Tensor, Tensor]
    self_attention: bool


def inputs_of_torch_layer(
    layer: nn.MultiheadAttention, arguments: tuple[Any, ...], options: dict[str, Any]
) -> TorchLayerInputs:
    """Compute the projections of a forward pass of PyTorch's layer again, from its arguments."""
    bound = _SIGNATURE.bind(layer, *arguments, **options).arguments
    inputs = [bound[name] for name in ("query", "key", "value")]
    self_attention = inputs[0] is inputs[1]
    if inputs[0].ndim == 2:
        inputs = [x.unsqueeze(0) for x in inputs]
    elif not layer.batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    query, key, value = (
        _by_head(x, weight, bias, layer.num_heads)
        for x, (weight, bias) in zip(inputs, projections_of_torch(layer)[:3], strict=True)
    )
    padding, attended = bound.get("key_padding_mask"), bound.get("attn_mask")
    padding = padding if padding is None or padding.ndim == 2 else padding[None]
    mask, bias = masks_of(padding, attended, query.shape[0], layer.num_heads, bool(bound.get("is_causal")))
    named = {name: x for name, x in (("mask", mask), ("bias", bias)) if x is not None}
    return TorchLayerInputs(query, key, value, named, (inputs[0], inputs[1], inputs[2]), self_attention)


@torch.no_grad()
def call_of_torch_layer(
    layer: nn.MultiheadAttention, arguments: tuple[Any, ...], options: dict[str, Any], moment: int
) -> RecordedCall:
    """Return a forward pass of PyTorch's layer as a call.

    Args:
        layer: the layer.
        arguments, options: the arguments of the pass.
        moment: see `RecordedCall`.
    """
    if is_sharded():
        hint = "Replace it by a qkv.nn.MultiHeadAttention, which attends to the keys of all processes."
        raise UnsupportedError("record", "qkv.nn.Attention in a shard", "a layer that knows one process's keys", hint)
    query, key, value, named, inputs, self_attention = inputs_of_torch_layer(layer, arguments, options)
    x, memory, values = (tensor.detach() for tensor in inputs)
    detached = LastInputs(x, memory, values, moment)
    return RecordedCall(query, key, value, named, None, moment, self_attention, detached)


def _by_head(x: Tensor, weight: Tensor | None, bias: Tensor | None, heads: int) -> Tensor:
    """Project, and split heads: (B, N, M) to (B, H, N, D)."""
    assert weight is not None
    projected = F.linear(x, weight, bias)
    return projected.view(*projected.shape[:-1], heads, -1).transpose(1, 2)
