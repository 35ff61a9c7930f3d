"""Alignment error rates match the definition and the values published for known aligners."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import DataError
from qkv.metrics.alignment import (
    Links,
    alignment_error_rate,
    alignment_precision,
    alignment_recall,
    expect_inside,
    parse_alignments,
    parse_links,
)

LINK = st.tuples(st.integers(0, 5), st.integers(0, 5))
LINKS = st.frozensets(LINK, max_size=8)
FOLDER = Path(os.environ.get("QKV_DATA", "../shared/data")) / "align_enfr_hansards"


@given(LINKS, LINKS)
def test_links_come_back_from_their_line(sure: frozenset[tuple[int, int]], more: frozenset[tuple[int, int]]) -> None:
    line = " ".join([*(f"{i}-{j}" for i, j in sure), *(f"{i}p{j}" for i, j in more)])
    assert parse_links(line) == Links(sure, sure | more)


@pytest.mark.parametrize("item", ["3", "3-", "-3", "3--4", "-1-2", "3x4", "3-4-5", "1.0-2", "٣-٤", "9" * 5000 + "-1"])
def test_anything_else_names_the_line(item: str) -> None:
    with pytest.raises(DataError, match=r"^test.align:2: expected links like 3-4 or 3p4; got '.{1,44}\."):
        parse_alignments(["0-0", f"1-1 {item}"], "test.align")


@given(LINKS)
def test_a_file_may_count_words_from_1(links: frozenset[tuple[int, int]]) -> None:
    line = " ".join(f"{i + 1}-{j + 1}" for i, j in links)
    assert parse_alignments([line], "test.align", first=1) == [Links(links, links)]
    with pytest.raises(DataError, match=r"^test.align:2: expected numbers of words from 1; got 0-3"):
        parse_alignments(["", "1-1 0-3"], "test.align", first=1)


@given(st.lists(LINKS, min_size=1, max_size=4))
def test_links_outside_their_sentences_are_refused(rows: list[frozenset[tuple[int, int]]]) -> None:
    gold = [Links(links, links) for links in rows]
    sizes = [tuple(1 + max((link[side] for link in links), default=0) for side in (0, 1)) for links in rows]
    expect_inside(gold, sizes, "test.align")  # type: ignore[arg-type]
    shifted = [Links(moved, moved) for links in rows for moved in [frozenset((i + 1, j + 1) for i, j in links)]]
    if not any(rows):
        return
    with pytest.raises(DataError, match=r"^test.align:\d+: .* give gold_from=1"):
        expect_inside(shifted, sizes, "test.align")  # type: ignore[arg-type]


def test_empty_line_has_no_links() -> None:
    assert parse_alignments([""], "x") == [Links(frozenset(), frozenset())]


def test_rate_by_hand() -> None:
    gold = [parse_links("0-0 1-1 2p2"), parse_links("0-1")]
    found = [{(0, 0), (2, 2), (3, 3)}, {(0, 1)}]
    # |A| 4, |S| 3, |A & S| 2, |A & P| 3
    assert alignment_error_rate(found, gold).value == pytest.approx(100 * (1 - 5 / 7))
    assert alignment_precision(found, gold).value == pytest.approx(75)
    assert alignment_recall(found, gold).value == pytest.approx(100 * 2 / 3)
    assert not alignment_error_rate(found, gold).higher_is_better


@given(LINKS, LINKS, LINKS)
def test_rate_lies_between_none_and_all(
    found: frozenset[tuple[int, int]], sure: frozenset[tuple[int, int]], more: frozenset[tuple[int, int]]
) -> None:
    gold = Links(sure, sure | more)
    if not found | sure:
        with pytest.raises(DataError, match="at least one link"):
            alignment_error_rate([found], [gold])
        return
    rate = alignment_error_rate([found], [gold]).value
    assert -1e-9 <= rate <= 100
    assert (rate == pytest.approx(0)) == (sure <= found <= gold.possible)


@given(LINKS.filter(bool), LINKS.filter(bool))
def test_without_possible_links_the_rate_is_one_minus_f1(
    found: frozenset[tuple[int, int]], sure: frozenset[tuple[int, int]]
) -> None:
    gold = [Links(sure, sure)]
    precision, recall = alignment_precision([found], gold).value, alignment_recall([found], gold).value
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0
    assert alignment_error_rate([found], gold).value == pytest.approx(100 - f1)


def test_shares_of_nothing_are_refused() -> None:
    empty = [Links(frozenset(), frozenset())]
    with pytest.raises(DataError, match="hypotheses: expected at least one link"):
        alignment_precision([set()], empty)
    with pytest.raises(DataError, match="references: expected at least one link"):
        alignment_recall([set()], empty)
    with pytest.raises(DataError, match="one for each"):
        alignment_error_rate([], empty)


def read(name: str) -> list[Links]:
    lines = (FOLDER / name).read_text(encoding="utf-8").split("\n")[:-1]
    return parse_alignments(lines, name)


# Error rate, precision and recall on every second gold sentence, computed by others from the aligners' outputs.
PUBLISHED = {
    "fastalign.en2fr": (15.65, 80.9, 90.7),
    "fastalign.grow-diagonal": (9.52, 92.0, 88.4),
    "giza.en2fr": (7.86, 91.8, 92.7),
    "giza.grow-diagonal": (5.84, 97.7, 89.6),
}


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the Hansards alignments in the folder that QKV_DATA names")
@pytest.mark.parametrize("aligner", PUBLISHED)
def test_known_aligners_have_their_published_rates(aligner: str) -> None:
    gold = read("gold_even.align")
    found = [links.sure for links in read(f"gold_even.{aligner}.align")]
    measured = (measure(found, gold).value for measure in (alignment_error_rate, alignment_precision, alignment_recall))
    rate, precision, recall = measured
    assert (round(rate, 2), round(precision, 1), round(recall, 1)) == PUBLISHED[aligner]


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the Hansards alignments in the folder that QKV_DATA names")
def test_diagonal_has_its_published_rate() -> None:
    sides = [(FOLDER / f"gold_even.{side}").read_text(encoding="utf-8").split("\n")[:-1] for side in ("en", "fr")]
    found = []
    for english, french in zip(*sides, strict=True):
        width, height = len(english.split()), len(french.split())
        found.append({(min(width - 1, round(j * width / height)), j) for j in range(height)})
    assert round(alignment_error_rate(found, read("gold_even.align")).value, 2) == 53.48
