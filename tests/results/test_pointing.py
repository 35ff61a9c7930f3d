"""Pointer network rows: what counts as correct, what is measured and what the page says."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from results.elements import lines
from results.hulls import area, hull, simple
from results.pointing import PointingRow, hull_figures

from results import pointing

SQUARE = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.5, 0.5)]


@given(st.integers(0, 10_000), st.integers(3, 12))
def test_a_hull_is_passed_counter_clockwise_and_holds_every_point(seed: int, count: int) -> None:
    torch.manual_seed(seed)
    points = [(x, y) for x, y in torch.rand(count, 2, dtype=torch.float64).tolist()]
    corners = hull(points)
    assert corners[0] == min(corners)
    assert simple(points, corners)
    whole = area(points, corners)
    assert whole > 0
    for place in range(count):
        for one, other in zip(corners, [*corners[1:], corners[0]], strict=True):
            if place not in (one, other):
                assert area(points, [one, other, place]) > 0, "every point lies to the left of every side"


def test_a_polygon_whose_sides_cross_covers_nothing() -> None:
    right = [[1, 2, 3, 4]]
    everything = {"exact": 100.0, "simple": 100.0, "area": 100.0}
    assert hull_figures([SQUARE], right, right) == everything
    assert hull_figures([SQUARE], [[3, 4, 1, 2]], right) == everything, "the round may begin anywhere"
    assert hull_figures([SQUARE], [[1, 3, 2, 4]], right) == {"exact": 0, "simple": 0, "area": 0}
    assert hull_figures([SQUARE], [[1, 2, 3]], right) == {"exact": 0, "simple": 100, "area": 50}


def test_equal_numbers_stay_as_they_come() -> None:
    for line in lines("sort", 5, 200):
        elements, target = (part.split() for part in line.split("\t"))
        row, order = list(map(int, elements)), list(map(int, target))
        assert [row[place - 1] for place in order] == sorted(row)
        assert all(a < b for a, b in pairwise(order) if row[a - 1] == row[b - 1])


def test_the_hull_is_that_of_the_written_points() -> None:
    for line in lines("hull", 6, 50):
        elements, target = (part.split() for part in line.split("\t"))
        points = [(float(x), float(y)) for x, y in (element.split(",") for element in elements)]
        assert [place - 1 for place in map(int, target)] == hull(points)


@pytest.mark.parametrize("task", ["sort", "hull"])
@pytest.mark.slow
def test_a_row_goes_from_its_settings_to_the_page(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    row = PointingRow("pointer_hull", "a row", "none", task, size=4, count=60, beam=2, test=5)
    monkeypatch.setattr(pointing, "ROWS", (row,))
    assert "not run" in pointing.section()
    row.config.parent.mkdir()
    row.config.write_text('[model]\nmodel = "gru"\nwidth = 4\nattention = 4\n[training]\nsteps = 2\nwarmup = 1\n')
    pointing.run_row(row, tmp_path, tmp_path / "run", train=True)
    figures = json.loads(row.record.read_text())["figures"]
    assert all(0 <= value <= 100 for value in figures.values())
    assert (row.kept / "hulls.svg").exists() == (task == "hull")
    assert "**" in pointing.section()
