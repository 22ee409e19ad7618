"""A plan: n, prompts per step, steps and settings for a budget, with reasons and what to try first.

``C = n B_p M``. Draws of the best log2 n come from elsewhere (published laws, or runs); the rest is
put around their median: n first, B_p at its least, M takes what remains.

Axes: D draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.plan.limits import Batch, Interval, Limits, batch_within, interval_of
from apportion.plan.prior import draw_log2_rollouts
from apportion.plan.reasons import (
    reason_of_prior,
    reasons_of_n,
    reasons_of_steps,
    warnings_of_batch,
    warnings_of_prior,
    warnings_of_rest,
    warnings_of_steps,
)
from apportion.plan.recipe import (
    Anchor,
    Reason,
    Regularisation,
    prompts_reason,
    rate_reason,
    rate_warnings,
    regularisation_of,
    regularisation_reason,
)
from apportion.plan.sweep_first import Cost, Costing, SweepRun, sweep_first

_NO_LIMITS, _ANCHOR, _NO_COSTING = Limits(), Anchor(), Costing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to spend a budget.

    Attributes:
        basis: what n rests on: ``published`` runs of other models, or ``runs``.
        difficulty: easy, hard or mixed.
        budget: rollouts given.
        rollouts_per_prompt: n, a power of two.
        prompts_per_step: B_p.
        num_steps: M.
        learning_rate: after warm-up, constant.
        regularisation: terms of the loss.
        expected_reward: None where no run of one's own was seen.
        reward_interval: where it should lie, 90%; likewise.
        interval: of n.
        passes: over the prompts; None if their number is unknown.
        cost: of the run.
        unspent: rollouts left of the budget.
        reasons: one or more a setting.
        warnings: what stands against the plan.
        sweep_first: runs that would tell most, before this one; none if the budget is too small.
    """

    basis: str
    difficulty: str
    budget: int
    rollouts_per_prompt: int
    prompts_per_step: int
    num_steps: int
    learning_rate: float
    regularisation: Regularisation
    expected_reward: float | None
    reward_interval: tuple[float, float] | None
    interval: Interval
    passes: float | None
    cost: Cost
    unspent: int
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...]
    sweep_first: tuple[SweepRun, ...]

    @property
    def batch(self) -> int:
        """B, rollouts of a step."""
        return self.rollouts_per_prompt * self.prompts_per_step


def plan_from_published(
    budget: float,
    *,
    difficulty: str | None = None,
    metric: str = "mean",
    limits: Limits = _NO_LIMITS,
    anchor: Anchor = _ANCHOR,
    costing: Costing = _NO_COSTING,
) -> Plan:
    """Plan a budget without any run of one's own.

    Args:
        budget: C, rollouts.
        difficulty: easy, hard or mixed; None plans as for mixed problems and says so.
        metric: mean, best@4 or worst@4, what the run is judged by.
        limits: of the batch, the prompts and the passes over them.
        anchor: learning rate that was tuned once.
        costing: what rollouts cost.

    Raises:
        InvalidInputError: a name is unknown, or the limits or the budget leave no step.

    >>> plan = plan_from_published(2e6, difficulty="easy", limits=Limits(max_batch=8192))
    >>> plan.rollouts_per_prompt, plan.prompts_per_step, plan.num_steps
    (64, 32, 976)
    """
    known = difficulty or "mixed"
    budget = validate.whole_number(
        "budget", np.floor(validate.number("budget", budget)), at_least=1
    )
    draws = draw_log2_rollouts(budget, known, num_prompts=limits.num_prompts, metric=metric)
    warnings = warnings_of_prior(budget, known, limits.num_prompts)
    if difficulty is None:
        warnings.insert(
            0,
            "The difficulty is not given: planned as for mixed problems. `apportion profile` "
            "measures it.",
        )
    return plan_of(
        draws,
        budget,
        difficulty=known,
        basis="published",
        reasons=[reason_of_prior(budget, known, metric, limits.num_prompts)],
        warnings=warnings,
        limits=limits,
        anchor=anchor,
        costing=costing,
    )


