"""A regression from a table to a run folder and back."""

from pathlib import Path

import numpy as np
import pytest

from qkv.checkpoint.contents import Contents
from qkv.checkpoint.folder import load as load_checkpoint
from qkv.checkpoint.folder import save
from qkv.checkpoint.rotation import locate
from qkv.data.table import parse_table
from qkv.errors import CheckpointError, ConfigError, DataError
from qkv.models.regression import KernelRegression
from qkv.tasks.evaluation import score
from qkv.tasks.load import load
from qkv.tasks.regress.model import judge_regression
from qkv.tasks.regress.picture import save_picture
from qkv.tasks.regress.predict import Regressor
from qkv.tasks.regress.recipe import RECIPE
from qkv.tasks.regress.settings import RegressEvaluation
from qkv.tasks.run import train_run


def _table(path: Path, count: int = 40) -> tuple[Path, np.ndarray]:
    random = np.random.default_rng(0)
    numbers = np.column_stack([random.uniform(0, 5, count), random.uniform(0, 100, count), np.zeros(count)])
    numbers[:, 2] = np.sin(numbers[:, 0]) + numbers[:, 1] / 100 + random.normal(0, 0.1, count)
    rows = "".join(f"{a!r},{b!r},{c!r}\n" for a, b, c in numbers.tolist())
    path.write_text("age,area,rent\n" + rows)
    return path, numbers


@pytest.fixture(scope="module")
def rents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("rents")
    path, numbers = _table(folder / "rents.csv")
    data = {"data": path, "x": ["age", "area"], "y": "rent"}
    train_run(RECIPE, RECIPE.load_settings({"data": data, "model": {"kernel": "epanechnikov"}}), folder / "run")
    return folder / "run", numbers


def test_a_run_predicts_what_the_estimator_predicts(rents: tuple[Path, np.ndarray]) -> None:
    run, numbers = rents
    fitted = KernelRegression("epanechnikov").fit(numbers[:, :2], numbers[:, 2])
    query = numbers[:5, :2] + [0.1, 1.0]
    found = load(run)
    assert isinstance(found, Regressor)
    np.testing.assert_array_equal(found.predict(query), fitted.predict(query))
    assert list(found.bandwidths) == ["age", "area"]
    np.testing.assert_array_equal(list(found.bandwidths.values()), fitted.bandwidth_)
    low, high = fitted.interval(query, 0.8)
    each = found.predict_fully(query, level=0.8)
    np.testing.assert_array_equal([[one.low, one.high] for one in each], np.column_stack([low, high]))
    assert found.predict_fully(np.zeros((0, 2))) == []


