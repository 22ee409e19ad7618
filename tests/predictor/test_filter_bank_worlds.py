"""FilterBank on simulated populations whose success drifts."""

import dataclasses

import numpy as np
import pytest
from predictor_helpers import (
    assert_legal,
    bank_of,
    outcomes,
    prompts,
)
from scipy.special import expit

from apportion.predictor import Beta, FilterBank, GaussianProcess, MovingAverage, Ridge
from apportion.predictor import filter_bank as module

ROW = np.array([0])
TABLE = np.random.default_rng(1).normal(size=(6, 3))


# Whole populations.


def test_a_fresh_bank_knows_nothing():
    forecast = bank_of(None, 3).forecast(np.arange(3), 0)
    np.testing.assert_allclose(forecast.mean_B, 0.5)
    assert (forecast.var_B > 0.1).all()
    bank = bank_of(TABLE)
    assert_legal(bank.forecast(np.arange(6), 5))
    assert bank.rate_weight_K == pytest.approx(np.full(len(module.RATE_K), 1 / 7))


def test_no_success_in_4_and_in_64_differ():
    few, many = bank_of(None, 1), bank_of(None, 1)
    few.update(ROW, outcomes([0], [4]))
    many.update(ROW, outcomes([0], [64]))
    few, many = few.forecast(ROW, 1), many.forecast(ROW, 1)
    assert 0.0 < many.mean_B[0] < 0.5 * few.mean_B[0] < 0.25
    assert many.var_B[0] < 0.5 * few.var_B[0]


def test_doubt_grows_with_age():
    bank = bank_of(None, 2)
    bank.update(np.arange(2), outcomes([4, 6], [8, 8], 3))
    var_T = [bank.forecast(np.arange(2), step).var_B for step in (3, 10, 100, 1_000)]
    assert (np.diff(var_T, axis=0) > 0.0).all()


def test_neighbours_learn_and_strangers_learn_less():
    rng = np.random.default_rng(0)
    center = np.repeat([[0.0, 1.0], [0.0, -1.0]], 12, axis=0)
    bank = bank_of(center + 0.05 * rng.normal(size=(24, 2)))
    first = np.r_[0:8, 12:20]
    for step in range(4):
        bank.update(first, outcomes([7] * 8 + [1] * 8, [8] * 16, step))
    mean_B = bank.forecast(np.arange(24), 4).mean_B
    assert mean_B[:8].min() > mean_B[8:12].max() > mean_B[8:12].min() > 0.6
    assert mean_B[20:].max() < 0.4


@dataclasses.dataclass(frozen=True)
class World:
    """Clustered prompts that rise together by ``4p(1-p) speed`` and walk by themselves."""

    feature_QD: np.ndarray
    logit_TQ: np.ndarray
    visit_TB: np.ndarray
    success_TB: np.ndarray


