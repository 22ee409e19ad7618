"""Contract: choices from the first part of the runs, and what they cost at the end."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.plan import backtest as module
from apportion.plan.backtest import backtest
from apportion.plan.forecast_cautions import hindsight_cautions
from apportion.plan.law_search import LAWS
from apportion.plan.learning_curve import LearningCurve
from apportion.plan.runs import Run


@pytest.fixture(autouse=True, scope="module")
def few_draws():
    """Draw little: draws set the interval alone, not what is chosen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "forecast_rewards", partial(module.forecast_rewards, num_draws=6))
        yield


def run(n, ceiling, rate, *, seed=0, noise=0.0, first=2e3, last=1e6, evaluation=None):
    """Evaluate ``ceiling (1 - exp(-rate C))``."""
    compute_T = np.geomspace(first, last, 40)
    rng = np.random.default_rng([n, seed])
    reward_T = ceiling * (1.0 - np.exp(-rate * compute_T)) + noise * rng.normal(size=40)
    return Run(
        name=f"n{n}-seed{seed}",
        rollouts_per_prompt=n,
        prompts_per_step=16,
        compute_T=compute_T,
        reward_T=np.clip(reward_T, 0.0, 1.0),
        seed=seed,
        evaluation=evaluation,
    )


def fast_and_slow(**more):
    return [run(8, 0.5, 8e-6, **more), run(64, 0.8, 2e-6, **more)]


@cache
def plain():
    return backtest(fast_and_slow())


def test_who_led_then_does_not_go_on():
    found = plain()
    assert (found.known_to, found.target) == (1e5, 1e6)
    assert found.best.rollouts_per_prompt == 64
    lost = 0.8 * (1 - np.exp(-2.0)) - 0.5 * (1 - np.exp(-8.0))
    for choice in (found.stay, found.by_law["constant"]):
        assert choice.cell.rollouts_per_prompt == 8
        assert choice.regret == pytest.approx(lost, abs=1e-3)
        assert choice.interval is choice.is_held is None
    assert found.reward == pytest.approx(0.8 * (1 - np.exp(-2.0)), abs=1e-3)
    assert set(found.by_law) == set(LAWS)
    assert found.error is None
    low, high = found.planner.interval
    reached = found.reward - found.planner.regret
    assert found.planner.is_held == (low <= reached <= high)


def test_a_setting_that_stopped_early_is_not_judged():
    runs = [*fast_and_slow(), run(512, 0.9, 9e-6, last=3e5)]
    found = backtest(runs)
    assert found.target == 1e6
    chosen = [found.planner, found.stay, *found.by_law.values()]
    assert 512 not in {choice.cell.rollouts_per_prompt for choice in chosen}


def test_the_end_is_where_two_sizes_were_seen():
    assert backtest([run(8, 0.5, 8e-6, last=4e6), run(64, 0.8, 2e-6)]).target == 1e6


def test_runs_that_were_judged_late_are_cut_later():
    assert backtest(fast_and_slow(first=1.2e5)).known_to == 2.5e5
    assert backtest(fast_and_slow(first=5e5)) is None


def test_one_n_has_nothing_to_choose_from():
    assert backtest([run(8, 0.5, 8e-6, seed=s) for s in range(3)]) is None


def test_the_error_of_a_difference():
    seeded = backtest([r for s in range(4) for r in fast_and_slow(seed=s, noise=0.02)])
    ends = [[run(*a, seed=s, noise=0.02).reward_T[-1] for s in range(4)]
            for a in ((8, 0.5, 8e-6), (64, 0.8, 2e-6))]  # fmt: skip
    assert seeded.error == pytest.approx(np.sqrt(2 * np.mean(np.var(ends, axis=1, ddof=1)) / 4))
    sampled = backtest(fast_and_slow(evaluation=(300, 4)))
    assert sampled.error == pytest.approx(np.sqrt(2 * 0.25 / 1200), rel=0.01)


@settings(max_examples=3)
@given(st.permutations(range(6)), st.integers(0, 9))
def test_order_does_not_matter_and_nothing_is_gained(order, seed):
    runs = [
        run(n, 0.3 + n / 200, 8e-6 / n**0.3, seed=s, noise=0.01)
        for n in (8, 32, 64)
        for s in (seed, seed + 1)
    ]
    found, again = backtest(runs), backtest([runs[i] for i in order])
    for one in (found, again):
        choices = [one.planner, one.stay, *one.by_law.values()]
        assert min(choice.regret for choice in choices) >= 0.0
        assert {choice.cell.rollouts_per_prompt for choice in choices} <= {8, 32, 64}
    assert found.best.rollouts_per_prompt == again.best.rollouts_per_prompt
    assert found.stay.cell.rollouts_per_prompt == again.stay.cell.rollouts_per_prompt
    assert found.reward == pytest.approx(again.reward)


