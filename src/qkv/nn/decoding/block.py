"""One step of a stack of decoder blocks: prepares the arguments of `qkv.nn.decoding.block_kernel`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.sdpa import few_queries_kernel
from qkv.algorithms.sdpa.few_queries import attend_sizes
from qkv.compiled import openmp, thread_pool
from qkv.compiled.strided import StridedArray
from qkv.linalg import packed_kernel
from qkv.linalg.memory_pool import MemoryPool
from qkv.linalg.packed_kernel import Floats
from qkv.nn.decoding import block_kernel

_NO_MASK = np.empty(0, np.bool_)
_TABLES = 5
"""Intermediate tables of (B·N, M) in a step."""


class BlockWeights(NamedTuple):
    """The parameters of a block.

    Attributes:
        numbers, addresses: nine parts in one array, and where each begins, from `packed.pack`: projection, norm and
            output of the self-attention, the same of the attention over the memory, then the first feed-forward layer,
            its norm, the second layer.
        scales: of both attentions, (2,).
        width, hidden, heads: M, the hidden width of the feed-forward part, H.
        norm_first: whether norms stand before each part.
    """

    numbers: Floats
    addresses: NDArray[np.uint64]
    scales: Floats
    width: int
    hidden: int
    heads: int
    norm_first: bool


class Block(NamedTuple):
    """The parameters of a block, and what its attentions read.

    Attributes:
        weights: its parameters.
        target: keys and values of the target, with strides over B, H and K; the last dimension and all heads of a
            position lie together. Those of the new positions are written.
        length: the number of target positions, the new ones included.
        memory: keys and values of the source, with strides over B, H and K; the last dimension is contiguous.
        size: the number of source positions.
    """

    weights: BlockWeights
    target: tuple[StridedArray, StridedArray]
    length: int
    memory: tuple[StridedArray, StridedArray]
    size: int


def run(
    blocks: Sequence[Block],
    shape: tuple[int, int],
    x: Floats,
    visible: StridedArray | None,
    real: StridedArray | None,
    out: Floats,
    pool: MemoryPool,
) -> None:
    """Run one step of each block on the output of the block before.

    All arguments are prepared before the first block runs: the weights of a block evict from the caches what Python
    needs.

    Args:
        blocks: all of one width.
        shape: B and N, the number of new positions.
        x: (B·N, M), flat.
        visible: the target positions that each new one sees, bool, with strides over B, N and K; None for all.
        real: the source positions that each new one sees, likewise.
        out: (B·N, M), flat, written.
        pool: gives memory for intermediate results.
    """
    threads = thread_pool.thread_count() if openmp.available() else 1
    most = (
        -max(max(block.length, block.size) for block in blocks) // few_queries_kernel.ROUND * -few_queries_kernel.ROUND
    )
    heads = max(block.weights.heads for block in blocks)
    scratch = (
        np.empty((threads, packed_kernel.ROWS * packed_kernel.WIDE), np.float32),
        np.empty((threads, most), np.uint64),
        np.empty((threads, heads, most), np.float32),
    )
    widest = max(max(3 * weights.width, weights.hidden) for weights, *_ in blocks)
    work = pool.tensor((shape[0] * shape[1] * (_TABLES * blocks[0].weights.width + widest),)).numpy()
    masks = tuple(_NO_MASK if mask is None else mask.numbers for mask in (visible, real))
    runs = []
    for index, block in enumerate(blocks):
        outputs = out if index == len(blocks) - 1 else np.empty_like(x)
        target, memory = (tuple(cache.numbers for cache in pair) for pair in (block.target, block.memory))
        sizes = _sizes(block, shape, visible, real)
        runs.append((threads, sizes, block.weights[:3], x, target, memory, masks, work, outputs, scratch))
        x = outputs
    step = block_kernel.step.at(np.float32)
    for arguments in runs:
        step(*arguments)


def _sizes(
    block: Block, shape: tuple[int, int], visible: StridedArray | None, real: StridedArray | None
) -> NDArray[np.uint64]:
    """Return the sizes and strides of a step, in the order of `block_kernel`."""
    (items, new), (_, _, _, width, hidden, heads, norm_first) = shape, block.weights
    (key, value), (memory_key, memory_value) = block.target, block.memory
    head, fresh = width // heads, (new * 3 * width, 3 * width)
    target, other = (items, heads, new, block.length, head, head), (items, heads, new, block.size, head, head)
    return np.array(
        [
            *(items, new, width, hidden, norm_first),
            *(new, block.length, width, width, *fresh, *key.strides[::2], *value.strides[::2]),
            *attend_sizes(target, (fresh[0], head, fresh[1]), key.strides, value.strides, visible),
            *attend_sizes(other, (new * width, head, width), memory_key.strides, memory_value.strides, real),
        ],
        np.uint64,
    )
