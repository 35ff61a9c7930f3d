"""Keys masked in a row leave that row within the bound, whatever they contain; values do too if finite.

Every mask here masks some keys in some rows only: those keys are poisoned, and the rows that cannot see them are
compared with the rows of the same call without the poison. Inf and NaN in a value may reach other rows as 0·NaN.
"""

from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, Request, by_part, served_part
from tests.contract.criterion import distances_by_subtraction, unit
from tests.contract.mechanisms import NormalizerCase, ScoreCase
from tests.contract.served import by_served
from tests.here import here
from torch import Tensor

from qkv.errors import UnsupportedError
from qkv.masks.base import Mask
from qkv.masks.lower import matrix
from qkv.masks.patterns import causal, dense, documents, lengths, span, window

BACKENDS = here("reference", "sdpa", "linear", "lookup", "fused", "rowwise", "blocked")
"""Backends that support masks that differ by row; `sorted` has none, and `test_sorted` covers unreachable keys."""

OTHERS = (torch.float64, torch.bfloat16, torch.float16)
DTYPES = [torch.float32, *(pytest.param(x, marks=pytest.mark.slow) for x in OTHERS)]
LEADING, QUERIES, KEYS, VALUE_WIDTH = (2, 2), 150, 170, 8
"""Sizes with more than one chunk of `linear`, more than one tile of the others, and a remainder."""

FEW_SEEN = torch.arange(KEYS) % 7 == 3


def _table() -> Tensor:
    seen = torch.rand(2, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.7
    seen[:, :, ::3] &= ~FEW_SEEN
    return seen


MASKS: dict[str, tuple[Mask, Tensor]] = {
    "causal": (causal(), torch.arange(KEYS) >= 60),
    "causal, last chunk": (causal(), torch.arange(KEYS) >= 133),
    "causal, one key": (causal(), torch.arange(KEYS) == 100),
    "causal from behind": (causal(align="end"), torch.arange(KEYS) >= 90),
    "causal and lengths": (causal(torch.tensor([3, -2])) & lengths(torch.tensor([KEYS - 3, 120])), FEW_SEEN),
    "causal and span": (causal(7) & span(torch.tensor([40, 0]), torch.tensor([KEYS, 120])), FEW_SEEN),
    "window": (window(20, 3), (torch.arange(KEYS) % 60) < 5),
    "lengths of both": (lengths(torch.tensor([KEYS, 90]), torch.tensor([QUERIES, 80])), torch.arange(KEYS) > 85),
    "documents": (documents(torch.arange(QUERIES) // 40, torch.arange(KEYS) // 45), torch.arange(KEYS) // 45 == 1),
    "scattered documents": (documents(torch.arange(QUERIES) % 3, torch.arange(KEYS) % 3), torch.arange(KEYS) % 3 == 1),
    "dense": (dense(_table()), FEW_SEEN),
    "causal and dense": (causal(5) & dense(_table()), FEW_SEEN),
    "predicate": (window(20, 0) | lengths(2), torch.arange(KEYS) % 60 > 50),
}
"""A mask, and the keys (K,) that are poisoned: some rows see some of them, others none."""

POISONS = {
    "1e20": (1e20, 1e20),
    "-3e38": (-3e38, 3e38),
    "inf": (torch.inf, None),
    "nan": (torch.nan, None),
}
"""The poison in keys and in values; Inf and NaN in a value may reach other rows."""


def poison(call: Call, where: Tensor, key: float, value: float | None) -> Call:
    most = 6e4 if call.leaves["key"].dtype == torch.float16 else 3e38
    key = max(-most, min(key, most)) if abs(key) < torch.inf else key
    fill = {"key": torch.where(where[:, None], key, call.leaves["key"])}
    if value is not None:
        fill["value"] = torch.where(where[:, None], min(value, most), call.leaves["value"])
    return call.with_leaves(**fill)


def apart(mask: Mask, where: Tensor) -> Tensor:
    """Rows (..., Q) that see none of the keys."""
    return ~(matrix(mask, QUERIES, KEYS, LEADING) & where).any(-1).expand(*LEADING, QUERIES)


@lru_cache(maxsize=256)
def limit(mask: str, mechanism: int, dtype: torch.dtype) -> float:
    """How far apart two answers within the contract's bound can be: twice the bound, the same for every backend."""
    call, rows = drawn(mask, dtype)[mechanism], apart(*MASKS[mask])
    wide = call.with_leaves(**{name: x.double() for name, x in call.leaves.items()})
    with distances_by_subtraction():
        exact, literal = wide.output("reference")[rows], call.output("reference")[rows]
    allowed = (literal.double() - exact).abs().max().item()
    if dtype == torch.float64:
        low = call.with_leaves(**{name: x.float() for name, x in call.leaves.items()})
        with distances_by_subtraction():
            difference = (low.output("reference")[rows].double() - exact).abs().max().item()
        allowed = 5 * unit(torch.float64) / unit(torch.float32) * difference
    return 2 * (3 * allowed + 2 * unit(dtype) * call.leaves["value"].abs().max().item())


def draw(score: ScoreCase, normalizer: NormalizerCase, mask: Mask, dtype: torch.dtype) -> Call:
    return Call.draw(score, normalizer, (LEADING, QUERIES, KEYS), dtype, VALUE_WIDTH, mask=mask)


@lru_cache(maxsize=1)
def drawn(mask: str, dtype: torch.dtype) -> list[Call]:
    return [draw(*mechanism, MASKS[mask][0], dtype) for mechanism in MECHANISMS]


def every(mask: str, dtype: torch.dtype) -> Iterator[Request]:
    return (call.request(gradient=False) for call in drawn(mask, dtype))


@by_part
@by_served(every, BACKENDS, every=4, mask=MASKS, dtype=DTYPES)
def test_keys_that_a_row_may_not_see_leave_it_as_it_is(
    backend: str, mask: str, dtype: torch.dtype, whole: bool
) -> None:
    built, where = MASKS[mask]
    rows = apart(built, where)
    assert rows.any()
    assert not rows.all()
    calls = drawn(mask, dtype)
    numbers, turn = range(len(calls)), list(MASKS).index(mask)
    for number in served_part(
        numbers, lambda number: calls[number].serves(backend, gradient=False), turn, 1 if whole else 12
    ):
        clean = calls[number]
        expected, most = clean.output(backend), limit(mask, number, dtype)
        for name in POISONS if whole else ("1e20", "nan"):
            key, value = POISONS[name]
            try:
                found = poison(clean, where, key, value).output(backend)
            except UnsupportedError:  # what was asked for by name says so where its numbers rule it out
                assert backend in ("rowwise", "sorted")
                continue
            error = (found[rows].double() - expected[rows].double()).abs().max().item()
            assert error <= most, f"{clean}, {name}: {error:.3g} > {most:.3g}"
