"""Measure qkv's own kernels on a GPU, for `qkv tune`: their errors beside the equation's, and their times."""

import math
import time
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.errors import UnsupportedError
from qkv.functional import attention
from qkv.masks.patterns import causal, lengths
from qkv.planner.registry import ALGORITHMS
from qkv.scores.sums import Additive

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (256, 1024, 4096)
_HEADS, _WIDTH, _REPEATS = 8, 64, 5


class Measured(NamedTuple):
    """A measurement of one algorithm.

    Attributes:
        algorithm: its name.
        dtype: of the tensors.
        gradient: whether with the backward pass.
        pairs: of queries and keys, over all heads.
        error: the largest error relative to the limit: 1.5 times the root mean square of the equation's errors in the
            same type and 3 times its largest, beside float64.
        milliseconds: of a call.
        composed: of the same call by PyTorch's operators.
    """

    algorithm: str
    dtype: str
    gradient: bool
    pairs: int
    error: float
    milliseconds: float
    composed: float


def measure(device: torch.device, sizes: tuple[int, ...] = SIZES, repeats: int = _REPEATS) -> Iterator[Measured]:
    """Measure every algorithm that needs a certificate.

    Args:
        device: where.
        sizes: how many queries and keys a call has.
        repeats: how often a call is timed; its median counts.

    Raises:
        UnsupportedError: the kernels cannot run there.
    """
    for algorithm in (algorithm for algorithm in ALGORITHMS if algorithm.needs_certificate):
        if algorithm.kernels is not None and (reason := algorithm.kernels()) is not None:
            raise UnsupportedError("tune", "kernels that can be compiled here", reason, "Then run qkv tune again.")
        for dtype in DTYPES:
            errors = [_errors(algorithm.name, device, dtype, gradient) for gradient in (False, True)]
            for size in sizes:
                for gradient in (False, True):
                    x = _drawn(device, dtype, _HEADS, size, size)
                    times = [_time(x, gradient, name, repeats) for name in (algorithm.name, "tiled.blocked")]
                    kind = str(dtype).removeprefix("torch.")
                    yield Measured(algorithm.name, kind, gradient, _HEADS * size**2, errors[gradient], *times)


def _drawn(device: torch.device, dtype: torch.dtype, heads: int, queries: int, keys: int) -> list[Tensor]:
    draw = torch.Generator("cpu").manual_seed(queries)
    shapes = (1, heads, queries, _WIDTH), (1, heads, keys, _WIDTH), (1, heads, keys, _WIDTH), (_WIDTH,)
    return [torch.randn(shape, generator=draw, device="cpu").to(device, dtype) for shape in shapes]


def _leaves(x: list[Tensor], gradient: bool) -> list[Tensor]:
    return [y.detach().clone().requires_grad_(gradient) for y in x]


def _call(x: list[Tensor], gradient: bool, backend: str, mask: Any = None) -> list[Tensor]:
    """Return the output, and the gradients if they are wanted."""
    leaves = _leaves(x, gradient)
    output = attention(*leaves[:3], score=Additive(leaves[3]), mask=mask, backend=backend)
    return [output.detach(), *(torch.autograd.grad(output.square().sum(), leaves) if gradient else ())]


def _errors(algorithm: str, device: torch.device, dtype: torch.dtype, gradient: bool) -> float:
    """Return the largest error of uneven sizes under three masks, relative to the limit."""
    shares = []
    for mask in (None, causal(), lengths(torch.tensor([201], device=device))):
        for spread in (0.05, 1.0, 8.0):
            x = _drawn(device, dtype, 2, 190, 230)
            x = [x[0] * spread, x[1] * spread, *x[2:]]
            exact = _call([y.double() for y in x], gradient, "reference", mask)
            results = [_call(x, gradient, name, mask) for name in (algorithm, "reference")]
            for index, (right, ours, literal) in enumerate(zip(exact, *results, strict=True)):
                scale = x[2].double().abs().max() if index == 0 else right.abs().max()
                shares.append(_share(ours - right, literal - right, scale * torch.finfo(dtype).eps))
    # A result that is not finite keeps no limit.
    return max(share if math.isfinite(share) else math.inf for share in shares)


def _share(ours: Tensor, literal: Tensor, epsilon: Tensor) -> float:
    root = ours.square().mean().sqrt() / (1.5 * literal.square().mean().sqrt() + epsilon)
    return max(float(root), float(ours.abs().max() / (3 * literal.abs().max() + epsilon)))


def _time(x: list[Tensor], gradient: bool, backend: str, repeats: int) -> float:
    """Return the median milliseconds of a call; the first one compiles."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        _call(x, gradient, backend)
        if x[0].is_cuda:
            torch.cuda.synchronize(x[0].device)
        times.append(1e3 * (time.perf_counter() - start))
    return median(times[1:])
