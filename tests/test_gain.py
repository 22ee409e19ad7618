"""Expected gain against numerical integration and closed forms."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import betaln
from scipy.stats import betabinom

from apportion.errors import InvalidInputError
from apportion.gain import Coverage, Progress, best_rollouts
from apportion.types import Forecast

NUM_B = np.array([2, 3, 5, 17, 400])


def integral(mean, doubt, kappa, num):
    """``E[v^2 (n-1) / (n-1 + kappa/v)]`` under Beta(m k, (1-m) k), ``k = 1/doubt - 1``."""
    count = 1.0 / doubt - 1.0
    a, b = mean * count, (1.0 - mean) * count

    def density(angle):
        p, q = np.sin(angle) ** 2, np.cos(angle) ** 2
        if p * q == 0.0:
            return 0.0
        gain = (p * q) ** 3 * (num - 1) / (p * q * (num - 1) + kappa)
        return 2.0 * gain * np.exp((a - 0.5) * np.log(p) + (b - 0.5) * np.log(q) - betaln(a, b))

    centre, width = np.arcsin(np.sqrt(mean)), 0.5 * np.sqrt(doubt)
    low, high = max(centre - 12 * width, 0.0), min(centre + 12 * width, 0.5 * np.pi)
    ends = np.linspace(low, high, 9)
    pieces = [
        quad(density, *piece, epsabs=0.0, epsrel=1e-7, limit=200)[0]
        for piece in itertools.pairwise(ends)
    ]
    return sum(pieces)


def belief(mean, doubt):
    return Forecast.of_success([mean], [doubt * mean * (1 - mean)])


@pytest.mark.parametrize("kappa", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("doubt", [1e-6, 1e-4, 0.003, 0.02, 0.1, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("mean", [1e-4, 0.004, 0.05, 0.3, 0.5, 0.9, 0.999])
def test_progress_is_the_average_over_the_belief(mean, doubt, kappa):
    gain = Progress.of(belief(mean, doubt), kappa)
    for num in NUM_B.tolist():
        expected = integral(mean, doubt, kappa, num)
        assert gain.value(np.array([num]))[0] == pytest.approx(expected, rel=1e-4), num


@given(st.floats(0, 1), st.integers(1, 1000), st.floats(0.3, 3))
def test_progress_without_doubt_is_the_closed_form(success, num, kappa):
    v = success * (1 - success)
    expected = v**3 * (num - 1) / (v * (num - 1) + kappa)
    gain = Progress.of(Forecast.of_success([success]), kappa)
    assert gain.value(np.array([num]))[0] == pytest.approx(expected, rel=1e-12, abs=1e-300)


def gains(draw):
    size = 5
    mean_B = np.array(draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)))
    doubt_B = np.array(draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)))
    forecast = Forecast.of_success(mean_B, doubt_B * mean_B * (1 - mean_B))
    if draw(st.booleans()):
        return Coverage(forecast)
    return Progress.of(forecast, draw(st.floats(0.3, 3)))


@given(st.data(), st.integers(1, 300))
@settings(max_examples=200)
def test_rise_is_the_difference_and_gains_are_concave_from_one(data, num):
    gain = data.draw(st.composite(gains)())
    num_B = np.full(5, num)
    rise_B = gain.rise(num_B)
    now_B, next_B = gain.value(num_B), gain.value(num_B + 1)
    np.testing.assert_allclose(rise_B, next_B - now_B, rtol=1e-9, atol=1e-12)
    assert (rise_B >= 0.0).all()
    assert (gain.rise(num_B + 1) <= rise_B * (1 + 1e-9) + 1e-15).all()
    assert (gain.value(np.zeros(5, dtype=int)) == 0.0).all()
    np.testing.assert_allclose(gain.value(np.ones(5, dtype=int)), 0.0, atol=1e-15)
    index = np.array([3, 1])
    np.testing.assert_array_equal(gain.take(index).value(num_B[:2]), now_B[index])
    np.testing.assert_array_equal(gain.take(index).rise(num_B[:2]), rise_B[index])


@pytest.mark.parametrize("kappa", [0.3, 1.0, 3.0])
def test_best_rollouts_are_those_of_a_fine_grid(kappa):
    success_B = np.array([0.003, 0.02, 0.1, 0.37, 0.5, 0.8, 0.99])
    best_B, index_B = best_rollouts(success_B, kappa)
    n_N = 1.0 + np.logspace(-2, 3, 200_001)
    for success, best, index in zip(success_B, best_B, index_B, strict=True):
        v = success * (1 - success)
        average_N = v**2 * (n_N - 1) / (n_N - 1 + kappa / v) / n_N
        at = int(average_N.argmax())
        assert n_N[at] == pytest.approx(best, rel=1e-3)
        assert average_N[at] == pytest.approx(index, rel=1e-7)


def test_best_rollouts_of_what_is_solved_or_hopeless_is_no_number_of_them():
    best_B, index_B = best_rollouts([0.0, 1.0])
    assert np.isinf(best_B).all()
    assert (index_B == 0.0).all()


def test_real_valued_rewards_spread_less():
    """Half the spread of 0/1 rewards at the same belief: v is half as large everywhere."""
    mean_B, var_B = np.array([0.5, 0.2]), np.array([0.05, 0.0])
    most_B = mean_B * (1 - mean_B) - var_B
    half = Forecast(mean_B=mean_B, var_B=var_B, reward_var_B=0.5 * most_B)
    assert Progress.of(half).variance_BJ == pytest.approx(
        0.5 * Progress.of(Forecast.of_success(mean_B, var_B)).variance_BJ
    )
    for kappa in (0.3, 1.0):
        # v/2 in place of v: u = (1/4) v^2 (n-1) / (n-1 + 2 kappa / v)
        full = Progress.of(Forecast.of_success(mean_B, var_B), 2 * kappa)
        np.testing.assert_allclose(
            Progress.of(half, kappa).value(np.array([4, 9])),
            0.25 * full.value(np.array([4, 9])),
            rtol=1e-12,
        )


def test_constant_rewards_teach_nothing():
    known = Forecast(mean_B=np.array([0.5]), var_B=np.zeros(1), reward_var_B=np.zeros(1))
    torn = Forecast.of_success([0.5], [0.25])  # either always right or always wrong
    for forecast in (known, torn):
        assert Progress.of(forecast).value(np.array([50]))[0] == pytest.approx(0.0, abs=1e-9)
    assert Coverage(torn).value(np.array([50]))[0] == pytest.approx(0.0, abs=1e-9)


@given(st.floats(1e-4, 0.9999), st.floats(1e-4, 0.999), st.integers(2, 200))
def test_coverage_is_that_of_the_beta_binomial(mean, doubt, num):
    count = 1.0 / doubt - 1.0
    same = betabinom(num, mean * count, (1 - mean) * count)
    expected = 1.0 - same.pmf(0) - same.pmf(num)
    found = Coverage(belief(mean, doubt)).value(np.array([num]))[0]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-10)


@given(st.floats(0, 1), st.integers(1, 500))
def test_coverage_without_doubt_is_the_closed_form(success, num):
    found = Coverage(Forecast.of_success([success])).value(np.array([num]))[0]
    assert found == pytest.approx(1 - success**num - (1 - success) ** num, abs=1e-12)


@pytest.mark.parametrize("kappa", [0.0, -1.0, np.nan, np.inf, "one"])
def test_kappa_must_be_a_positive_number(kappa):
    with pytest.raises(InvalidInputError, match="kappa"):
        Progress.of(Forecast.of_success([0.5]), kappa)


def test_extreme_kappa():
    """Without noise every group is worth ``v^2``; with much of it gain is linear in n - 1."""
    forecast = Forecast.of_success([0.5, 0.1], [0.05, 0.02])
    quiet, loud = Progress.of(forecast, 1e-12), Progress.of(forecast, 1e12)
    square_B = quiet.weight_BJ.sum(axis=1)
    np.testing.assert_allclose(quiet.value(np.array([2, 2])), square_B, rtol=1e-6)
    np.testing.assert_allclose(
        loud.value(np.array([11, 11])), 10 * loud.value(np.array([2, 2])), rtol=1e-9
    )
