"""Which mechanisms learn: what is trained and in what order, what is stored, how it is judged, what the page says."""

import json
import signal
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from results.learned import Sample, has_learned
from results.mechanisms import CONTROLS, Cell, Grid, Store, letters_in_place

from qkv.data.batches import Batch
from qkv.scores.catalog import SCORES
from qkv.tasks.translate.recipe import RECIPE, TranslationTask
from results import mechanisms, mechanisms_page

SMALL = """
seeds = [0, 1]
every_normalizer = ["gru"]
[data]
train = 40
validation = 4
test = 100
shortest = 2
longest = 4
seed = 0
[training]
batch_size = 8
learning_rate = 0.01
[models.gru]
steps = 2
warmup = 1
model = { model = "gru", width = 8 }
[models.transformer]
steps = 2
warmup = 1
model = { model = "transformer", width = 8, heads = 2, feed_forward = 8, encoder_layers = 1, decoder_layers = 1 }
"""
PERCENTAGES = st.lists(st.floats(0, 100), min_size=1, max_size=3).map(lambda values: Sample(tuple(values)))


@pytest.fixture
def small() -> Grid:
    return Grid(tomllib.loads(SMALL))


@given(PERCENTAGES, PERCENTAGES, PERCENTAGES)
def test_a_cell_that_has_learned_is_above_both_controls(cell: Sample, one: Sample, other: Sample) -> None:
    learned = has_learned(cell, [one, other], 1000)
    assert learned == (has_learned(cell, [one], 1000) and has_learned(cell, [other], 1000))
    assert not (learned and cell.mean <= max(one.mean, other.mean))


@pytest.mark.parametrize(
    ("cell", "control", "learned"),
    [
        ((24.8, 24.8, 24.8), (20.0, 20.0, 20.0), True),  # 3 · 50/√1000 = 4.74
        ((24.7, 24.7, 24.7), (20.0, 20.0, 20.0), False),
        ((24.8,), (20.0,), True),
        ((80.0, 90.0, 70.0), (49.0, 50.0, 51.0), True),  # deviation of 10 over the cell's seeds
        ((80.0, 90.0, 70.0), (50.0, 51.0, 52.0), False),
        ((80.0, 80.0, 80.0), (40.0, 50.0, 60.0), True),  # the same over the control's
        ((79.0, 79.0, 79.0), (40.0, 50.0, 60.0), False),
    ],
)
def test_the_largest_standard_deviation_decides(
    cell: tuple[float, ...], control: tuple[float, ...], learned: bool
) -> None:
    assert has_learned(Sample(cell), [Sample(control)], 1000) == learned


@given(st.lists(st.text("ab", min_size=1), min_size=1), st.data())
def test_letters_count_at_their_own_place(answers: list[str], data: st.DataObject) -> None:
    assert letters_in_place(answers, answers) == 100
    assert letters_in_place([f"c{answer}" for answer in answers], answers) < 100
    cut = [answer[: data.draw(st.integers(0, len(answer)))] for answer in answers]
    assert letters_in_place(cut, answers) == round(100 * len("".join(cut)) / len("".join(answers)), 2)


def test_the_grid_has_each_score_in_each_model_and_each_normalizer_that_suits_it() -> None:
    grid = Grid.read()
    cells = grid.cells()
    assert len(set(cells)) == len(cells) >= 80
    assert {cell.score for cell in cells} == {*SCORES, "none"}
    for cell in cells:
        tables = grid.tables(cell.model)
        model = {**tables["model"], "score": cell.score, "normalizer": cell.normalizer}
        assert (
            RECIPE.load_settings({"model": model, "training": tables["training"]}).model.normalizer == cell.normalizer
        )
    for model in grid.settings["every_normalizer"]:
        combinations = {(cell.score, cell.normalizer) for cell in cells if cell.model == model}
        assert ("additive", "sum") not in combinations
        assert {("additive", "entmax"), ("gaussian", "sum"), ("gaussian", "softmax")} <= combinations


