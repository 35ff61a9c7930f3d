"""Backend `fused` on a GPU: additive attention by Triton kernels of qkv's own, which `triton_kernels` derives.

They were run in Triton's interpreter on the CPU and compiled for sm_80 and sm_90; no GPU has run them. So `auto` takes
them only on a device that `qkv tune --device cuda` has certified. Triton is an optional dependency.
"""

import importlib.util
import os
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from qkv.algorithms.additive import fused, operators
from qkv.algorithms.additive.operators import Items, Kernels, Results, shared_sums
from qkv.engine.algorithm import Algorithm, Facts, Result
from qkv.engine.problem import Call, Problem, first_reason, is_not

INTERPRETED = "TRITON_INTERPRET"
"""The variable of the environment by which Triton runs its kernels on the CPU."""
WIDEST = 256
"""Maximum width of a value: the sums of a tile of rows stay in registers."""
ROWS, COLUMNS = 16, 128
"""The sizes of a tile; factors are padded to multiples of `COLUMNS`. So each thread scores two columns of every row,
and loads of factors are a small part of its instructions (`benchmarks.launches.machine_code`)."""
WARPS = 2
"""How many warps of 32 threads compute a tile."""
FUSED = {"enable_fp_fusion": True}
"""A product and the sum after it are one instruction, rounded once: from Triton 3.10 on only where it is asked for."""


@lru_cache(maxsize=1)
def unavailable() -> str | None:
    """Return why the kernels cannot run here, None if they can."""
    return None if importlib.util.find_spec("triton") else "Triton is not installed: pip install 'qkv[triton]'"


def refuses(problem: Problem) -> str | None:
    """Return why the kernels cannot compute a problem, None if they can."""
    interpreted = os.environ.get(INTERPRETED) == "1"
    return first_reason(
        is_not(problem, "tanh_sum"),
        (problem.normalizer != "softmax", f"the normalizer is {problem.normalizer}, not softmax"),
        (problem.device != ("cpu" if interpreted else "cuda"), "the kernels run on a GPU"),
        (problem.dtype == torch.float64, "the kernels compute in float32"),
        (problem.mask in ("dense", "predicate"), "the mask is not an interval of keys"),
        (problem.bias != "none", "there is a bias"),
        (problem.dropout, "weights are dropped"),
        (problem.mode != "eager", f"the call is {problem.mode}"),
        (problem.empty, "an axis is empty"),
        (problem.value_width > WIDEST, f"values are wider than {WIDEST}"),
    )


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Flatten the leading dimensions, call the kernels, and compose a sink around them."""
    return fused.composed(problem, call, partial(operators.apply, kernels=ON_GPU), reads_all=True)


def _prepare(items: Items) -> dict[str, Any]:
    """Compute the factors of queries and keys, padded, and the other tensors that the kernels read."""
    from qkv.algorithms.additive import triton_kernels as kernels

    (count, queries, width), keys = items.query.shape, items.key.shape[1]
    query, key = items.query.contiguous(), items.key.contiguous()
    vector = _of_items(items.vector, items.vector_index, count)
    padded, features = (width + 9) // 4 * 4, max(16, 1 << (width - 1).bit_length())
    rows = max(1, min(64, 4096 // features))
    ways, weight = query.new_full((count, 3, padded), -1.0), query.new_empty(count, padded)
    position = query.new_empty(count, width, dtype=torch.int64)
    ends = query.new_empty(count, 3, dtype=torch.int32)
    kernels.choose[(count,)](
        query, key, vector, ways, position, ends, queries, keys, width, padded, FEATURES=features, ROWS=rows, **FUSED
    )
    sides = []
    for x, sign in ((query, 1), (key, -1)):
        length = -(-x.shape[1] // COLUMNS) * COLUMNS
        factor = query.new_empty(count, padded, length)
        grid = (-(-length // 32), count, -(-padded // 32))
        kernels.factors[grid](
            x, vector, ways, weight, factor, x.shape[1], width, padded, length, SIGN=sign, ROWS=32, FEATURES=32, **FUSED
        )
        sides.append(factor)
    first, last = (
        query.new_full((1, 1), default, dtype=torch.int32) if bound is None else bound
        for bound, default in ((items.first, 0), (items.last, keys))
    )
    bounds = (_of_items(x, items.bounds_index, count).expand(count, queries).contiguous() for x in (first, last))
    return {"factors": (*sides, weight, ends), "bounds": tuple(bounds), "vector": vector, "position": position}


def _of_items(shared: Tensor, index: Tensor | None, count: int) -> Tensor:
    """Return each item's own row of what some items share."""
    return (shared.expand(count, shared.shape[1]) if index is None else shared[index]).contiguous()


