"""Smoothing against a dense grid, and what it must never look at."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.recording import GroupTable, table_of_counts
from apportion.smoothing import _RATE_K, _SPREAD_S, leave_one_out


def drifting(seed: int, rate: float, spread: float, visits: int = 20) -> tuple[GroupTable, list]:
    random = np.random.default_rng(seed)
    size = 150
    logit_Q = random.normal(-0.5, np.sqrt(spread), size)
    keys, steps, solved, truth = [], [], [], []
    for step in range(visits):
        success_Q = 1.0 / (1.0 + np.exp(-logit_Q))
        keys += [f"q{q}" for q in range(size)]
        steps += [step] * size
        solved += random.binomial(8, success_Q).tolist()
        truth += success_Q.tolist()
        logit_Q = logit_Q + np.sqrt(rate) * random.normal(size=size)
    return table_of_counts(keys, steps, solved, 8), truth


def on_a_grid(groups: GroupTable, center: float, spread: float, rate: float) -> np.ndarray:
    """Exact leave-one-out means of each group, by forward and backward passes on a dense grid."""
    grid = np.linspace(-14.0, 14.0, 1201)
    success = 1.0 / (1.0 + np.exp(-grid))
    prior = np.exp(-((grid - center) ** 2) / (2.0 * spread))
    kernel = np.exp(-((grid[:, None] - grid) ** 2) / (2.0 * rate))
    found = np.zeros(len(groups))
    for prompt in range(len(groups.id_Q)):
        at = np.flatnonzero(groups.prompt_G == prompt)
        k, n = groups.reward_sum_G[at], groups.num_rollouts_G[at]
        likelihood = success[None] ** k[:, None] * (1.0 - success[None]) ** (n - k)[:, None]
        move = kernel / kernel.sum(axis=0)
        ahead = [prior / prior.sum()]
        for row in likelihood[:-1]:
            belief = move @ (ahead[-1] * row)
            ahead.append(belief / belief.sum())
        back = [np.ones_like(grid)]
        for row in likelihood[:0:-1]:
            belief = move.T @ (back[-1] * row)
            back.append(belief / belief.max())
        both = np.array(ahead) * np.array(back[::-1])
        found[at] = (both * success).sum(axis=1) / both.sum(axis=1)
    return found


def test_agrees_with_a_dense_grid():
    groups, _ = drifting(0, rate=0.03, spread=4.0, visits=8)
    forecast, population = leave_one_out(groups)
    exact_G = on_a_grid(groups, *population)
    # Moments are matched and the spread is kept from growing: near, not equal.
    assert np.abs(forecast.mean_B - exact_G).mean() < 0.01
    assert np.abs(forecast.mean_B - exact_G).max() < 0.08


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
def test_finds_the_rate_and_the_spread(rate):
    groups, _ = drifting(1, rate=rate, spread=4.0)
    _, population = leave_one_out(groups)
    assert abs(np.log10(population.rate / rate)) <= 0.75
    assert 2.0 < population.spread < 9.0
    assert abs(population.center + 0.5) < 1.0


def test_error_and_doubt_agree_with_the_truth():
    groups, truth = drifting(2, rate=0.03, spread=4.0)
    forecast, _ = leave_one_out(groups)
    gap_G = forecast.mean_B - np.array(truth)
    assert (gap_G**2).mean() < 0.5 * np.mean((groups.rate_G - np.array(truth)) ** 2)
    assert 0.7 < np.mean(gap_G**2 / forecast.var_B) < 1.4


@given(st.integers(0, 5), st.integers(0, 8))
def test_the_visit_itself_is_left_out(prompt, solved):
    groups, _ = drifting(3, rate=0.03, spread=4.0, visits=3)
    before, population = leave_one_out(groups)
    at = np.flatnonzero(groups.prompt_G == prompt)[-1]
    changed = groups.reward_sum_G.copy()
    changed[at] = solved
    after, refitted = leave_one_out(_with_sums(groups, changed))
    if refitted == population:  # the fit sees all visits
        assert after.mean_B[at] == pytest.approx(before.mean_B[at], abs=1e-9)


def _with_sums(groups: GroupTable, sum_G: np.ndarray) -> GroupTable:
    values = {name: getattr(groups, name) for name in GroupTable.__slots__}
    return GroupTable(**(values | {"reward_sum_G": sum_G, "reward_sumsq_G": sum_G}))


@pytest.mark.parametrize("solved", [0, 8])
def test_one_prompt_one_visit_and_constant_records(solved):
    forecast, population = leave_one_out(table_of_counts(["a"], [0], [solved], 8))
    assert 0.0 < forecast.mean_B[0] < 1.0
    assert population.spread in _SPREAD_S
    assert population.rate in _RATE_K
    many = table_of_counts(["a", "b"] * 30, np.repeat(np.arange(30), 2), [solved] * 60, 8)
    found, _ = leave_one_out(many)
    assert np.isfinite(found.mean_B).all()
    assert (found.var_B > 0.0).all()


def test_groups_without_a_scored_reward_teach_nothing():
    keys, steps = ["a"] * 6, list(range(6))
    full = table_of_counts(keys, steps, [4, 4, 0, 4, 4, 4], [8, 8, 0, 8, 8, 8])
    forecast, _ = leave_one_out(full)
    assert forecast.mean_B[2] == pytest.approx(0.5, abs=0.05)


def test_rewards_of_another_range_are_scaled():
    groups, _ = drifting(4, rate=0.03, spread=4.0, visits=4)
    values = {name: getattr(groups, name) for name in GroupTable.__slots__}
    sum_G = 2.0 * groups.reward_sum_G - groups.num_rollouts_G
    signed = GroupTable(**(values | {"reward_sum_G": sum_G}))
    plain, _ = leave_one_out(groups)
    scaled, _ = leave_one_out(signed, (-1.0, 1.0))
    np.testing.assert_allclose(scaled.mean_B, plain.mean_B)
