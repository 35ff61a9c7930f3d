"""The criterion "exact" of the contract: how far an answer may be from the float64 result. Every test uses this one.

Let r be the float64 result on the same rounded inputs, and m the equation, computed literally in the tested dtype. An
answer o is exact when rms(o−r) ≤ 1.5·rms(m−r) + ε and max|o−r| ≤ 3·max|m−r| + ε, with ε = 2u·max|v|; gradients
likewise, with the largest gradient. The share of the limit is the larger of the two quotients: 1 is the limit.

So that no verdict is a draw, and none depends on how one processor adds up:

- m−r is pooled over 16 equivalent evaluations of the equation (`orders`), whose sums are in other orders.
- Rows are counted, because the numbers of a row share its errors. An answer that exceeds the limit on fewer than 512
  rows is no verdict: new inputs are drawn, and the errors of all draws are pooled, until it keeps the limit or there
  are 512 rows. By then the rms of independent errors is known within 16 % (5 standard deviations, 1/√(2·512) each).
  Errors are pooled as they are: relative to itself, one sum that cancels to almost nothing would outweigh all others.

The pooled errors only grow with each evaluation, relative to their number in the end: an answer that keeps the limit
after some of the 16 would keep it after all of them, and the rest is not computed (`Pool.share`).

float64 has no wider type to be judged by. There, m−r is replaced by five times the errors of the equation in float32,
scaled by the quotient of the two roundoffs: the judge rounds as well (by up to 20 roundoffs, as `oracle` finds), and
the roundings of two types are two samples, not one. `oracle` checks that the float64 reference is right.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from tests.contract.orders import EVALUATIONS, ORDERS, Order
from torch import Tensor

from qkv.algorithms.matrix import distance_scores

ENOUGH = 512
"""Rows: with fewer, exceeding the limit is no verdict."""

Numbers = Mapping[str, Tensor]


@dataclass(frozen=True)
class Draw:
    """Results by name on one draw of the inputs.

    Attributes:
        ours: the answers to judge.
        exact: r, in float64; the equation's own names, at least those of `ours`.
        literal: m, the equation in one order.
        scales: max|v| of an output, the largest gradient, and so on: what ε is relative to.
        select: the rows to judge, by name; all if missing.
        single: results each of whose numbers has an error of its own, such as row states: every number is a row.
    """

    ours: Numbers
    exact: Numbers
    literal: Callable[[Order], Numbers]
    scales: Mapping[str, float]
    select: Numbers = field(default_factory=dict)
    single: frozenset[str] = frozenset()


@contextmanager
def distances_by_subtraction() -> Iterator[None]:
    """Let `reference` subtract the points of a distance, as the equation says, also where products are more exact."""
    with patch.object(distance_scores, "scores", lambda *_: None):
        yield


def shares(
    draw: Callable[[int], Draw],
    dtype: torch.dtype,
    *,
    allowed: Mapping[str, float] | None = None,
    certain: float = 1.0,
    least: int = 0,
) -> dict[str, float]:
    """The errors of each result relative to its limit; above 1: not exact.

    Args:
        draw: the results on draw 0, 1, ...: other inputs of the same shapes.
        dtype: the tested type.
        allowed: the multiple of the limit that a result may reach, by name; 1 if missing.
        certain: a share below this is not computed more precisely: the true one is smaller.
        least: the number of rows to pool before there is any verdict.
    """
    found: dict[str, float] = {}
    pools: dict[str, Pool] = {}
    draws: list[Errors] = []
    while True:
        draws.append(Errors(draw(len(draws))))
        names = list(draws[0].draw.ours)
        pools = pools or {name: Pool(dtype, (allowed or {}).get(name, 1.0)) for name in names}
        open_ = [name for name in names if not found.get(name, math.inf) <= 1]
        for name in open_:
            pools[name].add(name, draws[-1])
        if len(draws) < ENOUGH and min((pools[name].rows for name in open_), default=least) < least:
            continue
        for order in (None, *ORDERS):
            for errors in draws:
                errors.evaluate(order)
            found |= {name: pools[name].share() for name in open_}
            if all(found[name] <= certain for name in open_):
                break
        exceeded = [pools[name] for name in open_ if not found[name] <= 1]
        if all(pool.rows >= ENOUGH or not math.isfinite(pool.square) for pool in exceeded):
            return found


class Errors:
    """The errors on one draw: ours, and those of the equation so far."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.done: set[Order] = set()
        self.literal: dict[str, list[tuple[float, float]]] = {name: [] for name in draw.ours}

    def evaluate(self, order: Order | None) -> None:
        """Evaluate the equation in this order, unless that is done."""
        if order is None or order in self.done:
            return
        self.done.add(order)
        found = self.draw.literal(order)
        for name, sums in self.literal.items():
            sums.append(self.of(name, found[name]))

    def of(self, name: str, result: Tensor) -> tuple[float, float]:
        """Σ(x−r)² and max|x−r|; infinite where x is not finite though r is, or the reverse."""
        r, x = (self.selected(name, y.detach().double()) for y in (self.draw.exact[name], result))
        finite = r.isfinite()
        if x.shape != r.shape or not torch.equal(x[~finite].nan_to_num(7.0), r[~finite].nan_to_num(7.0)):
            return math.inf, math.inf
        error = (x - r)[finite]
        if not error.numel():
            return 0.0, 0.0
        return error.square().sum().item(), error.abs().max().item()

    def selected(self, name: str, x: Tensor) -> Tensor:
        select = self.draw.select.get(name)
        return x if select is None or x.shape[: select.ndim] != select.shape else x[select]

    def size(self, name: str) -> tuple[int, int]:
        """How many numbers there are, and how many rows of them."""
        x = self.draw.exact[name]
        chosen = self.selected(name, x)
        own = x.ndim < 2 or name in self.draw.single
        rows = chosen.numel() if own else chosen.numel() // max(x.shape[-1], 1)
        return int(chosen.isfinite().sum()), rows


