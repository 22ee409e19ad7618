"""Contract: inside a group n alone is compared, and what it says is what its runs alone say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.plan.analysis import analyse, fits_of
from apportion.plan.groups import fixed_batches_of, groups_of, in_steps
from apportion.plan.learning_curve import LearningCurve
from apportion.plan.runs import Run
from apportion.plan.scaling_law import fit_law, sigmoid_law

CROSSING = 471_618.6
"""Where 0.8 (1 - exp(-2e-6 C)) passes 0.5 (1 - exp(-8e-6 C)); found by bisection."""


def run(n, prompts, ceiling, rate, *, seed=0, noise=0.0, allocator="uniform"):
    curve = LearningCurve.exponential(
        ceiling=ceiling, loss=ceiling, rate=rate, observed_from=1e4, observed_to=1e6
    )
    compute_T = np.geomspace(1e4, 1e6, 40)
    rng = np.random.default_rng([n, prompts, seed])
    reward_T = np.clip(curve(compute_T) + noise * rng.normal(size=40), 0.0, 1.0)
    return Run(
        name=f"n{n}-p{prompts}-{seed}-{allocator}",
        rollouts_per_prompt=n,
        prompts_per_step=prompts,
        compute_T=compute_T,
        reward_T=reward_T,
        seed=seed,
        allocator=allocator,
    )


def slow_and_fast(fast, slow, **more):
    return [run(*fast, 0.5, 8e-6, **more), run(*slow, 0.8, 2e-6, **more)]


def crossing_of(found):
    return [(one.leaving.label, one.entering.label, one.compute.value) for one in found.crossovers]


def test_the_crossing_of_two_exponentials():
    low, high = 1e5, 1e6
    for _ in range(60):
        middle = (low + high) / 2
        lead = 0.8 * (1 - np.exp(-2e-6 * middle)) - 0.5 * (1 - np.exp(-8e-6 * middle))
        low, high = (low, middle) if lead > 0 else (middle, high)
    assert low == pytest.approx(CROSSING, rel=1e-6)


def test_rollouts_against_prompts_at_a_fixed_batch():
    runs = [*slow_and_fast((8, 32), (64, 4)), run(16, 32, 0.3, 1e-5)]
    (group,) = fixed_batches_of(fits_of(runs, num_draws=3))
    assert (group.first.batch, group.numbers) == (256, (0, 2))
    ((leaving, entering, compute),) = crossing_of(group.analysis)
    assert (leaving, entering) == ("n = 8, B_p = 32", "n = 64, B_p = 4")
    assert compute / 256 == pytest.approx(CROSSING / 256, rel=0.01)


def test_no_group_where_all_share_prompts_and_allocator():
    runs = slow_and_fast((8, 32), (64, 32))
    fits = fits_of(runs, num_draws=3)
    assert groups_of(fits) == fixed_batches_of(fits) == []


def test_groups_of_prompts_and_of_allocators():
    runs = slow_and_fast((8, 16), (64, 16)) + slow_and_fast((8, 128), (64, 128))
    runs += slow_and_fast((8, 16), (64, 16), allocator="adaptive")
    runs.append(run(4, 64, 0.4, 1e-6))
    found = groups_of(fits_of(runs, num_draws=3))
    told = [(one.first.prompts_per_step, one.first.allocator) for one in found]
    assert told == [(16, "adaptive"), (16, "uniform"), (128, "uniform")]
    for one in found:
        ((_, _, compute),) = crossing_of(one.analysis)
        assert compute == pytest.approx(CROSSING, rel=0.01)


@settings(max_examples=3)
@given(st.permutations(range(6)))
def test_a_group_says_what_its_runs_alone_say(order):
    runs = [
        run(n, prompts, 0.3 + n / 200, 8e-6 / n**0.5, noise=0.005)
        for prompts in (16, 64)
        for n in (8, 32, 64)
    ]
    found = groups_of(fits_of([runs[i] for i in order], num_draws=2))
    for one, prompts in zip(found, (16, 64), strict=True):
        alone = analyse([r for r in runs if r.prompts_per_step == prompts], num_draws=2)
        np.testing.assert_array_equal(one.analysis.frontier.reward_K, alone.frontier.reward_K)
        assert crossing_of(one.analysis) == crossing_of(alone)
        values = [p.value for p in one.analysis.law.parameters]
        np.testing.assert_allclose(values, [p.value for p in alone.law.parameters])


@given(st.integers(2, 2**16), st.floats(1.0, 1e5), st.floats(0.5, 8), st.floats(4, 8))
def test_a_law_of_steps_is_the_law_of_compute(batch, steps, k, middle):
    law = sigmoid_law(5.0, k, middle, 3.0)
    np.testing.assert_allclose(in_steps(law, batch)(steps), law(steps * batch), rtol=1e-9)
    assert in_steps(law, batch)["log10_M0"].value == pytest.approx(middle - np.log10(batch))


def test_where_n_levels_off():
    """Five sizes, each best for a while, and the largest for long."""
    ends = [1e4, 3e4, 1e5, 3e5]
    sizes = [4, 8, 16, 32, 64]
    compute_K = np.geomspace(3e3, 1e8, 90)
    best_K = np.array(sizes)[np.searchsorted(ends, compute_K)]
    law = fit_law(compute_K, best_K)
    assert 2.0 ** (law["L"].value + law["b"].value) == pytest.approx(64, rel=0.1)


def levelling(last, sizes):
    """Runs of several n to so many rollouts: each is ahead in turn, up to 64."""
    runs = []
    for n in sizes:
        i = np.log2(min(n, 64)) / 2
        ceiling, rate = 0.1 + 0.15 * i - 1e-4 * n, 4e-4 / 6 ** (i - 1)
        compute_T = np.geomspace(1e3, last, 40)
        reward_T = ceiling * (1.0 - np.exp(-rate * compute_T))
        runs.append(
            Run(
                name=f"n{n}",
                rollouts_per_prompt=n,
                prompts_per_step=8,
                compute_T=compute_T,
                reward_T=np.clip(reward_T, 0.0, 1.0),
            )
        )
    return runs


def test_saturation_has_an_upper_end_once_a_larger_n_was_no_better():
    seen = analyse(levelling(1e7, (4, 16, 64, 256)), num_draws=10).saturation
    assert seen.low <= 64 <= seen.high < 512
    assert analyse(levelling(1e7, (4, 16, 64)), num_draws=10).saturation.high == np.inf
