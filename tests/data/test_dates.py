"""Every text means one date, the right one, and training and test sets are disjoint."""

import re
from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import dates
from qkv.errors import ConfigError

DAYS = st.dates(dates.FIRST, dates.LAST)


def test_there_are_many_formats() -> None:
    assert len(dates.FORMATS) == len(set(dates.FORMATS)) >= 40


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("{short_weekday}, {ordinal} of {name} {year}", "Tue, 3rd of May 2011"),
        ("the {ordinal} of {name}, {year}", "the 3rd of May, 2011"),
        ("{month}/{day}/{short_year}", "5/3/11"),
        ("{day}.{month}.{short_year}", "3.5.11"),
        ("{day}.{roman}.{year}", "3.V.2011"),
        ("{weekday}, {name} the {ordinal}, {year}", "Tuesday, May the 3rd, 2011"),
        ("the {day_word} of {name} {year}", "the third of May 2011"),
        ("{year}{month:02}{day:02}", "20110503"),
    ],
)
def test_formats_read_as_people_write(form: str, text: str) -> None:
    assert form in dates.FORMATS
    assert dates.write(date(2011, 5, 3), form) == text


@given(DAYS)
def test_parts_agree_with_the_calendar(day: date) -> None:
    parts = dates.parts(day)
    # The C locale's names, via the standard library.
    assert parts["weekday"] == day.strftime("%A")
    assert parts["short_weekday"] == day.strftime("%a")
    assert parts["name"] == day.strftime("%B")
    assert str(parts["short_name"])[:3] == day.strftime("%b")
    assert parts["short_year"] == day.strftime("%y")


def test_ordinals_of_all_days() -> None:
    endings = [str(dates.parts(date(2011, 1, day))["ordinal"])[-2:] for day in range(1, 32)]
    assert " ".join(endings) == "st nd rd" + " th" * 17 + " st nd rd" + " th" * 7 + " st"
    words = {1: "first", 9: "ninth", 10: "tenth", 19: "nineteenth", 20: "twentieth", 21: "twenty-first"}
    words |= {29: "twenty-ninth", 30: "thirtieth", 31: "thirty-first"}
    assert {day: dates.parts(date(2011, 1, day))["day_word"] for day in words} == words


def texts_of(day: date) -> set[str]:
    written = {dates.write(day, form) for form in dates.FORMATS}
    return written | {text.lower() for text in written} | {text.upper() for text in written}


def assert_no_text_means_two_dates(days: list[date]) -> None:
    owner: dict[str, date] = {}
    for day in days:
        for text in texts_of(day):
            assert owner.setdefault(text, day) == day, text


def test_no_text_means_two_dates_among_those_that_could_be_confused() -> None:
    # Day, month and two-digit year can be swapped only if all are small.
    years = [1950, 1951, 1999, 2000, 2001, 2011, 2012, 2049]
    assert_no_text_means_two_dates([date(y, m, d) for y in years for m in range(1, 13) for d in range(1, 13)])


@pytest.mark.slow
def test_no_text_means_two_dates() -> None:
    count = (dates.LAST - dates.FIRST).days + 1
    assert_no_text_means_two_dates([dates.FIRST + timedelta(days=n) for n in range(count)])


@settings(max_examples=12)
@given(st.integers(0, 40), st.integers(0, 9))
def test_generation_is_a_function_of_count_and_seed(count: int, seed: int) -> None:
    pairs = dates.generate(count, seed)
    assert pairs == dates.generate(count, seed)
    assert [pair.line for pair in pairs] == list(range(1, count + 1))
    assert len({pair.source for pair in pairs}) == count
    for pair in pairs:
        assert pair.source in texts_of(date.fromisoformat(pair.target))


def test_seeds_differ() -> None:
    assert dates.generate(50, 0) != dates.generate(50, 1)


def test_generated_dates_vary() -> None:
    pairs = dates.generate(5000, 0)
    assert len({re.sub(r"\d+", "0", pair.source) for pair in pairs}) > 500
    assert {pair.target[:4] for pair in pairs} == {str(year) for year in range(1950, 2050)}
    assert {pair.target[5:7] for pair in pairs} == {f"{month:02}" for month in range(1, 13)}
    assert any(pair.source.isupper() for pair in pairs)
    assert any(pair.source.islower() for pair in pairs)


@given(st.integers(0, 20))
def test_splits_share_no_date_and_no_text(seed: int) -> None:
    sets = dates.splits(400, 100, 200, seed)
    assert [len(part) for part in (sets.train, sets.validation, sets.test)] == [400, 100, 200]
    for left, right in [(sets.train, sets.validation), (sets.train, sets.test), (sets.validation, sets.test)]:
        assert not {pair.target for pair in left} & {pair.target for pair in right}
        assert not {pair.source for pair in left} & {pair.source for pair in right}


@pytest.mark.parametrize("count", [-1, 10**8])
def test_impossible_counts_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="count: expected a number of pairs from 0 to"):
        dates.generate(count, 0)
