"""Local polynomials: exact fractions, other programs, rows left out, equal rows, categories, neighbors."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.models.regression import KernelRegression, _corrected_aic
from qkv.models.smoother import KernelSmoother

FIGURES = json.loads(Path(__file__).with_name("kernel_figures.json").read_text(encoding="utf-8"))
CASES = ("one column", "two columns")
EPS = float(np.finfo(float).eps)
SETTINGS = {
    "mean": {"degree": 0, "bandwidth": 0.7},
    "line": {"bandwidth": 0.7},
    "compact line": {"kernel": "epanechnikov", "bandwidth": 1.2},
    "neighbors": {"kernel": "epanechnikov", "neighbors": 9, "bandwidth": 1.0},
}


def _table(count: int, columns: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.uniform(0, 5, (count, columns))
    return x, np.sin(x).sum(1) + random.normal(0, 0.3, count)


def _exact_line(x: list[Fraction], y: list[Fraction], place: Fraction, h: Fraction) -> Fraction:
    """Weighted least squares line under Epanechnikov's kernel, at a place."""
    offsets = [(point - place) / h for point in x]
    weights = [max(Fraction(0), 1 - u * u) for u in offsets]
    s0, s1, s2 = (sum(w * u**power for w, u in zip(weights, offsets, strict=True)) for power in range(3))
    t0, t1 = (sum(w * u**power * value for w, u, value in zip(weights, offsets, y, strict=True)) for power in range(2))
    return (s2 * t0 - s1 * t1) / (s0 * s2 - s1 * s1)


@pytest.mark.parametrize("start", [0, 1990, 10**6])
def test_a_line_through_years_is_the_exact_fraction(start: int) -> None:
    """Rounding does not grow with the distance of the data from 0: offsets from each query are exact here."""
    random = np.random.default_rng(0)
    years = np.sort(random.integers(0, 31 * 8, 60)) / 8 + start
    y = random.integers(-50, 50, 60) / 4
    model = KernelRegression("epanechnikov", 4.0).fit(years[:, None], y)
    places = np.arange(0, 31, 2.5) + start
    exact = [
        float(_exact_line([*map(Fraction, years)], [*map(Fraction, y)], Fraction(place), Fraction(4)))
        for place in places
    ]
    # Sums of at most 60 products, and one division by a variance of at least 1/8 of the mean square.
    np.testing.assert_allclose(model.predict(places[:, None]), exact, rtol=0, atol=60 * 8 * EPS * np.abs(y).max())


def test_three_points_give_a_line_by_hand() -> None:
    # Weights 3/4, 1, 3/4 at −1, 0, 1 under bandwidth 2: the mean of y is (3·1 + 4·2 + 3·6)/10 = 2.9, and x̄ = 0.
    model = KernelRegression("epanechnikov", 2.0).fit([[-1.0], [0.0], [1.0]], [1.0, 2.0, 6.0])
    assert model.predict([[0.0]])[0] == pytest.approx(2.9)
    # At 1 the weights are 0, 3/4, 1: a line through the last two points.
    assert model.predict([[1.0]])[0] == pytest.approx(6.0)


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("columns", [1, 2])
def test_polynomials_of_the_degree_are_not_bent(columns: int, degree: int) -> None:
    x, _ = _table(80, columns)
    truth = lambda x: 3 + (x**degree) @ np.arange(1, columns + 1) + x.prod(1) * (degree == 2)  # noqa: E731
    model = KernelRegression("gaussian", 0.8, degree=degree).fit(x, truth(x))
    query = np.vstack([x.min(0), x.max(0), x[:5]])
    np.testing.assert_allclose(model.predict(query), truth(query), rtol=1e-9)
    mean = KernelRegression("gaussian", 0.8, degree=0).fit(x, truth(x))
    assert np.abs(mean.predict(query[:1]) - truth(query[:1])) > 0.1