def plan_of(
    log2_rollouts_D: ArrayLike,
    budget: float,
    *,
    difficulty: str,
    basis: str,
    reasons: Sequence[Reason] = (),
    warnings: Sequence[str] = (),
    expected_reward: float | None = None,
    limits: Limits = _NO_LIMITS,
    anchor: Anchor = _ANCHOR,
    costing: Costing = _NO_COSTING,
) -> Plan:
    """Put a plan around draws of the best log2 n.

    Args:
        log2_rollouts_D: draws, of equal weight.
        budget: C, rollouts.
        difficulty: easy, hard or mixed.
        basis: what the draws rest on.
        reasons: for them.
        warnings: against them.
        expected_reward: at the end of the run, if known.
        limits: of the batch, the prompts and the passes over them.
        anchor: learning rate that was tuned once.
        costing: what rollouts cost.

    Raises:
        InvalidInputError: the limits or the budget leave no step.
    """
    interval = interval_of(validate.vector("log2_rollouts_D", log2_rollouts_D))
    whole = int(np.floor(validate.number("budget", budget)))
    batch = batch_within(limits, interval, whole, difficulty)
    return plan_around(
        batch,
        interval,
        whole,
        learning_rate=anchor.rate_at(batch.size),
        difficulty=difficulty,
        basis=basis,
        reasons=[
            *reasons,
            *reasons_of_n(batch, interval, limits),
            prompts_reason(difficulty, is_fixed=limits.prompts_per_step is not None),
        ],
        rate_reasons=[rate_reason(anchor)],
        warnings=[*warnings, *warnings_of_batch(batch, difficulty, limits)],
        rate_warnings=rate_warnings(anchor, batch.size),
        expected_reward=expected_reward,
        limits=limits,
        costing=costing,
        sweep=sweep_first(
            batch.rollouts_per_prompt,
            batch.prompts_per_step,
            whole,
            limits=limits,
            anchor=anchor,
            costing=costing,
        ),
    )


def plan_around(
    batch: Batch,
    interval: Interval,
    budget: int,
    *,
    learning_rate: float,
    difficulty: str,
    basis: str,
    reasons: Sequence[Reason],
    rate_reasons: Sequence[Reason],
    warnings: Sequence[str],
    rate_warnings: Sequence[str],
    expected_reward: float | None,
    reward_interval: tuple[float, float] | None = None,
    limits: Limits,
    costing: Costing,
    sweep: Sequence[SweepRun] = (),
) -> Plan:
    """Fill in what follows from n, B_p and the budget: steps, passes, cost, and what is said."""
    n, prompts = batch.rollouts_per_prompt, batch.prompts_per_step
    num_steps = int(min(budget // batch.size, limits.steps_of(prompts)))
    spent = batch.size * num_steps
    passes = None if limits.num_prompts is None else num_steps * prompts / limits.num_prompts
    return Plan(
        basis=basis,
        difficulty=difficulty,
        budget=budget,
        rollouts_per_prompt=n,
        prompts_per_step=prompts,
        num_steps=num_steps,
        learning_rate=learning_rate,
        regularisation=regularisation_of(difficulty),
        expected_reward=expected_reward,
        reward_interval=reward_interval,
        interval=interval,
        passes=passes,
        cost=costing.of(spent),
        unspent=budget - spent,
        reasons=(
            *reasons,
            *reasons_of_steps(n, passes, limits),
            *rate_reasons,
            regularisation_reason(difficulty),
        ),
        warnings=(
            *warnings,
            *warnings_of_steps(num_steps, passes, difficulty),
            *warnings_of_rest(budget - spent, batch, limits),
            *rate_warnings,
        ),
        sweep_first=tuple(sweep),
    )
