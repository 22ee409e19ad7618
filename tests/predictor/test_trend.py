"""Trend: conditioning one large Gaussian on all that was observed is the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import StateError
from apportion.predictor import trend as module
from apportion.predictor.trend import Trend

KEEP_SPEED = module._KEEP_SPEED


def posterior(rate_T, slope_TB, told_TB, var_TB):
    """Mean and covariance of the last level and speed, from the joint Gaussian of all steps.

    The level starts at 0, the speed with a variance of 1e-4 and a step leaves a share of it; step
    t adds noise of variance rate_t to the level and of rate_t / 400 to the speed. What is told is
    ``slope * level + N(0, var)``.
    """
    num_steps = len(rate_T)
    # Every level and speed as a linear function of independent noises: the first speed, then two
    # noises a step.
    noise_var = np.concatenate([[1e-4], np.repeat(rate_T, 2)])
    noise_var[2::2] /= 400.0
    level, speed = np.zeros(1 + 2 * num_steps), np.zeros(1 + 2 * num_steps)
    speed[0] = 1.0
    design = []
    for t in range(num_steps):
        level, speed = level + speed, KEEP_SPEED * speed
        level[1 + 2 * t] += 1.0
        speed[2 + 2 * t] += 1.0
        design.extend(np.outer(slope_TB[t], level))
    design = np.array(design)
    precision = np.diag(1.0 / noise_var) + (design.T / np.ravel(var_TB)) @ design
    shift = design.T @ (np.ravel(told_TB) / np.ravel(var_TB))
    last = np.stack([level, speed])
    half = np.linalg.solve(precision, last.T)
    return half.T @ shift, last @ half


@pytest.mark.parametrize("num_calls", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_equals_the_exact_posterior_of_the_whole_series(seed, num_calls):
    rng = np.random.default_rng(seed)
    num_steps, batch = 40, 6
    rate_T = rng.choice([1e-4, 1e-3, 1e-1], num_steps)
    slope_TB = rng.uniform(0.0, 1.0, (num_steps, batch))
    var_TB = rng.uniform(0.01, 3.0, (num_steps, batch))
    level_T = np.cumsum(0.05 + 0.02 * rng.normal(size=num_steps))
    told_TB = slope_TB * level_T[:, None] + np.sqrt(var_TB) * rng.normal(size=(num_steps, batch))
    trend = Trend()
    for t in range(num_steps):
        trend.advance(t + 1, rate_T[t])
        for part in np.array_split(np.arange(batch), num_calls):
            surprise_B = told_TB[t, part] - slope_TB[t, part] * trend.level
            trend.learn(slope_TB[t, part], surprise_B, var_TB[t, part])
        mean, cov = posterior(rate_T[: t + 1], slope_TB[: t + 1], told_TB[: t + 1], var_TB[: t + 1])
        np.testing.assert_allclose(trend.state_A, mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(trend.cov_AA, cov, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("ahead", [2, 10, 100])
def test_one_long_step_equals_many_short_ones(ahead):
    long, short = Trend(), Trend()
    for trend in (long, short):
        trend.state_A = np.array([0.3, 0.02])
        trend.cov_AA = np.array([[0.5, 0.01], [0.01, 0.002]])
    long.advance(ahead, 1e-2)
    for step in range(1, ahead + 1):
        short.advance(step, 1e-2)
    np.testing.assert_allclose(long.state_A, short.state_A)
    np.testing.assert_allclose(long.cov_AA, short.cov_AA)


@pytest.mark.parametrize("speed", [0.03, -0.01])
def test_it_learns_a_constant_speed_and_looks_ahead(speed):
    trend, rng = Trend(), np.random.default_rng(0)
    slope_B = rng.uniform(0.2, 1.0, 16)
    for step in range(1, 300):
        trend.advance(step, 1e-3)
        told_B = slope_B * speed * step + 0.1 * rng.normal(size=16)
        trend.learn(slope_B, told_B - slope_B * trend.level, np.full(16, 0.01))
    assert 0.3 < trend.state_A[1] / speed < 1.3
    for ahead in (1, 5, 20):
        left, moved = speed * (299 + ahead) - trend.level_at(299 + ahead), speed * ahead
        assert abs(left) < 0.8 * abs(moved) + 0.05
    assert trend.level_at(100) == trend.level


def test_no_information_leaves_it_unchanged():
    trend = Trend()
    trend.advance(5, 1e-2)
    before = trend.state_dict()
    trend.learn(np.zeros(3), np.array([1.0, -2.0, 1e6]), np.ones(3))
    trend.learn(np.zeros(0), np.zeros(0), np.zeros(0))
    trend.learn(np.full(2, 1e-9), np.ones(2), np.ones(2))
    for name, array in trend.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_step_back_in_time_changes_nothing():
    trend = Trend()
    trend.advance(5, 1e-2)
    before = trend.cov_AA.copy()
    trend.advance(5, 1e-2)
    trend.advance(2, 1e-2)
    np.testing.assert_array_equal(trend.cov_AA, before)
    assert trend.step == 5


def test_evidence_never_adds_doubt():
    trend, rng = Trend(), np.random.default_rng(1)
    for step in range(1, 50):
        trend.advance(step, 1e-2)
        before = trend.cov_AA
        trend.learn(rng.uniform(0, 1, 4), rng.normal(size=4), rng.uniform(0.01, 5, 4))
        assert np.linalg.eigvalsh(before - trend.cov_AA).min() >= -1e-12


def test_the_covariance_stays_positive_over_ten_thousand_random_steps():
    trend, rng = Trend(), np.random.default_rng(2)
    step = 0
    for _ in range(10_000):
        step += int(rng.choice([0, 1, 1, 1, 50]))
        trend.advance(step, rng.choice([1e-4, 1e-2, 1e-1]))
        size = int(rng.integers(0, 5))
        slope_B = rng.choice([0.0, 1e-6, 1e-2, 1.0], size)
        trend.learn(slope_B, rng.normal(size=size), rng.choice([1e-6, 1e-2, 10.0], size))
        largest = np.abs(trend.cov_AA).max()
        np.testing.assert_allclose(trend.cov_AA, trend.cov_AA.T, rtol=0, atol=1e-12 * largest)
        assert np.linalg.eigvalsh(trend.cov_AA).min() >= -1e-12 * largest
    assert np.isfinite(trend.state_A).all()


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1_000),
            st.floats(0, 1),
            st.floats(-300, 300),
            st.floats(1e-7, 1e4),
        ),
        max_size=30,
    )
)
def test_it_stays_finite(history):
    trend, step = Trend(), 0
    for gap, slope, surprise, var in history:
        step += gap
        trend.advance(step, 1e-1)
        trend.learn(np.array([slope]), np.array([surprise]), np.array([var]))
        assert np.isfinite(trend.state_A).all()
        assert (np.diag(trend.cov_AA) >= 0.0).all()


def test_a_restored_state_goes_on_bit_for_bit_and_is_a_copy():
    trend = Trend()
    trend.advance(3, 1e-2)
    trend.learn(np.ones(2), np.array([0.1, 0.3]), np.ones(2))
    state = trend.state_dict()
    restored = Trend.of_state(state)
    for one in (trend, restored):
        one.advance(7, 1e-3)
        one.learn(np.ones(1), np.array([-0.2]), np.ones(1))
    for name, array in trend.state_dict().items():
        np.testing.assert_array_equal(array, restored.state_dict()[name])
    before = {name: array.copy() for name, array in trend.state_dict().items()}
    for array in trend.state_dict().values():
        array[...] = 0
    for name, array in trend.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("trend_step", np.array([-1])),
        ("trend_step", np.array([1.0])),
        ("trend_step", np.array([1, 2])),
        ("trend_state", np.array([np.nan, 0.0])),
        ("trend_state", np.zeros(3)),
        ("trend_cov", np.array([1.0, 0.0, 0.0])),
        ("trend_cov", np.array([1.0, 0.0, 0.0, np.inf])),
        ("trend_cov", np.array([-1.0, 0.0, 0.0, 1.0])),
        ("trend_cov", np.array([1.0, 0.5, -0.5, 1.0])),
        ("trend_cov", np.array([1.0, 2.0, 2.0, 1.0])),
    ],
)
def test_a_damaged_state_is_refused(name, array):
    with pytest.raises(StateError, match=name):
        Trend.of_state(Trend().state_dict() | {name: array})