@pytest.mark.parametrize("case", CASES)
def test_lines_are_those_of_statsmodels(case: str) -> None:
    given = FIGURES["local linear"][case]
    model = KernelRegression("gaussian", given["bandwidth"]).fit(given["x"], FIGURES["local linear"]["y"])
    np.testing.assert_allclose(model.predict(given["query"]), given["estimates"], rtol=1e-10)


@pytest.mark.parametrize(("way", "name"), [("cross-validation", "cv_ls"), ("aic", "aic")])
@pytest.mark.parametrize("case", CASES)
def test_chosen_bandwidths_are_as_good_as_those_of_statsmodels(case: str, way: str, name: str) -> None:
    given, y = FIGURES["local linear"][case], FIGURES["local linear"]["y"]
    ours = KernelRegression("gaussian", way).fit(given["x"], y)
    theirs = given[name]
    assert ours.criterion_ <= theirs["criterion"] + 1e-9 * abs(theirs["criterion"])


@pytest.mark.parametrize(("way", "name"), [("cross-validation", "cv_ls"), ("aic", "aic")])
@pytest.mark.parametrize("case", CASES)
def test_criteria_at_a_bandwidth_are_those_of_statsmodels(case: str, way: str, name: str) -> None:
    given, y = FIGURES["local linear"][case], FIGURES["local linear"]["y"]
    model = KernelRegression("gaussian", given[name]["chosen"]).fit(given["x"], y)
    found = np.square(model.residuals()).mean() if way == "cross-validation" else _corrected_aic(model._points())
    assert found == pytest.approx(given[name]["criterion"], rel=1e-9)


@pytest.mark.parametrize("kernel", ["epanechnikov", "triangular", "boxcar", "gaussian"])
def test_lines_and_their_bias_correction_are_those_of_nprobust(kernel: str) -> None:
    given = FIGURES["nprobust"]
    query = np.array(given["query"])[:, None]
    model = KernelRegression(kernel, given["bandwidth"]).fit(np.array(given["x"])[:, None], given["y"])
    np.testing.assert_allclose(model.predict(query), given[kernel]["estimates"], rtol=1e-9)
    middle = np.mean(model.interval(query, how="robust"), 0)
    np.testing.assert_allclose(middle, given[kernel]["corrected"], rtol=1e-7)


def test_categories_are_those_of_statsmodels() -> None:
    given = FIGURES["categories"]
    h, theirs = given["bandwidth"]  # Aitchison and Aitken: 1 − λ for equal ones of three categories, λ/2 for others
    share = theirs / 2 / (1 - theirs)
    model = KernelRegression("gaussian", [h, share], degree=0, categorical=[1]).fit(given["x"], given["y"])
    np.testing.assert_allclose(model.predict(given["query"]), given["estimates"], rtol=1e-10)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_a_share_of_0_keeps_categories_apart_and_1_ignores_them(kernel: str) -> None:
    x, y = _table(60)
    city = np.arange(60) % 3
    both = np.column_stack([city, x])
    for share, rows in ((0.0, city == 1), (1.0, city >= 0)):
        model = KernelRegression(kernel, [share, 1.5], categorical=[0]).fit(both, y)
        alone = KernelRegression(kernel, 1.5).fit(x[rows], y[rows])
        query = np.linspace(0.2, 4.8, 7)[:, None]
        found = model.predict(np.column_stack([np.ones(7), query]))
        np.testing.assert_allclose(found, alone.predict(query), rtol=1e-10)


def test_the_share_of_categories_that_matter_is_small_and_of_others_large() -> None:
    x, y = _table(90)
    matters, does_not = np.arange(90) % 3, np.random.default_rng(1).integers(0, 3, 90)
    model = KernelRegression(categorical=[1, 2]).fit(np.column_stack([x, matters, does_not]), y + 3 * matters)
    assert model.bandwidth_[1] < 0.1
    assert model.bandwidth_[2] > 0.5


