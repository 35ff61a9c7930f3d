"""The equation of additive attention in PyTorch, to judge the kernels: it builds the full (N, Q, K, A) tensor."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from tests.contract.criterion import Draw, failed, largest, shares
from tests.contract.orders import ORDERS, Order
from tests.seed import stored
from torch import Tensor

from qkv.algorithms.additive.direct import AdditiveGradients, Rows, Upstream
from qkv.algorithms.additive.factored import backward, factor, forward
from qkv.engine.dropout import keep_mask
from qkv.engine.key_ranges import Drop, KeyRanges, Rule, Weighting, key_ranges

LEAST = 128
"""The rows that are pooled before any verdict."""


@dataclass(frozen=True)
class Case:
    """Inputs of one problem; arrays of one float type."""

    query: np.ndarray
    key: np.ndarray
    vector: np.ndarray
    value: np.ndarray
    sight: KeyRanges
    rule: Rule = "softmax"
    shift: np.ndarray | None = None
    drop: Drop | None = None

    @property
    def weighting(self) -> Weighting:
        return Weighting(self.sight, self.rule, self.shift, self.drop)

    def cast(self, dtype: type) -> "Case":
        shift = None if self.shift is None else self.shift.astype(dtype)
        s = self.sight
        sight = KeyRanges(s.first, s.last, s.owner, s.mask, s.bias.astype(dtype))
        arrays = (x.astype(dtype) for x in (self.query, self.key, self.vector, self.value))
        return Case(*arrays, sight, self.rule, shift, self.drop)


def case(seed: int, items=2, queries=24, keys=60, width=20, columns=7, *, heads=1, scale=1.0, **options) -> Case:
    """Random inputs rounded to float32, so that both float types can hold them."""
    random = np.random.default_rng(seed)
    rule, drop, shift = (options.pop(name, None) for name in ("rule", "drop", "shift"))

    def draw(*shape: int, by: float = 1.0) -> np.ndarray:
        return (random.normal(size=shape) * by).astype(np.float32)

    return Case(
        draw(items, queries, width, by=scale),
        draw(items, keys, width, by=scale),
        draw(heads, width),
        draw(items, keys, columns),
        key_ranges(np.dtype(np.float32), items, queries, keys, heads=heads, **options),
        rule or "softmax",
        draw(items, queries) if shift else None,
        drop,
    )


def visible(c: Case) -> Tensor:
    """True where a row sees a key, (N, Q, K)."""
    owner, keys = c.sight.owner, torch.arange(c.key.shape[1])
    first, last = (torch.from_numpy(x)[owner[:, 1]][..., None] for x in (c.sight.first, c.sight.last))
    seen = (keys >= first) & (keys < last)
    return seen & torch.from_numpy(c.sight.mask)[owner[:, 2]] if c.sight.mask.size else seen


def equation(c: Case, leaves: dict[str, Tensor], order: Order) -> tuple[Tensor, Tensor]:
    """Output and lse (with any rule) from the full tensor; their rows are in that order."""
    owner = torch.from_numpy(c.sight.owner)
    item, row, key = {"item": -3}, {"row": -2}, {"key": -2}
    a = order.permuted(leaves["query"], **item, **row, feature=-1)
    b = order.permuted(leaves["key"], **item, **key, feature=-1)
    value = order.permuted(leaves["value"], **item, **key, column=-1)
    vector = order.permuted(leaves["vector"][owner[:, 0]], item=-2, feature=-1)
    pairs = {**item, **row, "key": -1}
    seen = order.permuted(visible(c), **pairs)
    s = (torch.tanh(a[:, :, None] + b[:, None]) @ vector[:, None, :, None]).squeeze(-1)
    if c.sight.bias.size:
        s = s + order.permuted(leaves["bias"][owner[:, 3]], **pairs)
    hidden = torch.where(seen, s, -torch.inf)
    lse = torch.logsumexp(hidden, -1) if s.shape[-1] else s.new_full(s.shape[:-1], -torch.inf)
    if c.rule == "softmax":
        nothing = lse == -torch.inf
        w = torch.exp(hidden - torch.where(nothing, 0.0, lse.detach())[..., None])
        total = w.sum(-1, keepdim=True)
        w = w / torch.where(total == 0, 1.0, total)
    elif c.rule == "sigmoid":
        shift = leaves.get("shift")
        shifted = s if shift is None else s + order.permuted(shift, item=-2, row=-1)[..., None]
        w = torch.where(seen, torch.sigmoid(shifted), 0.0)
    else:
        w = torch.where(seen, s, 0.0)
    if c.drop is not None:
        rows = torch.arange(a.shape[0] * a.shape[1]).view(a.shape[:2])
        keep = keep_mask(torch.tensor(c.drop.seed), rows, torch.arange(b.shape[1]), c.drop.probability)
        w = torch.where(order.permuted(keep, **pairs), w / (1 - c.drop.probability), 0.0)
    return w @ value, lse


def judged(
    c: Case, dtype: torch.dtype, grad: np.ndarray, grad_lse: np.ndarray | None = None, order: Order = ORDERS[0]
) -> dict[str, Tensor]:
    """Output and all gradients by autograd through the equation."""
    arrays = {"query": c.query, "key": c.key, "vector": c.vector, "value": c.value, "bias": c.sight.bias}
    if c.shift is not None:
        arrays["shift"] = c.shift
    leaves = {name: torch.from_numpy(x).to(dtype).requires_grad_() for name, x in arrays.items()}
    out, lse = equation(c, leaves, order)
    out = order.restored(out, item=-3, row=-2, column=-1)
    lse = order.restored(lse, item=-2, row=-1)
    loss = (out * torch.from_numpy(grad).to(dtype)).sum()
    if grad_lse is not None:
        loss = loss + (lse * torch.from_numpy(grad_lse).to(dtype)).sum()
    if loss.requires_grad:
        loss.backward()
    results = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
    return {"out": out.detach(), "lse": lse.detach(), **results}


def ours(c: Case, grad: np.ndarray, grad_lse: np.ndarray | None = None) -> dict[str, Tensor]:
    """Output and gradients from the kernels."""
    rows, gradients = run(c, grad, grad_lse)
    with np.errstate(divide="ignore"):
        lse = rows.top + np.log(rows.total)
    found = {"out": rows.out, "lse": lse, **gradients._asdict()}
    if not c.sight.bias.size:
        found["bias"] = c.sight.bias
    if c.shift is None:
        del found["shift"]
    return {name: torch.from_numpy(x) for name, x in found.items()}


def run(c: Case, grad: np.ndarray, grad_lse: np.ndarray | None = None) -> tuple[Rows, AdditiveGradients]:
    """Run the kernels forward and backward."""
    factors = factor(c.query, c.key, c.vector, c.sight)
    rows = forward(factors, c.value, c.weighting)
    upstream = Upstream(grad, grad_lse, bias=c.sight.bias.size > 0)
    return rows, backward(factors, c.vector, c.value, c.weighting, rows, upstream)


def assert_as_exact(make: Callable[[int], Case], dtype: type = np.float32, *, grad_lse: bool = False) -> None:
    """Judge the kernels on `make(seed)` for several seeds, by the criterion of the contract."""
    found = shares(
        lambda turn: drawn(make(stored("additive", turn)).cast(dtype), turn, grad_lse), TYPES[dtype], least=LEAST
    )
    assert not failed(found), failed(found)


TYPES = {np.float32: torch.float32, np.float64: torch.float64}


def drawn(c: Case, turn: int, grad_lse: bool) -> Draw:
    """What the kernels and the equation answer, output and gradients."""
    random = np.random.default_rng(stored("cotangents", turn))
    grad = random.normal(size=(*c.query.shape[:2], c.value.shape[2])).astype(np.float32)
    of_lse = random.normal(size=c.query.shape[:2]).astype(np.float32) if grad_lse else None
    answer = ours(c, *(None if x is None else x.astype(c.value.dtype) for x in (grad, of_lse)))
    exact = judged(c, torch.float64, grad, of_lse)
    if c.rule != "softmax":
        answer.pop("lse")
    scales = {name: largest(x) for name, x in exact.items()}
    if c.rule == "softmax":
        scales["out"] = float(np.abs(c.value).max(initial=0.0))

    def literal(order: Order) -> dict[str, Tensor]:
        with order.summing():
            return judged(c, torch.float32, grad, of_lse, order)

    # The gradient of a bias that the queries share: each number is a sum over all of them, with an error of its own.
    shared = {"bias"} if c.sight.bias.shape[-2] == 1 else set()
    return Draw(answer, exact, literal, scales, single=frozenset({"vector", "lse", "shift"} | shared))
