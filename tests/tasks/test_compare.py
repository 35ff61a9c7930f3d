"""A comparison trains every combination of settings, keeps what is complete, and says what differs beyond chance."""

import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import refused, run, succeeded

import qkv
from qkv.errors import CheckpointError, ConfigError
from qkv.metrics.bootstrap import paired_bootstrap
from qkv.system import locked
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.compare import comparing
from qkv.tasks.compare.grid import cells_of, divided
from qkv.tasks.compare.training import Training
from qkv.tasks.settings import TaskSettings
from qkv.tasks.translate.settings import TRANSLATE

LINES = "good\ta fine film\nbad\ta dull film\ngood\tone fine day\nbad\tone dull day\n" * 8
SMALL = {"steps": 4, "width": 8, "validate_every": 4, "warmup": 1, "batch_tokens": 40, "longest": 16}


@pytest.fixture
def films(tmp_path: Path) -> Path:
    path = tmp_path / "films.tsv"
    path.write_text(LINES)
    return path


def compared(films: Path, out: Path, **more: Any) -> Any:
    settings = {**SMALL, "score": ["additive", "dot"], "seeds": 2, "quiet": True, **more}
    return qkv.compare("classify", data=films, valid_data=films, out=out, **settings)


def test_cells_are_every_combination_and_the_controls() -> None:
    values = {"score": ["dot", "cosine"], "heads": [1, 2], "normalizer": ["softmax", "entmax"], "width": 8}
    cells = cells_of(TRANSLATE, values, controls=True)
    assert len([cell for cell in cells if not cell.control]) == 8
    assert {(cell.values["score"], cell.values["heads"]) for cell in cells if cell.control} == {
        (score, heads) for score in ("none", "uniform") for heads in (1, 2)
    }
    assert len({cell.folder for cell in cells}) == len(cells)
    assert cells_of(TRANSLATE, values | {"score": "dot"}, controls=True)[0].name == "heads=1 normalizer=softmax"
    with pytest.raises(ConfigError, match="heads"):
        cells_of(TRANSLATE, {"heads": [2, 2]}, controls=False)


def test_what_does_not_go_together_is_left_out_with_its_reason() -> None:
    settings = {"score": ["dot", "gaussian"], "normalizer": ["softmax", "sum"], "model": "transformer"}
    recipe = recipe_of("translate")
    possible, wrong = divided(recipe, cells_of(TRANSLATE, settings, controls=True), settings)
    assert [cell.name for cell in possible if not cell.control] == [
        *("score=dot normalizer=softmax", "score=gaussian normalizer=softmax", "score=gaussian normalizer=sum"),
    ]
    assert list(wrong) == ["score=dot normalizer=sum"]
    assert [cell.name for cell in possible if cell.control] == ["score=uniform"]  # a Transformer needs attention
    bad = {"score": ["dot", "no"], "heads": 0}
    with pytest.raises(ConfigError, match="heads"):
        divided(recipe, cells_of(TRANSLATE, bad, controls=False), bad)