def world_of(rate, seed, *, speed=0.02, jump=0.0, spread=1.0, size=300, batch=30, num_steps=150):
    rng = np.random.default_rng(seed)
    cluster_Q = rng.integers(0, 10, size)
    feature_QD = np.eye(10)[cluster_Q] + 0.1 * rng.normal(size=(size, 10))
    logit_Q = -1.0 + 1.5 * rng.normal(size=10)[cluster_Q] + np.sqrt(spread) * rng.normal(size=size)
    logit_TQ = np.empty((num_steps, size))
    for step in range(num_steps):
        logit_TQ[step] = logit_Q
        slope_Q = 4 * expit(logit_Q) * expit(-logit_Q)
        rise = speed + (jump if step == num_steps // 2 else 0.0)
        logit_Q = logit_Q + slope_Q * rise + np.sqrt(rate) * rng.normal(size=size)
    epochs = [rng.permutation(size) for _ in range(-(-num_steps * batch // size))]
    visit_TB = np.concatenate(epochs)[: num_steps * batch].reshape(num_steps, batch)
    success_TQ = rng.binomial(8, expit(logit_TQ))
    return World(feature_QD, logit_TQ, visit_TB, np.take_along_axis(success_TQ, visit_TB, axis=1))


def play(predictor, world):
    """Return forecast means and variances, and the true success, of each visit before it."""
    predictor.add(prompts(len(world.feature_QD), world.feature_QD))
    forecast_T = []
    for step, row_B in enumerate(world.visit_TB):
        forecast_T.append(predictor.forecast(row_B, step))
        count_B = np.full(len(row_B), 8)
        predictor.update(row_B, outcomes(world.success_TB[step], count_B, step))
    truth_TB = expit(np.take_along_axis(world.logit_TQ, world.visit_TB, axis=1))
    return (
        np.array([f.mean_B for f in forecast_T]),
        np.array([f.var_B for f in forecast_T]),
        truth_TB,
    )


def log_score(predictor, world):
    """Expected log probability that the forecasts give to one more rollout."""
    mean_TB, _, truth_TB = play(predictor, world)
    mean_TB = np.clip(mean_TB, 1e-3, 1 - 1e-3)
    return (truth_TB * np.log(mean_TB) + (1 - truth_TB) * np.log1p(-mean_TB)).mean()


@pytest.mark.parametrize("rate", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("speed", [0.0, 0.03])
def test_it_foretells_a_drifting_population_better_than_all_others(rate, speed):
    world = world_of(rate, 1, speed=speed)
    found = log_score(FilterBank(), world)
    in_hindsight = [Beta(decay=decay) for decay in (0.9, 0.95, 0.97, 0.985, 0.995, 1.0)]
    for other in (*in_hindsight, GaussianProcess(), MovingAverage(), Ridge()):
        assert found > log_score(other, world), other


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("rate", "place"), [(1e-3, 2), (1e-2, 4), (1e-1, 6)])
def test_it_finds_how_fast_prompts_move_and_how_wide_they_lie(rate, place, seed):
    bank = FilterBank()
    play(bank, world_of(rate, seed))
    assert module.RATE_K[place] == pytest.approx(rate)
    assert abs(int(bank.rate_weight_K.argmax()) - place) <= 1
    # Before its first visit a prompt has walked up to 10 steps.
    assert 0.6 < bank.spread < 1.5 + 10 * rate


@pytest.mark.parametrize("spread", [0.5, 2.0, 8.0])
def test_the_spread_is_that_of_the_prompts_themselves(spread):
    bank = FilterBank()
    play(bank, world_of(1e-3, 0, spread=spread, size=1_000, batch=50, num_steps=20))
    assert bank.spread == pytest.approx(spread, rel=0.5)


class Still(FilterBank):
    """A bank whose prompts take no part in the common trend."""

    def update(self, row_B, outcomes):
        super().update(row_B, outcomes)
        self._slope.values[:] = 0.0


@pytest.mark.parametrize("speed", [0.04, -0.04])
def test_following_the_common_movement_pays(speed):
    bank, world = FilterBank(), world_of(1e-3, 2, speed=speed)
    assert log_score(bank, world) > log_score(Still(), world) + 0.003
    assert 0.2 * abs(speed) < np.sign(speed) * bank._trend.state_A[1] < 1.5 * abs(speed)


def test_where_nothing_moves_following_costs_nothing():
    world = world_of(1e-3, 2, speed=0.0)
    assert log_score(FilterBank(), world) > log_score(Still(), world) - 0.001


@pytest.mark.parametrize("rate", [1e-3, 1e-2, 1e-1])
def test_its_doubt_is_honest(rate):
    ratios, first_ratios, first_errors = [], [], []
    for seed in range(5):
        mean_TB, var_TB, truth_TB = play(FilterBank(), world_of(rate, seed))
        ratio_TB = (truth_TB - mean_TB) ** 2 / var_TB
        ratios.append(ratio_TB.mean())
        first_ratios.append(ratio_TB[:10].mean())  # the first epoch
        first_errors.append((truth_TB - mean_TB)[:10].mean())
    assert 0.7 < np.mean(ratios) < 1.4
    assert 0.7 < np.mean(first_ratios) < 1.4
    assert np.abs(first_errors).max() < 0.05


@pytest.mark.parametrize("jump", [-1.5, 1.5])
def test_a_sudden_jump_of_the_policy_is_followed_and_doubted(jump):
    world = world_of(1e-3, 1, speed=0.0, jump=jump)
    mean_TB, var_TB, truth_TB = play(FilterBank(), world)
    assert 0.7 < ((truth_TB - mean_TB) ** 2 / var_TB).mean() < 1.4
    assert np.abs((truth_TB - mean_TB)[80:90].mean()) < 0.5 * np.abs(
        (truth_TB - play(Still(), world)[0])[80:90].mean()
    )
    assert log_score(FilterBank(), world) > log_score(Still(), world)


def test_no_trend_is_drawn_out_for_ever():
    bank = bank_of(None, 8)
    rng = np.random.default_rng(0)
    for step in range(100):
        rate_B = np.full(8, expit(-2.0 + 0.03 * step))
        bank.update(np.arange(8), outcomes(rng.binomial(64, rate_B), np.full(8, 64), step))
    assert bank._trend.state_A[1] > 0.005
    soon, late = (bank.forecast(np.arange(8), 100 + ahead).mean_B for ahead in (10, 1_000))
    assert (soon > expit(1.0) - 0.1).all()
    assert (late < 0.99).all()


def test_a_saturated_set_does_not_run_away_with_the_others():
    """All rewards are equal for long: no speed can be told, so none may be believed."""
    rng = np.random.default_rng(0)
    bank = bank_of(None, 25)
    for step in range(1_000):
        bank.update(rng.choice(24, 4, replace=False), outcomes([0] * 4, [8] * 4, step))
    bank.update(np.array([24]), outcomes([32], [64], 1_000))
    before, after = (bank.forecast(np.array([24]), step).mean_B[0] for step in (1_000, 1_010))
    assert after == pytest.approx(before, abs=0.05)
