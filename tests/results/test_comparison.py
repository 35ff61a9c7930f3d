"""The row of what a comparison costs: its cost beside that of trainings by hand, as the page says it."""

import json
from pathlib import Path

import pytest
from results.comparison import ROWS

from results import comparison as page


def test_the_page_compares_the_cost_of_one_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    assert "Not run." in page.section()
    record = {
        "table": "| score |\n| --- |\n| dot |\n",
        "settings": {"data": {"shortest": 2, "longest": 4, "test": 1000}, "training": {"steps": 5}},
        "trainings": 24,
        "trainings_by_hand": 8,
        "equal": 8,
        "training_seconds": 200.0,
        "compared": {"processor_seconds": 240.0},
        "by_hand": {"processor_seconds": 160.0},
        "machine": "a machine",
    }
    ROWS[0].kept.mkdir(parents=True)
    ROWS[0].record.write_text(json.dumps(record), encoding="utf-8")
    section = page.section()
    assert "took 50% of the processor time" in section
    assert "| `qkv compare`, one command | 24 | 240 s | 10.0 s |" in section
    assert "| dot |" in section
