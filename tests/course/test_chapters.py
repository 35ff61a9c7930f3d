"""The chapters: every cell runs and what it asserts holds, and each has what a chapter must have."""

import re
from pathlib import Path

import pytest
from tests.course.cells import CHAPTERS, cells

from qkv.course import EXERCISES

TRAINING = {"2_bahdanau", "4_transformer", "5_pointing"}
"""They train a model, for up to two minutes of a core."""


def marked() -> list[object]:
    return [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in TRAINING)) for path in CHAPTERS]


@pytest.mark.parametrize("chapter", marked())
def test_every_cell_runs(chapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scope: dict[str, object] = {}
    for number, cell in enumerate(cells(chapter)):
        exec(compile(cell, f"<{chapter.stem}, cell {number}>", "exec"), scope)
    import matplotlib.pyplot as plt

    plt.close("all")


def test_there_are_five_chapters_and_ten_exercises() -> None:
    assert [path.stem[0] for path in CHAPTERS] == list("12345")
    asked = [re.findall(r'check\("(\w+)"', path.read_text(encoding="utf-8")) for path in CHAPTERS]
    assert all(len(set(names)) == 2 for names in asked), asked
    assert {name for names in asked for name in names} == set(EXERCISES)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_a_question_something_to_change_and_checks(chapter: Path) -> None:
    text = chapter.read_text(encoding="utf-8")
    assert "**The question of this chapter: " in text
    assert "**Change something.**" in text
    assert "### Learners ask: " in text
    assert "## Summary" in text
    assert text.count("assert not verdict.right") == text.count("assert verdict.right") == 2
    assert text.count("assert ") >= 8
