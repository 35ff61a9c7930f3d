"""The row of interval coverage: what it counts, and what the page says."""

import json
from pathlib import Path

import pytest
from results.coverage import CURVES, DEGREES, INTERVALS, ROWS, coverage

from results import coverage as page

_DATA = {"points": 40, "least": 0.0, "most": 5.0, "noise": 0.2, "draws": 3, "places": 5}


def test_intervals_of_nearly_1_cover_all_and_of_nearly_0_nothing() -> None:
    wide, narrow = (coverage("sin 4x", 1, _DATA, level) for level in (1 - 1e-12, 1e-6))
    assert set(wide) == set(INTERVALS)
    assert (wide["robust"]["mean"], wide["robust"]["whole"]) == (1, 1)
    assert narrow["normal"] == {"mean": 0, "worst": 0, "whole": 0, "width": pytest.approx(0, abs=1e-5)}
    assert coverage("sin 4x", 1, _DATA, 0.9) == coverage("sin 4x", 1, _DATA, 0.9)


def test_the_page_says_what_is_kept_and_what_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    assert "Not run." in page.section()
    shares = {"mean": 0.951, "worst": 0.9, "whole": 0.5, "width": 1.25}
    record = {
        "figures": {curve: {fitted: {"robust": shares} for fitted in DEGREES.values()} for curve in CURVES},
        "settings": {**_DATA, "level": 0.95},
        "processor_seconds": 1.0,
        "machine": "a machine",
    }
    ROWS[0].kept.mkdir(parents=True)
    ROWS[0].record.write_text(json.dumps(record), encoding="utf-8")
    assert page.section().count("| robust | 95.1% | 90.0% | 50.0% | 1.25 |") == 4
