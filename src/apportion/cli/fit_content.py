"""What the runs of a sweep say as plain values, ready for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from apportion.plan.analysis import Analysis, Passing, Spread
    from apportion.plan.backtest import Backtest, Choice
    from apportion.plan.groups import Group
    from apportion.plan.learning_curve import LearningCurve
    from apportion.plan.runs import Cell, Run
    from apportion.plan.scaling_law import ScalingLaw

VERSION = 1
_FAR = 1.1
"""Times its last evaluation beyond which a curve on the frontier is told to be extrapolated."""
_SHAPES = {"exponential": ("rate",), "sigmoid": ("compute_mid", "steepness"), "isotonic": ()}


def fitted(runs: Sequence[Run], notes: Sequence[str], *, num_draws: int) -> dict[str, Any]:
    """Return what the runs say as plain values; NaN never occurs, what is unknown is null.

    - ``no_best``: why no setting is best, then without crossovers and law; empty if one is
    - ``curves``: of each setting (n, B_p, learning rate, allocator), with its ceiling
    - ``crossovers``: where the frontier passes from one setting to another
    - ``frontier``: ``compute``, ``reward``, ``rollouts_per_prompt``, ``prompts_per_step``,
      ``curve`` (its position in ``curves``) and ``is_observed``, one value a level
    - ``law``: sigmoid law of n* with its ``saturation``; null where there are too few points
    - ``rivals``: held-out error of each law in doublings of n, the best first
    - ``groups``: where there are several B_p or allocators, ``no_best``, ``crossovers``,
      ``frontier`` and ``law`` within each
    - ``fixed_batch``: the same for each batch that several n share, over ``steps``
    - ``backtest``: what choices from the first part of the runs would have cost at their end; null
      where the runs are too short
    - ``warnings``: what the runs cannot tell, and what was left out
    """
    from apportion.plan.analysis import analysis_of, fits_of
    from apportion.plan.backtest import backtest
    from apportion.plan.cautions import cautions
    from apportion.plan.groups import fixed_batches_of, groups_of
    from apportion.plan.learning_curve import fit_curve
    from apportion.plan.runs import cells_of

    if min(run.compute_T[0] for run in runs) < max(run.compute_T[-1] for run in runs):
        fits = fits_of(runs, num_draws=num_draws)
        found = analysis_of(fits)
        return {
            "version": VERSION,
            **_of_analysis(found),
            "groups": [_group(one) for one in groups_of(fits)],
            "fixed_batch": [_fixed_batch(one) for one in fixed_batches_of(fits)],
            "backtest": _backtest(backtest(runs)),
            "warnings": [*_warnings(found), *notes],
        }
    cells = cells_of(runs)
    alike = "All evaluations are at one compute, so there is no frontier. Evaluate along the way."
    return {
        "version": VERSION,
        "no_best": "",
        "curves": [_curve(cell, fit_curve(*cell.points()), None) for cell in cells],
        "crossovers": [],
        "frontier": None,
        "law": None,
        "rivals": {},
        "groups": [],
        "fixed_batch": [],
        "backtest": None,
        "warnings": [alike, *cautions(cells), *notes],
    }


def _of_analysis(found: Analysis) -> dict[str, Any]:
    has_law = not _doubt_of_law(found)
    rivals = sorted(found.rivals.items(), key=lambda pair: pair[1]) if has_law else []
    return {
        "no_best": found.tie,
        "curves": [
            _curve(*each) for each in zip(found.cells, found.curves, found.ceilings, strict=True)
        ],
        "crossovers": [_crossover(one) for one in found.crossovers],
        "frontier": _frontier(found, range(len(found.cells))),
        "law": _law(found.law, found.saturation) if has_law else None,
        "rivals": {name: _finite(error) for name, error in rivals},
    }


def _group(group: Group) -> dict[str, Any]:
    found = group.analysis
    return {
        "prompts_per_step": group.first.prompts_per_step,
        "allocator": group.first.allocator,
        "no_best": found.tie,
        "crossovers": [_crossover(one) for one in found.crossovers],
        "frontier": _frontier(found, group.numbers),
        "law": None if _doubt_of_law(found) else _law(found.law, found.saturation),
    }


def _fixed_batch(group: Group) -> dict[str, Any]:
    from apportion.plan.groups import in_steps

    found, batch = group.analysis, group.first.batch
    crossovers = [_crossover(one) for one in found.crossovers]
    for one in crossovers:
        compute = one.pop("compute")
        one["steps"] = {name: _divided(value, batch) for name, value in compute.items()}
    frontier = _frontier(found, group.numbers)
    steps = [compute / batch for compute in frontier.pop("compute")]
    law = None if _doubt_of_law(found) else _law(in_steps(found.law, batch), found.saturation)
    return {
        "batch": batch,
        "allocator": group.first.allocator,
        "no_best": found.tie,
        "crossovers": crossovers,
        "frontier": {"steps": steps, **frontier},
        "law": law,
    }


def _backtest(found: Backtest | None) -> dict[str, Any] | None:
    if found is None:
        return None
    low, high = found.planner.interval or (np.nan, np.nan)
    return {
        "known_to": found.known_to,
        "compute": found.target,
        "best": {**_setting(found.best), "reward": found.reward},
        "error": found.error,
        "planner": {
            **_choice(found.planner),
            "low": _finite(low),
            "high": _finite(high),
            "is_held": found.planner.is_held,
        },
        "stay": _choice(found.stay),
        "laws": {name: _choice(choice) for name, choice in found.by_law.items()},
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        **_setting(choice.cell),
        "regret": choice.regret,
        "regret_of_n": choice.regret_of_n,
    }


def _frontier(found: Analysis, numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Return the frontier; ``numbers`` are the positions of its settings among all."""
    front = found.frontier
    leading = [found.cells[s] for s in front.curve_K]
    return {
        "compute": front.compute_K.tolist(),
        "reward": front.reward_K.tolist(),
        "rollouts_per_prompt": [cell.rollouts_per_prompt for cell in leading],
        "prompts_per_step": [cell.prompts_per_step for cell in leading],
        "curve": [numbers[s] for s in front.curve_K],
        "is_observed": front.is_observed_K.tolist(),
    }


