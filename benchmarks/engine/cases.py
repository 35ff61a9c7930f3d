"""A problem with its tensors, and running an equation on them: an output, or an output and gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from benchmarks.engine.mechanisms import MECHANISMS, Equation, Mechanism, Size
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import qkv
from qkv.planner.plan import Plan

FORWARD, BOTH = "forward", "forward + backward"

WHOLE_BYTES = 3 << 30
"""A full tensor above this is computed in chunks of queries, each recomputed in the backward pass."""

TOLERANCE = 2e-3
"""Maximum relative rms difference of a contender from qkv: rivals can sum in float32 in any order."""


@final
@dataclass(frozen=True)
class Case:
    """A mechanism, a size, and its tensors.

    Attributes:
        mechanism, size: the problem.
        tensors: query, key, value and the mechanism's parameters.
        upstream: the incoming gradient.
    """

    mechanism: Mechanism
    size: Size
    tensors: tuple[Tensor, ...]
    upstream: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that need gradients."""
        return [x for x in self.tensors if x.requires_grad]

    def run(self, equation: Equation, what: str) -> Callable[[], list[Tensor]]:
        """Return a function that computes the output of an equation, or for both passes the gradients of its leaves."""
        if what == FORWARD:
            detached = [x.detach() for x in self.tensors]
            return lambda: [equation(*detached)]
        return lambda: self._both(equation)

    def _both(self, equation: Equation) -> list[Tensor]:
        output, leaves = equation(*self.tensors), self.leaves
        gradients = torch.autograd.grad(output, leaves, self.upstream, allow_unused=True)
        return [output, *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True))]

    def ours(self, backend: str = "auto", dropout: float = 0.0) -> Equation:
        """Call `qkv.attention`, with score and normalizer rebuilt from the parameters in every call."""

        def attend(query: Tensor, key: Tensor, value: Tensor, *parameters: Tensor) -> Tensor:
            given = self.mechanism.given(*parameters)
            return qkv.attention(query, key, value, dropout=dropout, backend=backend, **given)

        return attend

    def plan(self, what: str, backend: str = "auto") -> Plan:
        """Return the plan of the call from `qkv.explain`."""
        tensors = self.tensors if what == BOTH else tuple(x.detach() for x in self.tensors)
        query, key, value, *parameters = tensors
        given = self.mechanism.given(*parameters)
        return qkv.explain(query, key, value, dropout=self.mechanism.dropout, backend=backend, **given)

    def full(self, dropout: float = 0.0) -> tuple[Equation, str]:
        """Return the equation on the full tensor, and how it is computed: whole, or in chunks of queries."""
        size, equation = self.size, self.mechanism.full
        if dropout:
            equation = partial(equation, dropout=dropout)
        pairs = size.queries * size.keys * torch.Size(size.leading).numel()
        bytes_ = 4 * pairs * self.mechanism.hidden(size)
        if bytes_ <= WHOLE_BYTES:
            return equation, "whole"
        rows = max(1, size.queries * (WHOLE_BYTES // 6) // bytes_)
        return by_chunks(equation, rows), f"{bytes_ / 2**30:.0f} GiB, in chunks of {rows} queries"


def make(mechanism: str, size: Size, *, outlier: bool = False) -> Case:
    """Generate a case from a fixed seed; with an outlier, one key is far from all others."""
    torch.manual_seed(0)
    query, key = torch.randn(*size.leading, size.queries, size.width), torch.randn(*size.leading, size.keys, size.width)
    if outlier:
        key[..., 0, :] = 1e4
    value = torch.randn(*size.leading, size.keys, size.value_width)
    drawn = MECHANISMS[mechanism].parameters(size)
    upstream = torch.randn(*size.leading, size.queries, size.value_width)
    return Case(MECHANISMS[mechanism], size, (*(x.requires_grad_() for x in (query, key, value)), *drawn), upstream)


def by_chunks(equation: Equation, rows: int) -> Equation:
    """Compute an equation for some queries at a time; the backward pass recomputes each chunk."""

    def chunked(query: Tensor, *rest: Tensor) -> Tensor:
        parts = query.split(rows, -2)
        if not torch.is_grad_enabled():
            return torch.cat([equation(part, *rest) for part in parts], -2)
        return torch.cat([checkpoint(equation, part, *rest, use_reentrant=False) for part in parts], -2)

    return chunked


def difference(theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> float:
    """Return the largest relative rms error of several tensors."""

    def norm(x: Tensor) -> float:
        return float(torch.linalg.vector_norm(x, dtype=torch.float64))

    return max(norm(a.detach() - b.detach()) / (norm(b.detach()) + 1e-12) for a, b in zip(theirs, ours, strict=True))
