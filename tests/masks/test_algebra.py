"""Masks combine like sets: `&`, `|` and `~` match dense booleans exactly, lowered whole or in tiles."""

import sys
from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import MaskError
from qkv.functional import attention
from qkv.masks.base import Bounds, Grid, Mask, MaskRows
from qkv.masks.lower import lower, matrix
from qkv.masks.patterns import causal, dense, documents, lengths, span, window
from qkv.shapes import Shape

CPU = torch.device("cpu")
Both = tuple[Mask, Tensor]


def grid_of(leading: Shape, queries: int, keys: int) -> Grid:
    return Grid(leading, queries, keys, CPU)


def per_item(numbers: Tensor, leading: Shape) -> Tensor:
    """Reshaped to broadcast to (..., Q, K)."""
    return numbers.reshape(*numbers.shape, *(1,) * (len(leading) - numbers.ndim), 1, 1)


LEAVES = ("causal", "end", "lengths", "queries", "span", "window", "documents", "two", "dense")


def leaf(draw: Random, leading: Shape, queries: int, keys: int, kind: str = "") -> Both:  # noqa: PLR0911
    """A mask and its table, built from the definition; a random kind unless one is given."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    g = torch.Generator().manual_seed(draw.randrange(10_000))
    items = leading[: draw.randint(0, len(leading))]
    numbers = torch.randint(-3, 9, items, generator=g)
    shift = per_item(numbers, leading)
    one, other = (torch.randint(0, 3, (*items, n), generator=g) for n in (queries, keys))
    match kind or draw.choice(LEAVES):
        case "causal":
            return causal(numbers), j <= i + shift
        case "end":
            return causal(align="end"), j - keys <= i - queries
        case "lengths":
            return lengths(numbers), (j < shift) & (i >= 0)
        case "queries":
            return lengths(None, numbers), (i < shift) & (j >= 0)
        case "span":
            return span(numbers, keys - 1), (j >= shift) & (j < keys - 1)
        case "window":
            left, right = draw.choice([None, 0, 3]), draw.choice([None, 0, 2])
            low = torch.full_like(shift, -99) if left is None else shift - left
            high = torch.full_like(shift, 99) if right is None else shift + right
            return window(left, right, offset=numbers), (j >= i + low) & (j <= i + high)
        case "documents" if queries == keys:
            ids = one.sort(-1).values if draw.random() < 0.5 else one
            return documents(ids), _same(ids, ids, leading)
        case "documents" | "two":
            return documents(one, other), _same(one, other, leading)
    table = torch.rand(*leading, queries, keys, generator=g) < 0.5
    return dense(table), table


def _same(one: Tensor, other: Tensor, leading: Shape) -> Tensor:
    own = [x.reshape(*x.shape[:-1], *(1,) * (len(leading) - x.ndim + 1), x.shape[-1]) for x in (one, other)]
    return own[0][..., :, None] == own[1][..., None, :]


def tree(draw: Random, leaves: int, grid: Grid) -> Both:
    if leaves == 1:
        return leaf(draw, grid.leading, grid.queries, grid.keys)
    left = draw.randint(1, leaves - 1)
    (one, means), (other, too) = tree(draw, left, grid), tree(draw, leaves - left, grid)
    match draw.choice("&&|~"):
        case "&":
            return one & other, means & too
        case "|":
            return one | other, means | too
    return ~one & other, ~means & too


@st.composite
def compositions(draw: st.DrawFn) -> tuple[Mask, Tensor, Grid]:
    leading = draw(st.sampled_from([(), (2,), (2, 3)]))
    grid = grid_of(leading, draw(st.integers(0, 7)), draw(st.integers(0, 7)))
    mask, meaning = tree(Random(draw(st.integers(0, 10_000))), draw(st.integers(1, 4)), grid)
    return mask, meaning.expand(*leading, grid.queries, grid.keys), grid


def whole(table: Tensor | None, grid: Grid) -> Tensor:
    full = (*grid.leading, grid.queries, grid.keys)
    return torch.ones(full, dtype=torch.bool) if table is None else table.expand(full)


@settings(max_examples=120)
@given(compositions())
def test_lowering_is_exact(given_: tuple[Mask, Tensor, Grid]) -> None:
    mask, meaning, grid = given_
    assert torch.equal(whole(lower(mask, grid).matrix(), grid), meaning)
    assert torch.equal(matrix(mask, grid.queries, grid.keys, grid.leading), meaning)


@pytest.mark.parametrize("other", LEAVES)
@pytest.mark.parametrize("one", LEAVES)
def test_lowering_of_every_two_kinds_is_exact(one: str, other: str) -> None:
    grid = grid_of((2,), 6, 7)
    for seed in range(4):
        (left, means), (right, too) = (leaf(Random(seed), grid.leading, 6, 7, kind) for kind in (one, other))
        for mask, meaning in ((left & right, means & too), (left | right, means | too), (left & ~right, means & ~too)):
            lowered = lower(mask, grid)
            assert torch.equal(whole(lowered.matrix(), grid), meaning.expand(2, 6, 7))
            assert torch.equal(lowered.count().expand(2, 6), meaning.expand(2, 6, 7).sum(-1))


@settings(max_examples=100)
@given(compositions(), st.data())
def test_tiles_are_parts_of_the_whole(given_: tuple[Mask, Tensor, Grid], data: st.DataObject) -> None:
    mask, meaning, grid = given_
    rows, columns = (
        slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in (grid.queries, grid.keys)
    )
    part = meaning[..., rows, columns]
    tile = lower(mask, grid).tile(rows, columns)
    assert torch.equal(torch.ones_like(part) if tile is None else tile.expand(part.shape), part)


class Yours(Mask):
    """A user-defined mask, which only answers for positions of the whole."""

    def __init__(self, inner: Mask, interval: bool) -> None:
        self.inner, self.interval = inner, interval

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.inner.visible(grid, rows_Q1, columns_K)

    def bounds(self, grid: Grid) -> Bounds | None:
        return self.inner.bounds(grid) if self.interval else None


@st.composite
def any_masks(draw: st.DrawFn) -> tuple[Mask, Tensor, Grid]:
    mask, meaning, grid = draw(compositions())
    yours = draw(st.sampled_from(["no", "yes", "an interval"]))
    return mask if yours == "no" else Yours(mask, yours != "yes"), meaning, grid


@settings(max_examples=120)
@given(any_masks(), st.data())
def test_an_item_is_that_of_the_whole(given_: tuple[Mask, Tensor, Grid], data: st.DataObject) -> None:
    mask, meaning, grid = given_
    leading = grid.leading
    while leading:
        index = data.draw(st.integers(0, leading[0] - 1))
        mask, meaning, leading = mask.item(index, leading), meaning[index], leading[1:]
        assert torch.equal(matrix(mask, grid.queries, grid.keys, leading), meaning)


@settings(max_examples=120)
@given(any_masks(), st.data())
def test_some_queries_see_what_they_see_among_all(given_: tuple[Mask, Tensor, Grid], data: st.DataObject) -> None:
    mask, meaning, grid = given_
    rows = data.draw(st.lists(st.integers(0, grid.queries - 1), max_size=9) if grid.queries else st.just([]))
    some = MaskRows(mask, torch.tensor(rows, dtype=torch.long), grid.queries)
    assert torch.equal(matrix(some, len(rows), grid.keys, grid.leading), meaning[..., rows, :])


@settings(max_examples=120)
@given(any_masks(), st.integers(0, 5))
def test_keys_that_others_precede_are_seen_as_before(given_: tuple[Mask, Tensor, Grid], by: int) -> None:
    mask, meaning, grid = given_
    shifted = span(by) & mask.shifted(by)
    expected = F.pad(meaning, (by, 0))
    assert torch.equal(matrix(shifted, grid.queries, grid.keys + by, grid.leading), expected)


def test_a_mask_has_a_name() -> None:
    table = torch.ones(2, 2, dtype=torch.bool)
    mask = (causal() & ~lengths(3)) | dense(table)
    assert mask.name == "causal and not lengths or a pattern"
    assert Yours(window(1, 1), interval=True).item(0, (2,)).name == "a pattern"
    named = Yours(window(1, 1), interval=True)
    named.name = "every second"
    assert named.item(0, (2,)).name == "every second"


@settings(max_examples=120)
@given(compositions())
def test_summaries_are_those_of_the_matrix(given_: tuple[Mask, Tensor, Grid]) -> None:
    """Which rows see a key, which keys are seen, and how many keys a row sees: without the matrix if bounds exist."""
    mask, meaning, grid = given_
    lowered = lower(mask, grid)
    rows, keys = lowered.rows_with_keys(), lowered.keys_with_queries()
    seeing, seen = meaning.any(-1), meaning.any(-2)
    assert torch.equal(torch.ones_like(seeing) if rows is None else rows.expand(seeing.shape), seeing)
    if grid.queries:  # without queries, no key is seen
        assert torch.equal(torch.ones_like(seen) if keys is None else keys.expand(seen.shape), seen)
    assert torch.equal(lowered.count().expand(seeing.shape), meaning.sum(-1))


@settings(max_examples=100)
@given(compositions())
def test_bounds_are_the_interval(given_: tuple[Mask, Tensor, Grid]) -> None:
    mask, meaning, grid = given_
    lowered = lower(mask, grid)
    if lowered.bounds is None or lowered.dense is not None:
        return
    j = torch.arange(grid.keys)
    first, last = lowered.bounds
    inside = torch.ones(grid.keys, dtype=torch.bool)
    inside = inside if first is None else inside & (j >= first[..., None])
    inside = inside if last is None else inside & (j < last[..., None])
    assert torch.equal(inside.expand(meaning.shape), meaning)
    for bound in (first, last):
        assert bound is None or bound.dtype == torch.int32
        assert bound is None or ((bound >= 0) & (bound <= grid.keys)).all()


INTERVALS = {
    "causal": causal(),
    "offset": causal(torch.tensor([1, -2])),
    "end": causal(align="end"),
    "lengths": lengths(torch.tensor([3, 0])),
    "window": window(2, 1),
    "documents in runs": documents(torch.tensor([4, 4, 1, 1, 1, 9])),
    "and": causal() & lengths(torch.tensor([3, 6])) & window(3, None),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_intervals_lower_to_bounds(name: str) -> None:
    lowered = lower(INTERVALS[name], grid_of((2,), 6, 6))
    assert lowered.bounds is not None
    assert lowered.dense is None
    assert lowered.mask is None


@pytest.mark.parametrize(
    "mask",
    [causal() | lengths(2), ~causal(), documents(torch.tensor([0, 1, 0, 1, 0, 1]))],
    ids=["or", "not", "scattered"],
)
def test_other_compositions_are_predicates(mask: Mask) -> None:
    assert lower(mask, grid_of((), 6, 6)).kind == "predicate"


def test_a_table_keeps_the_bounds_beside_it() -> None:
    lowered = lower(causal() & torch.ones(6, 6, dtype=torch.bool), grid_of((), 6, 6))
    assert lowered.kind == "dense"
    assert lowered.bounds is not None


def test_a_bool_tensor_combines_from_both_sides() -> None:
    table = torch.rand(4, 4) < 0.5
    triangle = torch.ones(4, 4, dtype=torch.bool).tril()
    assert torch.equal(matrix(causal() & table, 4, 4), triangle & table)
    assert torch.equal(matrix(causal() | table, 4, 4), triangle | table)
    assert torch.equal(matrix(~dense(table), 4, 4), ~table)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (1, 1), (5, 1), (2, 1, 6)], ids=str)
def test_tables_of_any_rank_broadcast(shape: tuple[int, ...]) -> None:
    table = torch.rand(shape) < 0.5
    grid = grid_of((2,), 5, 6)
    expected = table.expand(2, 5, 6)
    for mask, meaning in ((dense(table), expected), (~dense(table), ~expected), (dense(table) | causal(-9), expected)):
        lowered = lower(mask, grid)
        assert torch.equal(whole(lowered.matrix(), grid), meaning)
        assert torch.equal(lowered.count().expand(2, 5), meaning.sum(-1))
        rows, keys = lowered.rows_with_keys(), lowered.keys_with_queries()
        assert torch.equal(torch.ones(2, 5).bool() if rows is None else rows.expand(2, 5), meaning.any(-1))
        assert torch.equal(torch.ones(2, 6).bool() if keys is None else keys.expand(2, 6), meaning.any(-2))


def test_double_negation_is_the_mask_itself() -> None:
    mask = causal()
    assert ~~mask is mask


@pytest.mark.parametrize(("align", "diagonal"), [("start", 0), ("end", 2)])
def test_causal_counts_from_either_end(align: str, diagonal: int) -> None:
    assert torch.equal(matrix(causal(align=align), 3, 5), torch.ones(3, 5, dtype=torch.bool).tril(diagonal))


def test_a_cache_passes_its_length_as_offset() -> None:
    """A step with a cache sees what the last rows of the full triangle see."""
    whole_ = matrix(causal(), 9, 9)
    assert torch.equal(matrix(causal(offset=6), 3, 9), whole_[6:])
    assert torch.equal(matrix(window(2, 0, offset=6), 3, 9), matrix(window(2, 0), 9, 9)[6:])


KINDS = {
    "all": None,
    "causal": causal(),
    "keys": lengths(3),
    "bounds": causal(1),
    "dense": dense(torch.ones(4, 5, dtype=torch.bool)) & window(2, 0),
    "predicate": ~causal(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_lowered_to_the_cheapest_form_that_is_exact(kind: str) -> None:
    """Backends have shortcuts for some kinds: PyTorch's kernel has one for causal masks only."""
    assert lower(KINDS[kind], grid_of((2,), 4, 5)).kind == kind


