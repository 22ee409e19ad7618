"""Learning curves against SciPy's fits, brute force over the constraints and known curves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit, isotonic_regression, minimize

from apportion.errors import InvalidInputError
from apportion.plan import saturating
from apportion.plan.learning_curve import (
    FORMS,
    LEAST_POINTS,
    LearningCurve,
    fit_curve,
    fit_rows,
    predictive_error,
)

COMPUTE_T = np.geomspace(2e4, 4e6, 40)


def exponential(compute, ceiling, loss, rate):
    return ceiling - loss * np.exp(-rate * 1e-6 * compute)


def scalerl(compute, floor, gain, middle, power):
    return floor + gain / (1.0 + (middle * 1e6 / compute) ** power)


def noisy(curve_T, seed, scale=0.01):
    return np.clip(curve_T + np.random.default_rng(seed).normal(0.0, scale, curve_T.shape), 0, 1)


@pytest.mark.parametrize("seed", range(8))
def test_the_exponential_is_scipys(seed):
    reward_T = noisy(exponential(COMPUTE_T, 0.6, 0.2, 1.1), seed)
    curve = fit_curve(COMPUTE_T, reward_T, "exponential")
    expected, _ = curve_fit(exponential, COMPUTE_T, reward_T, p0=(0.5, 0.1, 1.0))
    np.testing.assert_allclose(
        [curve.ceiling, curve.ceiling - curve.floor, curve.shape[0] * 1e6], expected, rtol=2e-3
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_sigmoid_is_scipys(seed):
    reward_T = noisy(scalerl(COMPUTE_T, 0.2, 0.3, 0.4, 1.6), seed, 0.004)
    curve = fit_curve(COMPUTE_T, reward_T, "sigmoid")
    expected, _ = curve_fit(scalerl, COMPUTE_T, reward_T, p0=(0.2, 0.3, 0.4, 1.5))
    best = np.sum((scalerl(COMPUTE_T, *expected) - reward_T) ** 2)
    assert curve.rmse**2 * len(COMPUTE_T) <= best * (1 + 1e-3)
    np.testing.assert_allclose(curve(COMPUTE_T), scalerl(COMPUTE_T, *expected), atol=1e-3)


@pytest.mark.parametrize(
    ("form", "curve_T", "ceiling"),
    [
        ("exponential", exponential(COMPUTE_T, 0.718, 0.254, 0.461), 0.718),
        ("sigmoid", scalerl(COMPUTE_T, 0.1, 0.5, 0.3, 1.4), 0.6),
    ],
)
def test_a_clean_curve_is_found_and_chosen(form, curve_T, ceiling):
    curve = fit_curve(COMPUTE_T, curve_T)
    assert curve.form == form
    assert curve.ceiling == pytest.approx(ceiling, abs=2e-3)
    assert curve.rmse < 1e-4


def rising(rise, shape, floor, ceiling, compute):
    height = rise(compute, np.log(np.asarray(shape)))
    return floor * (1 - height) + ceiling * height


@given(
    st.integers(0, 10**6),
    st.sampled_from(["exponential", "sigmoid"]),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
@settings(max_examples=60, deadline=None)
def test_the_best_ends_for_a_shape_are_the_constrained_optimum(seed, form, low, high):
    """The closed form against a bounded minimiser, where the constraints bind and where not."""
    rng = np.random.default_rng(seed)
    compute_T = np.sort(rng.uniform(1.0, 10.0, 8))
    reward_T = np.clip(rng.normal(low, 0.3, 8) + (high - low) * compute_T / 10, 0, 1)
    rise, shape = (
        (saturating.exponential, rng.uniform(0.05, 2.0, 1))
        if form == "exponential"
        else (saturating.sigmoid, rng.uniform(0.5, 6.0, 2))
    )
    h_T = rise(compute_T, np.log(shape))
    cost, floor, ceiling = (x[0, 0] for x in saturating._costs(h_T[None, None], reward_T[None]))
    assert -1e-12 <= floor <= ceiling + 1e-12
    assert ceiling <= 1 + 1e-12

    def squares(ends):
        return float(np.sum((ends[0] * (1 - h_T) + (ends[0] + ends[1]) * h_T - reward_T) ** 2))

    best = min(
        minimize(
            squares,
            start,
            bounds=[(0, 1), (0, 1)],
            constraints={"type": "ineq", "fun": lambda e: 1 - e.sum()},
            method="SLSQP",
        ).fun
        for start in ([0.1, 0.5], [0.5, 0.1])
    )
    assert cost <= best + 1e-6
    assert cost == pytest.approx(squares([floor, ceiling - floor]), abs=1e-9)


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1)), min_size=1, max_size=25),
    st.sampled_from(["best", *FORMS]),
)
@settings(max_examples=80, deadline=None)
def test_curves_rise_and_stay_within_bounds(points, form):
    compute_T, reward_T = np.array(points).T
    if compute_T.max() <= 0:
        return
    curve = fit_curve(compute_T, reward_T, form)
    value_K = curve(np.concatenate([[0.0], np.geomspace(1.0, 1e10, 200)]))
    assert np.all(np.diff(value_K) >= -1e-9)
    assert value_K.min() >= -1e-9
    assert value_K.max() <= 1 + 1e-9
    assert np.isfinite(curve.rmse)


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_the_unit_of_compute_does_not_matter(seed, factor):
    reward_T = noisy(exponential(COMPUTE_T, 0.5, 0.3, 2.0), seed)
    one = fit_curve(COMPUTE_T, reward_T, "exponential")
    other = fit_curve(COMPUTE_T * factor, reward_T, "exponential")
    assert other.ceiling == pytest.approx(one.ceiling, abs=1e-6)
    assert other.shape[0] * factor == pytest.approx(one.shape[0], rel=1e-4)


def test_rows_are_fitted_as_they_are_alone():
    reward_ST = np.stack([noisy(exponential(COMPUTE_T, 0.6, 0.2, 1.1), s) for s in range(5)])
    for form in FORMS:
        for row, curve in zip(reward_ST, fit_rows(COMPUTE_T, reward_ST, form), strict=True):
            alone = fit_curve(COMPUTE_T, row, form)
            assert alone.ceiling == pytest.approx(curve.ceiling, abs=1e-9)
            assert alone.rmse == pytest.approx(curve.rmse, abs=1e-9)


def test_isotonic_is_scipys_over_means():
    reward_T = noisy(exponential(COMPUTE_T, 0.6, 0.2, 1.1), 3, 0.05)
    compute = np.concatenate([COMPUTE_T, COMPUTE_T])
    reward = np.concatenate([reward_T, 1 - reward_T])
    curve = fit_curve(compute, reward, "isotonic")
    np.testing.assert_allclose(curve(COMPUTE_T), 0.5)
    alone = fit_curve(COMPUTE_T, reward_T, "isotonic")
    np.testing.assert_allclose(alone(COMPUTE_T), isotonic_regression(reward_T).x)
    assert alone(1e12) == alone.ceiling


def test_what_does_not_rise_is_said():
    falling = fit_curve(COMPUTE_T, np.linspace(0.6, 0.2, 40), "exponential")
    assert falling.ceiling == pytest.approx(0.4)
    assert "does not rise" in falling.advice
    early = fit_curve(COMPUTE_T, exponential(COMPUTE_T, 0.9, 0.8, 0.1), "exponential")
    assert "Still rising, 33% of the way" in early.advice
    assert not fit_curve(COMPUTE_T, exponential(COMPUTE_T, 0.6, 0.2, 2.0), "exponential").advice
    few = fit_curve([1e4, 2e4, 3e4], [0.1, 0.2, 0.3])
    assert few.form == "isotonic"
    assert f"3 of the {LEAST_POINTS} levels" in few.advice


@pytest.mark.parametrize("form", FORMS)
def test_the_start_is_a_point_but_no_observation_of_a_run(form):
    compute_T = np.concatenate([[0.0], COMPUTE_T])
    curve = fit_curve(compute_T, exponential(compute_T, 0.6, 0.2, 1.0), form)
    assert curve.observed_from == COMPUTE_T[0]
    assert float(curve(0.0)) == pytest.approx(0.4, abs=0.01)


def test_forms_are_judged_by_what_comes_next():
    reward_T = exponential(COMPUTE_T, 0.6, 0.3, 1.0)
    assert predictive_error(COMPUTE_T, reward_T, "exponential") < 1e-8
    held = reward_T[COMPUTE_T <= 1e6].max()
    expected = np.mean((held - reward_T[COMPUTE_T > 1e6]) ** 2)
    later = reward_T[COMPUTE_T <= 2e6].max()
    expected = (expected + np.mean((later - reward_T[COMPUTE_T > 2e6]) ** 2)) / 2
    assert predictive_error(COMPUTE_T, reward_T, "isotonic") == pytest.approx(expected)
    assert predictive_error([1, 2, 3, 100], [0.1, 0.2, 0.3, 0.4], "sigmoid") == np.inf


@pytest.mark.parametrize(
    ("compute", "reward", "match"),
    [
        ([], [], "at least one evaluation"),
        ([0.0], [0.5], "at least one evaluation"),
        ([-1.0, 2.0], [0.5, 0.5], "at least one evaluation"),
        ([1.0, 2.0], [0.5], "reward_T"),
        ([1.0], [1.5], "reward_T"),
        ([np.nan], [0.5], "compute_T"),
    ],
)
def test_bad_points_are_refused(compute, reward, match):
    with pytest.raises(InvalidInputError, match=match):
        fit_curve(compute, reward)


def test_an_unknown_form_is_refused():
    with pytest.raises(InvalidInputError, match="form"):
        fit_curve([1.0, 2.0], [0.1, 0.2], "spline")
    assert isinstance(fit_curve([1.0], [0.2]), LearningCurve)
