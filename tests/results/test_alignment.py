"""The row of word alignment: what is chosen, joined and scored."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from results.alignment import Choice, Gold, choose, figures, read_both, read_gold

from qkv.metrics.alignment import Link, Links, alignment_error_rate, parse_links
from qkv.metrics.figure import Figure
from qkv.tasks.aligning import Aligner, Sentences
from qkv.tasks.reading import Reading
from results import alignment

_PAIRS = [Sentences("a red house", "une maison rouge")]
_GOLD = [parse_links("0-0 1-2 2-1 0p1")]
_READING = Reading("decoder.0")


class _Fixed:
    """Finds the same links whatever it is asked."""

    def __init__(self, links: set[Link]) -> None:
        self.links = links

    def align(self, pairs: Sequence[Sentences], reading: Reading) -> list[set[Link]]:
        return [self.links for _ in pairs]

    def choose(self, pairs: Sequence[Sentences], gold: Sequence[Links]) -> tuple[Reading, Figure]:
        return _READING, alignment_error_rate(self.align(pairs, _READING), gold)


def _models(forward: set[Link], backward: set[Link]) -> tuple[Aligner, Aligner]:
    return cast("Aligner", _Fixed(forward)), cast("Aligner", _Fixed(backward))


def test_links_of_the_other_direction_are_turned_before_they_are_joined() -> None:
    forward, backward = _models({(0, 0), (1, 2)}, {(2, 1), (1, 2)})
    found = read_both(forward, backward, _PAIRS, Choice(_READING, _READING, "union", {}))
    assert found.backward == [{(1, 2), (2, 1)}]
    assert found.joined == [{(0, 0), (1, 2), (2, 1)}]
    assert figures(found.joined, _GOLD) == {"error": 0, "precision": 100, "recall": 100}


def test_the_way_to_join_is_the_one_with_the_least_error_on_other_sentences() -> None:
    trial = Gold(_PAIRS, _GOLD)
    assert choose(*_models({(0, 0), (1, 2)}, {(1, 2)}), trial).how == "union"
    wrong = choose(*_models({(0, 0), (1, 2), (2, 1), (2, 0)}, {(0, 0), (2, 1), (1, 2), (2, 2)}), trial)
    assert wrong.how == "intersection"
    assert wrong.errors["intersection"] == 0
    assert wrong.errors["forward"] > 0
    assert wrong.errors["backward"] > 0


def test_gold_is_read_from_three_files_beside_each_other(tmp_path: Path) -> None:
    for ending, text in (("en", "a house"), ("fr", "une maison"), ("align", "0-0 1p1")):
        (tmp_path / f"trial.{ending}").write_text(f"{text}\n", encoding="utf-8")
    gold = read_gold(tmp_path / "trial", ("en", "fr"))
    assert gold.pairs == [Sentences("a house", "une maison")]
    assert (gold.links[0].sure, gold.links[0].possible) == ({(0, 0)}, {(0, 0), (1, 1)})


def test_a_row_without_figures_is_shown_as_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "ROOT", tmp_path)
    assert "| not run |" in alignment.section()