def test_categories_alone_are_means() -> None:
    codes, y = np.array([[0.0], [0.0], [1.0], [1.0]]), np.array([1.0, 3.0, 10.0, 20.0])
    model = KernelRegression(bandwidth=[0.0], categorical=[0]).fit(codes, y)
    np.testing.assert_allclose(model.predict([[0.0], [1.0]]), [2, 15])


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_residuals_are_those_of_models_without_the_row(name: str, repeated: bool) -> None:
    """Equal rows are computed once, and one of them at a time is left out."""
    x, y = _table(24)
    weights = 1 + np.arange(24) % 3
    if repeated:
        x = np.repeat(x[:12].round(1), 2, 0)
    model = KernelRegression(**SETTINGS[name]).fit(x, y, weights)  # type: ignore[arg-type]
    for left in range(24):
        rest = np.arange(24) != left
        if "neighbors" in SETTINGS[name] and len(np.unique(x[rest])) < 9:
            continue
        alone = KernelRegression(**SETTINGS[name]).fit(x[rest], y[rest], weights[rest])  # type: ignore[arg-type]
        expected = y[left] - alone.predict(x[left : left + 1])[0]
        assert model.residuals()[left] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", SETTINGS)
def test_equal_rows_change_nothing_but_the_time(name: str) -> None:
    x, y = _table(200)
    x = x.round(1)
    model = KernelRegression(**SETTINGS[name]).fit(x, y)  # type: ignore[arg-type]
    query = torch.from_numpy(np.linspace(0.05, 4.95, 30)[:, None])
    unmerged, weights = model.smoother()(query)
    assert weights.shape == (30, 200)
    assert len(model._merged.smoother.inputs) == len(np.unique(x)) < 60
    np.testing.assert_allclose(model.predict(query.numpy()), unmerged[:, 0], rtol=1e-9)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_weight_of_2_is_the_row_twice(name: str) -> None:
    x, y = _table(30)
    twice = np.arange(30) % 2
    query = np.linspace(0.2, 4.8, 9)[:, None]
    weighted = KernelRegression(**SETTINGS[name]).fit(x, y, 1 + twice)  # type: ignore[arg-type]
    rows = np.concatenate([np.arange(30), np.flatnonzero(twice)])
    repeated = KernelRegression(**SETTINGS[name]).fit(x[rows], y[rows])  # type: ignore[arg-type]
    np.testing.assert_allclose(weighted.predict(query), repeated.predict(query), rtol=1e-9)
    none = KernelRegression(**SETTINGS[name]).fit(x, y, twice)  # type: ignore[arg-type]
    kept = KernelRegression(**SETTINGS[name]).fit(x[twice > 0], y[twice > 0])  # type: ignore[arg-type]
    np.testing.assert_array_equal(none.predict(query), kept.predict(query))


@pytest.mark.parametrize("columns", [1, 2])
def test_a_nearest_neighbor_bandwidth_reaches_the_kth_place(columns: int) -> None:
    x, y = _table(50, columns)
    x = np.vstack([x, x[:20]])  # equal places count once
    y = np.append(y, y[:20] + 1)
    model = KernelRegression("epanechnikov", neighbors=12).fit(x, y)
    for place in ([0.0] * columns, [2.5] * columns, [30.0] * columns):
        units = x.std(0) if columns > 1 else 1
        distances = np.linalg.norm((x - place) / units, axis=1)
        h = np.unique(distances.round(12))[11]
        design = np.column_stack([np.ones(len(x)), x - place])
        root = np.sqrt(np.clip(1 - (distances / h) ** 2, 0, None))
        expected = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0][0]
        widest = max(np.unique(np.linalg.norm((x - p) / units, axis=1).round(12))[11] for p in x)
        if distances.min() <= widest:
            assert model.predict([place])[0] == pytest.approx(expected, rel=1e-8)
        else:
            assert not model.predict_supported([place])[1][0]


