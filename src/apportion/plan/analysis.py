"""From runs to curves, their frontier and the law of n*, each with what resampling says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from apportion import validate
from apportion.plan.cautions import cautions
from apportion.plan.frontier import Crossover, Frontier, frontier
from apportion.plan.law_search import LAWS
from apportion.plan.learning_curve import LearningCurve, fit_curve
from apportion.plan.resampling import NUM_DRAWS, refitted
from apportion.plan.runs import Cell, Run, cells_of
from apportion.plan.scaling_law import (
    LEVEL,
    ScalingLaw,
    best_parameters,
    fit_law,
    held_out_error,
)
from apportion.plan.ties import why_no_best
from apportion.validate import FloatArray

LEVELS_PER_DECADE = 20
"""Levels of compute at which the frontier gives the laws their points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A number with its interval over draws.

    Attributes:
        value: from the runs as they are.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """A crossover with its interval.

    Attributes:
        leaving: setting that was best before.
        entering: setting that is best from here on.
        compute: rollouts.
        reward: of both there.
        share: of the draws in which one follows the other at all; the nearest such place counts.
            Where there is none, the ends of the interval are NaN.
    """

    leaving: Cell
    entering: Cell
    compute: Spread
    reward: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What a set of runs says.

    Attributes:
        cells: settings, in order of n.
        curves: of each.
        ceilings: of each, with intervals.
        frontier: of the curves, over what was observed.
        crossovers: between them.
        law: sigmoid law of n*, with intervals over draws.
        rivals: held-out error of each law, in log2 n.
        warnings: what the runs cannot tell.
        tie: why no n is best; empty if one is.
    """

    cells: tuple[Cell, ...]
    curves: tuple[LearningCurve, ...]
    ceilings: tuple[Spread, ...]
    frontier: Frontier
    crossovers: tuple[Passing, ...]
    law: ScalingLaw
    rivals: dict[str, float]
    warnings: tuple[str, ...]
    tie: str

    @property
    def best_rollouts_K(self) -> FloatArray:
        """N of the setting that attains the frontier at each of its levels."""
        size_S = np.array([cell.rollouts_per_prompt for cell in self.cells], dtype=np.float64)
        return size_S[self.frontier.curve_K]


def analyse(
    runs: Sequence[Run],
    *,
    form: str = "best",
    num_draws: int = NUM_DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> Analysis:
    """Fit curves, frontier, law and its rivals, and refit all of it on resampled runs.

    Args:
        runs: of a sweep.
        form: of the curves, see `apportion.plan.learning_curve.fit_curve`.
        num_draws: resampled sets of runs.
        level: coverage of the intervals.
        seed: of the resampling.

    Raises:
        InvalidInputError: there are no runs, or no draws.
    """
    num_draws = validate.whole_number("num_draws", num_draws, at_least=1)
    cells = cells_of(runs)
    curves = [fit_curve(*cell.points(), form) for cell in cells]
    size_S = [cell.rollouts_per_prompt for cell in cells]
    found = frontier(curves, size_S, num_levels=_num_levels(curves))
    drawn = refitted(cells, curves, num_draws=num_draws, seed=seed)
    fronts = [frontier(row, size_S, num_levels=len(found.compute_K)) for row in drawn]
    best_K = np.array(size_S, dtype=np.float64)[found.curve_K]
    tie = why_no_best(cells, curves)
    told = [] if tie else [one for one in found.crossovers if _is_of_curves(one, curves)]
    law = fit_law(found.compute_K, best_K, level=level)
    ceiling_SD = np.array([[curve.ceiling for curve in row] for row in drawn]).T
    return Analysis(
        cells=tuple(cells),
        curves=tuple(curves),
        ceilings=tuple(
            _spread(curve.ceiling, ceiling_D, level)
            for curve, ceiling_D in zip(curves, ceiling_SD, strict=True)
        ),
        frontier=found,
        crossovers=tuple(_passing(cells, one, fronts, level) for one in told),
        law=_with_draws(law, fronts, np.array(size_S, dtype=np.float64), level),
        rivals={name: held_out_error(found.compute_K, best_K, name) for name in LAWS},
        warnings=tuple(cautions(cells)),
        tie=tie,
    )


def _is_of_curves(one: Crossover, curves: Sequence[LearningCurve]) -> bool:
    """Return whether both were evaluated more than once: a point crosses nothing."""
    both = (curves[one.leaving], curves[one.entering])
    return all(curve.observed_from < curve.observed_to for curve in both)


def _num_levels(curves: Sequence[LearningCurve]) -> int:
    low = min(max(curve.observed_from, 1.0) for curve in curves)
    high = max(curve.observed_to for curve in curves)
    return max(int(np.ceil(LEVELS_PER_DECADE * np.log10(high / low))), 2)


def _spread(value: float, draws: FloatArray, level: float) -> Spread:
    low, high = np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Spread(value=value, low=min(float(low), value), high=max(float(high), value))


def _passing(
    cells: Sequence[Cell], found: Crossover, fronts: Sequence[Frontier], level: float
) -> Passing:
    pair = (found.leaving, found.entering)
    again = []
    for front in fronts:
        times = [one.compute for one in front.crossovers if (one.leaving, one.entering) == pair]
        if times:
            again.append(min(times, key=lambda time: abs(np.log(time / found.compute))))
    return Passing(
        leaving=cells[found.leaving],
        entering=cells[found.entering],
        compute=_spread(found.compute, np.array(again), level)
        if again
        else Spread(value=found.compute, low=np.nan, high=np.nan),
        reward=found.reward,
        share=len(again) / max(len(fronts), 1),
    )


def _with_draws(
    law: ScalingLaw, fronts: Sequence[Frontier], size_S: FloatArray, level: float
) -> ScalingLaw:
    """Widen the intervals of a law by those of refits on resampled runs."""
    drawn = np.array(
        [best_parameters(law.form, front.compute_K, size_S[front.curve_K]) for front in fronts]
    )
    parameters = []
    for parameter, draw_D in zip(law.parameters, drawn.T, strict=True):
        spread = _spread(parameter.value, draw_D, level)
        parameters.append(
            replace(
                parameter,
                low=min(parameter.low, spread.low),
                high=max(parameter.high, spread.high),
            )
        )
    return replace(law, parameters=tuple(parameters))
