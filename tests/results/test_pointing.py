"""Pointer network rows: what counts as correct, what is measured and what the page says."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from results.hulls import area, hull, simple
from results.pointing import ROWS, draw, hull_figures, learn, point, sorted_figures

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
    points = torch.tensor([SQUARE])
    right = [[1, 2, 3, 4]]
    everything = {"exact": 100.0, "simple": 100.0, "area": 100.0}
    assert hull_figures(points, right, right) == everything
    assert hull_figures(points, [[3, 4, 1, 2]], right) == everything, "the round may begin anywhere"
    assert hull_figures(points, [[1, 3, 2, 4]], right) == {"exact": 0, "simple": 0, "area": 0}
    assert hull_figures(points, [[1, 2, 3]], right) == {"exact": 0, "simple": 100, "area": 50}


def test_positions_that_are_missing_are_wrong() -> None:
    assert sorted_figures([[1], [2, 1]], [[1, 2], [2, 1]]) == {"position": 75.0, "exact": 50.0}


def test_equal_numbers_stay_as_they_come() -> None:
    torch.manual_seed(0)
    numbers, answers = draw("sort", 200, 5)
    for row, order in zip(numbers[..., 0].tolist(), answers, strict=True):
        assert [row[place - 1] for place in order] == sorted(row)
        assert all(a < b for a, b in pairwise(order) if row[a - 1] == row[b - 1])


@pytest.mark.parametrize("task", ["sort", "hull"])
def test_a_row_goes_from_its_settings_to_the_page(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointing, "ROOT", tmp_path)
    assert pointing.section().count("not run") == len(ROWS)
    row = next(row for row in ROWS if task in row.name)
    row.config.parent.mkdir()
    row.config.write_text(
        f'[data]\ntask = "{task}"\nsize = 4\ntest = 5\n[model]\ncell = "gru"\nhidden = 4\nattention = 4\n'
        "[training]\nsteps = 2\nbatch = 3\nlearning_rate = 0.01\nbeam = 2\nseed = 0\n"
    )
    pointing.run_row(row, tmp_path, tmp_path, train=True)
    figures = json.loads(row.record.read_text())["figures"]
    assert all(0 <= value <= 100 for value in figures.values())
    assert (row.kept / "hulls.svg").exists() == (task == "hull")
    assert "**" in pointing.section()


def test_what_is_learned_can_be_decoded() -> None:
    settings = {
        "data": {"task": "hull", "size": 4},
        "model": {"hidden": 4, "attention": 4},
        "training": {"steps": 1, "batch": 2, "learning_rate": 0.01, "seed": 0},
    }
    model, _ = learn(settings)
    found = point(model, torch.rand(3, 4, 2), width=3)
    assert all(len(set(each)) == len(each) for each in found)