@pytest.mark.parametrize(("copies", "told"), [(0, False), (2, False), (3, True), (40, True), (80, True)])
def test_copies_of_rows_are_reported(
    copies: int, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From one in twenty on: leave-one-out finds the copy of a row at a bandwidth of nearly 0, with an error of 0."""
    path, _ = _table(tmp_path / "rents.csv")
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows, *(rows * 2)[:copies]]) + "\n")
    train_run(RECIPE, RECIPE.load_settings({"data": {"data": path, "x": ["age"], "y": "rent"}}), tmp_path / "run")
    said = [line for line in capsys.readouterr().err.splitlines() if "leave-one-out predicts a row" in line]
    assert [f"{path}: {copies:,} of {40 + copies:,} rows" in line for line in said] == [True] * told


@pytest.mark.parametrize("column", ["area", "age", "rent"])
def test_a_column_of_one_number_is_reported(column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = _table(tmp_path / "rents.csv")
    header, *rows = (line.split(",") for line in path.read_text().splitlines())
    index = header.index(column)
    lines = [header, *([*row[:index], "7", *row[index + 1 :]] for row in rows)]
    path.write_text("".join(",".join(line) + "\n" for line in lines))
    train_run(
        RECIPE, RECIPE.load_settings({"data": {"data": path, "x": ["age", "area"], "y": "rent"}}), tmp_path / "run"
    )
    said = [line for line in capsys.readouterr().err.splitlines() if "nothing can be learned" in line]
    assert len(said) == 1
    assert f'{path}: column "{column}" is 7 in each of {len(rows)} rows' in said[0]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([-999, 1, 2, 3, 2, -999], "is -999 in 2 rows, far from all others"),
        ([1, 2, 3, 9999, 4, 5], "is 9999 in 1 row, far from all others"),
        ([95, 99, 97, 96, 98, 94], None),
        ([-99, 400, 100, 1, 2, -300], None),
        ([2e-200, 1e-200, 0, 3e-200, 5e-200, 4e-200], "varies by 5e-200 at most"),
        ([20240131, 20240201, 20240229, 20240301, 20231231, 20240202], "seems to hold dates"),
        ([20240131, 20240132, 20240229, 20240301, 20231231, 20240202], None),
    ],
    ids=str,
)
def test_numbers_that_mislead_a_fit_are_reported(
    numbers: list[float], words: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{number},{n}\n" for n, number in enumerate(numbers)))
    train_run(RECIPE, RECIPE.load_settings({"data": {"data": path, "x": ["a"], "y": "b"}}), tmp_path / "run")
    said = [line for line in capsys.readouterr().err.splitlines() if 'column "' in line]
    assert [f'{path}: column "a" {words}' in line for line in said] == [True] * (words is not None), said


def test_the_stored_figures_are_of_leave_one_out_predictions(rents: tuple[Path, np.ndarray]) -> None:
    run, numbers = rents
    stored = {figure.name: figure for figure in load_checkpoint(locate(run)).figures}
    fitted = KernelRegression("epanechnikov").fit(numbers[:, :2], numbers[:, 2])
    assert stored["rmse"].value == pytest.approx(fitted.criterion_**0.5)
    assert stored["rmse"].signature == "leave-one-out"


def test_fitting_again_changes_nothing_and_other_data_are_refused(tmp_path: Path) -> None:
    path, _ = _table(tmp_path / "r.csv")
    tables = {"data": {"data": path, "x": ["age"], "y": "rent"}, "model": {"bandwidth": 0.5}}
    digests = {train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run").digest for _ in range(2)}
    assert len(digests) == 1
    tables["model"] = {"bandwidth": 0.6}
    with pytest.raises(ConfigError, match=r"bandwidth 0\.6 \(it was 0\.5\)"):
        train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run")


def test_a_table_is_scored_with_or_without_names(rents: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    run, numbers = rents
    named, bare, out = tmp_path / "named.csv", tmp_path / "bare.csv", tmp_path / "out"
    rows = "".join(f"{c!r};{b!r};{a!r}\n" for a, b, c in numbers[:9].tolist())
    named.write_text("rent;area;age\n" + rows)
    bare.write_text("".join(f"{a!r},{b!r},{c!r}\n" for a, b, c in numbers[:9].tolist()))
    figures = [score(run, RegressEvaluation(data=path, out=out)).figures for path in (named, bare)]
    assert figures[0] == figures[1]
    np.testing.assert_allclose([float(line) for line in out.read_text().split()], load(run).predict(numbers[:9, :2]))


@pytest.mark.parametrize("moved", [0.0, 0.25])
def test_a_score_on_rows_of_the_training_says_so(
    moved: float, rents: tuple[Path, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, numbers = rents
    rows = "".join(f"{a!r},{b!r},{c + moved!r}\n" for a, b, c in numbers[:9].tolist())
    (tmp_path / "t.csv").write_text("age,area,rent\n" + rows)
    score(run, RegressEvaluation(data=tmp_path / "t.csv"))
    assert ("9 of 9 rows are trained on too" in capsys.readouterr().err) == (moved == 0)


def test_points_with_the_largest_weights_are_shown(rents: tuple[Path, np.ndarray]) -> None:
    run, numbers = rents
    model = load(run)
    (found,) = model.alignments(numbers[:1, :2], most=5)
    weights = model.estimator.attention_map(numbers[:1, :2]).dense()[0]
    assert found.weights.shape == (1, 5)
    assert all("→" in name and " " not in name for name in found.source)
    np.testing.assert_allclose(sorted(found.weights[0].tolist()), sorted(weights.tolist())[-5:])


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture_has_a_panel_for_each_column(rents: tuple[Path, np.ndarray], suffix: str, tmp_path: Path) -> None:
    model = load(rents[0])
    found = []
    for interval in ("normal", "normal", "none"):
        save_picture(model, tmp_path / f"p{suffix}", interval=interval)
        found.append((tmp_path / f"p{suffix}").read_bytes())
    assert found[0] == found[1] != found[2]
    assert min(map(len, found)) > 5000


def test_rows_need_the_columns_of_training(rents: tuple[Path, np.ndarray]) -> None:
    model = load(rents[0])
    with pytest.raises(DataError, match='standard input: expected a column "area"; got "age", "size"'):
        model.rows_of(parse_table(["age,size", "1,2"], "standard input"))
    with pytest.raises(DataError, match="expected the columns age, area; got 3 columns without names"):
        model.rows_of(parse_table(["1,2,3"], "standard input"))


def test_altered_points_are_refused(rents: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    contents = load_checkpoint(locate(rents[0]))
    tensors = dict(contents.model)
    for name, tensor in (("bandwidths", -tensors["bandwidths"]), ("inputs", tensors["inputs"][:3])):
        folder = tmp_path / name
        save(folder, Contents({**tensors, name: tensor}, contents.config))
        with pytest.raises(CheckpointError, match="points and bandwidths of a regression"):
            load(folder, task="regress")


def test_a_run_from_before_lines_keeps_its_means(tmp_path: Path) -> None:
    path, numbers = _table(tmp_path / "r.csv")
    tables = {"data": {"data": path, "x": ["age"], "y": "rent"}, "model": {"bandwidth": 0.5, "degree": 0}}
    train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run")
    contents = load_checkpoint(locate(tmp_path / "run"))
    model = {name: item for name, item in contents.config["model"].items() if name != "degree"}
    save(tmp_path / "old", Contents(dict(contents.model), {**contents.config, "model": model}))
    mean = KernelRegression("gaussian", 0.5, degree=0).fit(numbers[:, :1], numbers[:, 2])
    np.testing.assert_array_equal(load(tmp_path / "old", task="regress").predict([[1.0]]), mean.predict([[1.0]]))
    stored = next((tmp_path / "run").glob("run.json"))
    stored.write_text(stored.read_text().replace('"degree": 0,', "").replace(', "degree": 0', ""))
    train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run")
    tables["model"] = {"bandwidth": 0.5}
    with pytest.raises(ConfigError, match=r"degree 1"):
        train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run")


def test_categories_and_weights_go_through_a_run(tmp_path: Path) -> None:
    rows = [(n % 10, "ab"[n % 2], 5 * (n % 2) + n % 10 + n % 3, 1 + n % 2) for n in range(40)]
    data = {"data": rows, "x": ["t", "kind"], "y": "y", "weights": "w", "categorical": ["kind"]}
    train_run(RECIPE, RECIPE.load_settings({"data": data}), tmp_path / "run")
    found = load(tmp_path / "run", task="regress")
    x, y, weights = ([row[place] for row in rows] for place in (0, 2, 3))
    codes = np.array([[t, "ab".index(row[1])] for t, row in zip(x, rows, strict=True)], dtype=float)
    fitted = KernelRegression(categorical=[1]).fit(codes, y, weights)
    np.testing.assert_array_equal(found.predict([[3, "b"], [4.0, "a"]]), fitted.predict([[3.0, 1.0], [4.0, 0.0]]))
    assert found.predict_fully([[3, "b"]])[0].x == (3.0, "b")
    assert found.alignments([[3, "b"]])[0].target == ("3,b",)
    assert found.scene("t,kind\n3,b").sequences["target"] == ("3,b",)
    with pytest.raises(DataError, match=r'rows: expected a category of column "kind": a, b; got \'c\' in row 2'):
        found.predict([[3, "b"], [3, "c"]])


def test_settings_go_around() -> None:
    model = {"kernel": "boxcar", "bandwidth": [0.5, 2.0]}
    settings = RECIPE.load_settings({"data": {"data": "x", "x": ["a", "b"], "y": "c"}, "model": model})
    assert RECIPE.load_settings(RECIPE.show_settings(settings)) == settings


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"model": {"kernel": "gausian"}}, 'Did you mean "gaussian"?'),
        ({"model": {"bandwidth": "cross-validaton"}}, 'Did you mean "cross-validation"?'),
        ({"model": {"bandwidth": "learned"}}, 'Or "cross-validation", as learned'),
        ({"model": {"degree": 3}}, "degree: expected an integer, at least 0 and at most 2; got 3"),
        ({"model": {"neighbors": "auto", "bandwidth": 0.5}}, 'a number beside a bandwidth; got "auto"'),
        ({"data": {"missing": "drop"}}, "missing: expected"),
        ({"training": {}}, "training: expected one of the tables data, model"),
    ],
)
def test_bad_settings_are_named(tables: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as raised:
        RECIPE.load_settings(tables)
    assert message in str(raised.value)


def test_points_without_a_prediction_are_left_out_of_the_figures_and_counted(tmp_path: Path) -> None:
    path, _ = _table(tmp_path / "r.csv")
    with path.open("a") as file:
        file.write("1000,3,7\n")
    tables = {"data": {"data": path, "x": ["age"], "y": "rent"}, "model": {"kernel": "boxcar", "beyond": "nan"}}
    outcome = train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run")
    figures = {figure.name: figure for figure in outcome.figures}
    assert figures["rmse"].signature == "leave-one-out, 40 of 41 points"
    assert 0 < figures["rmse"].value < 1
    (scored, *_), text = score(tmp_path / "run", RegressEvaluation(data=path)).figures, path.read_text()
    assert np.isfinite(scored.value)
    path.write_text(text + "500,3,7\n")
    assert score(tmp_path / "run", RegressEvaluation(data=path)).figures[0].signature == "41 of 42 points"


@pytest.mark.parametrize("truth", [[5.0], [0.1] * 7])
def test_equal_targets_have_no_part_of_the_variance(truth: list[float]) -> None:
    figures = judge_regression(np.array(truth) + 1, np.array(truth), "")
    assert {figure.name: figure.value for figure in figures} == {"rmse": pytest.approx(1), "mae": pytest.approx(1)}


def test_the_part_of_the_variance_is_of_one() -> None:
    truth = np.array([1.0, 2.0, 3.0, 4.0])
    for predicted, expected in ((truth, 1.0), (np.full(4, 2.5), 0.0), (truth + 0.5, 0.8)):
        figures = {figure.name: figure for figure in judge_regression(predicted, truth, "")}
        assert figures["r2"].value == pytest.approx(expected)
        assert figures["r2"].unit == "of 1"
