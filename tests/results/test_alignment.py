"""The word alignment row: choosing, symmetrizing and scoring."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy
import pytest
import torch
from results.alignment import Choice, Gold, choose, figures, read_both, read_gold
from torch import Tensor

from qkv.data.corpus import Pair
from qkv.metrics.alignment import Links, alignment_error_rate, parse_links
from qkv.metrics.figure import Figure
from qkv.tasks.translate.aligner import Aligner, likeliest
from qkv.tasks.translate.alignment_reading import AlignmentReading
from results import alignment

_PAIRS = [Pair("a red house", "une maison rouge", 1)]
_GOLD = [parse_links("0-0 1-2 2-1 0p1")]
_READING = AlignmentReading("decoder.0")


class _Fixed:
    """A model that attends to the same words for any input."""

    def __init__(self, weights: list[list[float]]) -> None:
        self.fixed = torch.tensor(weights)

    def weights(self, pairs: Sequence[Pair], reading: AlignmentReading) -> list[Tensor]:
        return [self.fixed for _ in pairs]

    def choose(self, pairs: Sequence[Pair], gold: Sequence[Links]) -> tuple[AlignmentReading, Figure]:
        return _READING, alignment_error_rate([likeliest(self.fixed) for _ in pairs], gold)


def _models(forward: list[list[float]], backward: list[list[float]]) -> tuple[Aligner, Aligner]:
    return cast("Aligner", _Fixed(forward)), cast("Aligner", _Fixed(backward))


def test_links_of_the_other_direction_are_turned_before_they_are_joined() -> None:
    forward, backward = _models([[0.9, 0.1, 0.0], [0.1, 0.2, 0.7], [0.0, 0.4, 0.6]], numpy.eye(3)[[0, 2, 1]].tolist())
    found = read_both(forward, backward, _PAIRS, Choice(_READING, _READING, "union", {}))
    assert found.forward == [{(0, 0), (2, 1), (2, 2)}]
    assert found.backward == [{(0, 0), (1, 2), (2, 1)}]
    assert found.joined == [{(0, 0), (2, 1), (1, 2), (2, 2)}]
    assert figures(found.backward, [parse_links("0-0 1-2 2-1")]) == {"error": 0, "precision": 100, "recall": 100}


def test_the_way_to_join_is_the_one_with_the_least_error_on_other_sentences() -> None:
    """Weights of both directions carry information that neither direction's best words do."""
    there = [[0.6, 0.0, 0.4], [0.5, 0.1, 0.4], [0.0, 0.9, 0.1]]
    back = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.4, 0.6]]
    chosen = choose(*_models(there, back), Gold(_PAIRS, [parse_links("0-0 1-2 2-1")]))
    assert chosen.how == "mutual"
    assert chosen.errors["mutual"] == 0
    assert all(error > 0 for name, error in chosen.errors.items() if name != "mutual")
    known = choose(*_models([[1, 0, 0], [1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0, 1], [0, 1, 0]]), Gold(_PAIRS, _GOLD))
    assert known.errors["union"] == 0


def test_gold_is_read_from_three_files_beside_each_other(tmp_path: Path) -> None:
    for ending, text in (("en", "a house"), ("fr", "une maison"), ("align", "0-0 1p1")):
        (tmp_path / f"trial.{ending}").write_text(f"{text}\n", encoding="utf-8")
    gold = read_gold(tmp_path / "trial", ("en", "fr"))
    assert gold.pairs == [Pair("a house", "une maison", 1)]
    assert (gold.links[0].sure, gold.links[0].possible) == ({(0, 0)}, {(0, 0), (1, 1)})


def test_a_row_without_figures_is_shown_as_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    assert "| not run |" in alignment.section()
