"""PyTorch's fused kernel, for softmax attention over dot products."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.algorithms.matrix.reference import with_matrix
from qkv.algorithms.sdpa import flash_operators, row_state
from qkv.algorithms.sdpa.operands import Products, by_head, contiguous_last_dim, products_of
from qkv.algorithms.tiled import blocked
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.derivatives import Terms, causal_bounds, differentiable_gradients, visibility_of
from qkv.engine.mechanism import Mechanism, full_rank
from qkv.engine.problem import Call, Problem, first_reason, hiding, is_not
from qkv.engine.work import memory_traffic
from qkv.masks.lower import Visibility
from qkv.scores.base import HALVES, wide
from qkv.scores.pointwise import Linear
from qkv.scores.products import ScaledDot
from qkv.values.execution import sizes_vary

DENSE_LIMIT = 1 << 22
"""The largest mask or position bias, in numbers over all batch items, that may be materialized as a matrix."""
BIAS_LIMIT = 1 << 18
"""The most pairs per head for which a position bias may be: 512 × 512. From there on tiles are as fast."""
RESIDENT_LIMIT = 1 << 26
"""The most numbers of either on a GPU, where a tile takes a dozen launches: 256 MiB of float32."""
ALIGNMENT = 8
"""The kernels of a GPU take widths that are multiples of it; PyTorch computes others with a full matrix."""


def refuses(problem: Problem) -> str | None:
    """Return why the fused kernel cannot compute the problem without a slower path; None if it can."""
    if problem.sink:
        return "the softmax has a sink"
    return refuses_mechanism(problem) or _refuses_call(problem)


def refuses_mechanism(problem: Problem) -> str | None:
    """Return why the problem is not a softmax over dot products that the fused kernel computes; None if it is."""
    missing = problem.device == "cpu" and not flash_operators.KERNELS
    return first_reason(
        (problem.mode == "transformed", "PyTorch's kernel has no rule for vmap"),
        (missing, "this PyTorch has no kernel of that name for the CPU"),
        is_not(problem, "dot"),
        (not isinstance(problem.pointwise, Linear), f"the scores are {problem.pointwise}, not plain products"),
        (problem.normalizer != "softmax", f"the normalizer is {problem.normalizer}, not softmax"),
        (problem.dropout, "the fused CPU kernel has no dropout"),
        (
            problem.device == "cuda" and problem.dtype == torch.float64,
            "PyTorch's fused kernels for a GPU do not compute float64",
        ),
        (problem.empty, "an axis is empty"),
    )


def _refuses_call(problem: Problem) -> str | None:
    by_autograd = problem.bias == "learned" and not problem.on_host
    if problem.bias.endswith(("learned", "closure")) and not by_autograd:
        return "the fused kernel gives a bias no gradient"
    if problem.state and (not _calls_kernel(problem) or problem.gradient):
        return "the row state is available from the CPU kernel only, and has no gradient"
    if problem.on_host and problem.positional and problem.queries * problem.keys > BIAS_LIMIT:
        return f"a position bias would be materialized as a matrix of more than {BIAS_LIMIT} pairs"
    limit = DENSE_LIMIT if problem.on_host else RESIDENT_LIMIT
    if _written_out(problem) > limit:
        return f"the mask would be materialized as a matrix of more than {limit} numbers"
    if problem.mode == "compiled" and _adds_mask(problem):
        # The kernel adds a mask as −inf. NaN or +inf behind it is found in the result, which a graph cannot read.
        return "under torch.compile nothing checks what a masked NaN or infinity does to the kernel's result"
    return None


def _written_out(problem: Problem) -> int:
    """Return the size of mask and bias as a matrix: masks may differ between batch items, rarely between heads."""
    if problem.positional:
        return problem.rows * problem.queries * problem.keys
    if problem.mask not in ("bounds", "predicate"):
        return 0
    heads = problem.leading[-1] if len(problem.leading) > 1 else 1
    return problem.rows // heads * problem.queries * problem.keys


def _adds_mask(problem: Problem) -> bool:
    return problem.mask not in ("all", "keys") and (problem.mask != "causal" or problem.bias != "none")


def work(problem: Problem) -> Work:
    """Count two matrix products forward and five backward, with the narrower width padded; scores stay in the cache."""
    pairs = problem.rows * problem.queries * problem.keys
    operations = 4 * pairs * max(problem.width, problem.value_width)
    added = problem.bias != "none" or problem.mask not in ("all", "causal")
    narrow = problem.dtype.itemsize == 2 and not _widens(problem)
    counts = {
        "causal operations" if problem.mask == "causal" else "operations": operations,
        "pairs": pairs,
        "mask or bias": pairs if added else 0,
        "positions": pairs if problem.positional else 0,
        "calls with positions": 1 if problem.positional else 0,
        "items": problem.rows,
        "items in half precision": problem.rows if narrow else 0,
        "pairs in half precision": pairs if narrow else 0,
        "operations in float64": operations if problem.dtype.itemsize == 8 else 0,
        "added tables": 1 if added else 0,
        "calls with heads in groups": 1 if problem.repeats > 1 else 0,
        **memory_traffic(problem),
    }
    passes = 7 if problem.gradient else 2
    rows = problem.rows * problem.queries
    copies = rows * problem.width + problem.rows * problem.keys * (problem.width + problem.value_width)
    memory = 5 * _written_out(problem) + 4 * (rows + (copies if _widens(problem) else 0))
    return Work(operations * passes // 2, memory, counts)


def _widens(problem: Problem) -> bool:
    """Return whether half precision is converted to float32 before the kernel.

    Where the processor does not multiply half precision, PyTorch's backward pass takes 5.7 (bfloat16) and 7.7 (float16)
    times as long as in float32 (Zen 3, 1,024 keys), and the conversion a hundredth. A sink would be rounded twice.
    """
    if problem.dtype not in HALVES or not _calls_kernel(problem):
        return False
    return problem.sink or (problem.gradient and not multiplies(problem.dtype))


@lru_cache
def multiplies(dtype: torch.dtype) -> bool:
    """Return whether this processor multiplies numbers of a half-precision type."""
    # Older versions of PyTorch lack this function.
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    return any(capabilities.get(f"{unit}_{name}") for unit in ("avx512", "amx"))


def operands(problem: Problem, call: Call) -> Products:
    """Return the operands of the kernel, in float32 where half precision would be slower or less exact."""
    products = products_of(call)
    if not _widens(problem):
        return products
    return Products(wide(products.query), wide(products.key), wide(products.value), products.scale)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Compute attention by PyTorch's kernel, or in tiles if the kernel gets non-finite numbers wrong."""
    products, biased = operands(problem, call), with_matrix(call)
    result = attend(problem, biased, products)
    if result is None:
        return blocked.run(problem, call)
    if result.state is not None and row_state.is_rounded(problem):
        return result._replace(state=row_state.unrounded(problem, biased, products, result.state))
    return result