def test_a_planner_that_failed_on_these_runs_says_so():
    found = plain()
    assert hindsight_cautions(None) == []
    fine = replace(found, planner=replace(found.planner, regret=0.0))
    assert hindsight_cautions(fine) == []
    noisy = replace(found, planner=replace(found.stay), error=0.5)
    assert hindsight_cautions(noisy) == []
    (said,) = hindsight_cautions(replace(found, planner=found.stay))
    assert "n = 8, B_p = 16, which at 1,000,000 had n = 64, B_p = 16 0.192 ahead" in said


def printed(n, **shape):
    """Read a run off a curve as it is printed, without noise."""
    curve = LearningCurve.exponential(observed_from=2e3, observed_to=1e6, **shape)
    compute_T = np.geomspace(2e3, 1e6, 13)
    return Run(
        name=f"n{n}",
        rollouts_per_prompt=n,
        prompts_per_step=16,
        compute_T=compute_T,
        reward_T=curve(compute_T),
    )


def test_regret_of_printed_curves_in_closed_form():
    shapes = {
        8: {"ceiling": 0.5, "loss": 0.3, "rate": 1e-4},
        32: {"ceiling": 0.7, "loss": 0.5, "rate": 3e-6},
        64: {"ceiling": 0.72, "loss": 0.52, "rate": 2.5e-6},
    }
    found = backtest([printed(n, **shape) for n, shape in shapes.items()])
    end = {n: s["ceiling"] - s["loss"] * np.exp(-s["rate"] * 1e6) for n, s in shapes.items()}
    assert found.best.rollouts_per_prompt == max(end, key=end.get) == 64
    for choice in (found.planner, found.stay, *found.by_law.values()):
        n = choice.cell.rollouts_per_prompt
        assert choice.regret == pytest.approx(end[64] - end[n], abs=1e-12)


def test_a_setting_first_evaluated_beyond_the_end_is_not_judged():
    later = run(512, 0.99, 9e-6, first=2e6, last=4e6)
    found = backtest([*fast_and_slow(), later])
    assert (found.target, found.best.rollouts_per_prompt) == (1e6, 64)


def test_noise_is_that_at_the_target_not_at_the_end_of_longer_runs():
    runs = fast_and_slow(evaluation=(300, 4))
    beyond = run(8, 0.95, 8e-6, last=4e6, evaluation=(300, 4))
    found = backtest([runs[1], beyond])
    at_target = max(
        one.reward_T[i] * (1 - one.reward_T[i]) / 1200
        for one in (runs[1], beyond)
        for i in [int(np.flatnonzero(one.compute_T <= 1e6 * (1 + 1e-9))[-1])]
    )
    assert found.error == pytest.approx(np.sqrt(2.0 * at_target))


def test_a_wrong_setting_of_an_n_is_told_from_a_wrong_n():
    slow = replace(run(8, 0.75, 1.5e-6), prompts_per_step=64, name="slow")
    found = replace(backtest([*fast_and_slow(), slow]), error=0.01)
    right, taken, other = 0.8 * (1 - np.exp(-2.0)), 0.5, 0.75 * (1 - np.exp(-1.5))
    assert found.stay.cell.prompts_per_step == 16
    assert found.stay.regret == pytest.approx(right - taken, abs=1e-3)
    assert found.stay.regret_of_n == pytest.approx(right - other, abs=1e-3)


@settings(max_examples=3)
@given(
    st.lists(st.floats(0.2, 0.9), min_size=3, max_size=3),
    st.lists(st.floats(1e-6, 1e-4), min_size=3, max_size=3),
    st.permutations(range(3)),
)
def test_choices_are_of_those_run_and_lose_at_least_nothing(ceilings, rates, order):
    runs = [
        printed(n, ceiling=c, loss=c - 0.05, rate=r)
        for n, c, r in zip((8, 32, 128), ceilings, rates, strict=True)
    ]
    found, again = backtest(runs), backtest([runs[i] for i in order])
    end = {one.rollouts_per_prompt: one.reward_T[-1] for one in runs}
    for choice in (found.planner, found.stay, *found.by_law.values()):
        n = choice.cell.rollouts_per_prompt
        assert 0.0 <= choice.regret == pytest.approx(max(end.values()) - end[n], abs=1e-12)
    assert found.planner.regret == pytest.approx(again.planner.regret)
    assert found.reward == again.reward


def test_nothing_after_the_cut_is_seen_by_the_choices():
    found = plain()
    runs = [
        replace(one, reward_T=np.where(one.compute_T <= found.known_to, one.reward_T, 0.9))
        for one in fast_and_slow()
    ]
    other = backtest(runs)
    for name in ("planner", "stay"):
        mine, theirs = getattr(found, name), getattr(other, name)
        assert mine.cell.rollouts_per_prompt == theirs.cell.rollouts_per_prompt
        assert mine.interval == theirs.interval
    assert other.stay.regret == 0.0
