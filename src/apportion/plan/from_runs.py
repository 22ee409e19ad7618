"""A plan from runs of one's own: the setting that should reach most at the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.backtest import backtest
from apportion.plan.cautions import cautions
from apportion.plan.forecast_cautions import (
    choice_cautions,
    forecast_cautions,
    hindsight_cautions,
)
from apportion.plan.limits import Batch, Limits, check_budget, interval_of
from apportion.plan.planning import Plan, plan_around
from apportion.plan.recipe import Anchor, Reason, rate_reason, rate_warnings
from apportion.plan.reward_forecast import RewardForecast, forecast_rewards
from apportion.plan.runs import Cell, Run, cells_of
from apportion.plan.sweep_first import Costing
from apportion.validate import FloatArray

LEAST_STEPS = 20
"""Fewest steps of a plan: twice the warm-up."""


def plan_from_runs(
    runs: Sequence[Run],
    budget: float,
    *,
    difficulty: str,
    limits: Limits | None = None,
    anchor: Anchor | None = None,
    costing: Costing | None = None,
    seed: int = 0,
) -> Plan:
    """Plan a budget from a sweep: choose among the settings that were run.

    Args:
        runs: of the sweep.
        budget: C, rollouts.
        difficulty: easy, hard or mixed, for the terms of the loss.
        limits: of the batch, the prompts and the passes over them.
        anchor: learning rate that was tuned once, where the runs do not tell theirs.
        costing: what rollouts cost.
        seed: of the draws behind the intervals.

    Raises:
        InvalidInputError: too few runs or evaluations for a forecast, or no setting within limits.
    """
    limits, anchor, costing = limits or Limits(), anchor or Anchor(), costing or Costing()
    whole = validate.whole_number("budget", np.floor(validate.number("budget", budget)), at_least=1)
    check_budget(whole)
    cells = cells_of(runs)
    is_allowed_S = np.array([_is_within(cell, limits, whole) for cell in cells])
    if not is_allowed_S.any():
        least = min(cell.batch for cell in cells)
        raise InvalidInputError(
            f"No setting of the runs keeps to the limits with {LEAST_STEPS} steps of a budget of "
            f"{whole:,}: the smallest step is {least:,} rollouts, and prompts a step are "
            f"{', '.join(map(str, sorted({cell.prompts_per_step for cell in cells})))}. Raise the "
            "budget or the limit, or add runs with other steps."
        )
    found = forecast_rewards(cells, _payable(cells, limits, whole), seed=seed)
    chosen = int(np.where(is_allowed_S, found.reward_S, -np.inf).argmax())
    cell = cells[chosen]
    rate = cell.learning_rate
    batch = Batch(
        rollouts_per_prompt=cell.rollouts_per_prompt,
        prompts_per_step=cell.prompts_per_step,
        wanted=cell.rollouts_per_prompt,
    )
    return plan_around(
        batch,
        interval_of(found.best_log2_rollouts(is_allowed_S)),
        whole,
        learning_rate=anchor.rate_at(batch.size) if rate is None else rate,
        difficulty=difficulty,
        basis="runs",
        reasons=_reasons(found, is_allowed_S, chosen),
        rate_reasons=[rate_reason(anchor)] if rate is None else [_own_rate(cell)],
        warnings=[
            *choice_cautions(found, is_allowed_S, chosen, limits.num_prompts),
            *forecast_cautions(found, chosen, whole),
            *(hindsight_cautions(backtest(runs, seed=seed)) if whole > found.seen_to else []),
            *cautions(cells),
        ],
        rate_warnings=rate_warnings(anchor, batch.size) if rate is None else [],
        expected_reward=float(found.reward_S[chosen]),
        reward_interval=found.interval(chosen),
        limits=limits,
        costing=costing,
    )


def _payable(cells: Sequence[Cell], limits: Limits, budget: int) -> FloatArray:
    """Return the rollouts that each setting can spend: whole steps, within the passes."""
    steps = [min(budget // c.batch, limits.steps_of(c.prompts_per_step)) for c in cells]
    return np.array([max(m, 1) * c.batch for m, c in zip(steps, cells, strict=True)], dtype=float)


def _is_within(cell: Cell, limits: Limits, budget: int) -> bool:
    fixed = limits.prompts_per_step
    return (
        cell.rollouts_per_prompt <= limits.batch_of(cell.prompts_per_step)
        and fixed in (None, cell.prompts_per_step)
        and min(budget // cell.batch, limits.steps_of(cell.prompts_per_step)) >= LEAST_STEPS
    )


def _reasons(found: RewardForecast, is_allowed_S: np.ndarray, chosen: int) -> list[Reason]:
    """Say what every allowed setting should reach, best first."""
    order = np.argsort(-np.where(is_allowed_S, found.reward_S, -np.inf))[: is_allowed_S.sum()]
    parts = [f"{found.cells[i].label} {found.reward_S[i]:.3f}" for i in order[:4]]
    ahead = found.compute_S[chosen] / found.seen_to
    return [
        Reason(
            about="rollouts_per_prompt",
            text=f"expected reward: {'; '.join(parts)}",
            source=f"one curve for all runs, {ahead:,.2g} times the longest",
        ),
        Reason(
            about="prompts_per_step",
            text="as the runs of this setting had",
            source=found.cells[chosen].runs[0].name,
        ),
    ]


def _own_rate(cell: Cell) -> Reason:
    return Reason(
        about="learning_rate", text="as the runs of this setting had", source=cell.runs[0].name
    )