def bind(problem: Problem, call: Call) -> Callable[[Call], Tensor] | None:
    """Return `run` for calls like this one; None if inputs must be converted or padded.

    Around a kernel that takes 20 µs, Python's part of `run` would be as long as the kernel.
    """
    kernel = _bind_kernel(problem, call)
    if kernel is None:
        return None
    suspect, suspect_masked = (flash_operators.suspect(problem.keys, problem.dtype, adds) for adds in (False, True))
    all_visible, hides = problem.mask == "all", problem.mask not in ("all", "causal")
    hide = hiding(problem)
    shape = None if len(problem.leading) == 2 else (*problem.leading, problem.queries, problem.value_width)

    def attend_bound(call: Call) -> Tensor:
        zeroed = call if all_visible else hide(call)
        mask = _mask(problem, call, call.query.dtype)[0]
        output, lse = kernel(zeroed, mask)
        # Lengths of all keys hide nothing, and then nothing is added.
        adds = mask is not None
        if (suspect_masked if adds else suspect) and not flash_operators.trusted(lse, adds):
            return run(problem, call.without_hidden_keys()).output
        output = output if shape is None else output.reshape(shape)
        return _without_empty_rows(output, call.visibility.rows_with_keys() if hides else None)

    return attend_bound


def _bind_kernel(problem: Problem, call: Call) -> Callable[[Call, Tensor | None], tuple[Tensor, Tensor]] | None:
    """Return the kernel for calls like this one, differentiable; None if inputs must be converted or padded."""
    products, leading = operands(problem, call), problem.leading
    if products.query.dtype != problem.dtype or len({x.shape[-1] for x in products[:3]}) > 1:
        return None
    if not _calls_kernel(problem) or problem.state or problem.positional:
        return None
    computed = products.query is not call.query or products.key is not call.key
    by_heads = len(leading) == 2 and all(x.shape[:-2] == leading for x in products[:3])
    causal, scale, gradient = problem.mask == "causal" and call.bias is None, products.scale, problem.gradient

    def kernel(call: Call, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        query, key, value = products_of(call)[:3] if computed else call[:3]
        if not by_heads:
            query, key, value = by_head(query, leading), by_head(key, leading), by_head(value, leading)
        output, lse = flash_operators.forward(query, key, value, mask, causal, scale)
        if gradient:
            differentiate_by_tiles(output)
        return output, lse

    return kernel


class KernelInputs(NamedTuple):
    """The arguments of PyTorch's kernel.

    Attributes:
        query, key, value: (B, H, N, F), one width.
        mask: bool or a bias, (..., Q or 1, K) of rank two or four; None if nothing is masked or the mask is causal.
        causal: whether query i sees only the keys j ≤ i.
        scale: factor of the dot products.
        by_width: whether the factor is 1/√F, which PyTorch finds for any width; it takes a number for a constant.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    by_width: bool = False


def kernel_inputs(problem: Problem, call: Call, products: Products) -> KernelInputs:
    """Reshape inputs to (batch, heads, length, width) and pad to one width, as PyTorch's kernel requires."""
    alignment = ALIGNMENT if problem.device == "cuda" else 1
    products, by_width = _of_any_width(call, products) if sizes_vary() else (products, False)
    (query, key, value), leading = _one_width(products, alignment), problem.leading
    mask, causal = _mask(problem, call, query.dtype)
    by_heads = by_head(query, leading), by_head(key, leading), by_head(value, leading)
    return KernelInputs(*by_heads, mask, causal, products.scale, by_width)


def _of_any_width(call: Call, products: Products) -> tuple[Products, bool]:
    """Return products with which a graph serves any width, and whether their scale is 1/√F."""
    query, score = products.query, call.score
    if not isinstance(score, ScaledDot) or score.scale is not None or query.dtype in HALVES:
        return products, False
    if query.shape[-1] == products.value.shape[-1]:
        return products, True
    return products._replace(query=query * products.scale, scale=1.0), False


def attend(problem: Problem, call: Call, products: Products) -> Result | None:
    """Compute attention by PyTorch's kernel.

    Args:
        problem, call: the problem and its inputs.
        products: the operands of its dot products.

    Returns:
        The result; None if non-finite numbers made that of the kernel wrong.
    """
    inputs = kernel_inputs(problem, call, products)
    if not _calls_kernel(problem):
        return finish(problem, call, by_pytorch(problem, inputs), None)
    output, lse = flash_operators.forward(*inputs[:6])
    if not trusted(problem, call, inputs, lse):
        return None
    if problem.gradient:
        differentiate_by_tiles(output)
    return finish(problem, call, output, lse)


def by_pytorch(problem: Problem, inputs: KernelInputs, sink: Tensor | None = None) -> Tensor:
    """Return the output (B, H, Q, F) by `scaled_dot_product_attention`, which chooses the kernel.

    Args:
        problem: the problem.
        inputs: its tensors.
        sink: a first key and its value, (B, H, 1, F) each, that every row sees besides; None for none.
    """
    query, key, value, mask, causal, number, by_width = inputs
    scale = None if by_width else number
    if sink is not None:
        key, value = torch.cat([sink, key], -2), F.pad(value, (0, 0, 1, 0))
        mask = None if mask is None else F.pad(mask, (1, 0), value=mask.dtype == torch.bool)
        # A causal mask gives each query one more key than the query before it: a query before all sees the sink alone.
        query = F.pad(query, (0, 0, 1, 0)) if causal else query
    query, key, value = (contiguous_last_dim(x) for x in (query, key, value))
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale)
    output = output[..., 1:, :] if sink is not None and causal else output
    # The result is not checked on this path: the kernel may have treated a row of NaN scores as an empty one.
    return output.masked_fill(_without_finite_scores(problem, inputs), torch.nan)


