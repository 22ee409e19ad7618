"""The curve shared by all settings, forecasts from it, and plans from runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from apportion.cli import app
from apportion.errors import InvalidInputError
from apportion.plan.from_runs import plan_from_runs
from apportion.plan.limits import Limits
from apportion.plan.recipe import Anchor
from apportion.plan.reward_forecast import forecast_rewards
from apportion.plan.runs import Run, cells_of
from apportion.plan.shared_curve import VARIANTS, data_of, fit_shared
from apportion.simulation import Population, Training, simulate

SIZES = (8, 32, 128)
NUM_PROMPTS = 6000
RATE = 1e-6


def useful_pass(n, compute, *, visits=1.0, rate_power=0.5):
    """One useful pass: progress by learning rate, until prompts were seen `visits` times."""
    rate = (n * 32 / 1024) ** rate_power
    steps = compute / (32 * n)
    most = visits * NUM_PROMPTS / 32
    progress = rate * most * (steps / most) / (1.0 + steps / most)
    return 0.4 + 0.3 * (1 - np.exp(-progress / 400))


def sweep(truth=useful_pass, *, until=1e6, seeds=2, noise=0.004, sizes=SIZES, **more):
    runs = []
    for n in sizes:
        for seed in range(seeds):
            compute_T = np.geomspace(max(2e4, 32 * n), until, 25)
            rng = np.random.default_rng([n, seed])
            reward_T = truth(n, compute_T) + rng.normal(0, noise, 25)
            runs.append(
                Run(
                    name=f"n{n}-seed{seed}",
                    rollouts_per_prompt=n,
                    prompts_per_step=32,
                    compute_T=compute_T,
                    reward_T=np.clip(reward_T, 0, 1),
                    seed=seed,
                    **(
                        {
                            "learning_rate": RATE * (n * 32 / 1024) ** 0.5,
                            "num_prompts": NUM_PROMPTS,
                            "evaluation": (300, 4),
                        }
                        | more
                    ),
                )
            )
    return runs


def test_what_no_run_has_reached_is_read_off_the_others():
    """At ten times the compute the order of n is another one, and is foretold."""
    cells = cells_of(sweep(until=3e5))
    then = [float(useful_pass(n, 3e5)) for n in SIZES]
    later = [float(useful_pass(n, 3e6)) for n in SIZES]
    assert int(np.argmax(then)) != int(np.argmax(later))
    shared = fit_shared(cells)
    np.testing.assert_allclose(shared.predict(cells, 3e5), then, atol=0.008)
    np.testing.assert_allclose(shared.predict(cells, 3e6), later, atol=0.04)
    assert int(shared.predict(cells, 3e6).argmax()) == 2
    assert shared.chi_square < 1.5
    assert shared.weight_V.sum() == pytest.approx(1)


def test_without_memory_nothing_is_used_up():
    """Settings of one curve in compute, which it has gone most of."""

    def one_curve(n, compute):
        return 0.3 + 0.4 * (1 - np.exp(-compute / 4e5))

    cells = cells_of(sweep(one_curve, learning_rate=RATE))
    found = fit_shared(cells).predict(cells, 1e7)
    np.testing.assert_allclose(found, one_curve(8, 1e7), atol=0.05)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_fits_what_it_made(variant):
    data = data_of(cells_of(sweep()))
    theta = np.array([0.3, 0.7, np.log(100), 0.2, 0.2, 0.5, np.log(0.2), np.log(20), -1.0, 6.0])
    made_N = data.reward(variant, theta, data.setting, data.compute_N)
    assert np.all((made_N >= 0.3 - 1e-9) & (made_N <= 0.7 + 1e-9))
    again, cost = data.fitted(variant, theta, made_N, theta)
    assert cost < 1e-6
    fit_N = data.reward(variant, again, data.setting, data.compute_N)
    np.testing.assert_allclose(fit_N, made_N, atol=1e-5)


@given(st.integers(0, 10**6), st.sampled_from(VARIANTS))
@settings(max_examples=40, deadline=None)
def test_more_compute_never_foretells_less(seed, variant):
    rng = np.random.default_rng(seed)
    data = data_of(cells_of(sweep(seeds=1)))
    theta = np.array(
        [
            0.2,
            rng.uniform(0.2, 0.9),
            rng.uniform(2, 8),
            rng.uniform(-1, 1),
            rng.uniform(-0.4, 0.8),
            rng.uniform(-2, 4),
            np.log(rng.uniform(0.002, 0.8)),
            rng.uniform(0, 5),
            rng.uniform(-4, 0.8),
            rng.uniform(0, 30),
        ]
    )
    at = data.setting_of(cells_of(sweep(seeds=1)))
    reward_KS = np.array(
        [data.reward(variant, theta, at, np.full(3, c)) for c in np.geomspace(1e3, 1e9, 40)]
    )
    assert np.all(np.diff(reward_KS, axis=0) >= -1e-9)
    assert reward_KS.min() >= 0.2 - 1e-9
    assert reward_KS.max() <= theta[1] + 1e-9


def test_intervals_grow_with_how_far_ahead():
    cells = cells_of(sweep(evaluation=None))
    near, far = (forecast_rewards(cells, c, num_draws=30) for c in (1e6, 1e7))
    assert near.backtest == far.backtest > 0
    width = [np.subtract(*f.interval(2)[::-1]) for f in (near, far)]
    assert width[1] > width[0] > 0
    low, high = far.interval(2)
    assert low <= float(useful_pass(128, 1e7)) <= high


def test_forecasts_need_evaluations():
    few = [run.until(2.3e4) for run in sweep(sizes=(8, 32))]
    with pytest.raises(InvalidInputError, match="two settings with 4 evaluations"):
        forecast_rewards(cells_of(few), 1e6)
    with pytest.raises(InvalidInputError, match="compute is 0"):
        forecast_rewards(cells_of(sweep()), 0.0)
    short = forecast_rewards(cells_of([run.until(5e4) for run in sweep(sizes=(8, 32))]), 1e6)
    assert short.backtest is None


def test_a_plan_from_runs():
    plan = plan_from_runs(sweep(), 1e7, difficulty="easy", limits=Limits(num_prompts=NUM_PROMPTS))
    assert (plan.basis, plan.rollouts_per_prompt, plan.prompts_per_step) == ("runs", 128, 32)
    assert plan.num_steps == int(1e7 // (128 * 32))
    assert plan.learning_rate == pytest.approx(2 * RATE)
    low, high = plan.reward_interval
    assert low < plan.expected_reward < high
    assert plan.regularisation.kl_term
    said = " ".join(plan.warnings)
    assert "largest that was run" in said
    assert "learning rate of its own" in said
    assert plan.passes == pytest.approx(plan.num_steps * 32 / NUM_PROMPTS)


def test_a_plan_keeps_to_limits_and_to_what_was_run():
    held = plan_from_runs(sweep(), 1e7, difficulty="hard", limits=Limits(max_batch=1024))
    assert held.rollouts_per_prompt == 32
    assert not held.regularisation.kl_term
    unknown = sweep(learning_rate=None)
    anchored = plan_from_runs(unknown, 1e7, difficulty="easy", anchor=Anchor())
    assert anchored.learning_rate == pytest.approx(Anchor().rate_at(128 * 32))
    for limits in (Limits(max_batch=100), Limits(prompts_per_step=64)):
        with pytest.raises(InvalidInputError, match="No setting of the runs"):
            plan_from_runs(sweep(), 1e7, difficulty="easy", limits=limits)
    with pytest.raises(InvalidInputError, match="smallest step is 256"):
        plan_from_runs(sweep(), 1000, difficulty="easy")


def test_a_budget_far_ahead_is_warned_of():
    said = plan_from_runs(sweep(until=2e5), 1e7 * 2, difficulty="easy").warnings
    assert any("100 times the longest run" in warning for warning in said)


def said_of(runs, budget=1e7, **limits):
    plan = plan_from_runs(runs, budget, difficulty="easy", limits=Limits(**limits))
    return plan, " ".join(plan.warnings)


def test_the_forecast_is_for_what_the_limits_let_a_run_spend():
    plan, _ = said_of(sweep(until=3e5), 3e6, num_prompts=NUM_PROMPTS, epochs=1)
    assert plan.num_steps == NUM_PROMPTS // 32
    spent = plan.rollouts_per_prompt * 32 * plan.num_steps
    assert plan.expected_reward == pytest.approx(
        useful_pass(plan.rollouts_per_prompt, spent), abs=0.03
    )
    with pytest.raises(InvalidInputError, match="No setting"):
        said_of(sweep(), num_prompts=NUM_PROMPTS, epochs=0.05)


def test_what_limits_cost_and_whose_prompts_are_said():
    assert "limits rule out n = 128" in said_of(sweep(), max_batch=1024)[1]
    assert (
        "The runs trained on 6,000 prompts, the plan has 100"
        in said_of(sweep(), num_prompts=100)[1]
    )
    assert "limits rule out" not in said_of(sweep())[1]


def test_a_probe_of_the_rate_is_no_quiet_winner():
    probe = sweep(
        lambda n, compute: useful_pass(n, compute, rate_power=1.0) + 0.1, sizes=(128,), seeds=1
    )
    fast = [
        Run(
            **{name: getattr(run, name) for name in run.__slots__}
            | {"name": "probe", "learning_rate": 8 * RATE}
        )
        for run in probe
    ]
    plan, said = said_of([*sweep(), *fast])
    assert plan.learning_rate == pytest.approx(8 * RATE)
    assert "is the larger of the learning rates that n = 128 was run at" in said


def test_runs_that_fall_and_budgets_below_all_are_said():
    falling = sweep(lambda n, compute: 0.5 - 0.1 * compute / 1e6)
    assert "does not help" in said_of(falling)[1]
    assert "nothing is known there" in said_of(sweep(), 1.9e4)[1]
    other = [*sweep(), *sweep(lambda n, compute: 0.05 + 0 * compute, sizes=(16,))]
    assert "fit them apart" in said_of(other)[1]


def test_a_simulated_sweep_is_planned():
    """From a tenth of the compute, regret below the noise of an evaluation."""
    problems = Population(num_train=3000, num_held_out=500, num_features=32).problems()
    runs, truth = [], {}
    for n in (8, 32, 128):
        training = Training(rollouts_per_prompt=n, memory=100.0, learning_rate=0.02)
        of_seed = simulate(
            problems, training, budget=2e6, seeds=[0, 1], num_evaluations=50, evaluation=(300, 4)
        )
        truth[n] = np.mean([run.success_T for run in of_seed], axis=0).max()
        for run in of_seed:
            is_seen_T = run.compute_T <= 2e5
            runs.append(
                Run(
                    name=f"n{n}-seed{run.seed}",
                    rollouts_per_prompt=n,
                    prompts_per_step=32,
                    seed=run.seed,
                    compute_T=run.compute_T[is_seen_T].astype(float),
                    reward_T=run.measured.success_T[is_seen_T],
                    learning_rate=training.rate_at(32 * n),
                    num_prompts=3000,
                    evaluation=(300, 4),
                )
            )
    plan = plan_from_runs(runs, 2e6, difficulty="easy")
    best = max(truth.values())
    assert best - truth[plan.rollouts_per_prompt] < np.sqrt(best * (1 - best) / 1200)


def test_the_command_plans_from_a_table(tmp_path):
    table = tmp_path / "sweep.csv"
    rows = ["run,rollouts_per_prompt,prompts_per_step,compute,reward,seed,learning_rate"]
    for run in sweep():
        for compute, reward in zip(run.compute_T, run.reward_T, strict=True):
            rows.append(
                f"{run.name},{run.rollouts_per_prompt},32,{compute},{reward},{run.seed},"
                f"{run.learning_rate}"
            )
    table.write_text("\n".join(rows) + "\n")
    shown = CliRunner().invoke(app, ["plan", str(table), "--budget", "1e7"])
    assert shown.exit_code == 0
    assert "From your runs." in shown.output
    assert "held-out reward" in shown.output
    assert "Run first" not in shown.output
    told = CliRunner().invoke(app, ["plan", str(table), "--budget", "1e7", "--json"])
    content = json.loads(told.output)
    assert content["basis"] == "runs"
    assert content["rollouts_per_prompt"] == 128
    assert len(content["reward_interval"]) == 2
