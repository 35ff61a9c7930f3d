"""Kernel regression equals other programs: Stata's published figures, and statsmodels'."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.models.regression import KernelRegression
from qkv.scores.catalog import KERNELS

FIGURES = json.loads(Path(__file__).with_name("kernel_figures.json").read_text(encoding="utf-8"))
CASES = ("one column", "two columns")


@pytest.mark.parametrize("kernel", KERNELS)
def test_estimates_are_those_that_stata_published(kernel: str) -> None:
    given = FIGURES["stata"]
    model = KernelRegression(kernel, given["bandwidth"], degree=0).fit(np.array(given["x"])[:, None], given["y"])
    found = model.predict(np.array(given["grid"])[:, None])
    # Stata stores eight digits.
    np.testing.assert_allclose(found, given["estimates"][kernel], rtol=5e-7, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_gaussian_estimates_are_those_of_statsmodels(case: str) -> None:
    given = FIGURES["statsmodels"][case]
    found = KernelRegression("gaussian", given["bandwidth"], degree=0).fit(given["x"], FIGURES["statsmodels"]["y"])
    np.testing.assert_allclose(found.predict(given["query"]), given["estimates"], rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_the_leave_one_out_error_is_that_of_statsmodels(case: str) -> None:
    given = FIGURES["statsmodels"][case]
    model = KernelRegression("gaussian", given["chosen"], degree=0).fit(given["x"], FIGURES["statsmodels"]["y"])
    assert np.square(model.residuals()).mean() == pytest.approx(given["error"], rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_chosen_bandwidths_are_as_good_as_those_of_statsmodels(case: str) -> None:
    given = FIGURES["statsmodels"][case]
    model = KernelRegression("gaussian", degree=0).fit(given["x"], FIGURES["statsmodels"]["y"])
    assert model.criterion_ <= given["error"] * (1 + 1e-9)
    np.testing.assert_allclose(np.log(model.bandwidth_), np.log(given["chosen"]).reshape(-1), atol=0.35)


def test_statsmodels_itself_computes_the_same() -> None:
    nonparametric: Any = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    random = np.random.default_rng(7)
    x, y, query = random.normal(size=(50, 3)), random.normal(size=50), random.normal(size=(20, 3))
    theirs = nonparametric.KernelReg(y, x, "ccc", reg_type="lc", bw=[0.5, 1.0, 0.7], rng=0).fit(query)[0]
    ours = KernelRegression("gaussian", [0.5, 1.0, 0.7], degree=0).fit(x, y).predict(query)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