def _warnings(found: Analysis) -> list[str]:
    doubt = _doubt_of_law(found)
    return [*found.warnings, *([doubt] if doubt != found.tie else []), *_about(found)]


def _doubt_of_law(found: Analysis) -> str:
    """Say why no law is shown; empty if one is."""
    if found.tie:
        return found.tie
    from apportion.plan.analysis import LEAST_SIZES

    sizes = sorted({int(n) for n in found.best_rollouts_K})
    if len(sizes) < LEAST_SIZES:
        shown = " and ".join(map(str, sizes))
        return (
            f"No law of n*: only n = {shown} {'is' if len(sizes) == 1 else 'are'} on the frontier, "
            f"and a law needs {LEAST_SIZES} or more."
        )
    if found.law.num_points <= len(found.law.parameters):
        return (
            f"No law of n*: its {len(found.law.parameters)} parameters need more than "
            f"{found.law.num_points} levels of compute. Run longer."
        )
    return ""


def _about(found: Analysis) -> list[str]:
    """Say what else the frontier rests on."""
    said = []
    for name, values in (
        ("prompts per step", {cell.prompts_per_step for cell in found.cells}),
        ("allocators", {cell.allocator for cell in found.cells}),
    ):
        if len(values) > 1:
            said.append(
                f"The runs have several {name} ({', '.join(map(str, sorted(values)))}): the "
                "frontier takes the best of all, and n* is its n."
            )
    for number, (cell, curve) in enumerate(zip(found.cells, found.curves, strict=True)):
        led = found.frontier.compute_K[found.frontier.curve_K == number]
        if len(led) and led[-1] > _FAR * curve.observed_to:
            said.append(
                f"{cell.label} is on the frontier up to {led[-1]:,.0f} rollouts but was run to "
                f"{curve.observed_to:,.0f} alone: beyond that its curve is extrapolated."
            )
    return said


def _curve(cell: Cell, curve: LearningCurve, ceiling: Spread | None) -> dict[str, Any]:
    has_shape = ceiling is not None and bool(curve.shape)
    return {
        **_setting(cell),
        "runs": [run.name for run in cell.runs],
        "num_evaluations": sum(len(run.compute_T) for run in cell.runs),
        "form": curve.form,
        "floor": curve.floor,
        "ceiling": _spread(ceiling) if has_shape and ceiling is not None else None,
        "shape": dict(zip(_SHAPES[curve.form], curve.shape, strict=True)),
        "knot_compute": curve.knot_compute_K.tolist(),
        "knot_reward": curve.knot_reward_K.tolist(),
        "observed_from": curve.observed_from,
        "observed_to": curve.observed_to,
        "last_reward": float(np.mean([run.reward_T[-1] for run in cell.runs])),
        "rmse": _finite(curve.rmse),
        "advice": curve.advice,
    }


def _crossover(one: Passing) -> dict[str, Any]:
    from apportion.plan.cautions import passes

    larger = max(one.leaving, one.entering, key=lambda cell: cell.rollouts_per_prompt)
    return {
        "leaving": _setting(one.leaving),
        "entering": _setting(one.entering),
        "compute": _spread(one.compute),
        "reward": one.reward,
        "share_of_draws": one.share,
        "passes": passes(larger, one.compute.value),
    }


def _setting(cell: Cell) -> dict[str, Any]:
    return {
        "rollouts_per_prompt": cell.rollouts_per_prompt,
        "prompts_per_step": cell.prompts_per_step,
        "learning_rate": cell.learning_rate,
        "allocator": cell.allocator,
    }


def _law(law: ScalingLaw, saturation: Spread) -> dict[str, Any]:
    return {
        "form": law.form,
        "parameters": {
            parameter.name: {
                "value": parameter.value,
                "error": _finite(parameter.error),
                "low": _finite(parameter.low),
                "high": _finite(parameter.high),
                "is_identified": parameter.is_identified,
            }
            for parameter in law.parameters
        },
        "saturation": _spread(saturation),
        "rmse": _finite(law.rmse),
        "num_points": law.num_points,
        "advice": law.advice,
    }


def _spread(spread: Spread) -> dict[str, float | None]:
    return {name: _finite(getattr(spread, name)) for name in ("value", "low", "high")}


def _divided(value: float | None, by: int) -> float | None:
    return None if value is None else value / by


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
