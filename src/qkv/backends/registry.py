"""The backends that exist, in the order that `explain` shows them."""

from qkv.backends import linear, reference, sdpa, sorted
from qkv.backends.base import Backend

BACKENDS: dict[str, Backend] = {module.BACKEND.name: module.BACKEND for module in (reference, sdpa, linear, sorted)}
