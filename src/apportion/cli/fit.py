"""``apportion fit``: runs of a sweep in; curves, crossovers and the law of the best n out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from apportion import validate
from apportion.cli.spinner import late_spinner
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.plan.analysis import Analysis, Passing, Spread
    from apportion.plan.learning_curve import LearningCurve
    from apportion.plan.runs import Cell, Run
    from apportion.plan.scaling_law import ScalingLaw

VERSION = 1
LEAST_SIZES = 3
"""Different n on the frontier below which no law is shown."""
_FAR = 1.1
"""Times its last evaluation beyond which a curve on the frontier is told to be extrapolated."""
_SHAPES = {"exponential": ("rate",), "sigmoid": ("compute_mid", "steepness"), "isotonic": ()}


def fit_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Runs at several n: CSV files with run, rollouts_per_prompt, prompts_per_step, "
            "compute and reward; run folders, or folders that hold some; output folders of TRL; "
            "logs of verl.",
        ),
    ],
    *,
    metric: Annotated[
        str,
        typer.Option(help="mean, best@k or worst@k as recorded; or a name in the table or log."),
    ] = "mean",
    split: Annotated[
        str, typer.Option(help="Problems of the evaluation, in run folders.")
    ] = "held_out",
    prompts_per_step: Annotated[
        int | None,
        typer.Option(help="Only runs with so many; also that of logs that do not tell it."),
    ] = None,
    rollouts_per_prompt: Annotated[
        int | None, typer.Option(help="n of logs that do not tell it.")
    ] = None,
    training_reward: Annotated[
        bool,
        typer.Option(
            "--training-reward", help="Take the training reward where there is no other; misleads."
        ),
    ] = False,
    draws: Annotated[int, typer.Option(help="Resampled sets of runs, for the intervals.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say which n was best at which compute, by curves fitted to a sweep.

    Compute is rollouts spent. Intervals are 90%, from refits to resampled runs.
    """
    from rich.console import Console

    from apportion.cli.fit_tables import print_fit
    from apportion.readers.runs import read_runs

    num_draws = validate.whole_number("draws", draws, at_least=1)
    with late_spinner() as say:
        say("reading")
        read, notes = read_runs(
            runs,
            metric=metric,
            split=split,
            rollouts_per_prompt=rollouts_per_prompt,
            prompts_per_step=prompts_per_step,
            training_reward=training_reward,
        )
        kept = begun(of_batch(read, prompts_per_step), notes)
        say(f"fitting {len(kept)} runs")
        content = fitted(kept, notes, num_draws=num_draws)
    if as_json:
        print(json.dumps(content, allow_nan=False))
    else:
        print_fit(content, Console(), num_draws=num_draws)


def of_batch(runs: Sequence[Run], prompts_per_step: int | None) -> list[Run]:
    """Return the runs with so many prompts a step, all of them for None.

    Raises:
        InvalidInputError: there is none.
    """
    kept = [run for run in runs if prompts_per_step in (None, run.prompts_per_step)]
    if not kept:
        there = sorted({run.prompts_per_step for run in runs})
        raise InvalidInputError(
            f"--prompts-per-step is {prompts_per_step:,}, but the runs have "
            f"{', '.join(map(str, there))}."
        )
    return kept


def begun(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Return the runs that were judged after their first rollout.

    Raises:
        InvalidInputError: there is none.
    """
    kept = [run for run in runs if run.compute_T[-1] > 0.0]
    for run in runs:
        if run.compute_T[-1] == 0.0:
            notes.append(f"Left out: {run.name} was not evaluated after its first rollout.")
    if not kept:
        raise InvalidInputError(
            f"{notes[-1].removeprefix('Left out: ')} Give runs with evaluations along the way."
        )
    return kept


def fitted(runs: Sequence[Run], notes: Sequence[str], *, num_draws: int) -> dict[str, Any]:
    """Return what the runs say as plain values; NaN never occurs, what is unknown is null.

    - ``no_best``: why no setting is best, then without crossovers and law; empty if one is
    - ``curves``: of each setting (n, B_p, learning rate, allocator), with its ceiling
    - ``crossovers``: where the frontier passes from one setting to another
    - ``frontier``: ``compute``, ``reward``, ``rollouts_per_prompt``, ``curve`` (its position in
      ``curves``) and ``is_observed``, one value a level
    - ``law``: sigmoid law of n*; null where there are too few points
    - ``rivals``: held-out error of each law in doublings of n, the best first
    - ``warnings``: what the runs cannot tell, and what was left out
    """
    from apportion.plan.analysis import analyse
    from apportion.plan.cautions import cautions
    from apportion.plan.learning_curve import fit_curve
    from apportion.plan.runs import cells_of

    if min(run.compute_T[0] for run in runs) < max(run.compute_T[-1] for run in runs):
        found = analyse(runs, num_draws=num_draws)
        return {"version": VERSION, **_of_analysis(found, notes)}
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
        "warnings": [alike, *cautions(cells), *notes],
    }


def _of_analysis(found: Analysis, notes: Sequence[str]) -> dict[str, Any]:
    sizes = sorted({int(n) for n in found.best_rollouts_K})
    doubt = _doubt_of_law(found, sizes)
    rivals = {} if doubt else dict(sorted(found.rivals.items(), key=lambda pair: pair[1]))
    return {
        "no_best": found.tie,
        "curves": [
            _curve(*each) for each in zip(found.cells, found.curves, found.ceilings, strict=True)
        ],
        "crossovers": [_crossover(one) for one in found.crossovers],
        "frontier": {
            "compute": found.frontier.compute_K.tolist(),
            "reward": found.frontier.reward_K.tolist(),
            "rollouts_per_prompt": [int(n) for n in found.best_rollouts_K],
            "curve": found.frontier.curve_K.tolist(),
            "is_observed": found.frontier.is_observed_K.tolist(),
        },
        "law": None if doubt else _law(found.law),
        "rivals": {name: _finite(error) for name, error in rivals.items()},
        "warnings": [
            *found.warnings,
            *([doubt] if doubt != found.tie else []),
            *_about(found),
            *notes,
        ],
    }


def _doubt_of_law(found: Analysis, sizes: Sequence[int]) -> str:
    """Say why no law is shown; empty if one is."""
    if found.tie:
        return found.tie
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


def _law(law: ScalingLaw) -> dict[str, Any]:
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
        "rmse": _finite(law.rmse),
        "num_points": law.num_points,
        "advice": law.advice,
    }


def _spread(spread: Spread) -> dict[str, float | None]:
    return {name: _finite(getattr(spread, name)) for name in ("value", "low", "high")}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
