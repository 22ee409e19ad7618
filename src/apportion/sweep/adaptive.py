"""A sweep that decides as it goes which run to take further, and stops when the plan is clear.

Decisions follow from the runs alone (`apportion.plan.adaptive_sweep`), so a sweep that was killed
makes the same ones again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apportion.plan.adaptive_sweep import Candidate, Decision, next_extensions
from apportion.plan.runs import Run
from apportion.readers.found_runs import NotRecordedError, Wanted
from apportion.readers.own_evaluations import read_own
from apportion.sweep.settings import Setting
from apportion.sweep.sweep import HELD_OUT, Job, Sweep

_ALL_FAILED = "Every run failed."


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What an adaptive sweep is for.

    Attributes:
        target: rollouts of the run that is to be planned.
        share: of the rollouts of all runs at their ends, what may be spent.
        num_at_once: runs to take further at a time.
    """

    target: float
    share: float
    num_at_once: int


def sweep_adaptively(
    sweep: Sweep,
    goal: Goal,
    engine: Callable[..., dict[Job, str]],
    *,
    on_poll: Callable[[Sequence[Job]], None],
    on_decision: Callable[[Decision], None],
) -> tuple[Decision, dict[Job, str]]:
    """Take runs further, round by round, until the plan is clear or the share is spent.

    Args:
        sweep: all runs that may be made.
        goal: what the plan is for, and what it may cost.
        engine: makes the runs of a list, see `apportion.training.processes.run_all`.
        on_poll: called by the engine with the runs of a round.
        on_decision: called before each round.

    Returns:
        The last decision, which says why the sweep stops, and for each run that failed the reason;
        such a run is left out of later rounds.
    """
    failures: dict[Job, str] = {}
    setting_of = {candidate_of(setting): setting for setting in sweep.settings}
    while True:
        decision = next_extensions(
            list(setting_of),
            runs_of(sweep),
            most_per_run=max(setting.budget for setting in sweep.settings),
            target=goal.target,
            share=goal.share,
            num_at_once=goal.num_at_once,
        )
        on_decision(decision)
        if decision.stop or not decision.extensions:
            return decision, failures
        jobs = [
            sweep.job(setting_of[one.candidate], until=one.until // one.candidate.batch)
            for one in decision.extensions
        ]
        failures |= engine(jobs, on_poll=on_poll)
        failed = {job.setting for job in failures}
        setting_of = {one: setting for one, setting in setting_of.items() if setting not in failed}
        if not setting_of:
            return replace(decision, extensions=(), stop=_ALL_FAILED), failures


def candidate_of(setting: Setting) -> Candidate:
    """Return a run of the sweep as the planner knows it."""
    return Candidate(
        rollouts_per_prompt=setting.rollouts_per_prompt,
        prompts_per_step=setting.prompts_per_step,
        learning_rate=setting.learning_rate,
        allocator=setting.allocator,
        seed=setting.seed,
    )


def runs_of(sweep: Sweep) -> list[Run]:
    """Return the runs that were judged, under the settings of the sweep."""
    found = []
    for job in sweep.jobs:
        if not (job.folder / "run.json").exists():
            continue
        try:
            run = read_own(job.folder, Wanted(split=HELD_OUT)).run
        except NotRecordedError:
            continue
        found.append(replace(run, name=job.name, allocator=job.setting.allocator))
    return found


def outlook(decision: Decision, sweep: Sweep) -> dict[str, Any]:
    """Return what an adaptive sweep saved and risks, as plain values; unknown is null."""
    return {
        "stop": decision.stop,
        "share_of_grid": decision.spent / sweep.budget,
        "expected_regret": decision.regret,
        "evaluation_error": decision.noise,
        "chance_to_be_best": dict(decision.chance_by_setting),
    }
