"""Measures: brute force over all subsets is the oracle."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import calibration, metrics
from apportion.errors import InvalidInputError
from apportion.types import Forecast

rewards = st.lists(st.floats(-5, 5), min_size=1, max_size=8)


def over_subsets(reward, k, measure):
    return np.mean([measure(subset) for subset in combinations(reward, k)])


@given(st.integers(1, 12), st.data())
def test_pass_at_k_over_all_subsets(num, data):
    correct = data.draw(st.integers(0, num))
    k = data.draw(st.integers(1, num))
    outcome = [1] * correct + [0] * (num - correct)
    assert metrics.pass_at_k([num], [correct], k)[0] == pytest.approx(over_subsets(outcome, k, max))


def test_pass_at_k_with_many_samples_and_several_problems():
    found = metrics.pass_at_k([1024, 1024, 600], [3, 0, 600], 512)
    assert found[0] == pytest.approx(1 - comb(1021, 512) / comb(1024, 512))
    np.testing.assert_array_equal(found[1:], [0.0, 1.0])


@given(rewards, st.data())
def test_best_worst_and_mean_over_all_subsets(reward, data):
    k = data.draw(st.integers(1, len(reward)))
    group = np.zeros(len(reward), dtype=int)
    for found, measure in (
        (metrics.best_at_k(reward, group, k), max),
        (metrics.worst_at_k(reward, group, k), min),
        (metrics.mean_at_k(reward, group, k), np.mean),
    ):
        assert found[0] == pytest.approx(over_subsets(reward, k, measure), abs=1e-9)


@given(st.lists(st.booleans(), min_size=1, max_size=10), st.data())
def test_best_of_0_and_1_is_pass(solved, data):
    k = data.draw(st.integers(1, len(solved)))
    best = metrics.best_at_k(np.array(solved, dtype=float), np.zeros(len(solved), dtype=int), k)
    np.testing.assert_allclose(best, metrics.pass_at_k([len(solved)], [sum(solved)], k))


def test_groups_may_stand_in_any_order():
    reward, group = [1.0, 5.0, 0.0, 7.0, 3.0], [0, 1, 0, 1, 1]
    np.testing.assert_allclose(metrics.best_at_k(reward, group, 2), [1.0, (7 + 7 + 5) / 3])
    np.testing.assert_allclose(metrics.worst_at_k(reward, group, 2), [0.0, (5 + 3 + 3) / 3])
    np.testing.assert_allclose(metrics.mean_at_k(reward, group, 2), [0.5, 5.0])


def majority_reward(answers, reward_of, subset):
    votes = {}
    for i in subset:
        votes[answers[i]] = votes.get(answers[i], 0) + 1
    top = [answer for answer, num in votes.items() if num == max(votes.values())]
    return np.mean([reward_of[answer] for answer in top])


@settings(max_examples=60)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9), st.data())
def test_majority_over_all_subsets(answers, data):
    k = data.draw(st.integers(1, len(answers)))
    reward_of = dict(zip("abcd", [1.0, 0.0, 0.25, 0.0], strict=True))
    reward = [reward_of[answer] for answer in answers]
    expected = np.mean(
        [majority_reward(answers, reward_of, s) for s in combinations(range(len(answers)), k)]
    )
    found = metrics.maj_at_k(answers, reward, np.zeros(len(answers), dtype=int), k)
    assert found[0] == pytest.approx(expected, abs=1e-12)


def test_majority_of_large_groups_tends_to_the_most_frequent_answer():
    answers = np.repeat([7, 8, 9], [30, 20, 14])
    found = metrics.maj_at_k(answers, answers == 7, np.zeros(64, dtype=int), 64)
    assert found[0] == pytest.approx(1.0)
    single = metrics.maj_at_k(answers, answers == 7, np.zeros(64, dtype=int), 1)
    assert single[0] == pytest.approx(30 / 64)


@pytest.mark.parametrize("measure", [metrics.best_at_k, metrics.worst_at_k, metrics.mean_at_k])
def test_more_draws_than_rollouts_are_refused(measure):
    with pytest.raises(InvalidInputError, match="problem 1 has only 1"):
        measure([1.0, 0.0, 1.0], [0, 0, 1], 2)
    with pytest.raises(InvalidInputError, match="Group 1 has no reward"):
        measure([1.0, 0.0], [0, 2], 1)


def test_wrong_counts_are_refused():
    with pytest.raises(InvalidInputError, match="more than its 4"):
        metrics.pass_at_k([4], [5], 1)
    with pytest.raises(InvalidInputError, match="at most 1000"):
        metrics.maj_at_k(np.zeros(1001), np.zeros(1001), np.zeros(1001, dtype=int), 1)
    with pytest.raises(InvalidInputError, match="outside"):
        calibration.log_score(Forecast.of_success([0.5]), [2], [3.0])


def test_signal_is_more_than_float_noise():
    reward = [0.1 + 0.2, 0.3, 0.3, 0.3 + 1e-6, 0.1 + 0.2 - 0.3, 0.0, 1.0]
    signal = metrics.has_signal(reward, [0, 0, 1, 1, 2, 2, 3])
    np.testing.assert_array_equal(signal, [False, True, False, False])
    assert metrics.signal_share(reward, [0, 0, 1, 1, 2, 2, 3]) == 0.25
    assert metrics.signal_share([], []) == 0.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), st.integers(1, 6))
def test_a_constant_group_never_has_signal(values, times):
    group = np.repeat(np.arange(len(values)), times)
    assert not metrics.has_signal(np.repeat(values, times), group).any()


def simulated(seed=0, size=4_000, count=16):
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(1, 6, size), rng.uniform(1, 6, size)
    success = rng.beta(a, b)
    mean, var = a / (a + b), a * b / (a + b) ** 2 / (a + b + 1)
    num = np.full(size, count)
    return mean, var, num, rng.binomial(num, success)


def test_an_honest_forecast_is_calibrated_and_a_vain_one_is_not():
    mean, var, num, success = simulated()
    honest, vain = Forecast.of_success(mean, var), Forecast.of_success(mean)
    assert calibration.coverage(honest, num, success) == pytest.approx(0.9, abs=0.03)
    assert calibration.coverage(vain, num, success) < 0.8
    square = calibration.standardised_error(honest, num, success) ** 2
    assert square.mean() == pytest.approx(1.0, abs=0.1)
    bins = calibration.reliability(honest, num, success)
    assert bins.error < 0.02
    assert bins.num_rollouts_M.sum() == num.sum()
    assert len(bins.edge_M) == 11


def test_reliability_counts_every_bin_by_hand():
    bins = calibration.reliability(Forecast.of_success([0.0, 0.1, 1.0]), [2, 6, 4], [0, 3, 4])
    np.testing.assert_array_equal(bins.num_rollouts_M, [2, 6, 0, 0, 0, 0, 0, 0, 0, 4])
    np.testing.assert_allclose(bins.observed_M[[0, 1, 9]], [0.0, 0.5, 1.0])
    assert np.isnan(bins.observed_M[2])
    assert bins.error == pytest.approx(6 * 0.4 / 12)


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(1, 50))
def test_the_observed_rate_has_the_best_log_score(rate, other, num):
    success = num * rate
    at_rate = calibration.log_score(Forecast.of_success([rate]), [num], [success])
    elsewhere = calibration.log_score(Forecast.of_success([other]), [num], [success])
    assert at_rate >= elsewhere - 1e-12


def test_scores_of_certain_forecasts_stay_finite():
    wrong = Forecast.of_success([0.0])
    assert calibration.log_score(wrong, [1], [1]) == pytest.approx(np.log(1e-3))
    np.testing.assert_array_equal(calibration.standardised_error(wrong, [4], [1]), [np.inf])
    np.testing.assert_array_equal(calibration.standardised_error(wrong, [4], [0]), [0.0])
    assert calibration.forecast_error(wrong, [0.25]) == 0.25
    assert calibration.coverage(wrong, [4], [0]) == 1.0


@given(st.lists(st.sampled_from([0.0, 0.25, 0.3, 0.1 + 0.2, 1.0]), min_size=1, max_size=64))
def test_signal_from_sums_agrees_with_signal_from_rewards(reward):
    reward = np.array(reward)
    found = metrics.has_signal_from_sums([len(reward)], [reward.sum()], [(reward**2).sum()])
    assert found[0] == metrics.has_signal(reward, np.zeros(len(reward), dtype=int))[0]
