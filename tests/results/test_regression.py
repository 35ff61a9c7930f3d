"""The kernel regression row: what it measures, and what the page says."""

import json
from pathlib import Path

import numpy as np
import pytest
from results.regression import NAMES, ROWS, Draw, mistake, one_draw, summary, truth

from qkv.models.regression import KernelRegression
from results import regression

_DATA = {"points": 40, "least": 0.0, "most": 5.0, "noise": 0.2}


def test_a_regression_through_dense_points_without_noise_is_hardly_wrong() -> None:
    x = np.linspace(0, 5, 2_000)
    model = KernelRegression("gaussian", 0.01, degree=0).fit(x[:, None], truth(x))
    assert mistake(model, np.linspace(0.1, 4.9, 50)) < 1e-4


def test_the_mean_of_all_targets_is_as_wrong_as_the_truth_varies() -> None:
    x = np.linspace(0, 5, 300)
    model = KernelRegression("boxcar", 10.0, degree=0).fit(x[:, None], truth(x))
    assert mistake(model, x) == pytest.approx(float(np.var(truth(x))))


def test_a_draw_follows_from_its_seed_alone_and_every_kernel_beats_extreme_bandwidths() -> None:
    draw = one_draw(3, _DATA, [0.01, 0.3, 20.0])
    assert draw == one_draw(3, _DATA, [0.01, 0.3, 20.0])
    assert set(draw.errors) == set(NAMES)
    for name in NAMES:
        assert draw.reached[name] < min(draw.errors[name][0], draw.errors[name][-1])


def test_summaries_are_means_over_draws_and_the_least_error_is_each_draws_own() -> None:
    draws = [Draw({"k": [4.0, 1.0, 3.0]}, {"k": 0.1}, {"k": 2.0}), Draw({"k": [0.5, 2.0, 5.0]}, {"k": 0.3}, {"k": 4.0})]
    found = summary("k", draws)
    assert (found["error"], found["error_spread"], found["least_error"]) == (3.0, 1.0, 0.75)
    assert (found["bandwidth"], found["narrowest_error"], found["widest_error"]) == (pytest.approx(0.2), 2.25, 4.0)


def test_the_page_says_what_is_kept_and_what_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    assert "Not run." in regression.section()
    draws = [one_draw(0, _DATA, [0.1, 1.0])]
    record = {
        "figures": {name: summary(name, draws) for name in NAMES},
        "bandwidths": [0.1, 1.0],
        "settings": {**_DATA, "draws": 1},
        "processor_seconds": 1.0,
        "machine": "a machine",
    }
    ROWS[0].kept.mkdir(parents=True)
    ROWS[0].record.write_text(json.dumps(record), encoding="utf-8")
    page = regression.section()
    assert all(f"| {name} | {draws[0].chosen[name]:.2f}" in page for name in NAMES)