def test_lengths_in_a_list_are_told_what_to_be() -> None:
    with pytest.raises(MaskError, match=r"got \[6, 3\]. Example: torch.tensor"):
        lengths([6, 3])  # type: ignore[arg-type]


INTEGERS = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
)
KEYS = 300
"""More than 8 bits can count."""


def extremes(dtype: torch.dtype) -> list[int]:
    info = torch.iinfo(dtype)
    found = {info.min, info.min + 1, -3, -1, 0, 1, 2, 100, 127, 128, 200, 255, 256, info.max - 1, info.max}
    return sorted(number for number in found if info.min <= number <= info.max)


def two_ways(mask: Mask, items: int, queries: int = 4, keys: int = KEYS) -> tuple[Tensor, Tensor]:
    """A mask from its bounds, and from its answers for tiles."""
    grid = grid_of((items,), queries, keys)
    answered = mask.visible(grid, torch.arange(queries)[:, None], torch.arange(keys))
    return whole(lower(mask, grid).matrix(), grid), answered.expand(items, queries, keys)


def defined(numbers: list[int], sees: Callable[[int, int, int], bool], keys: int = KEYS) -> Tensor:
    """The table from Python's own unbounded integers."""
    return torch.tensor([[[sees(n, i, j) for j in range(keys)] for i in range(4)] for n in numbers])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_numbers_of_any_integer_type_mean_what_they_say(dtype: torch.dtype) -> None:
    numbers = extremes(dtype)
    given = torch.tensor(numbers, dtype=dtype)
    cases = (
        (lengths(given), lambda n, i, j: j < n),
        (lengths(None, given), lambda n, i, j: i < n),
        (causal(given), lambda n, i, j: j <= i + n),
        (causal(given, align="end"), lambda n, i, j: j <= i + n + KEYS - 4),
        (window(2, 1, offset=given), lambda n, i, j: i + n - 2 <= j <= i + n + 1),
        (window(2**63 - 1, None, offset=given), lambda n, i, j: i + n - 2**63 + 1 <= j),
        (window(None, 10**30, offset=given), lambda n, i, j: j <= i + n + 10**30),
    )
    for mask, sees in cases:
        expected = defined(numbers, sees)
        assert all(torch.equal(found, expected) for found in two_ways(mask, len(numbers))), mask