def _sizes(items: Items, factors: tuple[Tensor, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the sizes and the compile-time constants that end the arguments of a kernel that works on tiles."""
    (left, right, *_), width = factors, items.value.shape[-1]
    sizes = items.query.shape[1], items.key.shape[1], width, left.shape[1], left.shape[2], right.shape[2]
    constants = {"WIDTH": max(16, 1 << (width - 1).bit_length()), "M": ROWS, "N": COLUMNS, "num_warps": WARPS, **FUSED}
    return sizes, constants


def _forward(items: Items, rule: str, dropout: float, state: bool) -> tuple[dict[str, Any], Results]:
    """Compute output, lse, largest score and sum of exponentials of each row."""
    from qkv.algorithms.additive import triton_kernels as kernels

    value = items.value.contiguous()
    count, queries, _ = items.query.shape
    top = value.new_empty(count, queries)
    rows = value.new_empty(count, queries, value.shape[2]), top, torch.empty_like(top)
    with torch.cuda.device_of(value):
        prepared = _prepare(items)
        sizes, constants = _sizes(items, prepared["factors"])
        grid = (-(-queries // ROWS), count)
        kernels.forward[grid](*prepared["factors"], value, *prepared["bounds"], *rows, *sizes, **constants)
    output, _, total = rows
    return prepared, (
        output,
        top.double() + total.log() if state else top.new_empty(0, dtype=torch.float64),
        top,
        total,
    )


def _backward(
    items: Items,
    prepared: dict[str, Any],
    rows: tuple[Tensor, Tensor, Tensor],
    g_output: Tensor,
    g_lse: Tensor | None,
    _: tuple[bool, bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, key, value and vector; no bias or shift is served."""
    from qkv.algorithms.additive import triton_kernels as kernels

    (left, right, *_), vector, position = prepared["factors"], prepared["vector"], prepared["position"]
    output, top, total = rows
    value, g_output = items.value.contiguous(), g_output.contiguous()
    of_query, turn, of_key = torch.zeros_like(left), torch.zeros_like(left), torch.zeros_like(right)
    d_value = torch.empty_like(value)
    sizes, constants = _sizes(items, prepared["factors"])
    delta = top.new_empty(2, *top.shape)
    shared = *prepared["factors"], value, *prepared["bounds"], top, total
    with torch.cuda.device_of(value):
        kernels.deltas[(-(-top.numel() // ROWS),)](
            output, g_output, delta, top.numel(), sizes[2], WIDTH=constants["WIDTH"], M=ROWS, num_warps=WARPS, **FUSED
        )
        delta = delta if g_lse is None else delta - g_lse.to(delta.dtype)
        for kernel, own, length, written in (
            (kernels.query_gradients, delta[0], sizes[0], (of_query, turn)),
            (kernels.key_gradients, delta[1], sizes[1], (of_key, d_value)),
        ):
            kernel[(-(-length // ROWS), len(value))](*shared, own, g_output, *written, *sizes, **constants)

    def by_feature(sums: Tensor, length: int) -> Tensor:
        return sums.gather(1, position[..., None].expand(*position.shape, sums.shape[2]))[..., :length]

    d_query, d_key = (
        (by_feature(sums, length) * vector[..., None]).mT
        for sums, length in ((of_query, items.query.shape[1]), (of_key, items.key.shape[1]))
    )
    turns = by_feature(turn, items.query.shape[1]).sum(-1, dtype=torch.float64)
    if items.vector_index is None:
        turns = turns.sum(0, keepdim=True)
    d_vector = shared_sums(turns, items.vector.double(), items.vector_index)
    assert d_vector is not None
    return d_query, d_key, d_value, d_vector.to(items.vector.dtype), None, None


ON_GPU = Kernels(_forward, _backward)
TRITON = Algorithm(
    "additive.triton",
    "fused",
    "Triton kernels over the factored tanh",
    refuses,
    fused.work,
    run,
    preferred=True,
    kernels=unavailable,
    reads_hidden_keys=False,
    needs_certificate=True,
)
