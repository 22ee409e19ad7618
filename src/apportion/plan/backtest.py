"""What a plan from the first tenth of a sweep would have lost at its end.

Runs are cut at a tenth of the largest compute that settings of two n reached. From there the
planner, each law of n* and the plain rule "what led goes on" choose a setting for that compute;
the full runs tell what each choice cost. What a setting reached is read off the rising step
function through all its seeds, as of its best checkpoint so far: the largest of many single
evaluations would be the luckiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion.plan.frontier import frontier
from apportion.plan.law_search import LAWS
from apportion.plan.learning_curve import LEAST_POINTS, fit_curve
from apportion.plan.reward_forecast import forecast_rewards
from apportion.plan.runs import Cell, Run, cells_of
from apportion.plan.scaling_law import predicted_rollouts
from apportion.validate import FloatArray

Key = tuple[int, int, float | None, str]
"""A setting, as `Run.setting` tells it."""
SHARES = (10.0, 4.0)
"""Times the compute of the cut that is foretold; the second where the first leaves too little."""
_AS_FAR = 0.95
"""Of the largest compute, what a setting must have reached to be judged there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A setting chosen early, and what it cost.

    Attributes:
        cell: the setting, with all of its runs.
        regret: reward of the best setting minus that of this one.
        regret_of_n: the same for the best setting of its n, whatever B_p, rate and allocator.
        interval: where its reward was foretold to lie, 90%; None for rules that foretell none.
        is_held: whether it lay there.
    """

    cell: Cell
    regret: float
    regret_of_n: float
    interval: tuple[float, float] | None = None
    is_held: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """Choices from the first part of the runs, judged at their end.

    Attributes:
        known_to: rollouts that the runs were cut at.
        target: rollouts that the choices were made for.
        best: the setting that reached most.
        reward: what it reached.
        error: standard error of a difference of two settings there; None if it is unknown.
        planner: the choice of `apportion.plan.reward_forecast`.
        stay: the setting that led where the runs were cut.
        by_law: the choice of each law of n*: the nearest n that was run, and of its settings the
            one that led where the runs were cut.
    """

    known_to: float
    target: float
    best: Cell
    reward: float
    error: float | None
    planner: Choice
    stay: Choice
    by_law: dict[str, Choice]


def backtest(runs: Sequence[Run], *, seed: int = 0) -> Backtest | None:
    """Plan from the first part of the runs for their end.

    Args:
        runs: of a sweep.
        seed: of the draws of the forecast.

    Returns:
        What the choices cost; None where the runs are too short or too few to be cut.
    """
    runs = sorted(runs, key=lambda run: (run.seed, run.name))
    cells = cells_of(runs)
    target = _target(cells)
    judged = _at_target(cells, target)
    for share in SHARES:
        past = _past(runs, target / share)
        if len(_known_sizes(past, judged)) > 1:
            return _judged(past, judged, target / share, target, seed)
    return None


def _at_target(cells: Sequence[Cell], target: float) -> dict[Key, Cell]:
    """Return the settings that can be judged there: evaluated before it, and run as far."""
    return {
        cell.runs[0].setting: cell
        for cell in cells
        if _end(cell) >= _AS_FAR * target > 0.0 and _first(cell) <= target
    }


def _known_sizes(past: Sequence[Cell], judged: dict[Key, Cell]) -> set[int]:
    """Return the n with evaluations enough for a forecast that can be judged."""
    return {
        cell.rollouts_per_prompt
        for cell in past
        if cell.num_levels >= LEAST_POINTS and cell.runs[0].setting in judged
    }


def _past(runs: Sequence[Run], compute: float) -> list[Cell]:
    """Return the settings as they were known at a compute, those not evaluated yet left out."""
    early = [part for run in runs if (part := run.until(compute)) is not None]
    begun = [run for run in early if run.compute_T[-1] > 0.0]
    return cells_of(begun) if begun else []


def _judged(
    past: Sequence[Cell],
    judged: dict[Key, Cell],
    known_to: float,
    target: float,
    seed: int,
) -> Backtest:
    """Make the choices from the past and look up what they reached."""
    reached = {key: _reached(cell, target) for key, cell in judged.items()}
    best = max(reached, key=lambda key: reached[key])
    numbers = [s for s, cell in enumerate(past) if cell.runs[0].setting in judged]
    keys = [past[s].runs[0].setting for s in numbers]

    def chosen(number: int, interval: tuple[float, float] | None = None) -> Choice:
        key = keys[number]
        return Choice(
            cell=judged[key],
            regret=reached[best] - reached[key],
            regret_of_n=reached[best] - max(r for k, r in reached.items() if k[0] == key[0]),
            interval=interval,
            is_held=None if interval is None else interval[0] <= reached[key] <= interval[1],
        )

    forecast = forecast_rewards(past, target, seed=seed)
    planned = int(forecast.reward_S[numbers].argmax())
    early_S = np.array([_reached(past[s], known_to) for s in numbers])
    size_S = np.array([key[0] for key in keys], dtype=np.float64)
    return Backtest(
        known_to=known_to,
        target=target,
        best=judged[best],
        reward=reached[best],
        error=_error(list(judged.values()), target),
        planner=chosen(planned, forecast.interval(numbers[planned])),
        stay=chosen(int(early_S.argmax())),
        by_law={
            name: chosen(_nearest(n, size_S, early_S)) for name, n in _laws(past, target).items()
        },
    )


def _laws(past: Sequence[Cell], target: float) -> dict[str, float]:
    """Return n* at the target by each law fitted to the frontier of the past."""
    curves = [fit_curve(*cell.points()) for cell in past]
    size_S = np.array([cell.rollouts_per_prompt for cell in past], dtype=np.float64)
    front = frontier(curves, size_S)
    best_K = size_S[front.curve_K]
    return {name: predicted_rollouts(name, front.compute_K, best_K, target) for name in LAWS}


def _nearest(rollouts: float, size_S: FloatArray, early_S: FloatArray) -> int:
    """Return the setting of the nearest n; of several with that n the one that led early."""
    apart_S = np.abs(np.log2(size_S) - np.log2(rollouts))
    is_near_S = apart_S <= apart_S.min() + 1e-9
    return int(np.where(is_near_S, early_S, -np.inf).argmax())


def _target(cells: Sequence[Cell]) -> float:
    """Return the most rollouts that settings of two n reached; 0 with one n."""
    end_of: dict[int, float] = {}
    for cell in cells:
        n = cell.rollouts_per_prompt
        end_of[n] = max(end_of.get(n, 0.0), _end(cell))
    ends = sorted(end_of.values())
    return 0.0 if len(ends) < 2 else ends[-2]


def _end(cell: Cell) -> float:
    return float(max(run.compute_T[-1] for run in cell.runs))


def _first(cell: Cell) -> float:
    compute, _ = cell.points()
    return float(compute[compute > 0.0].min(initial=np.inf))


def _reached(cell: Cell, compute: float) -> float:
    """Return the reward of a setting at a compute, its best checkpoint so far, noise smoothed."""
    return float(fit_curve(*cell.points(), "isotonic")(min(compute, _end(cell))))


def _error(cells: Sequence[Cell], target: float) -> float | None:
    """Return the error of a difference: from what seeds differ by, else from the evaluations."""
    there = [found for cell in cells if (found := _there(cell, target))]
    ends = [np.array([run.reward_T[-1] for run in found]) for found in there]
    free = sum(len(end_R) - 1 for end_R in ends)
    if free:
        pooled = sum(float(((end_R - end_R.mean()) ** 2).sum()) for end_R in ends) / free
        return float(np.sqrt(2.0 * pooled / np.mean([len(end_R) for end_R in ends])))
    sampled = float(max(run.sampling_variance()[-1] for found in there for run in found))
    return float(np.sqrt(2.0 * sampled)) if sampled else None


def _there(cell: Cell, target: float) -> list[Run]:
    """Return the runs of a setting that got to the target, as they were there."""
    parts = [run.until(target) for run in cell.runs if run.compute_T[-1] >= _AS_FAR * target]
    return [part for part in parts if part is not None]