@pytest.mark.parametrize("way", ["cross-validation", "aic"])
def test_the_number_of_neighbors_is_nearly_the_best_of_all(way: str) -> None:
    x, y = _table(40)
    model = KernelRegression("epanechnikov", way, neighbors="auto").fit(x, y)

    def criterion(count: int) -> float:
        fixed = KernelRegression("epanechnikov", 1.0, neighbors=count).fit(x, y)
        return float(np.mean(fixed.residuals() ** 2)) if way == "cross-validation" else _corrected_aic(fixed._points())

    values = [criterion(count) for count in range(2, 41)]
    assert model.criterion_ == pytest.approx(criterion(model.neighbors_))
    assert model.criterion_ <= min(values) + 0.02 * abs(min(values))


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_out_of_support_a_line_is_not_drawn_on(kernel: str) -> None:
    x, y = _table(60)
    for beyond, expected in (("nearest", y[x[:, 0].argmax()]), ("mean", y.mean()), ("nan", np.nan)):
        model = KernelRegression(kernel, 0.3, beyond).fit(x, y)  # type: ignore[arg-type]
        predicted, supported = model.predict_supported([[2.5], [x.max() + 0.29], [x.max() + 1.3], [1e6]])
        assert supported.tolist() == [True, True, False, False]
        np.testing.assert_allclose(predicted[2:], expected)


def test_a_direction_without_variation_has_no_slope() -> None:
    x = np.column_stack([np.linspace(0, 5, 30), np.full(30, 7.0)])
    model = KernelRegression("gaussian", 0.8).fit(x, 2 * x[:, 0])
    np.testing.assert_allclose(model.predict([[2.2, 7.0], [2.2, 7.5]]), 4.4)
    assert KernelRegression("gaussian", 0.8).fit(np.ones((4, 2)), np.arange(4.0)).predict(
        [[1.0, 1.0]]
    ) == pytest.approx(1.5)


def test_a_module_predicts_what_the_estimator_does() -> None:
    x, y = _table(30, 2)
    model = KernelRegression("gaussian", [0.7, 0.9]).fit(x, y)
    smoother = KernelSmoother(
        torch.from_numpy(x),
        torch.from_numpy(y)[:, None],
        "gaussian",
        torch.tensor([0.7, 0.9], dtype=torch.float64),
        degree=1,
    )
    found = smoother(torch.from_numpy(x)[None, :7])[0]
    assert found.shape == (1, 7, 1)
    np.testing.assert_allclose(found[0, :, 0], model.predict(x[:7]), rtol=1e-10)
    restored = KernelRegression.of(model.smoother())
    np.testing.assert_array_equal(restored.predict(x), model.predict(x))


def _coverage(how: str, simultaneous: bool, draws: int, covers: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """How often intervals cover the true curve, at each of 25 places or (`covers`) at all of them."""
    random, places = np.random.default_rng(5), np.linspace(0, 5, 25)
    x = random.uniform(0, 5, 150)
    inside = []
    for _ in range(draws):
        y = np.sin(2 * x) + random.normal(0, 0.3, 150)
        model = KernelRegression("gaussian", 0.35).fit(x[:, None], y)
        low, high = model.interval(places[:, None], how=how, simultaneous=simultaneous)  # type: ignore[arg-type]
        inside.append(covers((low <= np.sin(2 * places)) & (np.sin(2 * places) <= high)))
    return np.mean(inside, 0)


def test_robust_intervals_cover_the_true_curve_where_normal_ones_do_not() -> None:
    draws = 120
    below = 4 * np.sqrt(0.95 * 0.05 / draws)  # four standard errors
    assert _coverage("robust", False, draws, lambda inside: inside).min() > 0.92 - below
    assert _coverage("normal", False, draws, lambda inside: inside).min() < 0.5


def test_simultaneous_intervals_cover_the_whole_curve() -> None:
    draws = 120
    below = 4 * np.sqrt(0.95 * 0.05 / draws)
    assert _coverage("robust", True, draws, np.all) > 0.92 - below
    assert _coverage("robust", False, draws, np.all) < 0.7
