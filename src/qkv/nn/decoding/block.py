"""The steps of decoder blocks, one after another: gives `qkv.nn.decoding.block_kernel` what it works with."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.sdpa import few_queries_kernel
from qkv.algorithms.sdpa.few_queries_parallel import appended, attended
from qkv.compiled import openmp, thread_pool
from qkv.compiled.strided import StridedArray
from qkv.linalg import packed_kernel
from qkv.linalg.memory_pool import MemoryPool
from qkv.linalg.packed_kernel import Floats
from qkv.linalg.session import session_value
from qkv.nn.decoding import block_kernel

_EVERYTHING = np.empty(0, np.bool_)
_PARTS = 5
"""Tables of (B·N, M) that a step works with."""


class Weights(NamedTuple):
    """A block's parameters.

    Attributes:
        numbers, places: of nine parts, from `packed.pack`: the self-attention's projection, norm and output; those
            of the attention over the memory; the first feed-forward layer, its norm, the second.
        scales: of both attentions, (2,).
        width, hidden, heads: M, of the feed-forward part, H.
        norm_first: whether norms stand before a part.
    """

    numbers: Floats
    places: NDArray[np.uint64]
    scales: Floats
    width: int
    hidden: int
    heads: int
    norm_first: bool


class Block(NamedTuple):
    """A block's parameters, and what its attentions read.

    Attributes:
        weights: its parameters.
        own: keys and values of the positions so far and of the new ones, which are written; strides over B, H and K,
            the last dimension and all heads of a position lie together.
        length: how many positions these are.
        memory: keys and values of the source, the last dimension lies together.
        size: how many positions these are.
    """

    weights: Weights
    own: tuple[StridedArray, StridedArray]
    length: int
    memory: tuple[StridedArray, StridedArray]
    size: int


def run(
    blocks: Sequence[Block],
    shape: tuple[int, int],
    x: Floats,
    seen: StridedArray | None,
    real: StridedArray | None,
    out: Floats,
) -> None:
    """Take the step of each block, each with what the one before gave.

    All that Python does for them is done first: while weights pass through the caches, what Python needs leaves them.

    Args:
        blocks: of one width.
        shape: B and N, new positions.
        x: (B·N, M), flat.
        seen: which positions each sees, bool, with strides over B, N and K; None for all.
        real: which of the source, likewise.
        out: (B·N, M), flat, written.
    """
    threads = thread_pool.thread_count() if openmp.available() else 1
    most = (
        -max(max(block.length, block.size) for block in blocks) // few_queries_kernel.ROUND * -few_queries_kernel.ROUND
    )
    heads = max(block.weights.heads for block in blocks)
    rooms = (
        np.empty((threads, packed_kernel.ROWS * packed_kernel.WIDE), np.float32),
        np.empty((threads, most), np.uint64),
        np.empty((threads, heads, most), np.float32),
    )
    work = _work(shape[0] * shape[1], blocks)
    masks = tuple(_EVERYTHING if mask is None else mask.numbers for mask in (seen, real))
    given = []
    for place, block in enumerate(blocks):
        after = out if place == len(blocks) - 1 else np.empty_like(x)
        own, memory = (tuple(each.numbers for each in pair) for pair in (block.own, block.memory))
        sizes = _sizes(block, shape, seen, real)
        given.append((threads, sizes, block.weights[:3], x, own, memory, masks, work, after, rooms))
        x = after
    step = block_kernel.compiled()
    for each in given:
        step(*each)


def _sizes(
    block: Block, shape: tuple[int, int], seen: StridedArray | None, real: StridedArray | None
) -> NDArray[np.uint64]:
    """As `block_kernel` takes them."""
    (items, new), (_, _, _, width, hidden, heads, norm_first) = shape, block.weights
    (key, value), (memory_key, memory_value) = block.own, block.memory
    head, fresh = width // heads, (new * 3 * width, 3 * width)
    own, other = (items, heads, new, block.length, head, head), (items, heads, new, block.size, head, head)
    return np.array(
        [
            *(items, new, width, hidden, norm_first),
            *appended((items, new, block.length, width, width), fresh, key.strides[::2], value.strides[::2]),
            *attended(own, (fresh[0], head, fresh[1]), key.strides, value.strides, seen),
            *attended(other, (new * width, head, width), memory_key.strides, memory_value.strides, real),
        ],
        np.uint64,
    )


def _work(rows: int, blocks: Sequence[Block]) -> Floats:
    """Room for a step of any of the blocks."""
    widest = max(max(3 * weights.width, weights.hidden) for weights, *_ in blocks)
    shape, reused = (rows * (_PARTS * blocks[0].weights.width + widest),), session_value(MemoryPool)
    return np.empty(shape, np.float32) if reused is None else reused.tensor(shape).numpy()
