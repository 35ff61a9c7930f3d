"""Score and mask functions of many kinds, written out and drawn at random, for any sizes.

Each works on scalars, as PyTorch calls it, and on tensors that broadcast, which is its literal evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from math import inf, nan, pi
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import and_masks, or_masks

Function = Callable[..., Tensor]


@dataclass
class Drawn:
    """Tables that functions close over, of given sizes.

    Attributes:
        batch, heads, queries, keys: the sizes.
        learned: the tables that need a gradient, in the order in which they were made.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    generator: torch.Generator
    learned: list[Tensor] = field(default_factory=list)

    @property
    def positions(self) -> int:
        """Enough for queries and keys."""
        return max(self.queries, self.keys)

    def floats(self, *shape: int) -> Tensor:
        """Return a table that learns."""
        table = torch.randn(shape, generator=self.generator, dtype=torch.float64).requires_grad_()
        self.learned.append(table)
        return table

    def fixed(self, *shape: int) -> Tensor:
        """Return a table that does not learn."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def integers(self, most: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return a table of integers below a limit."""
        return torch.randint(most, shape, generator=self.generator).to(dtype)

    def bools(self, *shape: int) -> Tensor:
        """Return a table of truth values."""
        return torch.rand(shape, generator=self.generator) < 0.6

    def documents(self) -> Tensor:
        """Return ascending ids of documents, one for each position."""
        return self.integers(3, self.positions).sort().values


Make = Callable[[Drawn], Function]

