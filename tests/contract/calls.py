"""Calls shared by several tests of the contract: a mechanism with inputs, and whether a backend supports it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.contract.judge import legal
from tests.contract.mechanisms import NORMALIZER, NORMALIZERS, SCORE, SCORES, NormalizerCase, ScoreCase
from torch import Tensor

from qkv.engine.describe import Arguments, describe
from qkv.errors import UnsupportedError
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.normalizers.row_state import RowState
from qkv.planner.plan import plan_for
from qkv.scores.products import ScaledDot

MECHANISMS = (
    *((score, NORMALIZER["sum" if legal(score, NORMALIZER["sum"]) else "softmax"]) for score in SCORES),
    *((SCORE["scaled_dot"], normalizer) for normalizer in NORMALIZERS[1:] if not normalizer.needs_non_negative),
    *((SCORE["additive"], normalizer) for normalizer in NORMALIZERS[1:] if not normalizer.needs_non_negative),
    *((SCORE["concat"], NORMALIZER[name]) for name in ("mean", "identity", "hard")),
    *((SCORE["gaussian"], normalizer) for normalizer in NORMALIZERS if not normalizer.needs_non_negative),
)
"""Every score with its own normalizer, and a score of each core with every normalizer."""

by_part = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["part", "whole"])
"""A subset in which every mechanism meets some masks; the whole suite runs all of them."""


@dataclass(frozen=True)
class Request:
    """The arguments of a call, before a backend is asked for it."""

    tensors: tuple[Tensor, ...]
    options: dict[str, Any]
    state: bool = False

    def refusal(self, backend: str) -> str | None:
        """The reason why no algorithm of a backend computes the call, by its description or its numbers, or None."""
        error = self._refused(backend)
        return None if error is None else str(error)

    def is_served(self, backend: str) -> bool:
        return self._refused(backend) is None

    def _refused(self, backend: str) -> UnsupportedError | None:
        given = {"score": ScaledDot(), "normalizer": None, "mask": None, "bias": None, "dropout": 0.0}
        # A generator of its own: to ask draws nothing.
        given |= {"enable_gqa": False} | self.options | {"generator": torch.Generator()}
        bound = describe(*self.tensors, Arguments(**given), self.state)
        try:
            plan_for(bound.problem, backend).inspected(bound.call)
        except UnsupportedError as error:
            return error
        return None

    def run(self, backend: str) -> None:
        function = attention_with_state if self.state else attention
        function(*self.tensors, **self.options, backend=backend)


def request(*tensors: Tensor, **options: Any) -> Request:
    """Return a request with its options by name."""
    return Request(tensors, options)


@dataclass(frozen=True)
class Call:
    """A mechanism and its tensors; frozen, so that tests derive one call from another."""

    score: ScoreCase
    normalizer: NormalizerCase
    leaves: dict[str, Tensor]
    options: dict[str, Any]

    @staticmethod
    def draw(
        score: ScoreCase,
        normalizer: NormalizerCase,
        sizes: tuple[tuple[int, ...], int, int] = ((2, 2), 5, 7),
        dtype: torch.dtype = torch.float64,
        value_width: int = 4,
        **options: Any,
    ) -> "Call":
        leading, queries, keys = sizes
        g = torch.Generator().manual_seed(len(score.name) + 100 * len(normalizer.name))
        query = torch.randn(*leading, queries, score.width, generator=g)
        key = torch.randn(*leading, keys, score.key_width, generator=g)
        leaves = {"query": query, "key": key, "value": torch.randn(*leading, keys, value_width, generator=g)}
        for name, shape in score.shapes(score.width, score.key_width).items():
            x = torch.randn(shape, generator=g)
            leaves[name] = 1.5 * (x / 3).exp() if name in score.positive else x
        for name, shape in normalizer.shapes.items():
            leaves[name] = (normalizer.at_least or 0.0) + torch.rand(shape, generator=g) / 2
        return Call(score, normalizer, {name: x.to(dtype) for name, x in leaves.items()}, options)

    def __str__(self) -> str:
        return f"{self.score.name} × {self.normalizer.name}"

    def with_leaves(self, **leaves: Tensor) -> "Call":
        return replace(self, leaves={**self.leaves, **leaves})

    def with_options(self, **options: Any) -> "Call":
        return replace(self, options={**self.options, **options})

    def arguments(self, leaves: dict[str, Tensor]) -> dict[str, Any]:
        mine = {"query", "key", "value", *self.normalizer.shapes}
        score = self.score.build({name: x for name, x in leaves.items() if name not in mine})
        return {"score": score, "normalizer": self.normalizer.build(leaves), **self.options}

    def _call(self, function: Any, leaves: dict[str, Tensor], backend: str) -> Any:
        tensors = (leaves["query"], leaves["key"], leaves["value"])
        return function(*tensors, **self.arguments(leaves), backend=backend)

    def output(self, backend: str) -> Tensor:
        return self._call(attention, self.leaves, backend)

    def weights(self, backend: str) -> tuple[Tensor, Tensor]:
        return self._call(attention_with_weights, self.leaves, backend)

    def state(self, backend: str) -> tuple[Tensor, RowState]:
        return self._call(attention_with_state, self.leaves, backend)

    def gradients(self, backend: str, function: Any = attention) -> tuple[Tensor, dict[str, Tensor]]:
        """The output, and the gradient of each leaf under a fixed cotangent."""
        leaves = {name: x.detach().requires_grad_() for name, x in self.leaves.items()}
        output = self._call(function, leaves, backend)
        output = output if isinstance(output, Tensor) else output[0]
        cotangent = torch.linspace(-1, 2, output.numel(), dtype=output.dtype, device=output.device).view(output.shape)
        found = torch.autograd.grad(output, list(leaves.values()), cotangent, materialize_grads=True)
        return output.detach(), dict(zip(leaves, found, strict=True))

    def request(self, state: bool = False, gradient: bool = True) -> Request:
        leaves = {name: x.detach().requires_grad_(gradient) for name, x in self.leaves.items()}
        return Request((leaves["query"], leaves["key"], leaves["value"]), self.arguments(leaves), state)

    def refusal(self, backend: str, state: bool = False, gradient: bool = True) -> str | None:
        return self.request(state, gradient).refusal(backend)

    def serves(self, backend: str, state: bool = False, gradient: bool = True) -> bool:
        return self.request(state, gradient).is_served(backend)


def drawn(*sizes: Any, state: bool = False, gradient: bool = True, **options: Any) -> Iterator[Request]:
    """Draw each mechanism with the sizes and options of `Call.draw`."""
    for score, normalizer in MECHANISMS:
        yield Call.draw(score, normalizer, *sizes, **options).request(state, gradient)


def a_third(calls: Sequence[Any], turn: int) -> Sequence[Any]:
    """Every third call, starting one later on each turn; all of them if they are few."""
    return calls[turn % 3 :: 3] if len(calls) > 5 else calls


def served_part(calls: Sequence[Any], serves: Callable[[Any], bool], turn: int, parts: int) -> list[Any]:
    """Return the calls that a backend serves among one in `parts`, starting one later on each turn.

    To ask takes as long as to compute: another part is asked only if fewer than four are found.
    """
    found: list[Any] = []
    for start in range(parts):
        found += [call for call in calls[(turn + start) % parts :: parts] if serves(call)]
        if len(found) >= 4:
            break
    return found


def near(one: Tensor, other: Tensor, roundoffs: float = 400.0) -> bool:
    """True if two results agree within `times` roundoffs of the largest number."""
    if one.shape != other.shape:
        return False
    scale = max(1.0, other.abs().max().item()) if other.numel() else 1.0
    limit = roundoffs * torch.finfo(other.dtype).eps * scale
    return torch.allclose(one.double(), other.double(), rtol=0, atol=limit, equal_nan=True)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """True if two results are the same numbers; NaN equals NaN, and 0 equals −0."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(one.nan_to_num(7e7), other.nan_to_num(7e7))
    )


def refused(backend: str, *tensors: Tensor, **options: Any) -> bool:
    """Whether no algorithm of a backend computes a call, by its description or by its numbers."""
    return not Request(tensors, options).is_served(backend)
