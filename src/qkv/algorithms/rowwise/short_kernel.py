"""Attention over short sequences in one pass: guards, scores, normalizer and output of an item, all in the caches.

A kernel takes addresses, strides and sizes, so that it reads every tensor as it is: broadcast, transposed, by groups of
heads. Products and distances, which are subtracted, are computed in registers (`qkv.linalg.small_matmul`), for eight
rows at a time. Operands are float32 or bfloat16, converted while they are packed; all else is float32. Where a score
maps queries or keys by a matrix, each item's rows are mapped once they are packed.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.
# ruff: noqa: C901, PLR0912, PLR0915 - a kernel is read from top to bottom

import numpy as np

from qkv.algorithms.rowwise.entmax_kernel import project_row, project_row_back
from qkv.algorithms.rowwise.row_registers_kernel import (
    divide_by_sum,
    largest_of,
    multiply_row,
    quotient_gradient,
    shape_gradient,
    shape_row,
    sigmoid_row,
    sigmoid_slope_row,
    softmax,
    softmax_gradient,
    tanh_gradients,
)
from qkv.algorithms.rowwise.weights_kernel import BOXCAR, LINEAR, MEAN, SOFTMAX, SUM
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.dropout import is_dropped, row_bits
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import Kernel, helper, inlined
from qkv.compiled.row_loops import dot
from qkv.linalg.padded_rows import clear, dot_in_float64, load, round_up, store
from qkv.linalg.small_matmul import (
    BLOCK,
    LANES,
    N0,
    N1,
    distances_to_panels,
    multiply_panels,
    multiply_rows,
    multiply_transposed,
    multiply_visible,
    sums_to_panels,
    tanh_to_panels,
    transpose_to_panels,
    weighted_differences,
)

IDENTITY, SIGMOID, HARD, ENTMAX, POSITION = 3, 5, 6, 7, 8
"""Normalizers beside those of `weights_kernel`; POSITION is HARD whose row state is the position of the winner."""
DOT, DISTANCE, RELU_SUM, TANH_SUM, COSINE = 0, 1, 2, 3, 4
# Exact in float32; a Python float would promote float32 to float64.
ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
N2 = np.uint64(2)

QUERY, KEY, VALUE, OUT, FIRST, LAST, MASK, BIAS, PARAMETER, VECTOR, QUERY_WEIGHT, KEY_WEIGHT, *_GRADIENTS = range(
    8, 93, 5
)
"""Where the strides of a tensor begin in the table, after its sizes: over three leading dimensions, rows, columns."""
D_QUERY, D_KEY, D_VALUE, D_QUERY_WEIGHT, D_KEY_WEIGHT = _GRADIENTS
PARTS = 93
"""Where the places of the parts of a thread's scratch begin in the table, in the order of `scratch_parts`."""


def scratch_parts(queries, keys, width, value_width, columns, of_key, maps_query, maps_key, backward):
    """Return how many numbers each part of a thread's scratch has; sizes are multiples of 16.

    Args:
        queries, keys, width, value_width: Q, K, F and V.
        columns, of_key: D and E, the widths of a query and a key as the caller gives them.
        maps_query, maps_key: whether they are mapped to F numbers.
        backward: whether it is the scratch of the backward pass.
    """
    from_query, from_key = columns * maps_query, of_key * maps_key
    rows = queries if backward else int(BLOCK)
    either, widest = max(queries, keys), max(width, value_width)
    return (
        *(queries * width, keys * width, keys * value_width),  # q, k, v
        *(queries * from_query, keys * from_key),  # the rows that are mapped
        *(from_query * width, from_key * width),  # the matrices by columns, (D, F)
        *(width, 64),  # the vector, and what entmax needs
        either * widest if backward else keys * width,  # t
        *(rows * keys, rows * value_width),  # s; o, or g
        *((keys * value_width, rows * keys, keys, keys, width) if backward else (0,) * 5),  # u, d, x, spare, d_vector
        *((from_query * width, from_key * width) if backward else (0, 0)),  # the matrices by rows, (F, D)
        max(either, width) * max(from_query, from_key) if backward else 0,  # m
    )


def _array_at(kind_of):
    """Return an intrinsic that makes an array of what lies at an address.

    Args:
        kind_of: returns its type, from that of the argument `like`.
    """

    @intrinsic
    def array_at(_, address, like):
        array = kind_of(like)

        def make(context, builder, signature, arguments):
            result, size, word = context.make_array(array)(context, builder), array.dtype.bitwidth // 8, ir.IntType(64)
            context.populate_array(
                result,
                data=builder.inttoptr(arguments[0], result.data.type),
                shape=[word(1 << 48)],
                strides=[word(size)],
                itemsize=word(size),
                meminfo=None,
            )
            return result._getvalue()

        return array(types.uint64, like), make

    return array_at


