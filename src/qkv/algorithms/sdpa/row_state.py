"""The row state log Σ e^s in double precision, by a second pass over the scores.

PyTorch's kernel rounds log Σ e^s to float32, an error of up to |log Σ e^s|·2⁻²⁴ in every weight that is computed from
it, and in every merged output. Given this ℓ, log Σ e^s = ℓ + log Σ e^(s − ℓ), whose sum is close to 1: tiles of scores
are computed again, but nothing is multiplied with values.
"""

import torch
from torch import Tensor

from qkv.algorithms.sdpa.operands import Products
from qkv.engine.mechanism import full_rank
from qkv.engine.problem import Call, Problem
from qkv.engine.tiles import Tiling, take
from qkv.linalg.matmul import batched
from qkv.scores.base import wide

EXPLANATION = "a second pass over the scores, as PyTorch's kernel rounds log Σ exp(s) to float32"
"""For `explain`."""


def is_rounded(problem: Problem) -> bool:
    """Return whether the row state that PyTorch's kernel returns must be computed again.

    In half precision the kernel sums rounded exponentials, and its state is off by 5e-5: too much even for a recorder.
    """
    suffices = problem.dtype == torch.float64 or (problem.rounded_state and problem.dtype == torch.float32)
    return problem.state and not suffices


@torch.no_grad()
def unrounded(problem: Problem, call: Call, products: Products, rounded: Tensor, sink: Tensor | None = None) -> Tensor:
    """Compute the row state of a problem of dot products.

    Args:
        problem, call: the problem and its inputs; the bias is a tensor or None.
        products: the operands of its dot products.
        rounded: log Σ e^s (..., Q), with the sink if there is one.
        sink: broadcasts to (..., 1); None if there is none.

    Returns:
        (..., Q), float64.
    """
    leading, rank = problem.leading, len(problem.leading)
    query, key = wide(products.query), wide(products.key)
    query, key = query.expand(*leading, *query.shape[-2:]), full_rank(key, rank + 2)
    bias = None if call.bias_tensor is None else full_rank(call.bias_tensor, rank + 2)
    state = rounded.double().expand(*leading, problem.queries).clone()
    total = torch.zeros_like(state)
    # An infinite or NaN state stays as it is: it belongs to a row that sees nothing, or no finite score.
    base = torch.where(state.isfinite(), state, 0).to(query.dtype)
    tiling = Tiling(leading, problem.queries, problem.keys, call.visibility)
    for slices, visible in tiling:
        items, rows, columns = slices
        s = batched(take(query, items, rows), take(key, items, columns).mT).mul_(products.scale)
        if bias is not None:
            s += take(bias, items, rows, columns)
        s -= take(base, items, rows)[..., None]
        if visible is not None:
            s.masked_fill_(~visible, -torch.inf)
        take(total, items, rows).copy_(s.exp_().sum(-1, dtype=torch.float64))
    base = base.double()
    if sink is not None:
        total += torch.exp(sink.double() - base)
    return torch.where(state.isfinite(), base + total.log(), state)
