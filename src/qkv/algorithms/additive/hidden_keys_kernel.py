"""Which keys a row of additive attention sees: its bounds, a dense mask, and the bias that is added to its scores.

`ranges` is the tuple of first, last, mask, bias and owner, as in `forward_kernel.forward`.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.kernels import helper, inlined


@helper
def visible_range(ranges, n, q, tile_start, size):
    """Return the range of a tile's keys, starting at key `tile_start`, that is within the bounds of a row."""
    first, last, _, _, owner = ranges
    start = max(np.int64(first[owner[n, 1], q]) - tile_start, 0)
    return start, min(np.int64(last[owner[n, 1], q]) - tile_start, size)


@helper
def hide(s, ranges, n, q, at, hidden):
    """Write `hidden` where the dense mask hides a key; the first entry is key number `at`."""
    _, _, mask, _, owner = ranges
    if mask.size:
        visible = mask[owner[n, 2], q if mask.shape[1] > 1 else 0, at : at + s.size]
        for k in range(s.size):
            s[k] = s[k] if visible[k] else hidden


@inlined
def add_bias_and_hide(ranges, n, q, at, hidden, s):
    """Add the bias to the scores of a row, starting at key `at`, and write `hidden` for hidden keys."""
    bias, owner = ranges[3], ranges[4]
    if bias.size:
        first = at + max(owner[n, 4] - q, 0)
        added = bias[owner[n, 3], q if bias.shape[1] > 1 else 0, first : first + s.size]
        for k in range(s.size):
            s[k] += added[k]
    hide(s, ranges, n, q, at, hidden)
