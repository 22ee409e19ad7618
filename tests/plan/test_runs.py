"""Runs, their cells, what they cannot tell, and resampling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.plan.analysis import analyse
from apportion.plan.cautions import cautions, discriminating_run, passes
from apportion.plan.learning_curve import LearningCurve, fit_curve
from apportion.plan.resampling import Noise, noise_of, redrawn_rewards, refitted
from apportion.plan.runs import Cell, Run, cells_of

TRUTH = {
    n: LearningCurve.exponential(
        ceiling=ceiling, loss=ceiling - 0.4, rate=rate, observed_from=1e4, observed_to=4e6
    )
    for n, ceiling, rate in [(8, 0.55, 6e-6), (32, 0.6, 3e-6), (128, 0.66, 1e-6)]
}


def run(n=8, *, prompts=32, seed=0, rate=None, between=0.0, within=0.0, steps=25, **more):
    compute_T = np.geomspace(2e4, 4e6, steps)
    rng = np.random.default_rng([seed, n, prompts])
    reward_T = TRUTH.get(n, TRUTH[8])(compute_T) + rng.normal(0, between)
    return Run(
        name=f"n{n}-seed{seed}",
        rollouts_per_prompt=n,
        prompts_per_step=prompts,
        compute_T=compute_T,
        reward_T=np.clip(reward_T + rng.normal(0, within, steps), 0, 1),
        seed=seed,
        learning_rate=rate,
        **more,
    )


def sweep(seeds=3, **more):
    return [run(n, seed=s, **more) for n in TRUTH for s in range(seeds)]


def test_cells_gather_seeds_in_order_of_n():
    cells = cells_of([run(32), run(8, seed=1), run(8), run(8, prompts=64), run(8, rate=1e-6)])
    assert [(c.rollouts_per_prompt, c.prompts_per_step, len(c.runs)) for c in cells] == [
        (8, 32, 2),
        (8, 32, 1),
        (8, 64, 1),
        (32, 32, 1),
    ]
    assert cells[1].label == "n = 8, B_p = 32, learning rate 1e-06"
    assert cells[0].batch == 256
    assert len(cells[0].points()[0]) == 50
    with pytest.raises(InvalidInputError, match="no runs"):
        cells_of([])


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"compute_T": [1.0, 1.0], "reward_T": [0.1, 0.2]}, "rising"),
        ({"compute_T": [-1.0], "reward_T": [0.1]}, "rising"),
        ({"compute_T": [], "reward_T": []}, "rising"),
        ({"compute_T": [1.0], "reward_T": [1.2]}, "reward of r"),
        ({"compute_T": [1.0, 2.0], "reward_T": [0.2]}, "reward of r"),
        ({"rollouts_per_prompt": 0}, "rollouts_per_prompt of r"),
        ({"prompts_per_step": 0}, "prompts_per_step of r"),
    ],
)
def test_bad_runs_are_refused(values, match):
    good = {"rollouts_per_prompt": 8, "prompts_per_step": 4, "compute_T": [1.0], "reward_T": [0.1]}
    with pytest.raises(InvalidInputError, match=match):
        Run(name="r", **(good | values))


def test_a_run_as_it_was():
    whole = run()
    part = whole.until(5e5)
    assert part.compute_T.max() <= 5e5
    np.testing.assert_array_equal(part.reward_T, whole.reward_T[: len(part.reward_T)])
    assert whole.until(1e3) is None
    assert whole.num_steps == pytest.approx(4e6 / 256)
    assert whole.sampling_variance().max() == 0
    measured = run(evaluation=(300, 4))
    assert measured.sampling_variance()[-1] == pytest.approx(0.55 * 0.45 / 1200, rel=1e-3)


def said(runs):
    return " ".join(cautions(cells_of(runs)))


def test_a_good_sweep_has_no_caution():
    assert not cautions(cells_of(sweep(rate=1e-6)))


def test_one_n_says_which_to_add():
    assert "Add runs with n = 8 and n = 128" in said([run(32, rate=1e-6, seed=s) for s in range(2)])


def test_a_rate_that_goes_with_n_is_named_with_the_run_that_tells():
    runs = [run(n, seed=s, rate=1e-6 * (n / 32) ** 0.5) for n in TRUTH for s in range(2)]
    assert "run n = 32 at 32 prompts a step with the learning rate of n = 128, 2e-06" in said(runs)
    both = [*runs, run(32, rate=2e-6)]
    assert "learning rate of its own" not in said(both)
    assert "learning rates are unknown" in said(sweep())
    assert "not scaled down" in discriminating_run(cells_of(sweep()))


def test_prompts_that_go_with_n_are_named():
    runs = [run(n, prompts=1024 // n, seed=s, rate=1e-6) for n in TRUTH for s in range(2)]
    assert "n = 128 at 128 prompts a step, as n = 8 had" in said(runs)
    assert "cannot be told apart" not in said([*runs, run(128, prompts=128, rate=1e-6)])


def test_seeds_sizes_filters_and_evaluations():
    assert "Every setting was run once" in said(sweep(seeds=1, rate=1e-6))
    two = [run(n, seed=s, rate=1e-6) for n in (8, 32) for s in range(2)]
    assert "Only n = 8 and 32 were run" in said(two)
    assert "leaves out groups without signal" in said(sweep(rate=1e-6, is_filtered=True))
    assert "fewer than 6 evaluations" in said(sweep(rate=1e-6, steps=5))


def test_passes_over_the_data():
    """The paper's first crossover on its easy set: 1.33 passes of n = 32 over 6,000 prompts."""
    (cell,) = cells_of([run(32, num_prompts=6000)])
    assert passes(cell, 0.255e6) == pytest.approx(1.33, abs=0.01)
    assert passes(cells_of([run(32)])[0], 1e6) is None


