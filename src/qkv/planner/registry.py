"""The backends that exist, in the order that `explain` shows them."""

from qkv.algorithms.additive import fused
from qkv.algorithms.matrix import linear, reference
from qkv.algorithms.rowwise import rowwise
from qkv.algorithms.sdpa import flex, sdpa, toeplitz
from qkv.algorithms.sorted import sorted  # noqa: A004
from qkv.algorithms.tiled import blocked, lookup
from qkv.engine.backend import Backend

_MODULES = (reference, sdpa, toeplitz, flex, linear, lookup, sorted, fused, rowwise, blocked)

BACKENDS: dict[str, Backend] = {module.BACKEND.name: module.BACKEND for module in _MODULES}