@dataclass
class Pool:
    """The errors of one result over all draws."""

    dtype: torch.dtype
    allowed: float
    numbers: int = 0
    rows: int = 0
    square: float = 0.0
    largest: float = 0.0
    scale: float = 0.0
    literal: list[list[tuple[float, float]]] = field(default_factory=list)

    def add(self, name: str, errors: Errors) -> None:
        """Add our errors on one draw; those of the equation are added to it later."""
        square, largest = errors.of(name, errors.draw.ours[name])
        numbers, rows = errors.size(name)
        # Of nothing, there is nothing more to draw.
        self.numbers, self.rows = self.numbers + numbers, self.rows + (rows or ENOUGH)
        self.square, self.largest = self.square + square, max(self.largest, largest)
        self.scale = max(self.scale, errors.draw.scales[name])
        self.literal.append(errors.literal[name])

    def quotient(self) -> float:
        """rms(o−r) relative to the pooled rms(m−r), without ε."""
        _, square, _ = self._pooled()
        return math.sqrt(self.square / square) if square else (math.inf if self.square else 0.0)

    def share(self) -> float:
        """Our errors relative to the limit, which is no larger than it will be after all evaluations."""
        if not math.isfinite(self.square):
            return math.inf
        fine, square, largest = self._pooled()
        epsilon = 2 * unit(self.dtype) * self.scale
        spread = math.sqrt(square / max(self.numbers, 1))
        pairs = (
            (math.sqrt(self.square / max(self.numbers, 1)), 1.5 * fine * spread + epsilon),
            (self.largest, 3 * fine * largest + epsilon),
        )
        quotients = [e / limit if limit else (math.inf if e else 0.0) for e, limit in pairs]
        return max(quotients) / self.allowed

    def _pooled(self) -> tuple[float, float, float]:
        """What to multiply the equation's errors by, their mean square sum over all orders, and the largest."""
        sums = [pair for draw in self.literal for pair in draw]
        fine = 5 * unit(torch.float64) / unit(torch.float32) if self.dtype == torch.float64 else 1.0
        return fine, sum(square for square, _ in sums) / EVALUATIONS, max((most for _, most in sums), default=0.0)


def failed(found: Mapping[str, float]) -> dict[str, float]:
    """The results that are not exact."""
    return {name: share for name, share in found.items() if not share <= 1}


def largest(x: Tensor) -> float:
    """The largest finite number."""
    return torch.where(x.isfinite(), x, 0).abs().max().item() if x.numel() else 0.0


def unit(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()
