"""Backend `sdpa`: PyTorch's fused kernel, for dot-product cores under softmax."""

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.backends.base import Backend, Result
from qkv.problem import Call, Cost, Problem
from qkv.scores.pointwise import Linear

DENSE_LIMIT = 1 << 22
"""The most (query, key) pairs for which a mask given as bounds may be written out as a matrix."""


def refuses(problem: Problem) -> str | None:
    """Only what the fused kernel computes without leaving for a slower path."""
    reasons = (
        (problem.core != "dot", f"the core is {problem.core}, not dot"),
        (not isinstance(problem.pointwise, Linear), f"scores pass through {problem.pointwise}"),
        (problem.normalizer != "softmax", f"the normalizer is {problem.normalizer}, not softmax"),
        (problem.sink, "the softmax has a sink"),
        (problem.dropout, "the fused CPU kernel refuses dropout"),
        (problem.bias == "learned", "a bias that needs a gradient leaves the fused kernel"),
        (problem.state and problem.device != "cpu", "the row state is read from the CPU kernel only"),
        (problem.state and problem.gradient, "the kernel's row state has no gradient"),
        (0 in (problem.rows, problem.queries, problem.keys, problem.width, problem.value_width), "an axis is empty"),
        (
            problem.mask in ("bounds", "predicate") and problem.queries * problem.keys > DENSE_LIMIT,
            f"the mask would be written out as {problem.queries} × {problem.keys}",
        ),
    )
    return next((reason for holds, reason in reasons if holds), None)


def cost(problem: Problem) -> Cost:
    """Two matrix products forward, five backward; the scores stay in the cache."""
    pairs = problem.rows * problem.queries * problem.keys
    operations = 2 * pairs * (problem.width + problem.value_width) * (3.5 if problem.gradient else 1)
    matrix = problem.queries * problem.keys if problem.mask in ("bounds", "predicate") else 0
    return Cost(int(operations), matrix + 4 * problem.rows * problem.queries, 12 + operations / 100_000)


def run(problem: Problem, call: Call) -> Result:
    """Bring the problem into the kernel's form: four dimensions, one mask, one width."""
    query, key, scale = _operands(call)
    query, key, value = (_four_dimensional(x, problem) for x in (query, key, call.value))
    mask, causal = _mask(problem, call)
    if problem.state:
        output, lse = _with_lse(query, key, value, mask, causal, scale)
    else:
        output, lse = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale), None
    return _finish(problem, call, output, lse)


def _operands(call: Call) -> tuple[Tensor, Tensor, float]:
    operands = call.score.prepare(call.query, call.key)
    if isinstance(operands.scale, Tensor):
        return operands.query * operands.scale.to(operands.query.dtype), operands.key, 1.0
    return operands.query, operands.key, operands.scale


def _four_dimensional(x: Tensor, problem: Problem) -> Tensor:
    """(..., N, F) to (batch, heads, N, F); broadcast dimensions are copied only where they cannot be views."""
    leading = problem.leading
    x = x.expand(*leading, *x.shape[-2:])
    if len(leading) == 2:
        return x
    heads = leading[-1] if leading else 1
    return x.reshape(-1, heads, *x.shape[-2:])


def _mask(problem: Problem, call: Call) -> tuple[Tensor | None, bool]:
    if problem.mask == "causal" and call.bias is None:
        return None, True
    seen = call.visibility.matrix()
    if call.bias is None:
        return (None if seen is None else _table(seen, problem)), False
    bias = call.bias.to(call.query.dtype)
    return _table(bias if seen is None else torch.where(seen, bias, -torch.inf), problem), False


def _table(table: Tensor, problem: Problem) -> Tensor:
    leading = problem.leading
    table = table.expand(*table.shape[:-2], problem.queries, problem.keys)
    if len(leading) <= 2 or table.ndim <= 2:
        return table[None] if table.ndim == 3 and len(leading) == 1 else table
    return _four_dimensional(table, problem)


def _with_lse(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The one place that calls PyTorch's private operator, which returns the row state beside the output."""
    if query.shape[-1] == value.shape[-1]:
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return output, lse
    output = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale)
    return output, _lse_by_blocks(query, key, mask, causal, scale)


def _lse_by_blocks(
    query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float, height: int = 256
) -> Tensor:
    """The same row state by a pass of our own over stripes of rows."""
    columns = torch.arange(key.shape[-2], device=key.device)
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    parts = []
    for start in range(0, query.shape[-2], height):
        s = query[..., start : start + height, :].to(wide) @ key.mT.to(wide) * scale
        if causal:
            rows = torch.arange(start, start + s.shape[-2], device=key.device)
            s = s.masked_fill(columns > rows[:, None], -torch.inf)
        if mask is not None:
            stripe = mask[..., start : start + height, :]
            s = s.masked_fill(~stripe, -torch.inf) if mask.dtype == torch.bool else s + stripe
        parts.append(s.logsumexp(-1))
    return torch.cat(parts, -1)


def _alive(bias: Tensor, seen: Tensor | None) -> Tensor:
    above = bias > -torch.inf
    return (above if seen is None else above & seen).any(-1)


def _finish(problem: Problem, call: Call, output: Tensor, lse: Tensor | None) -> Result:
    output = output.reshape(*problem.leading, problem.queries, problem.value_width)
    lse = None if lse is None else lse.reshape(*problem.leading, problem.queries)
    seeing = None if problem.mask == "causal" else call.visibility.rows_with_keys()
    if call.bias is not None and lse is not None:
        # A bias may hide a whole row by -inf, as a mask does.
        seeing = _alive(call.bias, call.visibility.matrix())
    if seeing is None:
        return Result(output, lse)
    # The kernel leaves rows that may see nothing undefined (its lse there is 0).
    output = torch.where(seeing[..., None], output, output.new_zeros(()))
    return Result(output, None if lse is None else torch.where(seeing, lse, -torch.inf))


BACKEND = Backend("sdpa", "PyTorch's fused kernel", refuses, cost, run)