def test_it_ranks_trains_what_is_missing_and_refuses_other_settings(films: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = compared(films, out, controls=False, test_data=films)
    assert {row.cell.name for row in first.rows} == {"score=additive", "score=dot"}
    assert first.missing == 0
    for row in first.rows:
        values = [result.figures[0].value for result in row.results.values()]
        assert row.mean == pytest.approx(statistics.fmean(values))
        assert row.deviation == pytest.approx(statistics.stdev(values))
        assert all(len(result.credits) == 32 for result in row.results.values())
        for seed in (0, 1):  # what is stored is what the ordinary command gives
            folder = out / row.cell.folder / f"seed-{seed}" / "run"
            figures = json.loads(succeeded(run("evaluate", folder, "--data", films, "--json")).stdout.splitlines()[0])
            stored = {figure.name: figure.value for figure in row.results[seed].figures}
            assert stored[figures["name"]] == pytest.approx(figures["value"])
    assert first.rows[0].p is None
    assert all(0 < row.p <= 1 for row in first.rows[1:] if row.p is not None)
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/*/figures.json")}
    more = compared(films, out, score=["additive", "dot", "cosine"], controls=False, test_data=films)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert [row.results for row in more.rows if row.cell.values["score"] == "dot"] == [
        row.results for row in first.rows if row.cell.values["score"] == "dot"
    ]
    assert len(more.rows) == 3
    with pytest.raises(CheckpointError, match="other"):
        compared(films, out, controls=False, test_data=films, steps=5)


def test_a_training_of_another_process_is_left_to_it(
    films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    busy = [out / "score=dot" / "seed-0", out / "score=additive" / "seed-1"]
    for folder in busy:
        folder.mkdir(parents=True)
    with locked(busy[0] / "lock"), locked(busy[1] / "lock"):
        part = compared(films, out, controls=False, test_data=films, quiet=False)
    assert part.missing == 2
    assert {row.cell.name: sorted(row.results) for row in part.rows} == {"score=additive": [0], "score=dot": [1]}
    assert "no p-values: no other combination was tested with a seed of the best one" in capsys.readouterr().err
    assert compared(films, out, controls=False, test_data=films).missing == 0


def test_every_training_reads_the_items_of_an_iterator(tmp_path: Path) -> None:
    rows = ((float(x), float(x * x)) for x in range(20))
    comparison = qkv.compare("regress", data=rows, kernel=["gaussian", "boxcar"], out=tmp_path / "out", quiet=True)
    assert [len(row.results) for row in comparison.rows] == [1, 1]


def test_a_comparison_without_p_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"data": [(float(x), float(x * x)) for x in range(20)], "kernel": ["gaussian", "boxcar"]}
    comparison = qkv.compare("regress", **table, out=tmp_path / "seeds")
    assert [row.p for row in comparison.rows] == [None, None]
    assert "no p-values: nothing was tested on: give --test-data" in capsys.readouterr().err
    comparison = qkv.compare("regress", **table, out=tmp_path / "folds", folds=2)
    assert comparison.rows[1].p is not None
    assert "p-values" not in capsys.readouterr().err


def test_p_is_of_the_figure_shown_or_says_of_which(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("id,en,de\n" + "".join(f"{n},a {n % 7} b,b {n % 7} a\n" for n in range(30)))
    more: dict[str, Any] = {"source_col": "en", "target_col": "de", "model": "gru", "embedding": 8, "hidden": 8}
    more |= {"tokenizer": "word", "minimum": 1, "steps": 2, "validate_every": 2, "quiet": True, "seeds": 1}
    for monitor, judge, header in (("bleu", "chrf", "p (chrf)"), ("exact_match", "exact_match", "p")):
        comparison = qkv.compare(
            "translate",
            data=path,
            test_data=path,
            score=["dot", "cosine"],
            monitor=monitor,
            out=tmp_path / monitor,
            **more,
        )
        assert comparison.rows[0].main[0].name == monitor
        assert (comparison.judge, header in comparison.header) == (judge, True)
        if monitor == judge:
            for row in comparison.rows:
                assert row.mean == pytest.approx(100 * statistics.fmean(row.results[0].credits))


def test_a_figure_that_is_not_finite_comes_back(tmp_path: Path) -> None:
    rows = [(float(x), 1.0) for x in range(20)]  # of which R² is undefined
    table = {"data": rows, "kernel": ["gaussian"], "out": tmp_path / "out", "quiet": True}
    assert repr(qkv.compare("regress", **table)) == repr(qkv.compare("regress", **table))


def test_seeds_are_interleaved(films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def train(recipe: Any, training: Training, *_: Any) -> str:
        seen.append((training.cell.name, training.seed))
        return "interrupted" if len(seen) == 3 else "busy"

    monkeypatch.setattr(comparing, "train_cell", train)
    assert compared(films, tmp_path / "out", controls=False).missing == 4
    assert seen == [("score=additive", 0), ("score=dot", 0), ("score=additive", 1)]


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_every_task_has_the_command(task: TaskSettings) -> None:
    help = succeeded(run("compare", task.name, "--help")).stdout
    assert "--seeds" in help
    assert "--test-" in help
    assert not any(f"--{name} " in help for name in ("ensemble", "tensorboard", "print-config"))


def test_the_command_writes_its_files(films: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = [item for name, value in SMALL.items() for item in (f"--{name.replace('_', '-')}", str(value))]
    files: list[str | Path] = ["--data", films, "--valid-data", films, "--test-data", films]
    done = succeeded(
        run(
            "compare",
            "classify",
            *files,
            *flags,
            "--score",
            "dot",
            "--seeds",
            "1",
            "--dropout",
            "0.0,0.5",
            "--out",
            out,
        )
    )
    header, *rows = done.stdout.splitlines()
    assert header.split()[:2] == ["dropout", "accuracy"]
    assert len(rows) == 2
    assert sorted(path.name for path in out.glob("comparison.*")) == [
        f"comparison.{suffix}" for suffix in ("csv", "json", "md", "svg")
    ]
    table = json.loads((out / "comparison.json").read_text())
    assert {row["settings"]["dropout"] for row in table["rows"]} == {0.0, 0.5}
    assert len((out / "comparison.csv").read_text().splitlines()) == 3
    assert (out / "comparison.md").read_text().count("\n") == 4
    assert succeeded(run("classify", out / "dropout=0.0" / "seed-0" / "run", feed="a fine film\n")).stdout


def test_bad_input_is_refused(films: Path, tmp_path: Path) -> None:
    base: list[str | Path] = ["compare", "classify", "--data", films]
    refused(run(*base, "--score", "dot,cosine"), "--out")
    refused(run(*base, "--score", "dot,dot", "--out", tmp_path / "a"), "--score", "twice")
    refused(run(*base, "--score", "dot,cosin", "--out", tmp_path / "a"), "--score", "cosine")
    refused(run(*base, "--heads", "x,2", "--out", tmp_path / "a"), "heads")
    with pytest.raises(ConfigError, match="seed"):
        compared(films, tmp_path / "a", seed=3)
    with pytest.raises(ConfigError, match="stepz"):
        compared(films, tmp_path / "a", stepz=3)
    assert os.listdir(tmp_path) == ["films.tsv"]


def test_the_bootstrap_agrees_with_the_exact_distribution() -> None:
    """Of three examples there are 27 resamples."""
    first, second = np.array([1.0, 0.0, 0.5]), np.array([0.0, 0.5, 0.5])
    difference = first - second
    sums = [sum(difference[[i, j, k]]) for i in range(3) for j in range(3) for k in range(3)]
    exact = sum(total <= 0 for total in sums) / 27
    samples = 100_000
    error = 4 * (exact * (1 - exact) / samples) ** 0.5 + 1 / samples  # four standard errors
    assert abs(paired_bootstrap(first, second, samples) - exact) <= error
    assert paired_bootstrap(first, second, 1000, seed=1) == paired_bootstrap(first, second, 1000, seed=1)
