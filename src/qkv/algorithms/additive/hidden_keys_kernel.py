"""Which keys a row of additive attention sees: its bounds, a dense mask, and the bias that is added to its scores.

`sight` holds first, last, mask, bias and owner, as `forward_kernel.forward` takes them.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.kernels import helper, inlined


@helper
def seen_range(sight, n, q, edge, size):
    """Return the range of a tile's keys, starting at key `edge`, that is within the bounds of a row."""
    first, last, _, _, owner = sight
    start = max(np.int64(first[owner[n, 1], q]) - edge, 0)
    return start, min(np.int64(last[owner[n, 1], q]) - edge, size)


@helper
def hide(s, sight, n, q, at, hidden):
    """Write `hidden` where the dense mask hides a key; the first entry is key number `at`."""
    _, _, mask, _, owner = sight
    if mask.size:
        seen = mask[owner[n, 2], q if mask.shape[1] > 1 else 0, at : at + s.size]
        for k in range(s.size):
            s[k] = s[k] if seen[k] else hidden


@inlined
def add_bias_and_hide(sight, n, q, at, hidden, s):
    """Add the bias to the scores of a row, starting at key `at`, and write `hidden` for hidden keys."""
    bias, owner = sight[3], sight[4]
    if bias.size:
        first = at + max(owner[n, 4] - q, 0)
        added = bias[owner[n, 3], q if bias.shape[1] > 1 else 0, first : first + s.size]
        for k in range(s.size):
            s[k] += added[k]
    hide(s, sight, n, q, at, hidden)