@pytest.mark.parametrize(("between", "within"), [(0.02, 0.01), (0.0, 0.02), (0.03, 0.0)])
def test_the_noise_is_recovered(between, within):
    runs = [
        run(n, seed=s, between=between, within=within, steps=40) for n in TRUTH for s in range(40)
    ]
    cells = cells_of(runs)
    noise = noise_of(cells, [TRUTH[cell.rollouts_per_prompt] for cell in cells])
    assert noise.between == pytest.approx(between, abs=0.004)
    assert noise.within == pytest.approx(within, abs=0.002)
    assert (noise.num_runs, noise.num_repeated) == (120, 3)


def test_one_seed_has_no_spread_between_runs():
    cells = cells_of(sweep(seeds=1, within=0.01))
    noise = noise_of(cells, [TRUTH[cell.rollouts_per_prompt] for cell in cells])
    assert noise.between == 0
    assert noise.num_repeated == 0


def test_redrawn_rewards_have_that_noise():
    (cell,) = cells_of([run(8, seed=s) for s in range(2)])
    noise = Noise(between=0.03, within=0.01, num_runs=2, num_repeated=1)
    drawn = redrawn_rewards(cell, TRUTH[8], noise, 4000, np.random.default_rng(0))
    residual = drawn - TRUTH[8](cell.points()[0])
    np.testing.assert_allclose(residual.std(0), np.hypot(0.03, 0.01), rtol=0.06)
    same_run = np.mean(residual[:, 0] * residual[:, 10])
    other_run = np.mean(residual[:, 0] * residual[:, 30])
    assert same_run == pytest.approx(0.03**2, rel=0.1)
    assert other_run == pytest.approx(0.0, abs=1e-4)


def test_refits_cover_the_ceiling():
    """Of 60 sweeps, the 90% intervals of the ceilings hold the truth in about 54."""
    hits = np.zeros(3)
    for repeat in range(60):
        runs = [
            run(n, seed=100 * repeat + s, between=0.01, within=0.01)
            for n in TRUTH
            for s in range(3)
        ]
        cells = cells_of(runs)
        curves = [fit_curve(*cell.points(), "exponential") for cell in cells]
        drawn = refitted(cells, curves, num_draws=60, seed=repeat)
        ceiling_DS = np.array([[curve.ceiling for curve in row] for row in drawn])
        low, high = np.quantile(ceiling_DS, [0.05, 0.95], axis=0)
        hits += [low[i] <= TRUTH[n].ceiling <= high[i] for i, n in enumerate(TRUTH)]
    assert np.all(hits >= 45)


def test_an_analysis_finds_the_crossovers():
    found = analyse(sweep(within=0.004, between=0.002, rate=1e-6), num_draws=40)
    sizes = [
        (one.leaving.rollouts_per_prompt, one.entering.rollouts_per_prompt)
        for one in found.crossovers
    ]
    assert sizes == [(8, 32), (32, 128)]
    for one, (old, new) in zip(found.crossovers, sizes, strict=True):
        at = one.compute.value
        assert float(TRUTH[old](at)) == pytest.approx(float(TRUTH[new](at)), abs=0.008)
        assert one.compute.low <= at <= one.compute.high
        assert one.share > 0.9
    assert found.best_rollouts_K[0] == 8
    assert found.best_rollouts_K[-1] == 128
    assert found.rivals["sigmoid"] < found.rivals["constant"]
    for parameter in found.law.parameters:
        assert parameter.low <= parameter.value <= parameter.high
    again = analyse(sweep(within=0.004, between=0.002, rate=1e-6), num_draws=40)
    assert [p.low for p in again.law.parameters] == [p.low for p in found.law.parameters]


@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_any_runs_can_be_analysed(num_sizes, steps, seed):
    runs = [run(n, seed=seed, steps=steps, within=0.05) for n in list(TRUTH)[:num_sizes]]
    found = analyse(runs, num_draws=5)
    assert len(found.curves) == num_sizes
    assert all(isinstance(cell, Cell) for cell in found.cells)
    assert found.warnings