def trusted(problem: Problem, call: Call, inputs: KernelInputs, lse: Tensor) -> bool:
    """Return whether log Σ e^s shows that non-finite numbers did not spoil the kernel's output."""
    masked = inputs.mask is not None
    if problem.state and masked:
        # A state of 0 that stands for a maximum of −inf would give the row a share of a merged output.
        sees_any = _rows_that_see(call)
        doubtful = lse.reshape(*problem.leading, problem.queries) == 0
        if bool((doubtful if sees_any is None else doubtful & sees_any).any()):
            return False
    suspect = problem.state or flash_operators.suspect(problem.keys, inputs.query.dtype, masked)
    return not suspect or flash_operators.trusted(lse, masked)


def _rows_that_see(call: Call) -> Tensor | None:
    """Return whether mask and bias leave each row a key, (..., Q); None if they do."""
    if call.bias_tensor is not None:
        # A bias of -inf may mask a whole row, as a mask does.
        finite, visible = call.bias_tensor > -torch.inf, call.visibility.matrix()
        return (finite if visible is None else finite & visible).any(-1)
    return call.visibility.rows_with_keys()


def _without_finite_scores(problem: Problem, inputs: KernelInputs) -> Tensor:
    """Return the rows (B, H, Q, 1) whose query, or every visible key, holds NaN or infinity.

    None of their scores is finite, so that their softmax is NaN.
    """
    # This import takes half a second, but tracing has already loaded the module.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if problem.mode == "eager":
        # 0 · x is NaN for infinity and NaN. This takes half the launches of `isfinite`, which exported graphs need.
        rows = (inputs.query.detach() * 0).sum(-1, keepdim=True) != 0
    else:
        rows = inputs.query.isfinite().all(-1, keepdim=True).logical_not()
    if inputs.mask is None and statically_known_true(problem.keys >= flash_operators.REGISTER):
        return rows  # the kernel reports NaN among so many keys itself
    lost_K = inputs.key.isfinite().all(-1).logical_not()
    if inputs.causal:
        # A sum, as ONNX has no running product.
        first_finite = (lost_K.logical_not().long().cumsum(-1) == 0).sum(-1)
        last_seen = torch.arange(problem.queries, device=rows.device).clamp(max=problem.keys - 1)
        return rows | (last_seen < first_finite[..., None])[..., None]
    lost_QK = lost_K[..., None, :]
    if inputs.mask is None:
        return rows | lost_QK.all(-1, keepdim=True)
    hidden = inputs.mask.logical_not() if inputs.mask.dtype == torch.bool else inputs.mask == -torch.inf
    return rows | ((lost_QK | hidden).all(-1, keepdim=True) & ~hidden.all(-1, keepdim=True))


