"""Nadaraya-Watson regression: scikit-learn's own checks, other libraries' numbers, the choice of bandwidth."""

import warnings

import numpy as np
import pytest
import torch

from qkv.errors import ConfigError
from qkv.models.bandwidths import minimize
from qkv.models.regression import KernelRegression
from qkv.scores.catalog import KERNELS


def _sine(count: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = np.sort(random.uniform(0, 5, count))
    return x[:, None], 2 * np.sin(x) + x**0.8 + random.normal(0, 0.5, count)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [KernelRegression(kernel, degree=0) for kernel in KERNELS], ids=list(KERNELS))
def test_scikit_learn_accepts_the_estimator(estimator: KernelRegression) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a check that is skipped because a library is missing warns
        reason = "leaving one out leaves out a row, whatever its weight"
        check_estimator(estimator, expected_failed_checks={"check_sample_weight_equivalence_on_dense_data": reason})


def test_predictions_equal_the_formula() -> None:
    x, y = _sine()
    query = np.linspace(0, 5, 40)[:, None]
    for h in (0.2, 0.7):
        weights = np.exp(-((query - x.T) ** 2) / (2 * h * h))
        expected = (weights @ y) / weights.sum(1)
        found = KernelRegression("gaussian", h, degree=0).fit(x, y).predict(query)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_boxcar_kernel_is_a_radius_neighbors_regression() -> None:
    from sklearn.neighbors import RadiusNeighborsRegressor

    random = np.random.default_rng(1)
    x, y = random.normal(size=(200, 3)), random.normal(size=(200, 2))
    query = random.normal(size=(50, 3)) / 2
    ours = KernelRegression("boxcar", 1.5, degree=0).fit(x, y).predict(query)
    theirs = RadiusNeighborsRegressor(radius=1.5).fit(x, y).predict(query)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_leave_one_out_beats_bandwidths_far_from_it(kernel: str) -> None:
    x, y = _sine()
    model = KernelRegression(kernel, degree=0).fit(x, y)
    truth = 2 * np.sin(x[:, 0]) + x[:, 0] ** 0.8

    def error(h: float) -> float:
        return float(np.mean((KernelRegression(kernel, h, degree=0).fit(x, y).predict(x) - truth) ** 2))

    assert model.criterion_ > 0
    assert error(model.bandwidth_) < min(error(model.bandwidth_ / 12), error(model.bandwidth_ * 12))


def test_the_left_out_error_is_that_of_n_models() -> None:
    x, y = _sine(30)
    model = KernelRegression("gaussian", degree=0).fit(x, y)
    parts = []
    for left in range(30):
        rest = np.arange(30) != left
        alone = KernelRegression("gaussian", model.bandwidth_, degree=0).fit(x[rest], y[rest])
        parts.append((alone.predict(x[left : left + 1])[0] - y[left]) ** 2)
    assert model.criterion_ == pytest.approx(np.mean(parts), rel=1e-9)


def test_what_is_beyond_reach_is_as_asked() -> None:
    x, y = np.array([[0.0], [1.0], [2.0]]), np.array([5.0, 6.0, 10.0])
    far = [[100.0], [-100.0]]
    for beyond, expected in (("nearest", [10, 5]), ("mean", [7, 7]), ("nan", [np.nan, np.nan])):
        found = KernelRegression("boxcar", 0.5, beyond, degree=0).fit(x, y).predict(far)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, expected)


def test_a_row_of_weight_three_counts_as_three_rows() -> None:
    x, y = _sine(20)
    weights, query = np.array([2, 3, 4, 5] * 5), np.linspace(0, 5, 7)[:, None]
    kernel = weights * np.exp(-((query - x.T) ** 2) / (2 * 0.5**2))
    expected = (kernel @ y) / kernel.sum(1)
    weighted = KernelRegression("gaussian", 0.5, degree=0).fit(x, y, weights)
    repeated = KernelRegression("gaussian", 0.5, degree=0).fit(x.repeat(weights, 0), y.repeat(weights))
    for model in (weighted, repeated):
        np.testing.assert_allclose(model.predict(query), expected, rtol=1e-9)


def test_weights_of_a_prediction_can_be_looked_at() -> None:
    x, y = _sine()
    model = KernelRegression("epanechnikov", 0.8, degree=0).fit(x, y)
    weights = model.attention_map([[2.5]]).dense().numpy()
    np.testing.assert_allclose(weights @ y, model.predict([[2.5]]), rtol=1e-9)
    assert (weights[:, np.abs(x[:, 0] - 2.5) > 0.8] == 0).all()


