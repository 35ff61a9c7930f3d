"""Backend `flex`: PyTorch's flex attention, for plain or soft-capped dot products on a GPU, under `torch.compile`.

Uncompiled it builds the full matrix of scores, and compilation takes half a minute; so it is used only if the caller
compiles anyway. Masks are passed as a `BlockMask`, made from the key range of each row or from a table. Biases are
read for each pair: one number for each j − i, as ALiBi and relative tables have, or one for each pair.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.sdpa.flash import RESIDENT_LIMIT
from qkv.algorithms.sdpa.operands import by_head
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call, Problem, core_text
from qkv.engine.work import passes, product_operations
from qkv.scores.pointwise import Linear, Softcap


def refuses(problem: Problem) -> str | None:
    """Return why the problem is not a compiled GPU softmax over (soft-capped) dot products, or None if it is."""
    if problem.device != "cuda":
        return "flex attention is fast on a GPU only"
    if problem.mode != "compiled":
        return "uncompiled, flex attention builds the full matrix"
    if problem.core != "dot" or not isinstance(problem.pointwise, (Linear, Softcap)):
        return f"the score is not a plain or soft-capped dot product: {core_text(problem.core)}, {problem.pointwise}"
    if problem.normalizer != "softmax" or problem.sink or problem.dropout or problem.state:
        return "it computes a softmax without sink, dropout or row state"
    return _refuses_sizes(problem)


def _refuses_sizes(problem: Problem) -> str | None:
    if problem.bias.endswith("closure"):
        return "the bias may close over tensors that learn"
    if problem.bias_by_tile and problem.rows * problem.queries * problem.keys > RESIDENT_LIMIT:
        return f"a position bias would be materialized as a matrix of more than {RESIDENT_LIMIT} numbers"
    if 0 in (problem.rows, problem.queries, problem.keys, problem.width, problem.value_width):
        return "an axis is empty"
    return None


def work(problem: Problem) -> Work:
    """Count the two products."""
    operations = product_operations(problem)
    return Work(int(operations * passes(problem)), 0, {"operations": operations})


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Run flex attention on four-dimensional inputs, with one function for the score and one for the mask."""
    from torch.nn.attention.flex_attention import flex_attention

    query, key, scale = call.score.prepare(call.query, call.key).with_number()
    query, key, value = (by_head(x, problem.leading) for x in (query, key, call.value))
    score, block_mask = _score(problem, call), _block_mask(problem, call)
    # A score may compute its operands in a wider dtype than that of the values.
    output = flex_attention(query, key, value.to(query.dtype), score_mod=score, block_mask=block_mask, scale=scale)
    output = output.to(problem.dtype)
    output = output.reshape(*problem.leading, problem.queries, problem.value_width)
    sees_any = None if problem.mask == "causal" else call.visibility.rows_with_keys()
    if sees_any is not None:
        output = torch.where(sees_any[..., None], output, output.new_zeros(()))
    return Result(output, None)


def _score(problem: Problem, call: Call) -> Callable[..., Tensor] | None:
    """Return the function that caps the dot product of a pair and adds the bias; None if there is neither."""
    pointwise, bias, last = problem.pointwise, call.bias, problem.queries - 1
    if bias is None:
        return None if isinstance(pointwise, Linear) else lambda score, b, h, q, k: pointwise(score)
    if isinstance(bias, PositionBias) and bias.bias.relative:
        diagonals = _table(bias.diagonals()[..., None, :], problem, 1, last + problem.keys)
        return lambda score, b, h, q, k: pointwise(score) + diagonals[b, h, 0, k - q + last]
    pairs = _table(bias.tile() if isinstance(bias, PositionBias) else bias, problem, problem.queries, problem.keys)
    return lambda score, b, h, q, k: pointwise(score) + pairs[b, h, q, k]


def _table(table: Tensor, problem: Problem, rows: int, columns: int) -> Tensor:
    """Expand a table to (batch, heads, rows, columns)."""
    return by_head(table.expand(*table.shape[:-2], rows, columns), problem.leading)


def _block_mask(problem: Problem, call: Call) -> Any:
    """Return the mask as blocks of visible pairs, from the key range of each row."""
    from torch.nn.attention.flex_attention import create_block_mask

    if problem.mask == "all":
        return None
    queries, keys, device = problem.queries, problem.keys, call.query.device
    if problem.mask == "causal":
        return create_block_mask(lambda b, h, q, k: q >= k, None, None, queries, keys, device)
    heads = problem.leading[-1] if problem.leading else 1
    sizes = problem.rows // heads, heads, queries, keys, device
    if problem.mask in ("dense", "predicate"):
        visible = call.visibility.matrix()
        assert visible is not None
        table = _table(visible, problem, queries, keys)
        return create_block_mask(lambda b, h, q, k: table[b, h, q, k], *sizes)
    bounds = call.visibility.bounds
    assert bounds is not None
    first, last = (
        None if x is None else by_head(x.expand(*x.shape[:-1], queries), problem.leading, last=1) for x in bounds
    )

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        after = k >= 0 if first is None else k >= first[b, h, q]
        return after if last is None else after & (k < last[b, h, q])

    return create_block_mask(sees, *sizes)


FLEX = Algorithm("sdpa.flex", "flex", "PyTorch's flex attention, compiled", refuses, work, run, preferred=True)
