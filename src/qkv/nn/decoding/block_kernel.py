"""One step of a decoder block in one compiled call: products with packed weights, attention and norms.

PyTorch's own threads share each part.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.sdpa import few_queries_kernel
from qkv.compiled.kernels import Kernel, helper, part_of
from qkv.compiled.parallel_region import run_parallel
from qkv.linalg import packed_kernel

# Unsigned, as all sizes are: Numba would turn an operation of signed and unsigned integers into floats.
N0, N1, N2, N3, N4, N5 = (np.uint64(number) for number in range(6))
FORM, OWN, OTHER = 5, 15, 32
"""Indices in the sizes of a step where those of its parts begin."""
_by_panels, _by_rows, _by_items = (run_parallel("u8", scratch) for scratch in (1, 0, 2))
_product, _norm = packed_kernel.product, packed_kernel.norm
_append, _attend = part_of(few_queries_kernel.append), part_of(few_queries_kernel.forward)


@helper
def _chunks(threads, things):
    """Return one chunk per thread, of consecutive panels: each is prefetched while the one before is multiplied."""
    return max(N1, min(threads, things))


@helper
def _multiply(threads, rows, terms, columns, x, numbers, weight, relu, added, out, sums):
    """Compute a product; the bias follows the panels of the weight."""
    things = (columns + packed_kernel.COLUMNS - N1) // packed_kernel.COLUMNS
    bias = weight + things * packed_kernel.COLUMNS * terms
    packed = (rows, terms, columns, x, numbers, weight, numbers, bias, relu, added, out, sums)
    _by_panels(_product, threads, _chunks(threads, things), things, packed)


@helper
def _normed(threads, rows, width, x, numbers, gain, out):
    _by_rows(_norm, threads, _chunks(threads, rows), rows, (width, x, numbers, gain, out))


@helper
def _attended(start, stop, fresh, grown, sizes, scale, query, key, value, mask, out, lse, places, scores):
    """Append the newest keys and values of the items from start to stop, if there are any, then attend."""
    if fresh.size:
        _append(start, stop, grown, fresh, key, value)
    queries = sizes[N1]
    _attend(start * queries, stop * queries, sizes, scale, query, key, value, mask, out, lse, places, scores)


@helper
def _joined(threads, first, rows, terms, width, update, numbers, weight, gain, stream, between, sums, out):
    """Add a part's output projection to the residual stream, then normalize if norms stand after each part."""
    if first:
        _multiply(threads, rows, terms, width, update, numbers, weight, False, stream, out, sums)
    else:
        _multiply(threads, rows, terms, width, update, numbers, weight, False, stream, between, sums)
        _normed(threads, rows, width, between, numbers, gain, out)


def _step(threads, sizes, parameters, x, own, memory, masks, work, out, scratch):
    """Run the step.

    Args:
        threads: the number of PyTorch's threads.
        sizes: B, N, M, the hidden width, and whether norms stand first; then sizes and strides of the self-attention,
            as `few_queries_kernel.append` takes them and as `few_queries_kernel.forward` does, and those of the
            attention over the memory.
        parameters: the packed numbers; the indices where the parts begin, in the order of `block.Weights`; the scales
            of both attentions.
        x: (B·N, M), flat.
        own: keys and values of the self-attention; those of the new positions are written.
        memory: keys and values of the source.
        masks: of both attentions.
        work: five tables of (B·N, M), and the result of the widest product.
        out: (B·N, M), flat, written.
        scratch: for each chunk, that of `packed_kernel.product`, and the two of `few_queries_kernel.forward`.
    """
    items, new, width, hidden, first = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4] > N0
    grown, form, other = sizes[FORM:OWN], sizes[OWN:OTHER], sizes[OTHER:]
    (numbers, at, scales), (sums, places, scores) = parameters, scratch
    chunks, rows, size = _chunks(threads, items), items * new, items * new * width
    normed, between, one = work[:size], work[size : N2 * size], work[N2 * size : N3 * size]
    two, heads, wide = work[N3 * size : N4 * size], work[N4 * size : N5 * size], work[N5 * size :]
    nothing, no_sizes = work[:0], grown[:0]

    if first:
        _normed(threads, rows, width, x, numbers, at[1], normed)
    given = normed if first else x
    _multiply(threads, rows, width, N3 * width, given, numbers, at[0], False, nothing, wide, sums)
    ends = (masks[0], heads, nothing, places, scores)
    _by_items(_attended, threads, chunks, items, (wide, grown, form, scales[0], wide, own[0], own[1], *ends))
    _joined(threads, first, rows, width, width, heads, numbers, at[2], at[1], x, between, sums, one)

    if first:
        _normed(threads, rows, width, one, numbers, at[4], normed)
    given = normed if first else one
    _multiply(threads, rows, width, width, given, numbers, at[3], False, nothing, wide, sums)
    ends = (masks[1], heads, nothing, places, scores)
    seen = (nothing, no_sizes, other, scales[1], wide, memory[0], memory[1], *ends)
    _by_items(_attended, threads, chunks, items, seen)
    _joined(threads, first, rows, width, width, heads, numbers, at[5], at[4], one, between, sums, two)

    if first:
        _normed(threads, rows, width, two, numbers, at[7], normed)
    given = normed if first else two
    _multiply(threads, rows, width, hidden, given, numbers, at[6], True, nothing, wide, sums)
    _joined(threads, first, rows, hidden, width, wide, numbers, at[8], at[7], two, between, sums, out)


_PAIR = "UniTuple(f4[::1], 2)"
step = Kernel(
    _step,
    f"void(u8, u8[::1], Tuple((f4[::1], u8[::1], f4[::1])), f4[::1], {_PAIR}, {_PAIR}, UniTuple(b1[::1], 2), f4[::1], "
    "f4[::1], Tuple((f4[:,::1], u8[:,::1], f4[:,:,::1])))",
    single=True,
)