def test_equal_inputs_have_a_bandwidth_too() -> None:
    model = KernelRegression(degree=0).fit(np.zeros((4, 2)), np.arange(4.0))
    assert model.predict([[0.0, 0.0]]) == pytest.approx(1.5)


def test_one_point_is_predicted_everywhere() -> None:
    assert KernelRegression(degree=0).fit([[1.0]], [3.0]).predict([[9.0]])[0] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kernel": "gausian"}, 'kernel: expected the name of a kernel; got "gausian". Did you mean "gaussian"?'),
        ({"bandwidth": -1.0}, "bandwidth: expected a finite number above 0; got -1.0"),
        ({"bandwidth": "cross-validaton"}, 'Did you mean "cross-validation"?'),
        ({"degree": 3}, "degree: expected 0, 1 or 2; got 3"),
        ({"neighbors": 3}, "neighbors: expected 1 to 2, the number of places; got 3"),
        ({"neighbors": "auto", "bandwidth": 1.0}, "bandwidth: expected what the number of neighbors minimizes"),
        ({"categorical": [0], "bandwidth": 2.0}, "a λ from 0 to 1 for a column of categories; got 2"),
        ({"categorical": [1]}, "categorical: expected positions below 1"),
        ({"beyond": "zero"}, 'beyond: expected "nearest", "mean" or "nan"; got "zero"'),
    ],
)
def test_bad_settings_are_named(given: dict, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KernelRegression(**given).fit([[0.0], [1.0]], [0.0, 1.0])
    assert message in str(raised.value)


def test_a_search_finds_the_valley_of_a_criterion() -> None:
    found, least = minimize(lambda h: float((h.log() - np.log(0.9)).square().sum()), torch.ones(1), 0.1, 9.0)
    assert float(found) == pytest.approx(0.9, rel=1e-3)
    assert least == pytest.approx((np.log(float(found)) - np.log(0.9)) ** 2)


def test_a_search_finds_bandwidths_of_different_units_and_a_share() -> None:
    goal = torch.tensor([0.3, 500.0, 0.2], dtype=torch.float64)
    shares = torch.tensor([False, False, True])
    scales = torch.tensor([1.0, 100.0, 1.0], dtype=torch.float64)
    found, _ = minimize(lambda h: float((h / goal - 1).square().sum()), scales, 0.1, 3.0, shares)
    np.testing.assert_allclose(found, goal, rtol=1e-3)
    found, _ = minimize(lambda h: float(h[2]), scales, 0.1, 3.0, shares)
    assert found[2] == 0, "a share can be 0"


@pytest.mark.parametrize("target", [-40.0, 1.0, 7.0, 90.0])
@pytest.mark.parametrize("kernel", ["epanechnikov", "triangular", "boxcar"])
def test_a_point_far_from_all_others_does_not_widen_the_bandwidth(kernel: str, target: float) -> None:
    x, y = _sine(60)
    far = KernelRegression(kernel, "cross-validation", "nan", degree=0).fit(
        np.vstack([x, [[500.0]]]), np.append(y, target)
    )
    assert far.bandwidth_ < 3
    assert np.isfinite(far.criterion_)


@pytest.mark.parametrize("beyond", ["nearest", "mean"])
def test_a_point_is_predicted_from_the_others_alone(beyond: str) -> None:
    x, y = np.array([[0.0], [1.0], [9.0], [30.0]]), np.array([5.0, 6.0, 10.0, 100.0])
    model = KernelRegression("boxcar", 1.5, beyond, degree=0).fit(x, y)  # type: ignore[arg-type]
    for left in range(4):
        rest = np.arange(4) != left
        alone = KernelRegression("boxcar", 1.5, beyond, degree=0).fit(x[rest], y[rest])  # type: ignore[arg-type]
        assert model.residuals()[left] == pytest.approx(y[left] - alone.predict(x[left : left + 1])[0])


@pytest.mark.parametrize(("kernel", "degree"), [("gaussian", 0), ("gaussian", 1), ("epanechnikov", 0)])
def test_columns_that_do_not_matter_are_smoothed_out(kernel: str, degree: int) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 5, (80, 3))
    y = np.sin(2 * x[:, 0]) + random.normal(0, 0.1, 80)
    model = KernelRegression(kernel, degree=degree).fit(x, y)
    assert min(model.bandwidth_[1:]) > 3
    assert model.bandwidth_[0] < 1