SCORES: dict[str, Make] = {
    "a constant": lambda d: lambda s, b, h, i, j: torch.full_like(s, 0.5),
    "a constant beside the score": lambda d: lambda s, b, h, i, j: s * 0 + 2.0,
    "nothing of the score, of pairs": lambda d: lambda s, b, h, i, j: (i - j).to(s.dtype) / 9,
    "zero times": lambda d: lambda s, b, h, i, j: 0.0 * s + (i % 3 == j % 3).to(s.dtype),
    "of batch alone": lambda d: _by_batch(d.floats(d.batch)),
    "of head alone": lambda d: _by_head(d.floats(d.heads)),
    "of batch and head, times": lambda d: _times_item(d.floats(d.batch, d.heads)),
    "a temperature by head, squared": lambda d: _by_square(d.floats(d.heads)),
    "a learned number": lambda d: _learned_number(d.floats()),
    "a learned number in a list": lambda d: _learned_in_list(d.floats(1)),
    "a learned exponential": lambda d: _learned_decay(d.floats(d.heads)),
    "a gate by query and one by key": lambda d: _gates(d.floats(d.queries), d.floats(d.keys)),
    "a gate by item, head and query": lambda d: _gate_of_rows(d.floats(d.batch, d.heads, d.queries)),
    "a table of all pairs": lambda d: _all_pairs(d.floats(d.batch, d.heads, d.queries, d.keys)),
    "a table turned": lambda d: _turned(d.floats(d.keys, d.queries, d.heads)),
    "a table read backwards": lambda d: _backwards(d.floats(d.positions)),
    "a table of a table": lambda d: _table_of_table(d.integers(5, d.keys), d.floats(5, d.heads)),
    "a table of three tables": lambda d: _deep(d.integers(4, d.keys), d.integers(3, 4), d.floats(3)),
    "a table of 32-bit integers": lambda d: _of_ids(d.integers(5, d.positions, dtype=torch.int32), d.floats(5, 5)),
    "a table of one entry": lambda d: _one_entry(d.floats(1, 1)),
    "a table with strides": lambda d: _strided(d.floats(2 * d.positions, 3)),
    "a table that is expanded": lambda d: _expanded(d.floats(1, d.keys), d.queries),
    "a relative table, clamped": lambda d: _relative(d.floats(d.heads, 15), 7),
    "a relative table, by logarithms": lambda d: _buckets(d.floats(8, d.heads)),
    "a relative table, from the end": lambda d: _from_end(d.floats(2 * d.positions), d.queries, d.keys),
    "a 2-D relative table": lambda d: _grid_table(d.floats(2 * 5, 2 * 30), 5),
    "distance in 2-D": lambda d: _grid_distance(7),
    "a sine of the distance": lambda d: lambda s, b, h, i, j: s + torch.sin((i - j) * (pi / 7)) * (h + 1),
    "rotary phases": lambda d: _phases(d.floats(4)),
    "a power of the distance": lambda d: lambda s, b, h, i, j: s - ((i - j) ** 2).to(s.dtype) * 1e-3,
    "a root of the distance": lambda d: lambda s, b, h, i, j: s - (i - j).abs().to(s.dtype).sqrt() / (h + 1),
    "a floored quotient": lambda d: lambda s, b, h, i, j: s + (i - j) // 4 * 0.05,
    "a truncated quotient": lambda d: lambda s, b, h, i, j: s + torch.div(i - j, 4, rounding_mode="trunc") * 0.05,
    "a remainder of negatives": lambda d: lambda s, b, h, i, j: s + ((j - i) % 5) * 0.1,
    "a remainder like C's": lambda d: lambda s, b, h, i, j: s + torch.fmod(j - i, 5) * 0.1,
    "bits": lambda d: lambda s, b, h, i, j: s + ((i ^ j) & 7).to(s.dtype) * 0.1 + ((i << 1) >> 2) * 0.01,
    "truth values as numbers": lambda d: lambda s, b, h, i, j: s + (i > j) * 0.5 + (h == 1).int() * 0.25,
    "narrow integers": lambda d: lambda s, b, h, i, j: s + (i * 37).to(torch.int8).to(s.dtype) / 100,
    "unsigned integers": lambda d: lambda s, b, h, i, j: s + (i - j).to(torch.uint8).to(s.dtype) / 100,
    "a half on the way": lambda d: lambda s, b, h, i, j: s + (i.to(torch.bfloat16) / 3).to(s.dtype),
    "rounded": lambda d: lambda s, b, h, i, j: s + torch.round((i - j) / 3.0) * 0.1,
    "a sign": lambda d: lambda s, b, h, i, j: s + torch.sign(i - j) * 0.5,
    "where of three": lambda d: _three_ways(d.floats(3)),
    "switched by head": lambda d: _switched(d.integers(4, d.heads)),
    "a switch of caps": lambda d: lambda s, b, h, i, j: torch.where(h % 2 == 0, 3 * torch.tanh(s / 3), s),
    "a cap after a bias": lambda d: _capped_bias(d.floats(d.heads, d.keys)),
    "a cap within a cap": lambda d: lambda s, b, h, i, j: 5 * torch.tanh(2 * torch.tanh(s / 2) / 5),
    "a learned cap": lambda d: _learned_cap(d.floats(d.heads)),
    "clamped scores": lambda d: lambda s, b, h, i, j: s.clamp(-0.5, 0.75),
    "clamped below": lambda d: lambda s, b, h, i, j: torch.clamp(s, min=-0.1) + torch.clamp(i - j, max=3) * 0.1,
    "a leaky score": lambda d: lambda s, b, h, i, j: torch.nn.functional.leaky_relu(s, 0.2),
    "a polynomial": lambda d: lambda s, b, h, i, j: s * s * s - 2 * s**2 + s / 2,
    "the logarithm of a sum": lambda d: lambda s, b, h, i, j: torch.logaddexp(s, 0.1 * i.to(s.dtype)),
    "the larger of two": lambda d: _larger(d.floats(d.keys)),
    "a sigmoid": lambda d: lambda s, b, h, i, j: 4 * torch.sigmoid(s) + torch.erf(s),
    "a division by a table": lambda d: _divided(d.fixed(d.heads)),
    "reversed operators": lambda d: lambda s, b, h, i, j: 1 - (2 - s) + 1 / (1 + j) - (3 - 2 * s) / 4,
    "in place": lambda d: _in_place,
    "a mask by −∞ and a bias": lambda d: _masked_bias(d.floats(d.heads, d.positions)),
    "a mask by addition": lambda d: lambda s, b, h, i, j: s + torch.where(i >= j, 0.0, -inf),
    "a mask by filling": lambda d: lambda s, b, h, i, j: s.masked_fill((i < j) | (j % 4 == 1), -inf),
    "two masks, one after the other": lambda d: _two_masks,
    "a mask times two": lambda d: lambda s, b, h, i, j: torch.where(i >= j, s, -inf) * 2,
    "a mask of a mask's score": lambda d: lambda s, b, h, i, j: torch.where(s > -0.3, s, -inf),
    "a large negative number": lambda d: lambda s, b, h, i, j: torch.where((i - j).abs() < 5, s, -1e30),
    "a mask and a cap": lambda d: lambda s, b, h, i, j: torch.where(j <= i, 2 * torch.tanh(s / 2), -inf),
    "a negated mask": lambda d: lambda s, b, h, i, j: -torch.where(i >= j, -s, inf),
    "the smaller of a mask": lambda d: lambda s, b, h, i, j: torch.minimum(s, torch.where(i >= j, inf, -inf)),
    "a table with −∞": lambda d: _with_infinity(d.bools(d.queries, d.keys), d.floats(d.queries, d.keys)),
}
"""Score functions."""


