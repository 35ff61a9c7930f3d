"""The algorithms that exist, in the order that `explain` shows their families."""

from qkv.algorithms.additive.fused import DIRECT, FACTORED
from qkv.algorithms.additive.triton import TRITON
from qkv.algorithms.matrix.linear import LINEAR
from qkv.algorithms.matrix.reference import REFERENCE
from qkv.algorithms.rowwise.augmented_dot import AUGMENTED_DOT
from qkv.algorithms.rowwise.distance_tiles import DISTANCE_TILES
from qkv.algorithms.rowwise.rows import DISTANCE_ROWS, ROWS
from qkv.algorithms.rowwise.short import SHORT, SHORT_PRODUCTS
from qkv.algorithms.sdpa.few_queries import FEW_QUERIES
from qkv.algorithms.sdpa.flash import FLASH
from qkv.algorithms.sdpa.flex import FLEX
from qkv.algorithms.sdpa.softmax_sink import SINK, SINK_KEY
from qkv.algorithms.sorted.sorted import PREFIX_SUMS, TWO_POINTER
from qkv.algorithms.tiled.blocked import BLOCKED, TRACED, TRACED_USER_SCORES, USER_SCORES
from qkv.algorithms.tiled.lookup import LOOKUP
from qkv.engine.algorithm import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = (
    *(REFERENCE, FLASH, SINK, SINK_KEY, SHORT_PRODUCTS, FEW_QUERIES, FLEX, LINEAR, LOOKUP),
    *(TWO_POINTER, PREFIX_SUMS, FACTORED, DIRECT, TRITON),
    *(SHORT, AUGMENTED_DOT, DISTANCE_TILES, ROWS, DISTANCE_ROWS),
    *(BLOCKED, TRACED, USER_SCORES, TRACED_USER_SCORES),
)

BACKENDS: tuple[str, ...] = tuple(dict.fromkeys(algorithm.backend for algorithm in ALGORITHMS))
"""The names of the families."""


def algorithms_of(backend: str) -> tuple[Algorithm, ...]:
    """Return the algorithms that a name stands for, a family's or one algorithm's; none for an unknown name.

    Args:
        backend: a value of `backend=` other than "auto".

    Example:
        >>> [algorithm.name for algorithm in algorithms_of("fused")]
        ['additive.factored', 'additive.direct', 'additive.triton']
    """
    return tuple(algorithm for algorithm in ALGORITHMS if backend in (algorithm.backend, algorithm.name))