def differentiate_by_tiles(output: Tensor) -> None:
    """Let tiles compute the kernel's gradients where a graph of them is requested, which PyTorch lacks."""
    node = output.grad_fn
    if node is not None and "ScaledDotProduct" in node.name():
        node.register_hook(_gradients_with_graph)


def _gradients_with_graph(
    gradients: tuple[Tensor | None, ...], incoming: tuple[Tensor | None, ...]
) -> tuple[Any, ...] | None:
    """Return the gradients with a graph."""
    if not torch.is_grad_enabled():
        return None
    # Its saved tensors, not tensors of a closure: those would stay alive where a checkpoint frees them.
    node: Any = torch._C._current_autograd_node()
    query, key, value, added = node._saved_query, node._saved_key, node._saved_value, node._saved_attn_mask
    dense = bias = None
    if added is not None:
        dense = full_rank(added > -torch.inf, 4)
        bias = full_rank(torch.where(added > -torch.inf, added, 0.0), 4)
    bounds = causal_bounds(query, key) if node._saved_is_causal else (None, None)
    mechanism = Mechanism("dot", Linear(), "softmax", node._saved_scale, 0.0, False, tuple(query.shape[:-2]))
    needs_grad, terms = [x is not None for x in gradients[:3]], Terms(query, key, value, bias=bias)
    visible = visibility_of(query, key, bounds, dense)
    with_graph = differentiable_gradients(mechanism, visible, terms, needs_grad, (incoming[0], None))
    return (*with_graph, *(None,) * (len(gradients) - len(with_graph)))