def _by_batch(table: Tensor) -> Function:
    return lambda s, b, h, i, j: table[b] * j.to(table.dtype) / 10 + s


def _by_head(table: Tensor) -> Function:
    return lambda s, b, h, i, j: s + table[h]


def _times_item(table: Tensor) -> Function:
    return lambda s, b, h, i, j: s * table[b, h]


def _by_square(table: Tensor) -> Function:
    return lambda s, b, h, i, j: s / (0.1 + table[h].square())


def _learned_number(number: Tensor) -> Function:
    return lambda s, b, h, i, j: s * number + number * (i - j).abs() / 10


def _learned_in_list(number: Tensor) -> Function:
    numbers = [number, {"twice": 2 * number}]
    return lambda s, b, h, i, j: s + numbers[0][0] * j / 20 - numbers[1]["twice"][0] * (i == j)  # type: ignore[index,call-overload]


def _learned_decay(rates: Tensor) -> Function:
    return lambda s, b, h, i, j: s - torch.nn.functional.softplus(rates[h]) * (i - j).abs()


def _gates(of_query: Tensor, of_key: Tensor) -> Function:
    return lambda s, b, h, i, j: torch.sigmoid(of_query[i]) * s + of_key[j]


def _gate_of_rows(gate: Tensor) -> Function:
    return lambda s, b, h, i, j: s * torch.exp(gate[b, h, i])


def _all_pairs(table: Tensor) -> Function:
    return lambda s, b, h, i, j: s + table[b, h, i, j]


def _turned(table: Tensor) -> Function:
    turned = table.permute(2, 1, 0)
    return lambda s, b, h, i, j: s - turned[h, i, j]


def _backwards(table: Tensor) -> Function:
    return lambda s, b, h, i, j: s + table[-1 - j] - table[-(i + 1)]


def _table_of_table(kinds: Tensor, table: Tensor) -> Function:
    return lambda s, b, h, i, j: s + table[kinds[j], h]


def _deep(first: Tensor, second: Tensor, third: Tensor) -> Function:
    return lambda s, b, h, i, j: s * (1 + third[second[first[j]]] / 4)


def _of_ids(ids: Tensor, table: Tensor) -> Function:
    return lambda s, b, h, i, j: s + table[ids[i], ids[j]]


def _one_entry(table: Tensor) -> Function:
    return lambda s, b, h, i, j: s + table[0, 0] * j / 10 + table[i * 0, j * 0]


def _strided(table: Tensor) -> Function:
    view = table[::2, 1]
    return lambda s, b, h, i, j: s + view[j] * view[i]


def _expanded(table: Tensor, queries: int) -> Function:
    whole = table.expand(queries, -1)
    return lambda s, b, h, i, j: s + whole[i, j]


