"""The adaptive sweep looks at all, lengthens what matters, keeps to its share and forgets nothing.

Its forecasts are the real ones where curves are known, and cheap ones where the rules are tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.plan import next_look
from apportion.plan.adaptive_sweep import Candidate, Decision, decisions, next_extensions
from apportion.plan.next_look import FEWEST_STEPS, TOLERANCE
from apportion.plan.runs import Cell, Run

MOST = 65_536
LIMITS: dict[str, Any] = {"most_per_run": MOST, "target": 10.0 * MOST}


def candidates_of(
    sizes: Sequence[int], num_seeds: int = 1, rate: float | None = None
) -> list[Candidate]:
    """Return seeds of every n, at one learning rate or one that grows with n."""
    return [
        Candidate(
            rollouts_per_prompt=n,
            prompts_per_step=8,
            learning_rate=1e-4 * n if rate is None else rate,
            seed=seed,
        )
        for seed in range(num_seeds)
        for n in sizes
    ]


def run_of(
    candidate: Candidate,
    until: float,
    height: float,
    noise: float = 0.0,
    before: Run | None = None,
) -> Run:
    """Rise from 0.2 towards a height, judged as it goes and at every stop."""
    stops = [until] if before is None else [*before.compute_T, until]
    compute_T = np.union1d(judged_at(candidate, until), stops)
    noise_T = [np.random.default_rng([candidate.seed, int(at)]).normal() for at in compute_T]
    rise_T = -np.expm1(-3.0 * compute_T / MOST)
    return Run(
        name=f"n{candidate.rollouts_per_prompt}-seed{candidate.seed}",
        rollouts_per_prompt=candidate.rollouts_per_prompt,
        prompts_per_step=candidate.prompts_per_step,
        learning_rate=candidate.learning_rate,
        allocator=candidate.allocator,
        seed=candidate.seed,
        compute_T=compute_T,
        reward_T=np.clip(0.2 + height * rise_T + noise * np.array(noise_T), 0.0, 1.0),
        evaluation=(300, 4),
    )


def judged_at(candidate: Candidate, until: float) -> np.ndarray:
    step_T = np.maximum(np.round(np.geomspace(MOST / 64, MOST, 25) / candidate.batch), 1)
    compute_T = np.unique(step_T) * candidate.batch
    return compute_T[compute_T < until]


def swept(
    candidates: Sequence[Candidate], heights: dict[int, float], noise: float = 0.0, **options: Any
) -> tuple[list[Decision], dict[Candidate, Run]]:
    """Run a sweep to its stop as a caller would, one decision after the other."""
    runs: dict[Candidate, Run] = {}
    made = []
    while True:
        made.append(next_extensions(candidates, list(runs.values()), **LIMITS, **options))
        if made[-1].stop:
            return made, runs
        for one in made[-1].extensions:
            height = heights[one.candidate.rollouts_per_prompt]
            before = runs.get(one.candidate)
            runs[one.candidate] = run_of(one.candidate, one.until, height, noise, before)


def cheap_forecast(cells: Sequence[Cell], target: float, *, seed: int) -> Any:
    """Foretell the last reward of each setting, less sure the less was seen."""
    rng = np.random.default_rng(seed)
    seen_S = np.array([max(run.compute_T[-1] for run in cell.runs) for cell in cells])
    reward_S = np.array([np.mean([run.reward_T[-1] for run in cell.runs]) for cell in cells])
    spread_S = 0.2 * np.sqrt(np.log(target / seen_S))
    drawn_DS = reward_S + spread_S * rng.normal(size=(40, len(cells)))
    return SimpleNamespace(cells=tuple(cells), reward_S=reward_S, reward_DS=drawn_DS)


SIZES = st.lists(st.sampled_from([4, 8, 16, 32, 64, 128]), min_size=2, max_size=5, unique=True)


def test_first_decision_covers_every_setting() -> None:
    candidates = candidates_of((8, 16, 32, 64, 128, 256), num_seeds=3)
    first = next_extensions(candidates, [], **LIMITS)
    assert {one.candidate.setting for one in first.extensions} == {c.setting for c in candidates}
    assert {one.candidate.seed for one in first.extensions} == {0}
    for one in first.extensions:
        quarter = max(MOST / 4, FEWEST_STEPS * one.candidate.batch)
        assert one.until % one.candidate.batch == 0
        assert quarter <= one.until < quarter + one.candidate.batch


def test_a_setting_far_behind_gets_its_first_look_and_no_more() -> None:
    candidates = candidates_of((16, 64), num_seeds=2, rate=1e-3)
    heights = {16: 0.6, 64: 0.02}
    runs = [run_of(one, MOST, heights[one.rollouts_per_prompt], 0.003) for one in candidates]
    made = decisions(candidates, runs, **LIMITS, share=0.5)
    asked = [(one.candidate.key, one.until) for last in made for one in last.extensions]
    slow, fast = candidates[1], candidates[0]
    assert asked == [(fast.key, MOST / 4), (slow.key, MOST / 4), (fast.key, MOST)]
    last = made[-1]
    assert last.regret is not None
    assert last.noise is not None
    assert last.regret < TOLERANCE * last.noise
    assert last.chance_by_setting["n = 16, B_p = 8, learning rate 0.001"] == 1.0
    assert last.spent == 1.25 * MOST


def test_equal_settings_stop_with_little_to_lose() -> None:
    # Rates that grow with n make equal progress at equal compute.
    candidates = candidates_of((16, 32), num_seeds=3)
    runs = [run_of(one, MOST, 0.6, 0.003) for one in candidates]
    last = decisions(candidates, runs, **LIMITS, share=0.6)[-1]
    assert last.stop.startswith("The plan is expected to lose")
    assert last.regret is not None
    assert last.noise == pytest.approx(np.sqrt(0.8 * 0.2 / 1200), rel=0.2)
    assert last.regret < TOLERANCE * last.noise
    assert last.spent <= 3 * MOST  # half of the grid, less than its share


def test_regret_and_chances_are_those_of_the_draws() -> None:
    candidates = candidates_of((4, 8, 16))
    runs = [run_of(one, MOST, 0.3) for one in candidates]
    reward_DS = np.array([[0.5, 0.6, 0.1], [0.5, 0.4, 0.7], [0.5, 0.3, 0.2], [0.5, 0.5, 0.9]])

    def given_forecast(cells: Sequence[Cell], target: float, *, seed: int) -> Any:
        reward_S = np.array([0.5, 0.45, 0.475])
        return SimpleNamespace(cells=tuple(cells), reward_S=reward_S, reward_DS=reward_DS)

    with patch.object(next_look, "forecast_rewards", given_forecast):
        made = decisions(candidates, runs, **LIMITS, share=1.0)
    assert made[1].regret == pytest.approx((0.1 + 0.2 + 0.0 + 0.4) / 4)
    assert made[1].noise == pytest.approx(np.sqrt(0.25 / 1200))
    assert list(made[1].chance_by_setting.values()) == [0.25, 0.25, 0.5]
    # The plan is n = 4; of its rivals n = 16 could gain 0.15 on average, n = 8 only 0.025.
    assert [one.candidate.rollouts_per_prompt for one in made[1].extensions] == [4, 16]
    assert [one.candidate.rollouts_per_prompt for one in made[2].extensions] == [8]
    assert made[-1].stop == "Every run that could change the plan has been made."


@settings(max_examples=40, deadline=None)
@given(
    sizes=SIZES,
    num_seeds=st.integers(1, 3),
    share=st.floats(0.05, 1.0),
    num_at_once=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_a_sweep_ends_within_its_share(
    sizes: list[int], num_seeds: int, share: float, num_at_once: int, seed: int
) -> None:
    candidates = candidates_of(sizes, num_seeds)
    rng = np.random.default_rng(seed)
    heights = {n: float(rng.uniform(0.1, 0.4)) for n in sizes}
    with patch.object(next_look, "forecast_rewards", cheap_forecast):
        made, runs = swept(
            candidates, heights, share=share, num_at_once=num_at_once, seed=seed, noise=0.02
        )
    grid = sum(MOST // one.batch * one.batch for one in candidates)
    assert sum(run.compute_T[-1] for run in runs.values()) <= share * grid
    assert all(run.compute_T[-1] <= MOST for run in runs.values())
    assert all(len(decision.extensions) <= num_at_once for decision in made[1:])
    assert len(made) <= 2 + len(candidates)
    if runs:
        assert {one.setting for one in runs} == {one.setting for one in candidates}


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, num_at_once=st.integers(1, 3), seed=st.integers(0, 99), data=st.data())
def test_killed_at_any_moment_a_sweep_decides_the_same(
    sizes: list[int], num_at_once: int, seed: int, data: st.DataObject
) -> None:
    candidates = candidates_of(sizes, 2)
    rng = np.random.default_rng(seed)
    heights = {n: float(rng.uniform(0.1, 0.4)) for n in sizes}
    options: dict[str, Any] = {"share": 0.6, "num_at_once": num_at_once, "seed": seed}
    with patch.object(next_look, "forecast_rewards", cheap_forecast):
        made, _ = swept(candidates, heights, **options)
        runs: dict[Candidate, Run] = {}
        for decision in made:
            again = next_extensions(candidates, list(runs.values()), **LIMITS, **options)
            assert again == decision
            todo = data.draw(st.permutations(decision.extensions))
            for i, one in enumerate(todo):
                height = heights[one.candidate.rollouts_per_prompt]
                before = runs.get(one.candidate)
                early = judged_at(one.candidate, one.until)
                if len(early) and (before is None or early[-1] > before.compute_T[-1]):
                    runs[one.candidate] = run_of(one.candidate, early[-1], height, 0.0, before)
                    midway = next_extensions(candidates, list(runs.values()), **LIMITS, **options)
                    assert set(midway.extensions) == set(todo[i:])
                runs[one.candidate] = run_of(one.candidate, one.until, height, 0.0, before)
                after = next_extensions(candidates, list(runs.values()), **LIMITS, **options)
                if i < len(todo) - 1:
                    assert set(after.extensions) == set(todo[i + 1 :])


def test_the_whole_grid_tells_what_a_sweep_would_have_done() -> None:
    candidates = candidates_of((8, 32, 128), 2)
    heights = {8: 0.2, 32: 0.3, 128: 0.25}
    with patch.object(next_look, "forecast_rewards", cheap_forecast):
        made, runs = swept(candidates, heights, share=0.5)
        again = decisions(candidates, list(runs.values()), **LIMITS, share=0.5)
    assert [one.extensions for one in again] == [one.extensions for one in made]
    assert [one.stop for one in again] == [one.stop for one in made]


def test_another_seed_stands_in_for_a_run_that_failed() -> None:
    candidates = candidates_of((8, 32), 2)
    failed = candidates[1]
    left = [one for one in candidates if one is not failed]
    first = next_extensions(candidates, [], **LIMITS, share=0.5)
    known = [run_of(one.candidate, one.until, 0.3) for one in first.extensions[:1]]
    again = next_extensions(left, known, **LIMITS, share=0.5)
    assert [one.candidate.key for one in again.extensions] == [(failed.setting, 1)]


def test_what_failed_runs_left_over_is_not_spent_again() -> None:
    """Runs that a sweep without the failed one would not have made still count as spent."""
    candidates = candidates_of((8, 32), 3)
    runs = [run_of(one, MOST, 0.3) for one in candidates[2:]]
    decision = next_extensions(candidates[1:], runs, **LIMITS, share=0.8)
    assert decision.extensions == ()
    assert "is spent" in decision.stop


def test_too_small_a_share_says_so() -> None:
    decision = next_extensions(candidates_of((64, 256)), [], **LIMITS, share=0.1)
    assert decision.extensions == ()
    assert "too small for a first look" in decision.stop


def test_runs_without_enough_evaluations_go_on_until_nothing_helps() -> None:
    candidates = candidates_of((8, 32))
    runs = [run_of(one, MOST, 0.3) for one in candidates]
    ends = [
        Run(
            name=run.name,
            rollouts_per_prompt=run.rollouts_per_prompt,
            prompts_per_step=8,
            learning_rate=run.learning_rate,
            compute_T=np.array([MOST / 4, MOST / 2, MOST]),
            reward_T=np.array([0.2, 0.3, 0.3]),
        )
        for run in runs
    ]
    made = decisions(candidates, ends, **LIMITS, share=1.0)
    assert [one.until for one in made[1].extensions] == [MOST / 2, MOST / 2]
    assert "Evaluate more often" in made[-1].stop


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
        ({"target": 0.0}, "target"),
        ({"num_at_once": 0}, "num_at_once"),
        ({"most_per_run": 100.0}, "one step of the largest setting takes 256"),
        ({"candidates": []}, "needs candidates"),
        ({"candidates": candidates_of((8,)) * 2}, "of its own"),
    ],
)
def test_wrong_arguments_name_themselves(changed: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"candidates": candidates_of((8, 32)), "runs": [], **LIMITS}
    arguments |= changed
    with pytest.raises(InvalidInputError, match=said):
        next_extensions(arguments.pop("candidates"), arguments.pop("runs"), **arguments)


def test_a_candidate_has_whole_sizes() -> None:
    with pytest.raises(InvalidInputError, match="rollouts_per_prompt"):
        Candidate(rollouts_per_prompt=0, prompts_per_step=8)