def _one_width(products: Products, alignment: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pad both widths with zeros to one that PyTorch's kernel takes; zeros change no product."""
    query, key, value, _ = products
    width = -(-max(query.shape[-1], value.shape[-1]) // alignment) * alignment
    query, key, value = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (query, key, value))
    return query, key, value


def _mask(problem: Problem, call: Call, dtype: torch.dtype) -> tuple[Tensor | None, bool]:
    if problem.mask in ("all", "causal") and call.bias is None:
        return None, problem.mask == "causal"
    bias = call.bias_tensor
    if bias is None:
        return _added(call.visibility, problem, dtype), False
    visible = call.visibility.matrix()
    # With half-precision inputs PyTorch's kernel accepts a float32 bias, and adds it in float32.
    bias = bias if bias.dtype == torch.float32 else bias.to(dtype)
    return _table(bias if visible is None else torch.where(visible, bias, -torch.inf), problem), False


def _added(visibility: Visibility, problem: Problem, dtype: torch.dtype) -> Tensor | None:
    """Return a mask as PyTorch's kernel takes it; on the CPU as what it adds to the scores."""
    visible = visibility.matrix()
    if visible is None:
        return None
    table = _table(visible, problem)
    return flash_operators.added(table, dtype) if _calls_kernel(problem) else table


def _calls_kernel(problem: Problem) -> bool:
    """Return whether PyTorch's CPU kernel is called itself, and not `scaled_dot_product_attention`."""
    return problem.mode == "eager" and problem.device == "cpu"


def _table(table: Tensor, problem: Problem) -> Tensor:
    """Return the table as (..., Q or 1, K) of rank two or four."""
    if table.shape[-1:] != (problem.keys,):  # a bias may have no dimension at all
        table = table.expand(*table.shape[:-1], problem.keys)
    if table.ndim <= 2:
        return table.expand(1, -1) if table.ndim == 1 else table
    if len(problem.leading) <= 2:
        return table.unsqueeze(0) if table.ndim == 3 else table
    return by_head(table, problem.leading)


def finish(problem: Problem, call: Call, output: Tensor, lse: Tensor | None) -> Result:
    """Return the kernel's results in the problem's shape and dtype, with zeros for rows that see no key.

    Args:
        problem, call: the problem and its inputs.
        output: (B, H, Q, F).
        lse: (B, H, Q), or None where it is not requested.
    """
    lse = lse if problem.state else None
    if output.shape[-1] != problem.value_width:
        output = output[..., : problem.value_width]
    if len(problem.leading) != 2:
        output = output.reshape(*problem.leading, problem.queries, problem.value_width)
        lse = None if lse is None else lse.reshape(*problem.leading, problem.queries)
    sees_any = None if problem.mask in ("all", "causal") else call.visibility.rows_with_keys()
    if call.bias_tensor is not None and lse is not None:
        sees_any = _rows_that_see(call)
    output = _without_empty_rows(output, sees_any)
    if lse is not None:
        # For rows without visible keys it is 0.
        lse = (lse if sees_any is None else torch.where(sees_any, lse, -torch.inf)).double()
    return Result(output if output.dtype == problem.dtype else output.to(problem.dtype), lse)


def _without_empty_rows(output: Tensor, sees_any: Tensor | None) -> Tensor:
    """Return the output with zeros for rows that see no key, whose output the kernel leaves undefined."""
    return output if sees_any is None else torch.where(sees_any[..., None], output, output.new_zeros(()))


FLASH = Algorithm(
    "sdpa.flash",
    "sdpa",
    "PyTorch's fused kernel",
    refuses,
    work,
    run,
    preferred=True,
    bind=bind,
    row_state=lambda problem: row_state.EXPLANATION if row_state.is_rounded(problem) else None,
)