_floats_at, _doubles_at, _ints_at, _bytes_at = (
    _array_at(lambda _, name=name: types.Array(getattr(types, name), 1, "C"))
    for name in ("float32", "float64", "int32", "uint8")
)
_values_at = _array_at(lambda kind: kind)


@inlined
def _part(floats, sizes, index):
    return floats[sizes[PARTS + index] : sizes[PARTS + index + 1]]


@helper
def _place(sizes, strides, item):
    """Return where an item begins in a tensor, from its index over three leading dimensions."""
    row = item // sizes[1]
    return row // sizes[0] * sizes[strides] + row % sizes[0] * sizes[strides + 1] + item % sizes[1] * sizes[strides + 2]


@helper
def _find_ends(sizes, item, first, last, padded_rows, ends, ranges):
    """Write the range of keys that each row sees, low ≤ high, and that of each block of rows, K and 0 if it sees none.

    Return that of the item, low ≤ high.
    """
    queries, keys = sizes[2], sizes[3]
    firsts, lasts = _ints_at(first, 0), _ints_at(last, 0)
    f, t = _place(sizes, FIRST, item), _place(sizes, LAST, item)
    least, most = keys, N0
    for block in range(padded_rows // BLOCK):
        lowest, highest = keys, N0
        for r in range(block * BLOCK, min(block * BLOCK + BLOCK, queries)):
            low, high = N0, keys
            if first != N0:
                low = np.uint64(max(firsts[f + r * sizes[FIRST + 3]], np.int32(0)))
            if last != N0:
                high = min(np.uint64(max(lasts[t + r * sizes[LAST + 3]], np.int32(0))), keys)
            low = min(low, high)
            ends[r, 0], ends[r, 1] = low, high
            if low < high:
                lowest, highest = min(lowest, low), max(highest, high)
        ranges[block, 0], ranges[block, 1] = lowest, highest
        least, most = min(least, lowest), max(most, highest)
    return least, max(least, most)


@helper
def _find_seen(sizes, item, mask, ends, low, high, seen):
    """Write which keys any row sees; a row sees what its range and the mask allow."""
    table, at, queries = _bytes_at(mask, 0), _place(sizes, MASK, item), sizes[2]
    for k in range(low, high):
        seen[k] = N0
    for r in range(queries):
        if mask == N0:
            for k in range(ends[r, 0], ends[r, 1]):
                seen[k] = N1
        else:
            row = at + r * sizes[MASK + 3]
            for k in range(ends[r, 0], ends[r, 1]):
                seen[k] |= np.uint64(table[row + k * sizes[MASK + 4]])


@helper
def _clear_hidden(x, padded_width, low, high, seen):
    for k in range(low, high):
        if seen[k] == N0:
            clear(x, k * padded_width, (k + N1) * padded_width)


@helper
def _clear_blind(x, padded_width, queries, ends):
    """Set the rows to zero that see no key."""
    for r in range(queries):
        if ends[r, 0] == ends[r, 1]:
            clear(x, r * padded_width, (r + N1) * padded_width)


@helper
def _add_bias(sizes, item, r, bias, s, at, low, high):
    table, row, by = _floats_at(bias, 0), _place(sizes, BIAS, item) + r * sizes[BIAS + 3], sizes[BIAS + 4]
    for k in range(low, high):
        s[at + k] += table[row + k * by]


@helper
def _hide(sizes, item, r, mask, s, at, low, high, hidden):
    """s ← hidden where a key is masked; return how many keys are not."""
    table, row, by = _bytes_at(mask, 0), _place(sizes, MASK, item) + r * sizes[MASK + 3], sizes[MASK + 4]
    visible = N0
    for k in range(low, high):
        one = np.uint64(table[row + k * by])
        visible += one
        s[at + k] = s[at + k] if one != N0 else hidden
    return visible


@helper
def _drop(s, at, low, high, bits, threshold, keep):
    """s ← 0, or keep·s, by the bits of (seed, row, key)."""
    for k in range(low, high):
        s[at + k] = ZERO if is_dropped(bits, k, threshold) else s[at + k] * keep


@helper
def _select_first(s, at, low, high, padded_keys):
    """s ← 1 at the first of the largest scores, 0 elsewhere; NaN if one is NaN; 0 if all are −∞.

    Return the largest and its position: NaN if a score is NaN, −1 if all are −∞.
    """
    top, count, winner, sick = largest_of(s, at, low, high, padded_keys), N0, low, N0
    for k in range(low, high):
        sick += N1 if s[at + k] != s[at + k] else N0
        if count == N0 and s[at + k] == top:
            count, winner = N1, k
    for k in range(N0, padded_keys):
        # A masked key has no weight, whatever others hold.
        masked = k < low or k >= high or s[at + k] == -np.inf
        s[at + k] = ZERO if masked or sick == N0 else np.float32(np.nan)
    if sick != N0:
        return np.float64(np.nan), np.float64(np.nan)
    if top == -np.inf:
        return np.float64(top), -1.0
    s[at + winner] = ONE
    return np.float64(top), np.float64(winner)


@helper
def _take_mean(s, at, low, high, padded_keys, visible):
    """s ← s/n."""
    by = np.float32(1.0 / np.float64(max(visible, N1)))
    multiply_row(s, at, s, at, low, high, padded_keys, ZERO, by, ZERO)


@inlined
def _weigh(rule, s, at, low, high, padded_keys, visible, parameter, alpha, near, columns, needs_state):
    """s ← the weights of a row of scores, zeros for keys that it does not see; return the row state.

    That of a softmax is computed only if it is needed: a logarithm takes a third of a row of sixteen keys.
    """
    state = np.float64(visible)
    if rule == SOFTMAX:
        top, total = softmax(s, at, low, high, padded_keys, parameter)
        state = -np.inf
        if needs_state and total != 0:
            state = np.float64(top) + np.log(np.float64(total))
    elif rule == SUM:
        state = np.float64(divide_by_sum(s, at, low, high, padded_keys))
    elif rule == MEAN:
        _take_mean(s, at, low, high, padded_keys, visible)
    elif rule == IDENTITY:
        state = 0.0
    elif rule == SIGMOID:
        shift = np.float32(-np.log(np.float64(max(visible, N1)))) if parameter == -np.inf else parameter
        sigmoid_row(s, at, low, high, padded_keys, shift)
    elif rule == HARD:
        state, _ = _select_first(s, at, low, high, padded_keys)
    elif rule == POSITION:
        _, state = _select_first(s, at, low, high, padded_keys)
    else:
        state = project_row(s[at + low : at + high], alpha, near, columns)
        clear(s, at, at + low)
        clear(s, at + high, at + padded_keys)
    return state


@helper
def _sum_selected(sizes, item, mask, winners, ends, g, to, width, drop):
    """to ← the gradient of the values: a row's gradient at the key that it selected, NaN at all that it sees if NaN."""
    queries, table, at = sizes[2], _bytes_at(mask, 0), _place(sizes, MASK, item)
    for r in range(queries):
        low, high, weight = ends[r, 0], ends[r, 1], np.float32(np.nan)
        winner = winners[item * queries + r]
        if not np.isnan(winner):
            low, weight = np.uint64(max(winner, 0.0)), ONE
            high = low + (N1 if winner >= 0.0 else N0)
        bits = np.uint32(0)
        if drop.size:
            bits, weight = row_bits(drop[0], item * queries + r), weight * np.float32(drop[2:3].view(np.float64)[0])
        for k in range(low, high):
            hidden = mask != N0 and table[at + r * sizes[MASK + 3] + k * sizes[MASK + 4]] == 0
            if not (hidden or (drop.size and is_dropped(bits, k, drop[1]))):
                _add_row(to, k * width, g, r * width, width, weight)


@helper
def _add_row(to, at, x, row, width, weight):
    wide_registers()
    for c in range(width):
        to[at + c] += weight * x[row + c]


@inlined
def _unweigh(rule, w, d, at, low, high, padded_keys, visible, state, alpha, spare, columns):
    """d ← the gradient of a row's scores, from that of its weights w; return Σwd under a softmax."""
    mean = 0.0
    if rule == SOFTMAX:
        mean = np.float64(softmax_gradient(w, d, at, low, high, padded_keys))
    elif rule == SUM:
        inverse = np.float32(1.0 / state) if state != 0.0 else ZERO
        quotient_gradient(w, d, at, low, high, padded_keys, inverse)
    elif rule == MEAN:
        _take_mean(d, at, low, high, padded_keys, visible)
    elif rule == IDENTITY:
        multiply_row(d, at, d, at, low, high, padded_keys, ZERO, ONE, ZERO)
    elif rule == SIGMOID:
        sigmoid_slope_row(d, at, w, at, low, high, padded_keys, ZERO, ZERO, ZERO)
    else:
        part = slice(at + low, at + high)
        project_row_back(w[part], d[part], alpha, False, state, 0.0, spare[: high - low], columns)
        clear(d, at, at + low)
        clear(d, at + high, at + padded_keys)
    return mean


@inlined
def _load_item(sizes, item, like, address, strides, first, last, width, to, padded_width, padded_rows):
    """Copy rows of an item of a tensor into a table."""
    start, by_row, by = _place(sizes, strides, item), sizes[strides + 3], sizes[strides + 4]
    load(_values_at(address, like), start, by_row, by, first, last, width, to, padded_width, padded_rows)


@inlined
def _store_item(sizes, item, like, x, at, first, rows, width, padded_width, address, strides):
    """Copy rows of a table to those of an item of a tensor that begin at `first`."""
    by_row, by = sizes[strides + 3], sizes[strides + 4]
    to = _place(sizes, strides, item) + first * by_row
    store(x, at, rows, width, padded_width, _values_at(address, like), to, by_row, by)


@helper
def _score(core, s, to, padded_keys, q, padded_width, t, ranges, block, vector):
    """s ← what the core computes of a block of rows."""
    if core == DISTANCE:
        distances_to_panels(s, to, padded_keys, q, padded_width, t, ranges, block, q)
    elif core == TANH_SUM:
        tanh_to_panels(s, to, padded_keys, q, padded_width, t, ranges, block, vector)
    elif core == RELU_SUM:
        # (q, 1) and (1, k) are the first two columns.
        sums_to_panels(s, to, padded_keys, q, padded_width, t, N1, ranges, block)
    else:
        multiply_panels(s, to, padded_keys, q, padded_width, t, ranges, block, q)


@helper
def _add_ones(q, k, padded_width, queries, low, high):
    """(q), (k) → (q, 1), (1, k), so that products with the gradient of q + k sum it over rows and over columns."""
    for r in range(queries):
        q[r * padded_width + N1] = ONE
    for r in range(low, high):
        k[r * padded_width + N1] = k[r * padded_width]
        k[r * padded_width] = ONE


@helper
def _load_weight(sizes, item, first, weight, strides, of_row, by, rows, columns, to, padded_columns):
    """Copy an item's matrix into a table, unless the item before it had the same."""
    at = _place(sizes, strides, item)
    if item == first or at != _place(sizes, strides, item - N1):
        load(_floats_at(weight, 0), at, of_row, by, N0, rows, columns, to, padded_columns, rows)


@helper
def _map_rows(sizes, item, start, weight, strides, x, rows, columns, to, width, padded_width, table):
    """to ← x·Wᵀ."""
    by_row, by, padded = sizes[strides + 3], sizes[strides + 4], round_up(columns)
    if width == N1:
        _load_weight(sizes, item, start, weight, strides, by_row, by, N1, columns, table, padded)
        clear(to, N0, rows * padded_width)
        for r in range(rows):
            to[r * padded_width] = dot(x[r * padded : (r + N1) * padded], table[:padded])
        return
    _load_weight(sizes, item, start, weight, strides, by, by_row, columns, width, table, padded_width)
    for r in range(N0, rows, BLOCK):
        multiply_rows(
            to, r * padded_width, padded_width, x, r * padded, padded, N1, table, N0, padded_width, columns,
            padded_width,
        )  # fmt: skip


@helper
def _map_back(
    sizes, item, start, weight, strides, d, at, of_d, x, rows, columns, width, table, m, d_weight, d_strides,
):  # fmt: skip
    """m ← d·W, the gradient of x, where row r of d begins at `at + r·of_d`; add dᵀ·x to the gradient of W."""
    padded, gradients = round_up(columns), _floats_at(d_weight, 0)
    to, by_row, by = _place(sizes, d_strides, item), sizes[d_strides + 3], sizes[d_strides + 4]
    for block in range(N0, width, BLOCK):
        multiply_rows(m, N0, padded, d, at + block, N1, of_d, x, N0, padded, rows, padded)
        for f in range(block, min(width, block + BLOCK)):
            for c in range(columns):
                gradients[to + f * by_row + c * by] += m[(f - block) * padded + c]
    _load_weight(
        sizes, item, start, weight, strides, sizes[strides + 3], sizes[strides + 4], width, columns, table, padded
    )
    for r in range(N0, rows, BLOCK):
        multiply_rows(m, r * padded, padded, d, at + r * of_d, of_d, N1, table, N0, padded, width, padded)


@inlined
def _store_gradient(
    sizes, item, start, like, d, at, x, rows, columns, width, padded_width, weight, strides, table, m, d_weight,
    d_strides, address, of_gradient,
):  # fmt: skip
    """Write the gradient of queries or keys from that of what they are mapped to, d."""
    if weight != N0:
        _map_back(
            sizes, item, start, weight, strides, d, at, padded_width, x, rows, columns, width, table, m, d_weight,
            d_strides,
        )  # fmt: skip
        _store_item(sizes, item, like, m, N0, N0, rows, columns, round_up(columns), address, of_gradient)
    else:
        _store_item(sizes, item, like, d, at, N0, rows, width, padded_width, address, of_gradient)


@helper
def _to_unit(x, rows, width, inverses, at):
    """x ← x/‖x‖, 0 where x is 0; write 1/‖x‖, or 0, for each row. In float64 no square overflows or underflows."""
    for r in range(rows):
        norm = np.sqrt(dot_in_float64(x, x, r * width, width))
        inverse = 1.0 / norm if norm != 0.0 else 0.0
        inverses[at + r] = inverse
        for c in range(r * width, (r + N1) * width):
            x[c] = np.float32(np.float64(x[c]) * inverse)


@helper
def _from_unit(d, u, rows, width, inverses, at):
    """d ← (d − u(u·d))/‖x‖, the gradient of x from that of u = x/‖x‖."""
    for r in range(rows):
        along = dot_in_float64(d, u, r * width, width)
        for c in range(r * width, (r + N1) * width):
            d[c] = np.float32((np.float64(d[c]) - np.float64(u[c]) * along) * inverses[at + r])


@helper
def _write_bias_gradient(d, at, d_bias, start, keys):
    gradients = _floats_at(d_bias, 0)
    for k in range(keys):
        gradients[start + k] = d[at + k]


@inlined
def _load_operands(
    sizes, item, start, core, like, query, key, value, first, last, mask, vector, query_weight, key_weight, floats,
    ends, ranges, seen, inverses,
):  # fmt: skip
    """Copy an item's operands, zeros for what no query sees and for queries that see nothing, and map them."""
    queries, keys, width, value_width, columns, of_key = sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7]
    padded_rows, padded_keys, padded_width = round_up(queries), round_up(keys), round_up(width)
    q, k, v = _part(floats, sizes, 0), _part(floats, sizes, 1), _part(floats, sizes, 2)
    x, y = q, k
    if query_weight != N0:
        x = _part(floats, sizes, 3)
    if key_weight != N0:
        y = _part(floats, sizes, 4)
    padded_value_width, padded_columns, padded_of_key = round_up(value_width), round_up(columns), round_up(of_key)
    low, high = _find_ends(sizes, item, first, last, padded_rows, ends, ranges)
    _load_item(sizes, item, like, query, QUERY, N0, queries, columns, x, padded_columns, padded_rows)
    _load_item(sizes, item, like, key, KEY, low, high, of_key, y, padded_of_key, padded_keys)
    _load_item(sizes, item, like, value, VALUE, low, high, value_width, v, padded_value_width, padded_keys)
    if first != N0 or last != N0:
        _clear_blind(x, padded_columns, queries, ends)
    if mask != N0 or min(first, last) != N0:
        _find_seen(sizes, item, mask, ends, low, high, seen)
        _clear_hidden(y, padded_of_key, low, high, seen)
        _clear_hidden(v, padded_value_width, low, high, seen)
    if query_weight != N0:
        _map_rows(
            sizes, item, start, query_weight, QUERY_WEIGHT, x, padded_rows, columns, q, width, padded_width,
            _part(floats, sizes, 5),
        )  # fmt: skip
    if key_weight != N0:
        _map_rows(
            sizes, item, start, key_weight, KEY_WEIGHT, y, padded_keys, of_key, k, width, padded_width,
            _part(floats, sizes, 6),
        )  # fmt: skip
    if core == RELU_SUM:
        _add_ones(q, k, padded_width, queries, low, high)
    elif core == COSINE:
        _to_unit(q, queries, padded_width, inverses, N0)
        _to_unit(k, keys, padded_width, inverses, queries)
    if vector != N0:
        weight = _part(floats, sizes, 7)
        _load_item(sizes, item, weight, vector, VECTOR, N0, N1, width, weight, padded_width, N1)