def _relative(table: Tensor, reach: int) -> Function:
    return lambda s, b, h, i, j: s + table[h, (j - i).clamp(-reach, reach) + reach]


def _buckets(table: Tensor) -> Function:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = (i - j).abs()
        far = 4 + (torch.log2(distance.clamp(min=4).to(torch.float64) / 4) * 0.9).long()
        return s + table[torch.where(distance < 4, distance, far.clamp(max=7)), h]

    return score


def _from_end(table: Tensor, queries: int, keys: int) -> Function:
    return lambda s, b, h, i, j: s + table[(i + keys - queries - j).abs()]


def _grid_table(table: Tensor, width: int) -> Function:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        down, right = i // width - j // width, i % width - j % width
        return s + table[right + width - 1, down.clamp(-30, 29) + 30]

    return score


def _grid_distance(width: int) -> Function:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        down, right = i // width - j // width, i % width - j % width
        return s - (down * down + right * right).to(s.dtype).sqrt() * (0.1 * (h + 1))

    return score


def _phases(phases: Tensor) -> Function:
    return lambda s, b, h, i, j: s + torch.cos(phases[(i - j) % 4] + i) * torch.sin(phases[j % 4])


def _three_ways(table: Tensor) -> Function:
    return lambda s, b, h, i, j: torch.where(i > j, s + table[0], torch.where(i == j, table[1] * s, s - table[2]))


def _switched(kinds: Tensor) -> Function:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        kind = kinds[h]
        ahead = torch.where(kind == 1, s - (i - j).abs() / 10, torch.where(i >= j, s, -inf))
        return torch.where(kind == 0, s, torch.where(kind == 2, 2 * s, ahead))

    return score


def _capped_bias(table: Tensor) -> Function:
    return lambda s, b, h, i, j: 2 * torch.tanh((s + table[h, j]) / 2) + table[h, j] / 3


def _learned_cap(caps: Tensor) -> Function:
    return lambda s, b, h, i, j: caps[h] * torch.tanh(s / (1 + caps[h].abs()))


def _larger(table: Tensor) -> Function:
    return lambda s, b, h, i, j: torch.maximum(s, table[j] * 0.5) + torch.minimum(s, -table[j])


def _divided(table: Tensor) -> Function:
    return lambda s, b, h, i, j: s / table[h] - torch.reciprocal(1.0 + j)


