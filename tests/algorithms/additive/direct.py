"""The equation of additive attention in PyTorch, to judge the kernels: it builds the full (N, Q, K, A) tensor."""

from dataclasses import dataclass

import numpy as np
import torch
from tests.contract.judge import WIDER
from torch import Tensor

from qkv.algorithms.additive.factored import Gradients, Rows, Rule, backward, factor, forward
from qkv.engine.dropout import keep_mask
from qkv.engine.key_ranges import Drop, KeyRanges, key_ranges

ENOUGH = 4096
"""The fewest numbers that the criterion needs."""
MOST_COTANGENTS = 32
Errors = tuple[Tensor, Tensor, float]
"""Errors of the kernels and of the equation in float32, and the scale they are relative to."""


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


def equation(c: Case, a: Tensor, b: Tensor, vector: Tensor, value: Tensor, bias: Tensor, shift: Tensor | None):
    """Output and lse (with any rule) from the full tensor."""
    owner = torch.from_numpy(c.sight.owner)
    seen = visible(c)
    s = (torch.tanh(a[:, :, None] + b[:, None]) @ vector[owner[:, 0]][:, None, :, None]).squeeze(-1)
    if c.sight.bias.size:
        s = s + bias[owner[:, 3]]
    hidden = torch.where(seen, s, -torch.inf)
    lse = torch.logsumexp(hidden, -1) if s.shape[-1] else s.new_full(s.shape[:-1], -torch.inf)
    if c.rule == "softmax":
        nothing = lse == -torch.inf
        w = torch.exp(hidden - torch.where(nothing, 0.0, lse.detach())[..., None])
        total = w.sum(-1, keepdim=True)
        w = w / torch.where(total == 0, 1.0, total)
    elif c.rule == "sigmoid":
        w = torch.where(seen, torch.sigmoid(s if shift is None else s + shift[..., None]), 0.0)
    else:
        w = torch.where(seen, s, 0.0)
    if c.drop is not None:
        rows = torch.arange(a.shape[0] * a.shape[1]).view(a.shape[:2])
        keep = keep_mask(torch.tensor(c.drop.seed), rows, torch.arange(b.shape[1]), c.drop.probability)
        w = torch.where(keep, w / (1 - c.drop.probability), 0.0)
    return w @ value, lse


def judged(c: Case, dtype: torch.dtype, grad: np.ndarray, grad_lse: np.ndarray | None = None) -> dict[str, Tensor]:
    """Output and all gradients by autograd through the equation."""
    arrays = (c.query, c.key, c.vector, c.value, c.sight.bias)
    leaves = [torch.from_numpy(x).to(dtype).requires_grad_() for x in arrays]
    shift = None if c.shift is None else torch.from_numpy(c.shift).to(dtype).requires_grad_()
    out, lse = equation(c, *leaves, shift)
    loss = (out * torch.from_numpy(grad).to(dtype)).sum()
    if grad_lse is not None:
        loss = loss + (lse * torch.from_numpy(grad_lse).to(dtype)).sum()
    if loss.requires_grad:
        loss.backward()
    names = ("query", "key", "vector", "value", "bias")
    results = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in zip(names, leaves, strict=True)}
    if shift is not None:
        results["shift"] = shift.grad if shift.grad is not None else torch.zeros_like(shift)
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


def run(c: Case, grad: np.ndarray, grad_lse: np.ndarray | None = None) -> tuple[Rows, Gradients]:
    """Run the kernels forward and backward."""
    factors = factor(c.query, c.key, c.vector, c.sight)
    rows = forward(factors, c.value, c.sight, c.rule, c.shift, c.drop)
    gradients = backward(
        factors, c.vector, c.value, c.sight, rows, grad,
        rule=c.rule, shift=c.shift, drop=c.drop, grad_lse=grad_lse, bias_gradient=c.sight.bias.size > 0,
    )  # fmt: skip
    return rows, gradients


def assert_as_exact(c: Case, seed: int = 0, ulps: float = 2.0, grad_lse: bool = False) -> None:
    """The criterion of exactness: errors against float64, relative to those of the equation in the tested type.

    Nothing judges float64: the errors of the equation in float32, scaled down, stand for those in float64, with twice
    the
    limit, because the judge errs too.

    The criterion needs at least 4,096 numbers: a small case is differentiated with several cotangents, and results that
    still have fewer numbers, such as the gradient of the vector, get the wider limit of the contract's judge. With
    fewer,
    the quotient of two errors depends on the processor that computed the equation: a row's error is shared by all its
    gradients, so that 40 rows are 40 samples, whatever their width.
    """
    random = np.random.default_rng(seed)
    least = min((x.size for x in (c.query, c.key, c.value) if x.size), default=ENOUGH)
    errors: dict[str, list[Errors]] = {}
    for _ in range(min(-(-ENOUGH // least), MOST_COTANGENTS)):
        for name, found in _errors(c, random, grad_lse).items():
            errors.setdefault(name, []).append(found)
    tested = torch.from_numpy(c.value).dtype
    units = 1.0 if tested == torch.float32 else 2 * torch.finfo(tested).eps / torch.finfo(torch.float32).eps
    for name, draws in errors.items():
        mine, theirs = (torch.cat([draw[i] for draw in draws]) for i in (0, 1))
        slack = ulps * torch.finfo(tested).eps / 2 * max(draw[2] for draw in draws)
        wider = units * next((factor for few, factor in WIDER if mine.numel() < few), 1.0)
        assert mine.square().mean().sqrt() <= 1.5 * wider * theirs.square().mean().sqrt() + slack, name
        assert mine.max() <= 3 * wider * theirs.max() + slack, name


def _errors(c: Case, random: np.random.Generator, grad_lse: bool) -> dict[str, Errors]:
    grad = random.normal(size=(*c.query.shape[:2], c.value.shape[2])).astype(c.value.dtype)
    of_lse = random.normal(size=c.query.shape[:2]).astype(c.value.dtype) if grad_lse else None
    found, literal, exact = (
        ours(c, grad, of_lse),
        judged(c, torch.float32, grad, of_lse),
        judged(c, torch.float64, grad, of_lse),
    )
    errors: dict[str, Errors] = {}
    for name, r in exact.items():
        finite = torch.isfinite(r)
        if not finite.any() or (name == "lse" and c.rule != "softmax"):
            continue
        o, m = found[name].double(), literal[name].double()
        assert torch.equal(o[~finite].nan_to_num(7.0), r[~finite].nan_to_num(7.0)), name
        of_value = name == "out" and c.rule == "softmax"
        scale = np.abs(c.value).max(initial=0.0) if of_value else r[finite].abs().max().item()
        errors[name] = (o - r)[finite].abs(), (m - r)[finite].abs(), float(scale)
    return errors
