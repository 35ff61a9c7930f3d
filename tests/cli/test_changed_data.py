"""Resuming a run whose data changed names the file as it was given."""

from pathlib import Path

import pytest
from tests.cli.command import run
from tests.cli.shelf import FILES, TRAININGS, Shelf


@pytest.mark.parametrize("task", TRAININGS)
def test_the_file_that_changed_is_named(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shelf = Shelf(tmp_path)
    out = shelf.run(task)
    given = TRAININGS[task][:2]
    file = Path(given[1])
    file.write_text(FILES[file.name] * 2 if task != "regress" else FILES[file.name].replace("460", "461"))
    ended = run("train", task, *TRAININGS[task], "--out", out)
    assert ended.exit_code == 2
    assert ended.stderr.count(" ".join(given)) == 1
    assert "text.train" not in ended.stderr
    assert "text.valid" not in ended.stderr


def test_the_file_of_validation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Shelf(tmp_path)
    Path("more.tsv").write_text(FILES["films.tsv"])
    again = ("train", "classify", *TRAININGS["classify"], "--valid-data", "more.tsv", "--out", "films")
    assert run(*again).exit_code == 0
    Path("more.tsv").write_text(FILES["films.tsv"] * 2)
    ended = run(*again)
    assert "--valid-data more.tsv" in ended.stderr
    assert "--data films.tsv" not in ended.stderr
