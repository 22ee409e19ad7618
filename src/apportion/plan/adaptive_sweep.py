"""Which runs of a sweep to make next, and when they suffice to plan from.

A grid takes every seed of every setting to its end. Most of that says little about the plan: to one
shared curve a second seed adds little, and who falls far behind stays there. So one run of
every setting takes a first look, a quarter of its length. Then, again and again, the setting that
would be planned and the one that threatens it most are run to the end. It stops once a run has
been to its end, where the forecast was put to the test, and the expected regret of the plan

    E[max_s R_s - R_plan]    over draws of the forecast at the target

is below half the error of one evaluation; or when its share of the grid is spent.

Every call decides from the beginning, with each run cut to what had been asked of it by then. So
runs that finish in another order, or a sweep that was killed, lead to the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.next_look import SPENT, Candidate, Decision, Extension, Key, Sweep, decide
from apportion.plan.runs import Run

__all__ = ["Candidate", "Decision", "Extension", "decisions", "next_extensions"]


def next_extensions(
    candidates: Sequence[Candidate],
    runs: Sequence[Run],
    *,
    most_per_run: float,
    target: float,
    share: float = 0.25,
    num_at_once: int = 2,
    seed: int = 0,
) -> Decision:
    """Decide what a sweep runs next, from what its runs have shown.

    Args:
        candidates: runs that may be made, seeds in the order in which to take them; without those
            that failed.
        runs: made so far, evaluated where each was to stop; others than the candidates' are
            ignored.
        most_per_run: rollouts of a whole run of the grid, at most.
        target: C, rollouts of the run that is planned.
        share: of the grid's rollouts that may be spent, those of failed runs aside.
        num_at_once: runs to decide on together, after the first looks.
        seed: of the draws behind the expected regret.

    Returns:
        The decision, without extensions that are finished. Its runs never spend more than `share`.

    Raises:
        InvalidInputError: no candidate, two alike, a run without a step, or a number out of range.

    >>> candidates = [Candidate(rollouts_per_prompt=n, prompts_per_step=32) for n in (8, 64)]
    >>> first = next_extensions(candidates, [], most_per_run=1e5, target=1e6, share=0.8)
    >>> [(one.candidate.rollouts_per_prompt, one.until) for one in first.extensions]
    [(8, 25088), (64, 26624)]
    """
    sweep = _checked(candidates, most_per_run, target, share, num_at_once, seed)
    decision = _replayed(sweep, runs)[-1]
    if decision.stop:
        return decision
    keys = {candidate.key for candidate in candidates}
    spent_by_key = {_key(run): float(run.compute_T[-1]) for run in runs if _key(run) in keys}
    kept = []
    left = sweep.budget - sum(spent_by_key.values())
    for one in decision.extensions:
        cost = one.until - spent_by_key.get(one.candidate.key, 0.0)
        if cost <= left:
            kept.append(one)
            left -= cost
    return replace(decision, extensions=tuple(kept), stop="" if kept else SPENT)


def decisions(
    candidates: Sequence[Candidate],
    runs: Sequence[Run],
    *,
    most_per_run: float,
    target: float,
    share: float = 0.25,
    num_at_once: int = 2,
    seed: int = 0,
) -> list[Decision]:
    """Return the decisions of a sweep from the first to the one that its runs do not answer yet.

    Given the runs of a whole grid, this is what the sweep would have done. Arguments and errors are
    those of `next_extensions`.
    """
    return _replayed(_checked(candidates, most_per_run, target, share, num_at_once, seed), runs)


def _replayed(sweep: Sweep, runs: Sequence[Run]) -> list[Decision]:
    known = {_key(run): run for run in runs}
    asked: dict[Candidate, int] = {}
    made: list[Decision] = []
    while True:
        begun = {one: _so_far(known[one.key], until) for one, until in asked.items()}
        decision = decide(sweep, begun)
        missing = tuple(one for one in decision.extensions if not _is_done(one, known))
        if decision.stop or missing:
            return [*made, replace(decision, extensions=missing)]
        made.append(decision)
        asked |= {one.candidate: one.until for one in decision.extensions}


def _key(run: Run) -> Key:
    return run.setting, run.seed


def _is_done(one: Extension, known: Mapping[Key, Run]) -> bool:
    run = known.get(one.candidate.key)
    return run is not None and bool(run.compute_T[-1] >= one.until)


def _so_far(run: Run, until: int) -> Run:
    """Return a run as it was at its first evaluation of so many rollouts or more."""
    num = int(np.searchsorted(run.compute_T, until)) + 1
    return replace(run, compute_T=run.compute_T[:num], reward_T=run.reward_T[:num])


def _checked(
    candidates: Sequence[Candidate],
    most_per_run: float,
    target: float,
    share: float,
    num_at_once: int,
    seed: int,
) -> Sweep:
    if not candidates or len({one.key for one in candidates}) < len(candidates):
        raise InvalidInputError(
            "An adaptive sweep needs candidates, each with a setting or a seed of its own."
        )
    largest = max(one.batch for one in candidates)
    if validate.number("most_per_run", most_per_run) < largest:
        raise InvalidInputError(
            f"most_per_run is {most_per_run:,g}, but one step of the largest setting takes "
            f"{largest:,} rollouts. Raise it, or leave out that setting."
        )
    if validate.number("target", target) <= 0.0:
        raise InvalidInputError(f"target is {target:g}, but must be above 0 rollouts.")
    if not 0.0 < validate.number("share", share) <= 1.0:
        raise InvalidInputError(f"share is {share:g}, but must be above 0 and at most 1.")
    sweep = Sweep(
        candidates=tuple(candidates),
        most_per_run=int(most_per_run),
        target=float(target),
        budget=0.0,
        num_at_once=validate.whole_number("num_at_once", num_at_once, at_least=1),
        seed=seed,
    )
    return replace(sweep, budget=share * sum(map(sweep.whole, candidates)))
