"""Generated introductions: each split has names of its own."""

import pytest
from results.introductions import FORMS, splits

from qkv.data.segments import words
from qkv.errors import ConfigError

_PLAIN = {word for form in FORMS for side in form for word in words(side.format(a="", b="", c=""))}


def _names(pairs: list) -> set[str]:  # type: ignore[type-arg]
    return {word for pair in pairs for word in words(pair.source)} - _PLAIN


def test_no_name_occurs_in_two_parts() -> None:
    train, validation, test = (_names(part) for part in splits(200, 50, 50, seed=0))
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert len(train) > 300


def test_every_name_of_an_answer_is_in_its_source() -> None:
    for pair in splits(100, 0, 0, seed=1).train:
        answer = set(words(pair.target)) - _PLAIN
        assert answer <= set(words(pair.source))
        assert answer


def test_the_seed_decides_everything() -> None:
    assert splits(20, 5, 5, seed=3) == splits(20, 5, 5, seed=3)
    assert splits(20, 5, 5, seed=3) != splits(20, 5, 5, seed=4)


def test_numbers_out_of_range_are_named() -> None:
    with pytest.raises(ConfigError, match="from 0 to 200,000 pairs in total"):
        splits(-1, 0, 0, seed=0)
