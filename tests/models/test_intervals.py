"""Confidence intervals of a kernel smoother: their equation, their coverage, and the bootstrap beside them."""

from statistics import NormalDist

import numpy as np
import pytest

from qkv.errors import ConfigError
from qkv.models.regression import KernelRegression
from qkv.scores.catalog import KERNELS

BEYOND = ("nearest", "mean", "nan")


def _data(count: int, seed: int, columns: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.uniform(0, 5, (count, columns))
    return x, np.sin(x).sum(1) + random.normal(0, 0.2 + 0.1 * x[:, 0])


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_interval_is_its_equation(kernel: str, columns: int) -> None:
    x, y = _data(40, 0, columns)
    model = KernelRegression(kernel, 1.5, degree=0).fit(x, y)
    query = x[:7] + 0.1
    weights = model.attention_map(query).dense().numpy()
    errors = []
    for left in range(len(x)):
        rest = np.arange(len(x)) != left
        errors.append(
            y[left] - KernelRegression(kernel, 1.5, degree=0).fit(x[rest], y[rest]).predict(x[left : left + 1])[0]
        )
    spread = np.sqrt((weights @ np.square(errors)) * np.square(weights).sum(1)) * NormalDist().inv_cdf(0.95)
    low, high = model.interval(query, 0.9, "normal")
    np.testing.assert_allclose(low, model.predict(query) - spread, rtol=1e-9)
    np.testing.assert_allclose(high, model.predict(query) + spread, rtol=1e-9)


def test_nine_in_ten_intervals_cover_the_smoothed_curve() -> None:
    query = np.linspace(0.5, 4.5, 9)[:, None]
    truth, random = lambda x: np.sin(x[:, 0]), np.random.default_rng(1)
    covered = []
    x = random.uniform(0, 5, (150, 1))
    for _ in range(60):
        model = KernelRegression("gaussian", 0.3, degree=0).fit(x, truth(x) + random.normal(0, 0.3, len(x)))
        smoothed = KernelRegression("gaussian", 0.3, degree=0).fit(x, truth(x)).predict(query)
        low, high = model.interval(query, 0.9, "normal")
        covered.append((low <= smoothed) & (smoothed <= high))
    assert 0.85 < np.mean(covered) < 0.96


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_the_bootstrap_agrees_where_there_are_many_points(kernel: str) -> None:
    x, y = _data(400, 2)
    model = KernelRegression(kernel, 0.5, degree=0).fit(x, y)
    query = np.linspace(0.5, 4.5, 9)[:, None]
    widths = [np.subtract(*model.interval(query, how=how)[::-1]) for how in ("normal", "bootstrap")]
    assert 0.8 < np.mean(widths[1] / widths[0]) < 1.25
    again = model.interval(query, how="bootstrap")
    np.testing.assert_array_equal(again, model.interval(query, how="bootstrap"))


def test_there_is_no_interval_where_no_point_has_weight() -> None:
    model = KernelRegression("boxcar", 0.5, degree=0).fit([[0.0], [0.2], [1.0]], [1.0, 2.0, 3.0])
    for how in ("normal", "bootstrap"):
        low, high = model.interval([[0.1], [9.0]], how=how)  # type: ignore[arg-type]
        assert np.isfinite([low[0], high[0]]).all()
        assert np.isnan([low[1], high[1]]).all()


def test_every_level_below_one_has_an_interval() -> None:
    x, y = _data(40, 3)
    model = KernelRegression("gaussian", 0.5, degree=0).fit(x, y)
    levels = (0.0, 0.9, 0.9999, 1.0)
    widths = [np.subtract(*model.interval(x[:3], np.nextafter(level, 0.5))[::-1]) for level in levels]
    assert np.isfinite(widths).all()
    assert (np.diff(widths, axis=0) > 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [({"level": 1.0}, "level: expected a probability"), ({"how": "normall"}, 'Did you mean "normal"?')],
)
def test_bad_arguments_are_named(given: dict, message: str) -> None:
    model = KernelRegression("gaussian", 1.0, degree=0).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(ConfigError) as raised:
        model.interval([[0.5]], **given)
    assert message in str(raised.value)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("kernel", KERNELS)
def test_points_out_of_reach_change_no_interval(kernel: str, beyond: str, columns: int) -> None:
    x, y = _data(40, 3, columns)
    query = x[:5] + 0.05
    far = np.full((3, columns), 1e3) * [[1], [-2], [4]]
    models = [
        KernelRegression(kernel, 1.0, beyond, degree=0).fit(*data)  # type: ignore[arg-type]
        for data in ((x, y), (np.vstack([x, far]), np.append(y, [9.0, -7.0, 0.0])))
    ]
    ends = [model.interval(query) for model in models]
    assert np.isfinite(ends[0]).all()
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12)
    residuals = models[1].residuals()
    if beyond != "mean":  # of all other points, the far ones too
        np.testing.assert_allclose(residuals[:40], models[0].residuals(), rtol=1e-12)
    assert np.isnan(residuals[40:]).all() == (beyond == "nan" and kernel != "gaussian")


@pytest.mark.parametrize("how", ["normal", "bootstrap"])
@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("kernel", KERNELS)
def test_one_observation_has_no_interval(kernel: str, beyond: str, how: str) -> None:
    alone = KernelRegression(kernel, 1.0, beyond, degree=0).fit([[0.0]], [3.0])  # type: ignore[arg-type]
    far = KernelRegression(kernel, 1.0, beyond, degree=0).fit([[0.0], [90.0], [90.5]], [3.0, 1.0, 2.0])  # type: ignore[arg-type]
    for model in (alone, far):
        low, high = model.interval([[0.2]], how=how)  # type: ignore[arg-type]
        assert np.isnan([low[0], high[0]]).all()
        assert model.without_interval([[0.2]]).tolist() == [True]
        assert np.isfinite(model.predict([[0.2]])).all()
    assert np.isfinite(far.interval([[90.2]], how=how)).all()  # type: ignore[arg-type]
    assert np.isnan(alone.residuals()).all()
    assert np.isnan(KernelRegression(kernel, degree=0).fit([[0.0]], [3.0]).criterion_)


@pytest.mark.parametrize("how", ["normal", "bootstrap"])
def test_far_from_all_data_there_is_no_interval(how: str) -> None:
    x = np.linspace(0, 1, 30)[:, None]
    model = KernelRegression("gaussian", 0.1, degree=0).fit(x, 400 * np.sin(9 * x[:, 0]))
    query = np.array([[0.5], [1.39], [1.41], [4.8], [-0.41]])
    low, high = model.interval(query, how=how)  # type: ignore[arg-type]
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [False, False, True, True, True]
    assert np.isfinite(model.predict(query)).all()
