"""FilterBank: real-valued rewards and offline pass rates."""

import numpy as np
import pytest
from predictor_helpers import (
    assert_equal_states,
    assert_legal,
    bank_of,
    outcomes,
    prompts,
    real_outcomes,
)

from apportion.errors import InvalidInputError
from apportion.predictor import FilterBank

ROW = np.array([0])


# Rewards between 0 and 1.


def test_the_reward_variance_comes_to_that_of_beta_rewards():
    rng = np.random.default_rng(0)
    bank = bank_of(None, 4)
    shape = np.array([[2.0, 2.0], [8.0, 4.0], [1.0, 9.0], [20.0, 20.0]])
    for step in range(80):
        bank.update(np.arange(4), real_outcomes([rng.beta(*ab, 16) for ab in shape], step))
    forecast = bank.forecast(np.arange(4), 80)
    total = shape.sum(axis=1)
    mean = shape[:, 0] / total
    np.testing.assert_allclose(forecast.mean_B, mean, atol=0.03)
    np.testing.assert_allclose(forecast.reward_var_B, mean * (1 - mean) / (total + 1), rtol=0.25)


def test_rewards_that_vary_less_tell_more():
    coarse, fine = bank_of(None, 1), bank_of(None, 1)
    rng = np.random.default_rng(1)
    for step in range(5):
        reward_N = rng.beta(30.0, 20.0, 16)
        coarse.update(ROW, outcomes([np.round(reward_N.sum())], [16], step))
        fine.update(ROW, real_outcomes([reward_N], step))
    coarse, fine = coarse.forecast(ROW, 5), fine.forecast(ROW, 5)
    assert fine.mean_B[0] == pytest.approx(0.6, abs=0.03)
    assert fine.var_B[0] < 0.5 * coarse.var_B[0]
    assert fine.reward_var_B[0] < 0.2 * coarse.reward_var_B[0]


def test_the_same_mean_with_less_dispersion_is_weighed_by_it():
    """``k / d`` successes of ``n / d`` rollouts, d being the dispersion."""
    bank, same = bank_of(None, 1), bank_of(None, 1)
    bank.update(ROW, real_outcomes([[0.4, 0.5, 0.6, 0.5]]))
    dispersion = bank._dispersion.of(ROW)[0]
    assert dispersion < 0.6
    same._learn(ROW, np.array([2.0 / dispersion]), np.array([4.0 / dispersion]), np.array([0]))
    found, expected = bank.forecast(ROW, 0), same.forecast(ROW, 0)
    assert found.mean_B[0] == expected.mean_B[0]
    assert found.var_B[0] == expected.var_B[0]


def test_constant_real_rewards_are_forecast_without_noise():
    bank = bank_of(None, 2)
    for step in range(60):
        bank.update(np.arange(2), real_outcomes([[0.3] * 64, [0.8] * 64], step))
    forecast = bank.forecast(np.arange(2), 60)
    assert_legal(forecast)
    np.testing.assert_allclose(forecast.mean_B, [0.3, 0.8], atol=0.01)
    assert (forecast.reward_var_B < 0.01 * 0.25).all()


@pytest.mark.parametrize("count", [64, 256, 1_024])
def test_a_fall_from_nearly_all_to_nothing_is_believed(count):
    """Rewards without noise count a hundredfold, so that one group contradicts all before."""
    bank = bank_of(None, 2)
    for step in range(20):
        bank.update(np.arange(2), real_outcomes([[0.5] * count, [0.99] * count], step))
    bank.update(np.arange(2), real_outcomes([[0.5] * count, [0.0] * count], 20))
    forecast = bank.forecast(np.arange(2), 21)
    assert_legal(forecast)
    assert forecast.mean_B[0] == pytest.approx(0.5, abs=0.02)
    assert forecast.mean_B[1] < 0.02


# Offline pass rates.


def offline(mean_B, count_B, **arguments):
    bank = FilterBank(**arguments)
    bank.add(prompts(len(mean_B), prior_mean_B=mean_B, prior_count_B=count_B))
    return bank


def test_an_offline_rate_moves_the_first_forecast_and_is_capped():
    mean = [offline([0.9], [count]).forecast(ROW, 0).mean_B[0] for count in (0, 4, 16, 1e6)]
    assert mean[0] == pytest.approx(0.5)
    assert mean[0] < mean[1] < mean[2] == pytest.approx(mean[3])
    assert mean[2] == pytest.approx(0.88, abs=0.03)
    assert offline([0.9], [64.0], max_prior_count=64.0).forecast(ROW, 0).mean_B[0] > mean[2]


def test_an_offline_rate_is_evidence_of_step_0():
    bank = offline([0.9, 0.1, 0.5], [16.0, 999.0, 0.0])
    reference = bank_of(None, 3)
    reference.update(np.arange(2), outcomes([14.4, 1.6], [16, 16], 0))
    for step in (0, 40):
        found, expected = (b.forecast(np.arange(3), step) for b in (bank, reference))
        np.testing.assert_allclose(found.mean_B, expected.mean_B)
        np.testing.assert_allclose(found.var_B, expected.var_B)
    assert found.mean_B[0] > found.mean_B[2] > found.mean_B[1]


def test_an_offline_rate_ages():
    bank = offline([0.9], [16.0])
    fresh, old, ancient = (bank.forecast(ROW, step) for step in (0, 100, 100_000))
    assert fresh.var_B[0] < old.var_B[0] < ancient.var_B[0]
    assert ancient.mean_B[0] < 0.7
    # The older it is, the less it resists.
    mean = []
    for step in (1, 300):
        bank = offline([0.9], [16.0])
        bank.update(ROW, outcomes([0], [4], step))
        mean.append(bank.forecast(ROW, step).mean_B[0])
    assert mean[0] > mean[1]


def test_an_offline_rate_of_a_prompt_added_late_is_old():
    late, early = bank_of(None, 1), bank_of(None, 1)
    for bank in (late, early):
        bank.update(ROW, outcomes([4], [8], 400))
    late.add(prompts(1, prior_mean_B=[0.9], prior_count_B=[16.0]))
    early.add(prompts(1))
    early.update(np.array([1]), outcomes([14.4], [16], 400))
    fresh, stale = (bank.forecast(np.array([1]), 400) for bank in (early, late))
    assert fresh.mean_B[0] > stale.mean_B[0] > 0.5
    assert stale.var_B[0] > fresh.var_B[0]


def test_an_offline_rate_that_may_not_count_is_none():
    capped, none = offline([0.9], [16.0], max_prior_count=0.0), bank_of(None, 1)
    assert_equal_states(capped, none)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_arguments_out_of_range_are_named(value):
    with pytest.raises(InvalidInputError, match="max_prior_count"):
        FilterBank(max_prior_count=value)
