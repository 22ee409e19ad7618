"""Plans keep their limits, under hypothesis; and are the ones a person would work out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.plan.limits import LEAST_STEPS, MOST_ROLLOUTS, Limits
from apportion.plan.planning import plan_from_published, plan_of
from apportion.plan.prior import DIFFICULTIES, METRICS
from apportion.plan.reasons import warnings_of_steps
from apportion.plan.recipe import Anchor, Reason
from apportion.plan.sweep_first import Costing, sweep_first


def certain(n, budget, **options):
    """A plan where n is known."""
    return plan_of(
        np.full(8, np.log2(n)), budget, **{"difficulty": "easy", "basis": "runs", **options}
    )


@st.composite
def limits_of(draw):
    """Limits that leave a batch."""
    num_prompts = draw(st.none() | st.integers(1, 100) | st.integers(1, 10**5))
    prompts = draw(st.none() | st.integers(1, min(num_prompts or 2000, 2000)))
    return Limits(
        max_batch=draw(st.none() | st.integers(2 * (prompts or 1), 10**6)),
        prompts_per_step=prompts,
        num_prompts=num_prompts,
        epochs=None if num_prompts is None else draw(st.none() | st.floats(1.0, 100.0)),
    )


@given(
    found=limits_of(),
    draws=st.lists(st.floats(0.0, 13.0), min_size=1, max_size=9),
    budget=st.floats(4000, 1e8),
    difficulty=st.sampled_from(DIFFICULTIES),
)
def test_limits_are_kept(found, draws, budget, difficulty):
    plan = plan_of(draws, budget, difficulty=difficulty, basis="runs", limits=found)
    n, prompts, steps = plan.rollouts_per_prompt, plan.prompts_per_step, plan.num_steps
    assert 2 <= n <= MOST_ROLLOUTS
    assert n & (n - 1) == 0
    assert prompts >= 1
    assert steps >= 1
    assert n * prompts * steps == plan.cost.rollouts == plan.budget - plan.unspent
    assert plan.unspent >= 0
    assert plan.interval.low <= plan.interval.median <= plan.interval.high
    for one in (plan, *plan.sweep_first):
        assert one.num_steps >= 1
        batch = one.rollouts_per_prompt * one.prompts_per_step
        assert batch <= (found.max_batch or np.inf)
        assert one.prompts_per_step <= (found.num_prompts or np.inf)
        if found.epochs is not None:
            passes = one.num_steps * one.prompts_per_step / found.num_prompts
            assert passes <= found.epochs + 1e-6
    if found.prompts_per_step is not None:
        assert prompts == found.prompts_per_step
    if found.epochs is None:
        assert plan.unspent < n * prompts
    swept = sum(run.cost.rollouts for run in plan.sweep_first)
    assert swept <= 0.4 * plan.budget
    assert not plan.sweep_first or n in {run.rollouts_per_prompt for run in plan.sweep_first}
    assert (plan.passes is None) == (found.num_prompts is None)


@given(
    budget=st.integers(200, 10**8),
    factor=st.floats(1.0, 100.0),
    max_batch=st.none() | st.integers(256, 10**6),
    difficulty=st.sampled_from(DIFFICULTIES),
    metric=st.sampled_from(METRICS),
    num_prompts=st.none() | st.integers(32, 10**5),
)
def test_n_never_falls_as_the_budget_grows(
    budget, factor, max_batch, difficulty, metric, num_prompts
):
    few, many = (
        plan_from_published(
            c,
            difficulty=difficulty,
            metric=metric,
            limits=Limits(max_batch=max_batch, num_prompts=num_prompts),
        )
        for c in (budget, budget * factor)
    )
    assert few.rollouts_per_prompt <= many.rollouts_per_prompt
    assert few.interval.median <= many.interval.median + 1e-9


def test_the_first_example():
    plan = plan_from_published(2e6, difficulty="easy", limits=Limits(max_batch=8192))
    assert (plan.rollouts_per_prompt, plan.prompts_per_step, plan.num_steps) == (64, 32, 976)
    assert plan.unspent == 2_000_000 - 64 * 32 * 976
    assert plan.learning_rate == pytest.approx(np.sqrt(2) * 1e-6)
    assert plan.basis == "published"
    assert plan.expected_reward is None
    assert plan.interval.low < 16 < 64 < 400 < plan.interval.high
    assert plan.regularisation.kl_term
    assert plan.warnings == ()


def test_every_setting_has_a_reason_with_a_source():
    plan = plan_from_published(2e6, difficulty="hard")
    about = {reason.about for reason in plan.reasons}
    assert about == {
        "rollouts_per_prompt",
        "prompts_per_step",
        "num_steps",
        "whole_run",
        "learning_rate",
        "regularisation",
    }
    assert all(reason.source and reason.text for reason in plan.reasons)
    ride = next(reason for reason in plan.reasons if reason.about == "whole_run")
    assert "one run cannot ride" in ride.text
    assert "not shown for language models" in ride.source


def test_what_is_handed_in_is_handed_on():
    plan = certain(
        64,
        1e6,
        reasons=[Reason(about="rollouts_per_prompt", text="seen", source="your runs")],
        warnings=["two seeds"],
        expected_reward=0.7,
    )
    assert plan.rollouts_per_prompt == 64
    assert plan.reasons[0].source == "your runs"
    assert plan.warnings == ("two seeds",)
    assert plan.expected_reward == 0.7
    assert plan.interval.low == pytest.approx(64)


@pytest.mark.parametrize(
    ("max_batch", "difficulty", "n", "prompts"),
    [
        (None, "easy", 128, 32),
        (None, "hard", 128, 64),
        (4096, "easy", 128, 32),
        (4096, "hard", 128, 32),
        (6000, "hard", 128, 32),
        (1024, "hard", 32, 32),
        (512, "easy", 16, 32),
        (128, "easy", 8, 16),
        (64, "mixed", 8, 8),
        (20, "easy", 2, 8),
        (10, "easy", 2, 4),
        (2, "easy", 2, 1),
    ],
)
def test_n_comes_first_then_prompts_at_their_least(max_batch, difficulty, n, prompts):
    plan = certain(128, 1e7, difficulty=difficulty, limits=Limits(max_batch=max_batch))
    assert (plan.rollouts_per_prompt, plan.prompts_per_step) == (n, prompts)
    is_held = any("holds n at" in warning for warning in plan.warnings)
    assert is_held == (n < 128)
    assert any("a step" in w and "prompt" in w for w in plan.warnings) == (
        prompts < (32 if difficulty == "easy" else 64)
    )


def test_n_leaves_a_hundred_steps_but_is_no_smaller_than_eight_for_it():
    plan = certain(256, 1e6)
    assert plan.rollouts_per_prompt == 256
    fixed = certain(256, 2e6, limits=Limits(prompts_per_step=1024))
    assert fixed.rollouts_per_prompt == 16
    assert fixed.num_steps >= LEAST_STEPS
    assert any("so that 100 steps remain" in reason.text for reason in fixed.reasons)
    small = certain(256, 10_000)
    assert small.rollouts_per_prompt == 8
    assert small.num_steps == 39
    assert any(warning.startswith("Only 39 steps") for warning in small.warnings)
    assert certain(256, 200).rollouts_per_prompt == 4


def test_with_few_passes_n_rises_within_its_interval_and_the_rest_is_told():
    draws = np.log2([32.0] * 50 + [128.0] * 10)
    options = {"difficulty": "easy", "basis": "runs"}
    free = plan_of(draws, 1e6, limits=Limits(num_prompts=6000), **options)
    assert free.rollouts_per_prompt == 32
    assert free.passes == pytest.approx(1e6 / 32 / 6000, rel=1e-2)
    two = plan_of(draws, 1e6, limits=Limits(num_prompts=6000, epochs=2), **options)
    assert two.rollouts_per_prompt == 128
    assert two.passes <= 2
    half = plan_of(draws, 1e6, limits=Limits(num_prompts=6000, epochs=0.5), **options)
    assert half.rollouts_per_prompt == 128
    assert half.num_steps == int(0.5 * 6000 / 32)
    assert any("stay unspent" in warning for warning in half.warnings)


def test_passes_beyond_those_of_the_best_are_told():
    few = plan_from_published(2e6, difficulty="easy", limits=Limits(num_prompts=600))
    assert few.passes > 50
    assert any("passes over the prompts" in warning for warning in few.warnings)
    assert warnings_of_steps(300, 8.0, "easy") == []
    assert warnings_of_steps(300, 12.0, "hard") == []
    assert len(warnings_of_steps(99, 9.0, "mixed")) == 2
    assert warnings_of_steps(1, None, "easy")[0].startswith("Only 1 step,")


def test_what_published_runs_do_not_reach_is_told():
    plan = plan_from_published(1e8, difficulty="hard", limits=Limits(num_prompts=100))
    told = " ".join(plan.warnings)
    assert "extrapolated" in told
    assert "fewer than the 500" in told
    assert "difficulty is not given" in plan_from_published(2e6).warnings[0]
    assert plan_from_published(2e6).difficulty == "mixed"


def test_the_sweep_has_three_sizes_and_the_run_that_tells_n_from_the_rate():
    runs = certain(64, 2e7).sweep_first
    assert [run.rollouts_per_prompt for run in runs] == [16, 64, 256, 16]
    rates = [run.learning_rate for run in runs]
    assert rates[3] == pytest.approx(rates[1])
    assert rates[3] == pytest.approx(2 * rates[0])
    assert "n = 16 at the learning rate of n = 64" in runs[3].tells
    assert len({run.prompts_per_step for run in runs}) == 1
    assert all(run.cost.rollouts <= 2e7 / 40 for run in runs)
    assert sum(run.cost.rollouts for run in runs) == pytest.approx(2e6, rel=0.02)


def test_a_smaller_budget_sweeps_smaller_sizes_with_steps_beyond_warm_up():
    runs = certain(64, 2e6).sweep_first
    assert [run.rollouts_per_prompt for run in runs] == [4, 16, 64, 16]
    assert min(run.num_steps for run in runs) >= 20
    assert certain(64, 1e4).sweep_first == ()


@given(st.integers(1, 11), st.integers(1, 2000), st.integers(2, 10**9))
def test_no_sweep_goes_beyond_four_n_or_below_four(log2_n, prompts, budget):
    runs = sweep_first(
        2**log2_n, prompts, budget, limits=Limits(), anchor=Anchor(), costing=Costing()
    )
    assert len(runs) in (0, 4)
    if runs:
        sizes = [run.rollouts_per_prompt for run in runs[:3]]
        assert 2**log2_n in sizes
        assert len(set(sizes)) == 3
    for run in runs:
        assert 4 <= run.rollouts_per_prompt <= min(4 * 2**log2_n, MOST_ROLLOUTS)
        assert run.num_steps >= 12
        assert run.cost.rollouts <= budget / 10
        assert run.learning_rate <= Anchor().rate_at(4 * 2**log2_n * prompts) + 1e-18


def test_costs_multiply():
    costing = Costing(tokens_per_rollout=1000, rollouts_per_gpu_hour=10_000, price_per_gpu_hour=2.0)
    cost = costing.of(1_000_000)
    assert (cost.tokens, cost.gpu_hours, cost.price) == (1e9, 100.0, 200.0)
    assert costing.rollouts_in(100.0) == 1_000_000
    none = Costing().of(5)
    assert (none.tokens, none.gpu_hours, none.price) == (None, None, None)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: certain(8, 63), "at least 64 rollouts"),
        (lambda: certain(8, 199, limits=Limits(prompts_per_step=100)), "at least 200 rollouts"),
        (lambda: certain(8, 1e6, limits=Limits(num_prompts=320, epochs=0.05)), "at least 0.1"),
        (lambda: plan_from_published(-1), "budget is -1"),
        (lambda: plan_from_published(np.inf), "budget is inf"),
        (lambda: plan_of([], 1e6, difficulty="easy", basis="runs"), "empty"),
        (lambda: Limits(max_batch=1), "max_batch is 1"),
        (lambda: Limits(max_batch=62, prompts_per_step=32), "at most 31"),
        (lambda: Limits(prompts_per_step=33, num_prompts=32), "there are 32 prompts"),
        (lambda: Limits(epochs=2), "number of prompts"),
        (lambda: Limits(epochs=0, num_prompts=9), "above 0"),
        (lambda: Costing(price_per_gpu_hour=1), "needs rollouts_per_gpu_hour"),
        (lambda: Costing(tokens_per_rollout=0), "above 0"),
        (lambda: Costing().rollouts_in(3), "needs rollouts_per_gpu_hour"),
    ],
)
def test_mistakes_are_named(call, told):
    with pytest.raises(InvalidInputError, match=told):
        call()


@pytest.mark.parametrize(
    ("n", "prompts", "budget", "sizes"),
    [
        (64, 64, 2e6, [4, 16, 64, 16]),
        (64, 64, 1e6, [4, 16, 64, 16]),
        (8, 32, 1e6, [4, 8, 16, 4]),
        (64, 64, 2e4, []),
    ],
)
def test_the_sweep_has_the_planned_n(n, prompts, budget, sizes):
    runs = certain(n, budget, limits=Limits(prompts_per_step=prompts)).sweep_first
    assert [run.rollouts_per_prompt for run in runs] == sizes


def test_epochs_leave_no_pilots_of_a_step():
    limits = Limits(num_prompts=100, prompts_per_step=32, epochs=1)
    assert certain(8, 1e6, limits=limits).sweep_first == ()


def test_n_outside_its_interval_is_explained():
    for n, budget in ((64, 5e4), (64, 100), (90, 1e8), (8000, 1e9)):
        plan = certain(n, budget, limits=Limits(prompts_per_step=32))
        assert not plan.interval.low <= plan.rollouts_per_prompt <= plan.interval.high
        assert any("outside" in reason.text for reason in plan.reasons)
    plan = certain(64, 1e7)
    assert not any("outside" in reason.text for reason in plan.reasons)


def test_many_prompts_a_step_are_warned_about():
    def told(prompts):
        plan = certain(8, 1e8, limits=Limits(prompts_per_step=prompts))
        return any("more than the 32 to 1,024" in warning for warning in plan.warnings)

    assert told(1025)
    assert not told(1024)


@pytest.mark.parametrize(
    ("anchor", "told"),
    [
        (Anchor(learning_rate=5, batch=1), "becomes 226 at 2,048, but 0.1 is the most"),
        (Anchor(learning_rate=1e-6, batch=1), "not carried further than 1,024 times"),
        (Anchor(learning_rate=1e-6, batch=10**9), "not carried further than 1,024 times"),
    ],
)
def test_absurd_rates_are_refused(anchor, told):
    with pytest.raises(InvalidInputError, match=told):
        certain(64, 1e7, anchor=anchor)


def test_absurd_budgets_are_refused():
    with pytest.raises(InvalidInputError, match=r"budget is 1\.1e"):
        certain(64, 1.1e15)


def test_steps_far_beyond_the_published_are_told():
    told = [certain(64, budget, difficulty="easy").warnings for budget in (2e6, 2.5e7)]
    assert ["more than 2 times what the best" in " ".join(one) for one in told] == [False, True]
