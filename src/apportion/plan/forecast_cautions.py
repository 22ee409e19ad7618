"""What stands against a setting that was chosen by a forecast, in plain words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apportion.plan.backtest import Backtest
from apportion.plan.cautions import noise_floor
from apportion.plan.reward_forecast import BACKTEST, RewardForecast

FAR = 40.0
"""Budgets this many times the longest run have been tried; see research/LOG.md."""
MISFIT = 2.0
_LEAST_FLOOR = 0.01
"""Of differences between settings, where the size of evaluations is unknown."""


def choice_cautions(
    found: RewardForecast, is_allowed_S: NDArray[np.bool_], chosen: int, num_prompts: int | None
) -> list[str]:
    """Return what comes close to the choice, what limits rule out, and at which end it lies.

    Args:
        found: the forecast.
        is_allowed_S: settings within the limits.
        chosen: number of the setting.
        num_prompts: D of the run to come, if known.
    """
    said = (
        _close(found, is_allowed_S, chosen),
        _ruled_out(found, chosen),
        _largest_size(found, chosen),
        _larger_rate(found, chosen),
        _other_prompts(found, chosen, num_prompts),
    )
    return [sentence for sentence in said if sentence]


def forecast_cautions(found: RewardForecast, chosen: int, budget: int) -> list[str]:
    """Return why the forecast of the chosen setting may be wrong.

    Args:
        found: the forecast.
        chosen: number of the setting.
        budget: C, rollouts.
    """
    said = (_no_gain(found, chosen), _out_of_reach(found, chosen, budget), _untested(found))
    return [sentence for sentence in said if sentence]


def hindsight_cautions(found: Backtest | None) -> list[str]:
    """Say if this planner, given the first part of these runs, would have planned their end badly.

    Args:
        found: of the runs; None where they are too short for one.
    """
    if found is None or found.planner.regret <= 2.0 * (found.error or _LEAST_FLOOR):
        return []
    return [
        f"Given the first {found.known_to:,.0f} rollouts of these runs this planner would have "
        f"taken {found.planner.cell.label}, which at {found.target:,.0f} had {found.best.label} "
        f"{found.planner.regret:.3f} ahead: so far ahead its choice may be as wrong again."
    ]


def _floor(found: RewardForecast) -> float:
    return noise_floor(found.cells) or _LEAST_FLOOR


def _close(found: RewardForecast, is_allowed_S: NDArray[np.bool_], chosen: int) -> str:
    floor = _floor(found)
    behind_S = found.reward_S[chosen] - found.reward_S
    is_close_S = is_allowed_S & (behind_S < floor)
    is_close_S[chosen] = False
    if not is_close_S.any():
        return ""
    labels = [found.cells[setting].label for setting in np.flatnonzero(is_close_S)]
    return (
        f"Within one evaluation's error ({floor:.3f}) of the plan: {'; '.join(labels)}. Take what "
        "is cheapest to run."
    )


def _ruled_out(found: RewardForecast, chosen: int) -> str:
    top = int(found.reward_S.argmax())
    lead = float(found.reward_S[top] - found.reward_S[chosen])
    if lead <= _floor(found):
        return ""
    return (
        f"The limits rule out {found.cells[top].label}, which should reach "
        f"{found.reward_S[top]:.3f}, {lead:.3f} more."
    )


def _largest_size(found: RewardForecast, chosen: int) -> str:
    sizes = [cell.rollouts_per_prompt for cell in found.cells]
    n = sizes[chosen]
    if not n == max(sizes) > min(sizes):
        return ""
    return f"n = {n} is the largest that was run: more may be better. Add n = {4 * n}."


def _larger_rate(found: RewardForecast, chosen: int) -> str:
    """Say if the choice is the faster of two settings that differ in the rate alone."""
    best = found.cells[chosen]
    same = [
        cell.learning_rate
        for cell in found.cells
        if (cell.rollouts_per_prompt, cell.prompts_per_step)
        == (best.rollouts_per_prompt, best.prompts_per_step)
        and cell.learning_rate is not None
    ]
    if best.learning_rate is None or best.learning_rate <= min(same):
        return ""
    return (
        f"{best.learning_rate:g} is the larger of the learning rates that n = "
        f"{best.rollouts_per_prompt} was run at. Short runs do not show whether a large rate "
        "lasts: watch the whole run, or take the smaller."
    )


def _other_prompts(found: RewardForecast, chosen: int, num_prompts: int | None) -> str:
    of_runs = {run.num_prompts for run in found.cells[chosen].runs if run.num_prompts is not None}
    if num_prompts is None or not of_runs or num_prompts in of_runs:
        return ""
    there = " or ".join(f"{num:,}" for num in sorted(of_runs))
    return (
        f"The runs trained on {there} prompts, the plan has {num_prompts:,}: the forecast is for "
        "theirs."
    )


def _no_gain(found: RewardForecast, chosen: int) -> str:
    start = float(np.mean([run.reward_T[0] for cell in found.cells for run in cell.runs]))
    if found.reward_S[chosen] > start:
        return ""
    return (
        f"No setting is expected to end above where the runs begin ({start:.3f}): training as they "
        "did does not help."
    )


def _out_of_reach(found: RewardForecast, chosen: int, budget: int) -> str:
    ahead = found.compute_S[chosen] / found.seen_to
    if ahead > FAR * 1.01:
        return (
            f"The budget is {ahead:,.0f} times the longest run; forecasts were tried up to "
            f"{FAR:.0f} times."
        )
    runs = [run for cell in found.cells for run in cell.runs]
    first = min(float(run.compute_T[run.compute_T > 0.0].min()) for run in runs)
    if budget < first:
        return (
            f"The budget lies below the first evaluation of all runs, {first:,.0f} rollouts: "
            "nothing is known there."
        )
    return ""


def _untested(found: RewardForecast) -> str:
    if found.backtest is None:
        return (
            f"The runs are too short to foretell their own end from {1 / BACKTEST:.0%} of it, so "
            "how far the forecast errs is a guess. Evaluate earlier and more often."
        )
    if found.misfit > MISFIT:
        return (
            f"The curves of the runs differ from the form by {found.misfit:.1f} times what noise "
            "explains: trust the interval more than the number."
        )
    return ""
