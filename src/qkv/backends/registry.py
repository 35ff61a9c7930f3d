"""The backends that exist, in the order that `explain` shows them."""

from qkv.backends import blocked, flex, fused, linear, lookup, reference, rowwise, sdpa, sorted, toeplitz  # noqa: A004
from qkv.backends.base import Backend

_MODULES = (reference, sdpa, toeplitz, flex, linear, lookup, sorted, fused, rowwise, blocked)

BACKENDS: dict[str, Backend] = {module.BACKEND.name: module.BACKEND for module in _MODULES}
