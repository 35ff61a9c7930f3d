"""Nadaraya-Watson regression: scikit-learn's own checks, other libraries' numbers, the choice of bandwidth."""

import warnings

import numpy as np
import pytest

from qkv.errors import ConfigError
from qkv.models.bandwidths import best_on_grid
from qkv.models.regression import NadarayaWatson
from qkv.scores.catalog import KERNELS


def _sine(count: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = np.sort(random.uniform(0, 5, count))
    return x[:, None], 2 * np.sin(x) + x**0.8 + random.normal(0, 0.5, count)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [NadarayaWatson(kernel) for kernel in KERNELS], ids=list(KERNELS))
def test_scikit_learn_accepts_the_estimator(estimator: NadarayaWatson) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a check that is skipped because a library is missing warns
        check_estimator(estimator)


def test_predictions_equal_the_formula() -> None:
    x, y = _sine()
    query = np.linspace(0, 5, 40)[:, None]
    for h in (0.2, 0.7):
        weights = np.exp(-((query - x.T) ** 2) / (2 * h * h))
        expected = (weights @ y) / weights.sum(1)
        found = NadarayaWatson("gaussian", h).fit(x, y).predict(query)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_boxcar_kernel_is_a_radius_neighbors_regression() -> None:
    from sklearn.neighbors import RadiusNeighborsRegressor

    random = np.random.default_rng(1)
    x, y = random.normal(size=(200, 3)), random.normal(size=(200, 2))
    query = random.normal(size=(50, 3)) / 2
    ours = NadarayaWatson("boxcar", 1.5).fit(x, y).predict(query)
    theirs = RadiusNeighborsRegressor(radius=1.5).fit(x, y).predict(query)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_leave_one_out_beats_bandwidths_far_from_it(kernel: str) -> None:
    x, y = _sine()
    model = NadarayaWatson(kernel).fit(x, y)
    truth = 2 * np.sin(x[:, 0]) + x[:, 0] ** 0.8

    def error(h: float) -> float:
        return float(np.mean((NadarayaWatson(kernel, h).fit(x, y).predict(x) - truth) ** 2))

    assert model.error_ > 0
    assert error(model.bandwidth_) < min(error(model.bandwidth_ / 12), error(model.bandwidth_ * 12))


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_gradient_and_grid_agree_on_the_error(kernel: str) -> None:
    x, y = _sine(50)
    grid, gradient = (NadarayaWatson(kernel, way).fit(x, y) for way in ("leave-one-out", "gradient"))
    assert gradient.error_ <= grid.error_ * 1.02


def test_the_left_out_error_is_that_of_n_models() -> None:
    x, y = _sine(30)
    model = NadarayaWatson("gaussian").fit(x, y)
    parts = []
    for left in range(30):
        rest = np.arange(30) != left
        alone = NadarayaWatson("gaussian", model.bandwidth_).fit(x[rest], y[rest])
        parts.append((alone.predict(x[left : left + 1])[0] - y[left]) ** 2)
    assert model.error_ == pytest.approx(np.mean(parts), rel=1e-9)


def test_what_is_beyond_reach_is_as_asked() -> None:
    x, y = np.array([[0.0], [1.0], [2.0]]), np.array([5.0, 6.0, 10.0])
    far = [[100.0], [-100.0]]
    for beyond, expected in (("nearest", [10, 5]), ("mean", [7, 7]), ("nan", [np.nan, np.nan])):
        found = NadarayaWatson("boxcar", 0.5, beyond).fit(x, y).predict(far)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, expected)


def test_weights_of_a_prediction_can_be_looked_at() -> None:
    x, y = _sine()
    model = NadarayaWatson("epanechnikov", 0.8).fit(x, y)
    weights = model.attention_map([[2.5]]).dense().numpy()
    np.testing.assert_allclose(weights @ y, model.predict([[2.5]]), rtol=1e-9)
    assert (weights[:, np.abs(x[:, 0] - 2.5) > 0.8] == 0).all()


def test_equal_inputs_have_a_bandwidth_too() -> None:
    model = NadarayaWatson().fit(np.zeros((4, 2)), np.arange(4.0))
    assert model.predict([[0.0, 0.0]]) == pytest.approx(1.5)


def test_one_point_is_predicted_everywhere() -> None:
    assert NadarayaWatson().fit([[1.0]], [3.0]).predict([[9.0]])[0] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kernel": "gausian"}, 'kernel: expected the name of a kernel; got "gausian". Did you mean "gaussian"?'),
        ({"bandwidth": -1.0}, "bandwidth: expected a finite number above 0; got -1.0"),
        ({"bandwidth": "gradiant"}, 'Did you mean "gradient"?'),
        ({"bandwidth": "gradient", "kernel": "boxcar"}, "a kernel that is differentiable in its bandwidth"),
        ({"beyond": "zero"}, 'beyond: expected "nearest", "mean" or "nan"; got "zero"'),
    ],
)
def test_bad_settings_are_named(given: dict, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        NadarayaWatson(**given).fit([[0.0], [1.0]], [0.0, 1.0])
    assert message in str(raised.value)


def test_the_grid_finds_the_valley_of_an_error() -> None:
    import torch

    found, least = best_on_grid(lambda h: (h.log() - np.log(0.9)).square().sum(), torch.arange(9.0)[:, None])
    assert float(found) == pytest.approx(0.9, rel=0.01)
    assert least == pytest.approx((np.log(float(found)) - np.log(0.9)) ** 2, abs=1e-6)


@pytest.mark.parametrize("target", [-40.0, 1.0, 7.0, 90.0])
@pytest.mark.parametrize("kernel", ["epanechnikov", "triangular", "boxcar"])
def test_a_point_far_from_all_others_does_not_widen_the_bandwidth(kernel: str, target: float) -> None:
    x, y = _sine(60)
    far = NadarayaWatson(kernel, "leave-one-out", "nan").fit(np.vstack([x, [[500.0]]]), np.append(y, target))
    assert far.bandwidth_ < 3
    assert np.isfinite(far.error_)


@pytest.mark.parametrize("beyond", ["nearest", "mean"])
def test_a_point_is_predicted_from_the_others_alone(beyond: str) -> None:
    x, y = np.array([[0.0], [1.0], [9.0], [30.0]]), np.array([5.0, 6.0, 10.0, 100.0])
    model = NadarayaWatson("boxcar", 1.5, beyond).fit(x, y)  # type: ignore[arg-type]
    for left in range(4):
        rest = np.arange(4) != left
        alone = NadarayaWatson("boxcar", 1.5, beyond).fit(x[rest], y[rest])  # type: ignore[arg-type]
        assert model.residuals()[left] == pytest.approx(y[left] - alone.predict(x[left : left + 1])[0])


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_the_gradient_smooths_out_columns_that_do_not_matter(kernel: str) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 5, (80, 3))
    y = np.sin(2 * x[:, 0]) + random.normal(0, 0.1, 80)
    grid, gradient = (NadarayaWatson(kernel, way).fit(x, y) for way in ("leave-one-out", "gradient"))
    assert gradient.error_ <= grid.error_ * 1.05
    assert min(gradient.bandwidth_[1:]) > 1.5 > gradient.bandwidth_[0]