@inlined
def _weigh_row(
    sizes, item, r, shape, number, rule, scale, alpha, sink, mask, bias, s, at, low, high, padded_keys, near, columns,
    needs_state,
):  # fmt: skip
    """s ← the weights of a row from its products, without dropout; return the row state and how many it sees."""
    hidden = np.float32(-np.inf) if rule == SOFTMAX or rule >= HARD else ZERO
    shape_row(shape, number, s, at, low, high, padded_keys, scale, hidden)
    visible = high - low
    if bias != N0:
        _add_bias(sizes, item, r, bias, s, at, low, high)
    if mask != N0:
        visible = _hide(sizes, item, r, mask, s, at, low, high, hidden)
    state = _weigh(rule, s, at, low, high, padded_keys, visible, sink, alpha, near, columns, needs_state)
    if mask != N0 and rule == SIGMOID:
        _hide(sizes, item, r, mask, s, at, low, high, ZERO)
    return state, visible


def _forward(
    start, stop, sizes, core, shape, rule, scale, number, alpha, query, key, value, first, last, mask, bias, parameter,
    vector, query_weight, key_weight, out, state, drop, like, floats, doubles, rows,
):  # fmt: skip
    """Compute the items start to stop.

    Args:
        start, stop: the range of items, counted over three leading dimensions.
        sizes: the last two leading dimensions, Q, K, F, V, and the widths of query and key, D and E, which are F where
            they are not mapped; then the strides of all tensors; then where the parts of `floats` begin.
        core: the number of a core: products, squared distances, sums, sums of tanh, or products of unit vectors.
        shape, number: the function that follows, as in `weights_kernel` and `row_registers_kernel`, and its number.
        rule: the number of a normalizer, as there or above.
        scale: multiplies the products.
        alpha: of entmax; 2 is sparsemax.
        query, key, value: addresses.
        first, last: addresses of the range of keys that a row sees, int32; 0 for none.
        mask, bias: addresses, of bytes and float32, over (Q, K); 0 for none.
        parameter: the address of the sink, or a sigmoid's bias, of each item, float32; 0 for none.
        vector: the address of what multiplies the features of each item under TANH_SUM, (F), float32; 0 for none.
        query_weight, key_weight: addresses of matrices that map queries, (F, D), and keys, (F, E), float32; 0 for none.
        out: the address of the output.
        state: the address of the row states, (items, Q), float64; 0 if not requested.
        drop: seed, threshold and the bits of 1/(1 − p) of dropout; empty for none.
        like: an empty array of the operands' type.
        floats, doubles, rows: scratch of this thread: `scratch_parts`; (K + 1) numbers, K more, and Q + K; two for each
            row, and for each eight rows.
    """
    queries, keys, width, value_width = sizes[2], sizes[3], sizes[4], sizes[5]
    padded_rows, padded_keys = round_up(queries), round_up(keys)
    padded_width, padded_value_width = round_up(width), round_up(value_width)
    ends, ranges = rows[:padded_rows], rows[padded_rows:]
    q, k, v = _part(floats, sizes, 0), _part(floats, sizes, 1), _part(floats, sizes, 2)
    weight, columns, t = _part(floats, sizes, 7), _part(floats, sizes, 8), _part(floats, sizes, 9)
    s, o = _part(floats, sizes, 10), _part(floats, sizes, 11)
    near, seen = doubles[: keys + N1], doubles[keys + N1 : N2 * keys + N1].view(np.uint64)
    inverses = doubles[N2 * keys + N1 :]
    states, parameters = _doubles_at(state, 0), _floats_at(parameter, 0)
    for item in range(start, stop):
        _load_operands(
            sizes, item, start, core, like, query, key, value, first, last, mask, vector, query_weight, key_weight,
            floats, ends, ranges, seen, inverses,
        )  # fmt: skip
        transpose_to_panels(k, padded_keys, padded_width, t)
        sink = np.float32(-np.inf)
        if parameter != N0:
            sink = parameters[_place(sizes, PARAMETER, item)]
        for block in range((queries + BLOCK - N1) // BLOCK):
            # A block's scores and weights stay in the L1 cache.
            _score(core, s, N0, padded_keys, q, padded_width, t, ranges, block, weight)
            count = min(BLOCK, queries - block * BLOCK)
            clear(s, count * padded_keys, BLOCK * padded_keys)
            for i in range(count):
                r, at = block * BLOCK + i, i * padded_keys
                low, high = ends[r, 0], ends[r, 1]
                row_state, _ = _weigh_row(
                    sizes, item, r, shape, number, rule, scale, alpha, sink, mask, bias, s, at, low, high, padded_keys,
                    near, columns, state != N0,
                )  # fmt: skip
                if state != N0:
                    states[item * queries + r] = row_state
                if drop.size:
                    bits, keep = row_bits(drop[0], item * queries + r), np.float32(drop[2:3].view(np.float64)[0])
                    _drop(s, at, low, high, bits, drop[1], keep)
            multiply_visible(o, N0, padded_value_width, s, N0, padded_keys, v, ranges, block)
            _store_item(sizes, item, like, o, N0, block * BLOCK, count, value_width, padded_value_width, out, OUT)


def _backward(
    start, stop, sizes, core, shape, rule, scale, number, alpha, query, key, value, first, last, mask, bias, parameter,
    vector, query_weight, key_weight, winners, grad, d_query, d_key, d_value, d_parameter, d_bias, d_vector,
    d_query_weight, d_key_weight, drop, like, floats, doubles, rows,
):  # fmt: skip
    """Compute the gradients of the items start to stop, with recomputed weights.

    Args:
        start, stop, sizes, core, shape, rule, scale, number, alpha, query, key, value, first, last, mask, bias,
            parameter, vector, query_weight, key_weight, drop, like, floats, doubles, rows: as `forward`.
        winners: the address of the row states of POSITION, which needs nothing else; 0 for other normalizers.
        grad: the address of the output's gradient, whose strides take the place of the output's.
        d_query, d_key, d_value: addresses of the gradients; only that of the values has numbers where scores have no
            slope.
        d_parameter: the address of the gradient of each item's sink, float64; 0 if not requested.
        d_bias, d_vector: likewise of the bias, (items, Q, K), and of the vector, (items, F); float32.
        d_query_weight, d_key_weight: likewise of the matrices, zeros to which the items are added.
    """
    queries, keys, width, value_width = sizes[2], sizes[3], sizes[4], sizes[5]
    padded_rows, padded_keys = round_up(queries), round_up(keys)
    padded_width, padded_value_width = round_up(width), round_up(value_width)
    ends, ranges = rows[:padded_rows], rows[padded_rows:]
    q, k, v = _part(floats, sizes, 0), _part(floats, sizes, 1), _part(floats, sizes, 2)
    mapped_q, mapped_k = _part(floats, sizes, 3), _part(floats, sizes, 4)
    weight, columns, t = _part(floats, sizes, 7), _part(floats, sizes, 8), _part(floats, sizes, 9)
    s, g, u, d = _part(floats, sizes, 10), _part(floats, sizes, 11), _part(floats, sizes, 12), _part(floats, sizes, 13)
    x, spare, d_weight = _part(floats, sizes, 14), _part(floats, sizes, 15), _part(floats, sizes, 16)
    to_query, to_key, m = _part(floats, sizes, 17), _part(floats, sizes, 18), _part(floats, sizes, 19)
    near, seen = doubles[: keys + N1], doubles[keys + N1 : N2 * keys + N1].view(np.uint64)
    inverses = doubles[N2 * keys + N1 :]
    parameters, d_parameters = _floats_at(parameter, 0), _doubles_at(d_parameter, 0)
    # The gradient of ‖q − k‖² with respect to q is 2(q − k).
    factor = scale * TWO if core == DISTANCE else scale
    has_slope = shape != BOXCAR
    needs_scores = has_slope or max(d_parameter, d_bias) != N0
    for item in range(start, stop):
        if winners != N0:
            _find_ends(sizes, item, first, last, padded_rows, ends, ranges)
            _load_item(sizes, item, like, grad, OUT, N0, queries, value_width, g, padded_value_width, queries)
            clear(t, N0, keys * padded_value_width)
            _sum_selected(sizes, item, mask, _doubles_at(winners, 0), ends, g, t, padded_value_width, drop)
            _store_item(sizes, item, like, t, N0, N0, keys, value_width, padded_value_width, d_value, D_VALUE)
            continue
        _load_operands(
            sizes, item, start, core, like, query, key, value, first, last, mask, vector, query_weight, key_weight,
            floats, ends, ranges, seen, inverses,
        )  # fmt: skip
        _load_item(sizes, item, like, grad, OUT, N0, queries, value_width, g, padded_value_width, padded_rows)
        if first != N0 or last != N0:
            _clear_blind(g, padded_value_width, queries, ends)
        transpose_to_panels(k, padded_keys, padded_width, t)
        if needs_scores:
            transpose_to_panels(v, padded_keys, padded_value_width, u)
        sink, g_sink = np.float32(-np.inf), 0.0
        if parameter != N0:
            sink = parameters[_place(sizes, PARAMETER, item)]
        for block in range(padded_rows // BLOCK):
            to = block * BLOCK * padded_keys
            _score(core, s, to, padded_keys, q, padded_width, t, ranges, block, weight)
            if needs_scores:
                multiply_panels(d, to, padded_keys, g, padded_value_width, u, ranges, block, g)
            stop_row = min(block * BLOCK + BLOCK, queries)
            for r in range(block * BLOCK, stop_row):
                at, low, high = r * padded_keys, ends[r, 0], ends[r, 1]
                if has_slope and shape != LINEAR:
                    for j in range(low // LANES * LANES, round_up(high)):
                        x[j] = s[at + j]
                row_state, visible = _weigh_row(
                    sizes, item, r, shape, number, rule, scale, alpha, sink, mask, bias, s, at, low, high, padded_keys,
                    near, columns, sink != -np.inf,
                )  # fmt: skip
                bits, keep = np.uint32(0), ONE
                if drop.size:
                    bits, keep = row_bits(drop[0], item * queries + r), np.float32(drop[2:3].view(np.float64)[0])
                    if needs_scores:
                        _drop(d, at, low, high, bits, drop[1], keep)
                if needs_scores:
                    mean = _unweigh(
                        rule, s, d, at, low, high, padded_keys, visible, row_state, alpha, spare, columns
                    )  # fmt: skip
                    if sink != -np.inf and rule == SOFTMAX:
                        g_sink -= np.exp(np.float64(sink) - row_state) * mean
                    if d_bias != N0:
                        if mask != N0:
                            _hide(sizes, item, r, mask, d, at, low, high, ZERO)
                        _write_bias_gradient(d, at, d_bias, (item * queries + r) * keys, keys)
                    shape_gradient(shape, number, d, at, x, low, high, padded_keys, scale, factor)
                    if mask != N0:
                        _hide(sizes, item, r, mask, d, at, low, high, ZERO)
                if drop.size:
                    _drop(s, at, low, high, bits, drop[1], keep)
            clear(s, stop_row * padded_keys, (block + N1) * BLOCK * padded_keys)
            clear(d, stop_row * padded_keys, (block + N1) * BLOCK * padded_keys)
        if d_parameter != N0:
            d_parameters[item] = g_sink
        multiply_transposed(t, padded_value_width, padded_keys, s, padded_keys, g, ranges, padded_rows, v, False)
        _store_item(sizes, item, like, t, N0, N0, keys, value_width, padded_value_width, d_value, D_VALUE)
        if has_slope:
            differences, column, d_q = core == DISTANCE, N0, t
            if core == TANH_SUM:
                d_q = q
                tanh_gradients(d, padded_keys, q, k, weight, t, d_weight, padded_width, queries, padded_rows, ends)
                if d_vector != N0:
                    store(d_weight, N0, N1, width, padded_width, _floats_at(d_vector, 0), item * width, width, N1)
            else:
                column = N1 if core == RELU_SUM else N0
                multiply_transposed(
                    t, padded_width, padded_keys, d, padded_keys, q, ranges, padded_rows, k, differences
                )
                if core == COSINE:
                    _from_unit(t, k, keys, padded_width, inverses, queries)
            _store_gradient(
                sizes, item, start, like, t, column, mapped_k, keys, sizes[7], width, padded_width, key_weight,
                KEY_WEIGHT, to_key, m, d_key_weight, D_KEY_WEIGHT, d_key, D_KEY,
            )  # fmt: skip
            if core != TANH_SUM:
                for block in range(padded_rows // BLOCK):
                    to, row = block * BLOCK * padded_width, block * BLOCK * padded_keys
                    if differences:
                        low, high = ranges[block, 0], max(ranges[block, 0], ranges[block, 1])
                        weighted_differences(
                            t, to, padded_width, d, row + low, padded_keys, N1, k, low * padded_width, padded_width,
                            high - low, q, to, padded_width,
                        )  # fmt: skip
                    else:
                        multiply_visible(t, to, padded_width, d, row, padded_keys, k, ranges, block)
            if core == COSINE:
                _from_unit(t, q, queries, padded_width, inverses, N0)
            _store_gradient(
                sizes, item, start, like, d_q, N0, mapped_q, queries, sizes[6], width, padded_width, query_weight,
                QUERY_WEIGHT, to_query, m, d_query_weight, D_QUERY_WEIGHT, d_query, D_QUERY,
            )  # fmt: skip


def _kernels(function, addresses):
    """Return a kernel for each type of operands, float32 and the bits of bfloat16, by the size of a number."""
    signature = (
        f"void(u8, u8, u8[::1], i8, i8, i8, F, f8, f8, {'u8, ' * addresses}u8[::1], T[::1], F[::1], f8[::1], u8[:,::1])"
    )
    return {
        size: Kernel(function, signature.replace("T", letter), scratch=3, single=True)
        for size, letter in ((4, "f4"), (2, "u2"))
    }


forward, backward = _kernels(_forward, 13), _kernels(_backward, 21)
