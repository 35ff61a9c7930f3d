"""Whole texts and windows of them."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches import in_batches
from qkv.data.text import divide, read_text, windows
from qkv.errors import ConfigError, DataError


@given(length=st.integers(2, 200), context=st.integers(1, 30), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_windows_stand_beside_each_other_within_the_text(length: int, context: int, seed: int, epoch: int) -> None:
    if length - 1 < context:
        with pytest.raises(DataError, match="one window of the context"):
            windows(length, context, "random", seed, epoch)
        return
    for order in ("random", "sequential"):
        starts = windows(length, context, order, seed, epoch)  # type: ignore[arg-type]
        ordered = sorted(starts)
        assert ordered[0] >= 0
        assert ordered[-1] + context < length
        assert all(later - earlier == context for earlier, later in pairwise(ordered))
        assert ordered[0] < context
        assert length - 1 - (ordered[-1] + context) < context, "no room for another one"


def test_order_follows_from_seed_and_epoch() -> None:
    assert windows(999, 4, "random", 1, 2) == windows(999, 4, "random", 1, 2)
    assert windows(999, 4, "random", 1, 2) != windows(999, 4, "random", 1, 3)
    assert windows(999, 4, "sequential", 1, 2) == list(range(0, 995, 4))


@given(share=st.floats(0.01, 0.99), text=st.text(min_size=2))
def test_parts_make_up_the_text(share: float, text: str) -> None:
    assert "".join(divide(text, share)) == text


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"holdout"):
        divide("abc", share)


def test_the_last_group_may_be_smaller() -> None:
    assert in_batches([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]


def test_empty_lines_alone_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "blank.txt"
    path.write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match="empty lines only"):
        read_text(path)
