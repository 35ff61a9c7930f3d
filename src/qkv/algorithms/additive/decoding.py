"""Additive attention with one query at a time over fixed keys and values, as in a decoder's loop over time.

Size checks, key ranges and array conversions are done once for the whole loop, so that a step only runs its kernel.
"""

from typing import Any, final

import torch
from torch import Tensor

from qkv.algorithms.additive import direct, operators
from qkv.engine.autograd import forbid_differentiation
from qkv.engine.key_ranges import Weighting


@final
class Steps:
    """Softmax over additive scores, for queries of one shape.

    Args:
        items: the tensors of the first step, with few queries; gradients of keys and values are not computed here.
    """

    def __init__(self, items: operators.Items) -> None:
        self._shape, self._vector = items.query.shape, items.vector
        self.memory = items.key, items.value
        self._memory = tuple(map(operators.as_array, (items.key, items.vector, items.value)))
        self._weighting = Weighting(operators.key_ranges_of(items))

    def __call__(self, query: Tensor) -> Tensor:
        """Compute attention for queries (N, Q, A); queries and the vector receive gradients."""
        assert query.shape == self._shape
        if torch.is_grad_enabled() and (query.requires_grad or self._vector.requires_grad):
            output: Tensor = _DecodingStep.apply(query, self._vector, self)  # type: ignore[no-untyped-call]
            return output
        return torch.from_numpy(self.forward(query).out)

    def forward(self, query: Tensor) -> direct.Rows:
        """Return output, largest scores and sums, as arrays."""
        return direct.forward(self._inputs(query), self._weighting)

    def backward(self, query: Tensor, rows: direct.Rows, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of query and vector."""
        upstream = direct.Upstream(grad.contiguous().numpy(), memory=False)
        gradients = direct.backward(self._inputs(query), self._weighting, rows, upstream)
        return torch.from_numpy(gradients.query), torch.from_numpy(gradients.vector)

    def _inputs(self, query: Tensor) -> direct.Inputs:
        key, vector, value = self._memory
        return query.detach().contiguous().numpy(), key, vector, value


class _DecodingStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, vector: Tensor, steps: Steps) -> Tensor:
        rows = steps.forward(query)
        output = torch.from_numpy(rows.out)
        # Everything that the backward pass reads, so that PyTorch detects in-place changes.
        ctx.save_for_backward(query, output, vector, *steps.memory)
        ctx.steps, ctx.state = steps, rows[1:]
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, output, *_ = ctx.saved_tensors
        rows = direct.Rows(output.detach().numpy(), *ctx.state)
        gradients: tuple[Any, ...] = ctx.steps.backward(query, rows, grad.detach())
        if torch.is_grad_enabled():
            gradients = forbid_differentiation("fused", gradients, (grad, *ctx.saved_tensors))
        return *gradients, None
