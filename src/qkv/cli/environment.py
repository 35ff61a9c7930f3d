"""What libraries below PyTorch read from the environment when they start, set before PyTorch is imported."""

import os
from collections.abc import MutableMapping

SPINS = "2000"
"""How often a thread of GNU's OpenMP looks for its next work before it sleeps: some 40 µs.

The default is 300,000. Beside another busy process, a thread that waits so long keeps the core from the thread
that it waits for. On an idle machine 2,000 is about as fast (docs/understanding/planner.md).
"""
PRODUCTS = "64"
"""How many compiled matrix products oneDNN keeps, and how many PyTorch's own table of them keeps.

A training update uses about 30, and compiling one takes 0.25 ms. By default each keeps 1,024, of all batch shapes it
met: 0.5 MiB for each shape, between blocks of the heap that therefore fit few later tensors
(docs/understanding/memory.md).
"""
_DEFAULTS = {
    "GOMP_SPINCOUNT": (SPINS, ("OMP_WAIT_POLICY",)),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": (PRODUCTS, ("DNNL_PRIMITIVE_CACHE_CAPACITY",)),
    "LRU_CACHE_CAPACITY": (PRODUCTS, ()),
}


def set_defaults(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that the user has not set, neither themselves nor by another name.

    Args:
        environment: where to set them; of this process by default. Libraries that are already loaded do not see it.

    Example:
        >>> chosen = {"OMP_WAIT_POLICY": "active"}
        >>> set_defaults(chosen)
        >>> sorted(chosen)
        ['LRU_CACHE_CAPACITY', 'OMP_WAIT_POLICY', 'ONEDNN_PRIMITIVE_CACHE_CAPACITY']
    """
    for name, (value, others) in _DEFAULTS.items():
        if not any(other in environment for other in (name, *others)):
            environment[name] = value
