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
LEAST_SIZES = 3
"""Different n on the frontier below which a law says nothing."""


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
class Fits:
    """Curves of settings, from the runs as they are and resampled.

    Attributes:
        cells: settings, in order of n.
        curves: of each.
        drawn: the same for each of the draws.
    """

    cells: tuple[Cell, ...]
    curves: tuple[LearningCurve, ...]
    drawn: tuple[tuple[LearningCurve, ...], ...]

    def part(self, numbers: Sequence[int], most_draws: int) -> Fits:
        """Return those of some settings alone, with so many draws at most."""
        return Fits(
            cells=tuple(self.cells[s] for s in numbers),
            curves=tuple(self.curves[s] for s in numbers),
            drawn=tuple(tuple(row[s] for s in numbers) for row in self.drawn[:most_draws]),
        )


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
        saturation: n that the law goes to, ``2^(L + b)``; its upper end is infinite unless both
            parameters are identified and the largest n that was run is no longer the best.
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
    saturation: Spread
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
    return analysis_of(fits_of(runs, form=form, num_draws=num_draws, seed=seed), level=level)


def fits_of(
    runs: Sequence[Run], *, form: str = "best", num_draws: int = NUM_DRAWS, seed: int = 0
) -> Fits:
    """Fit a curve to each setting, and again to resampled runs; see `analyse`."""
    num_draws = validate.whole_number("num_draws", num_draws, at_least=1)
    cells = cells_of(runs)
    curves = [fit_curve(*cell.points(), form) for cell in cells]
    drawn = refitted(cells, curves, num_draws=num_draws, seed=seed)
    return Fits(cells=tuple(cells), curves=tuple(curves), drawn=tuple(map(tuple, drawn)))


def analysis_of(fits: Fits, *, level: float = LEVEL) -> Analysis:
    """Find the frontier of fitted curves, its crossovers, the law and its rivals."""
    cells, curves, drawn = fits.cells, fits.curves, fits.drawn
    size_S = [cell.rollouts_per_prompt for cell in cells]
    found = frontier(curves, size_S, num_levels=_num_levels(curves))
    fronts = [frontier(row, size_S, num_levels=len(found.compute_K)) for row in drawn]
    best_K = np.array(size_S, dtype=np.float64)[found.curve_K]
    tie = why_no_best(cells, curves)
    told = [] if tie else [one for one in found.crossovers if _is_of_curves(one, curves)]
    law = fit_law(found.compute_K, best_K, level=level)
    all_S = np.array(size_S, dtype=np.float64)
    drawn_DP = _law_draws(law, fronts, best_K, all_S)
    law = _with_draws(law, drawn_DP, level)
    ceiling_SD = np.array([[curve.ceiling for curve in row] for row in drawn]).T
    return Analysis(
        cells=cells,
        curves=curves,
        ceilings=tuple(
            _spread(curve.ceiling, ceiling_D, level)
            for curve, ceiling_D in zip(curves, ceiling_SD, strict=True)
        ),
        frontier=found,
        crossovers=tuple(_passing(cells, one, fronts, level) for one in told),
        law=law,
        saturation=_saturation(law, drawn_DP, best_K, all_S, level),
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


def _law_draws(
    law: ScalingLaw, fronts: Sequence[Frontier], best_K: FloatArray, size_S: FloatArray
) -> FloatArray:
    """Fit the law again to the frontier of each draw; not where two n are too few for a law."""
    if len(np.unique(best_K)) < LEAST_SIZES:
        fronts = []
    drawn = [best_parameters(law.form, one.compute_K, size_S[one.curve_K]) for one in fronts]
    return np.array(drawn).reshape(-1, len(law.parameters))


def _with_draws(law: ScalingLaw, drawn_DP: FloatArray, level: float) -> ScalingLaw:
    """Widen the intervals of a law by those of refits on resampled runs."""
    if not len(drawn_DP):
        return law
    parameters = []
    for parameter, draw_D in zip(law.parameters, drawn_DP.T, strict=True):
        spread = _spread(parameter.value, draw_D, level)
        parameters.append(
            replace(
                parameter,
                low=min(parameter.low, spread.low),
                high=max(parameter.high, spread.high),
            )
        )
    return replace(law, parameters=tuple(parameters))


def _saturation(
    law: ScalingLaw, drawn_DP: FloatArray, best_K: FloatArray, size_S: FloatArray, level: float
) -> Spread:
    """Return what n* goes to.

    In log2 n the interval holds that of the draws and that of the fit (normal), and half a gap
    between the n that were run, which a true plateau may lie off the nearest. It has no upper end
    where L or b is not identified, or where the largest n that was run is still the best.
    """
    from scipy.stats import norm

    at = [[one.name for one in law.parameters].index(name) for name in ("L", "b")]
    value = float(sum(law.parameters[i].value for i in at))
    draw_D = np.append(drawn_DP[:, at].sum(axis=1), value)
    spread = _spread(value, draw_D, level)
    fit = float(norm.ppf((1.0 + level) / 2.0)) * law.top_error
    fit = fit if np.isfinite(fit) else 0.0
    gaps = np.diff(np.log2(np.unique(size_S)))
    half_gap = float(np.median(gaps)) / 2.0 if len(gaps) else 0.0
    is_level = all(law.parameters[i].is_identified for i in at) and best_K[-1] < size_S.max()
    low = min(spread.low, value - fit) - half_gap
    high = max(spread.high, value + fit) + half_gap if is_level else np.inf
    return Spread(value=2.0**value, low=2.0**low, high=2.0**high)