@pytest.mark.parametrize("offset", [2**31, 2**62 + 4, sys.maxsize, 10**30, -(2**31), -sys.maxsize - 1, -(10**30)])
def test_offsets_beyond_any_key_have_no_end(offset: int) -> None:
    cases = (
        (causal(offset), lambda n, i, j: j <= i + n),
        (causal(offset, align="end"), lambda n, i, j: j <= i + n + 3),
        (window(abs(offset) + 1, 0, offset=offset), lambda n, i, j: i + n - abs(n) - 1 <= j <= i + n),
        (window(0, abs(offset), offset=offset), lambda n, i, j: i + n <= j <= i + n + abs(n)),
        (lengths(offset, None), lambda n, i, j: j < n),
        (lengths(offset, offset), lambda n, i, j: j < n and i < n),
    )
    for mask, sees in cases:
        expected = defined([offset], sees, keys=7)
        assert all(torch.equal(found, expected) for found in two_ways(mask, 1, keys=7)), mask


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_ids_of_any_integer_type_are_told_apart(dtype: torch.dtype) -> None:
    numbers = extremes(dtype)
    for ids in (numbers, [*numbers, *numbers], [x for x in numbers for _ in range(2)]):
        given = torch.tensor(ids, dtype=dtype)
        expected = torch.tensor([[one == other for other in ids] for one in ids])
        grid = grid_of((), len(ids), len(ids))
        for mask in (documents(given), documents(given, given.clone())):
            assert torch.equal(whole(lower(mask, grid).matrix(), grid), expected)
            assert torch.equal(matrix(~~mask, len(ids), len(ids)), expected)


@pytest.mark.parametrize("given", [window(None, None), window(None, None, offset=torch.tensor([5, -5]))], ids=str)
def test_a_window_without_ends_hides_nothing(given: Mask) -> None:
    grid = grid_of((2,), 4, 5)
    assert lower(given, grid).kind == "all"
    assert matrix(given, 4, 5, (2,)).all()
    for mask, kind in ((given & causal(), "bounds"), (given & dense(torch.ones(4, 5).bool()), "dense")):
        assert lower(mask, grid).kind == kind
    assert torch.equal(matrix(given & causal(), 4, 5, (2,))[0], matrix(causal(), 4, 5))
    query, key, value = torch.randn(2, 4, 3), torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    assert torch.equal(attention(query, key, value, mask=given), attention(query, key, value))