def test_controls_come_first_and_further_seeds_last() -> None:
    grid = Grid.read()
    trainings = list(grid.trainings())
    assert len(set(trainings)) == len(trainings) == len(grid.cells()) * len(grid.seeds)
    assert {cell.score for cell, _ in trainings[: len(grid.controls())]} == set(CONTROLS)
    assert {seed for _, seed in trainings[: len(grid.cells())]} == {0}


def test_what_is_stored_is_not_trained_again(small: Grid, tmp_path: Path) -> None:
    store = Store(tmp_path / "kept")
    mechanisms.run(small, store, ["gru"], at_most=1)
    path = tmp_path / "kept" / "gru.json"
    record = json.loads(path.read_text())
    assert set(record["cells"]) == {"none softmax"}
    record["cells"]["none softmax"]["0"]["exact"] = 12.5
    path.write_text(json.dumps(record))
    mechanisms.run(small, store, ["gru"], at_most=2)
    cells = store.read("gru")["cells"]
    assert cells["none softmax"]["0"]["exact"] == 12.5
    assert {name: set(seeds) for name, seeds in cells.items()} == {
        "none softmax": {"0"},
        "uniform sum": {"0"},
        "scaled_dot softmax": {"0"},
    }
    assert "processor_seconds" in cells["uniform sum"]["0"]


def test_the_same_seed_gives_the_same_figures(small: Grid, tmp_path: Path) -> None:
    cell, tables = Cell("gru", "gaussian", "sum"), small.tables("gru")
    one, two = (mechanisms.one_training(cell, 1, tables) for _ in range(2))
    assert one is not None
    assert two is not None
    assert [one[name] for name in ("exact", "letters")] == [two[name] for name in ("exact", "letters")]


def test_an_interrupted_training_leaves_nothing(small: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TranslationTask.collate

    def collate(task: TranslationTask, places: Sequence[int], device: torch.device) -> Batch:
        signal.raise_signal(signal.SIGINT)
        return whole(task, places, device)

    store = Store(tmp_path / "kept")
    mechanisms.run(small, store, ["gru"], at_most=1)
    before = store.read("gru")
    monkeypatch.setattr(TranslationTask, "collate", collate)
    mechanisms.run(small, store, ["gru"])
    assert store.read("gru") == before


def test_figures_of_other_settings_are_not_mixed(small: Grid, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(Cell("gru", "none", "softmax"), 0, small.tables("gru"), {"exact": 1.0})
    store.expect_settings("gru", small.tables("gru"))
    other = Grid(tomllib.loads(SMALL.replace("steps = 2", "steps = 3")))
    with pytest.raises(SystemExit, match="other settings"):
        mechanisms.run(other, store, ["gru"])


def test_stored_figures_have_the_present_settings() -> None:
    grid = Grid.read()
    for model in grid.models:
        Store.kept().expect_settings(model, grid.tables(model))


def test_the_page_shows_what_is_stored(small: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mechanisms.toml").write_text(SMALL)
    assert "Not run." in mechanisms_page.section()

    def store(cell: Cell, *exact: float) -> None:
        for seed, value in enumerate(exact):
            figures = {"exact": value, "letters": value, "processor_seconds": 9.0}
            Store.kept().add(cell, seed, small.tables(cell.model), figures)

    store(Cell("gru", "additive", "softmax"), 99.0, 98.0)
    store(Cell("gru", "none", "softmax"), 10.0, 10.0)
    assert "0 of\n0 cells that are no controls" in mechanisms_page.section(), "a control is missing"
    store(Cell("gru", "uniform", "sum"), 20.0, 22.0)
    store(Cell("gru", "dot", "hard"), 21.0)
    store(Cell("gru", "dot", "softmax"), 30.0)
    page = mechanisms_page.section()
    assert "| `additive` | **98.5** ± 0.7 |  |" in page
    assert "| `none` | 10.0 ± 0.0 | – |" in page
    assert "| `dot` | 30.0 (1) | – |  | 21.0 (1) |" in page
    assert f"5 of {len(small.cells())} cells are trained, 3 of them with all 2 seeds; 1 of\n3 cells" in page
    assert "is initialized. 1 cell: GRU dot hard." in page
    assert "Not explained: 1 cell: GRU dot softmax." in page
    assert "GRU 2 updates, 9 s" in page