def _in_place(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    shifted = s + (i - j) / 10
    shifted = shifted * 2
    return shifted.neg().abs().neg()


def _masked_bias(table: Tensor) -> Function:
    return lambda s, b, h, i, j: torch.where((i - j).abs() <= 6, s + table[h, (i - j).abs()], -inf)


def _two_masks(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    s = torch.where(i >= j, s, -inf)
    return torch.where(i - j < 9 - h, s + 0.1 * j, -inf)


def _with_infinity(seen: Tensor, table: Tensor) -> Function:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + torch.where(seen[i, j], table[i, j], -inf)

    return score


MASKS: dict[str, Make] = {
    "everything": lambda d: lambda b, h, i, j: i >= 0,
    "nothing": lambda d: lambda b, h, i, j: i < 0,
    "a constant table": lambda d: _flag(torch.tensor(True)),
    "of batch alone": lambda d: _of_batch(d.bools(d.batch)),
    "of head alone": lambda d: lambda b, h, i, j: h != 1,
    "of batch and head": lambda d: _of_item(d.bools(d.batch, d.heads)),
    "of queries alone": lambda d: _of_query(d.bools(d.queries)),
    "of keys alone": lambda d: _of_key(d.bools(d.batch, d.keys)),
    "all pairs": lambda d: _of_pairs(d.bools(d.batch, 1, d.queries, d.keys)),
    "integers as truth": lambda d: _of_integers(d.integers(2, d.keys)),
    "document, window, prefix": lambda d: _document_window_prefix(d.documents()),
    "documents by item, causal": lambda d: _documents_by_item(d.integers(3, d.batch, d.positions).sort(-1).values),
    "documents out of order": lambda d: _documents_by_item(d.integers(3, d.batch, d.positions)),
    "a prefix by item": lambda d: _prefixes(d.integers(d.keys + 1, d.batch)),
    "lengths of both": lambda d: _lengths(d.integers(d.queries + 1, d.batch), d.integers(d.keys + 1, d.batch)),
    "a window by head": lambda d: _windows(d.integers(9, d.heads)),
    "a window by query": lambda d: _windows_by_query(d.integers(9, d.queries)),
    "a band with a hole": lambda d: lambda b, h, i, j: ((i - j).abs() < 12) & ~((i - j).abs() < 3),
    "dilated": lambda d: lambda b, h, i, j: ((i - j) % (h + 2) == 0) & (i >= j),
    "strided, with sinks": lambda d: lambda b, h, i, j: (j < 2) | ((i - j >= 0) & (i - j < 6)) | (j % 8 == 7),
    "blocks": lambda d: lambda b, h, i, j: i // 8 == j // 8,
    "causal blocks": lambda d: lambda b, h, i, j: i // 5 >= j // 5,
    "blocks that shift by head": lambda d: lambda b, h, i, j: (i + 3 * h) // 6 == (j + 3 * h) // 6,
    "a 2-D neighborhood": lambda d: _neighborhood(7, 2),
    "a 2-D neighborhood, around": lambda d: _around(5, 1),
    "a checkerboard": lambda d: lambda b, h, i, j: (i + j + h) % 2 == 0,
    "bits": lambda d: lambda b, h, i, j: (i & j) == 0,
    "aligned at the end": lambda d: _aligned(d.keys - d.queries),
    "from the end": lambda d: _mirrored(d.queries, d.keys),
    "double the speed": lambda d: lambda b, h, i, j: j <= 2 * i + 1,
    "half the speed": lambda d: lambda b, h, i, j: 2 * j <= i + 3,
    "a triangle": lambda d: lambda b, h, i, j: i + j < 20,
    "an offset by item": lambda d: _offsets(d.integers(9, d.batch, dtype=torch.int32)),
    "exclusive or": lambda d: lambda b, h, i, j: (i >= j) ^ (j % 3 == 0),
    "an implication": lambda d: lambda b, h, i, j: ~(j < 4) | (i < 8),
    "nested functions": lambda d: _nested(d.documents()),
    "deeply nested": lambda d: _deeply(d.integers(9, 6).tolist()),
    "a choice": lambda d: lambda b, h, i, j: torch.where(h == 0, i >= j, (i - j).abs() < 4),
    "a choice of tables": lambda d: _choice(d.bools(d.heads), d.bools(d.keys)),
    "by a threshold": lambda d: _threshold(d.fixed(d.heads, d.keys)),
    "not above a threshold, of NaN": lambda d: _not_above(d.fixed(d.keys)),
    "not within, of NaN": lambda d: _not_within(d.fixed(d.queries), d.fixed(d.keys)),
    "by distance in the plane": lambda d: _near(d.fixed(d.positions), d.fixed(d.positions)),
    "by logarithm": lambda d: lambda b, h, i, j: torch.log2((i - j).abs() + 1.0) % 1 == 0,
    "clamped indices": lambda d: _clamped(d.bools(7)),
    "a permutation": lambda d: _permuted(torch.randperm(d.positions, generator=d.generator)),
    "a tree": lambda d: _tree(d.integers(4, d.positions)),
    "comparison to a float": lambda d: lambda b, h, i, j: i - j >= -0.5 + h,
    "a chain of comparisons": lambda d: lambda b, h, i, j: (j >= i - 4) & (i - 4 >= -3) & (j < 100) & (j > -1),
    "large numbers": lambda d: lambda b, h, i, j: i * 1_000_003 >= j * 1_000_003 - 2_000_000,
    "products of positions": lambda d: lambda b, h, i, j: i * j < 50 + 100 * h,
    "signs of positions": lambda d: lambda b, h, i, j: -(i - 3) <= j - 5,
}
"""Mask functions."""


def _flag(flag: Tensor) -> Function:
    return lambda b, h, i, j: flag & (j >= 0)


def _of_batch(table: Tensor) -> Function:
    return lambda b, h, i, j: table[b]


def _of_item(table: Tensor) -> Function:
    return lambda b, h, i, j: table[b, h]


def _of_query(table: Tensor) -> Function:
    return lambda b, h, i, j: table[i]


def _of_key(table: Tensor) -> Function:
    return lambda b, h, i, j: table[b, j]


def _of_pairs(table: Tensor) -> Function:
    return lambda b, h, i, j: table[b, 0, i, j]


def _of_integers(table: Tensor) -> Function:
    return lambda b, h, i, j: table[j] & (i >= 0)


def _document_window_prefix(ids: Tensor) -> Function:
    def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ids[i] == ids[j]

    return and_masks(same, or_masks(lambda b, h, i, j: (i - j < 7) & (i >= j), lambda b, h, i, j: j < 3))


def _documents_by_item(ids: Tensor) -> Function:
    return lambda b, h, i, j: (ids[b, i] == ids[b, j]) & (i >= j)


def _prefixes(prefix: Tensor) -> Function:
    return lambda b, h, i, j: (j <= i) | (j < prefix[b])


def _lengths(queries: Tensor, keys: Tensor) -> Function:
    return lambda b, h, i, j: (i < queries[b]) & (j < keys[b])


def _windows(reach: Tensor) -> Function:
    return lambda b, h, i, j: (i - j).abs() <= reach[h]


def _windows_by_query(reach: Tensor) -> Function:
    return lambda b, h, i, j: (j <= i + reach[i]) & (j >= i - 2 * reach[i])


def _neighborhood(width: int, reach: int) -> Function:
    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        down, right = (i // width - j // width).abs(), (i % width - j % width).abs()
        return (down <= reach) & (right <= reach)

    return seen


def _around(width: int, reach: int) -> Function:
    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        right = (i - j) % width
        return ((i // width - j // width).abs() <= reach) & ((right <= reach) | (right >= width - reach))

    return seen


def _aligned(more: int) -> Function:
    return lambda b, h, i, j: j <= i + more


def _mirrored(queries: int, keys: int) -> Function:
    return lambda b, h, i, j: queries - 1 - i <= keys - 1 - j


def _offsets(table: Tensor) -> Function:
    return lambda b, h, i, j: i + table[b] >= j


def _nested(ids: Tensor) -> Function:
    causal, window = (lambda b, h, i, j: i >= j), (lambda b, h, i, j: (i - j).abs() < 5)
    return or_masks(
        and_masks(causal, lambda b, h, i, j: ids[i] == ids[j]),
        and_masks(window, or_masks(lambda b, h, i, j: h == 0, lambda b, h, i, j: j % 2 == 0)),
        lambda b, h, i, j: j == 0,
    )


def _deeply(numbers: list[int]) -> Function:
    def condition(number: int) -> Function:
        return lambda b, h, i, j: (i * (number + 1) - j) % (number + 2) < 2

    def join(one: Function, other: Function) -> Function:
        return and_masks(or_masks(one, other), or_masks(other, lambda b, h, i, j: i - j > 3))

    return reduce(join, map(condition, numbers))


def _choice(by_head: Tensor, by_key: Tensor) -> Function:
    return lambda b, h, i, j: torch.where(by_head[h], by_key[j], ~by_key[j] & (i >= j))


def _threshold(table: Tensor) -> Function:
    return lambda b, h, i, j: table[h, j] > -0.4


def _not_above(table: Tensor) -> Function:
    table = torch.where(table > 0.5, nan, table)
    return lambda b, h, i, j: ~(table[j] > 0.0)


def _not_within(of_query: Tensor, of_key: Tensor) -> Function:
    of_key = torch.where(of_key > 0.7, nan, torch.where(of_key < -1, inf, of_key))
    return lambda b, h, i, j: ~((of_query[i] < of_key[j]) & (of_key[j] <= of_query[i] + 1)) & ~(of_key[j] < -2)


def _near(x: Tensor, y: Tensor) -> Function:
    return lambda b, h, i, j: (x[i] - x[j]).square() + (y[i] - y[j]) ** 2 < 2.0


def _clamped(table: Tensor) -> Function:
    return lambda b, h, i, j: table[(j - i).clamp(-3, 3) + 3] | (i == j)


def _permuted(order: Tensor) -> Function:
    return lambda b, h, i, j: order[i] >= order[j]


def _tree(parents: Tensor) -> Function:
    return lambda b, h, i, j: (parents[i] == j) | (parents[j] == parents[i]) | (i == j)


def _scores_at(depth: int, d: Drawn, pick: Callable[[int], int]) -> Function:
    """Return a score function put together at random."""
    if depth == 0:
        names = sorted(SCORES)
        return SCORES[names[pick(len(names))]](d)
    one, other = _scores_at(depth - 1, d, pick), _scores_at(depth - 1, d, pick)
    seen, number = _mask_at(1, d, pick), d.floats()
    ways: list[Function] = [
        lambda s, b, h, i, j: other(one(s, b, h, i, j), b, h, i, j),
        lambda s, b, h, i, j: torch.where(seen(b, h, i, j), one(s, b, h, i, j), other(s, b, h, i, j)),
        lambda s, b, h, i, j: torch.where(seen(b, h, i, j), one(s, b, h, i, j), -inf),
        lambda s, b, h, i, j: one(s, b, h, i, j).clamp(-30, 30) * number + other(s, b, h, i, j).clamp(-30, 30),
        lambda s, b, h, i, j: torch.maximum(one(s, b, h, i, j), other(s, b, h, i, j)),
        lambda s, b, h, i, j: 3 * torch.tanh(one(s, b, h, i, j) / 3) + number * seen(b, h, i, j),
    ]
    return ways[pick(len(ways))]


def _mask_at(depth: int, d: Drawn, pick: Callable[[int], int]) -> Function:
    """Return a mask function put together at random."""
    if depth == 0:
        names = sorted(MASKS)
        return MASKS[names[pick(len(names))]](d)
    one, other, third = (_mask_at(depth - 1, d, pick) for _ in range(3))
    ways: list[Function] = [
        and_masks(one, other),
        or_masks(one, other),
        or_masks(and_masks(one, other), third),
        lambda b, h, i, j: ~_truth(one(b, h, i, j)) | _truth(other(b, h, i, j)),
        lambda b, h, i, j: _truth(one(b, h, i, j)) ^ _truth(third(b, h, i, j)),
        lambda b, h, i, j: torch.where(_truth(one(b, h, i, j)), other(b, h, i, j), third(b, h, i, j)).bool(),
    ]
    way = ways[pick(len(ways))]
    return lambda b, h, i, j: _truth(way(b, h, i, j))


def _truth(x: Tensor) -> Tensor:
    return x.bool()


def drawn(d: Drawn, depth: int) -> tuple[Function | None, Function | None]:
    """Draw a score function and a mask function; one of them can be missing."""

    def pick(count: int) -> int:
        return int(torch.randint(count, (), generator=d.generator))

    score = _scores_at(pick(depth + 1), d, pick) if pick(4) else None
    return score, _mask_at(pick(depth + 1), d, pick) if score is None or pick(3) else None


def literal(
    query: Tensor, key: Tensor, value: Tensor, score: Function | None, seen: Function | None, scale: float
) -> Tensor:
    """Return the output by the equation, on tensors that broadcast: (B, H, Q, V), and 0 for rows that see nothing."""
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    places: tuple[Any, ...] = (torch.arange(batch).view(-1, 1, 1, 1), torch.arange(heads).view(-1, 1, 1), i, j)
    s = query @ key.mT * scale
    if score is not None:
        s = score(s, *places).to(s.dtype).expand(batch, heads, queries, keys)
    if seen is not None:
        s = s.masked_fill(~seen(*places).bool().expand(s.shape), -inf)
    empty = (s == -inf).all(-1, keepdim=True)
    return s.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0) @ value
