"""Refits on resampled runs: how far curves, frontiers and laws could have come out otherwise.

Runs of one setting differ by seed, and an evaluation of few problems is noisy. Both spreads are
estimated from the residuals of all curves together, for a handful of seeds tells little about its
own spread, and new runs are drawn around the fitted curves with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion.plan.learning_curve import LearningCurve, fit_rows
from apportion.plan.runs import Cell
from apportion.validate import FloatArray

NUM_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of a reward around its curve.

    Attributes:
        between: of the mean residual of a run, what its seed does.
        within: of single evaluations around that.
        num_runs: runs that it was estimated from.
        num_repeated: settings with two runs or more; 0 if `between` could not be seen.
    """

    between: float
    within: float
    num_runs: int
    num_repeated: int


def noise_of(cells: Sequence[Cell], curves: Sequence[LearningCurve]) -> Noise:
    """Estimate the spread of rewards around their curves, over all settings together.

    ``within^2`` is the pooled variance of residuals about the mean residual of their run;
    ``between^2`` what the means of runs of one setting differ by beyond that, at least 0.

    Args:
        cells: settings with their runs.
        curves: the curve fitted to each.
    """
    inner, inner_free = 0.0, 0
    outer, outer_free = 0.0, 0
    excess = 0.0
    for cell, curve in zip(cells, curves, strict=True):
        residuals = [run.reward_T - curve(run.compute_T) for run in cell.runs]
        for residual_T in residuals:
            inner += float(((residual_T - residual_T.mean()) ** 2).sum())
            inner_free += len(residual_T) - 1
        means = np.array([residual_T.mean() for residual_T in residuals])
        if len(means) > 1:
            outer += float(((means - means.mean()) ** 2).sum())
            outer_free += len(means) - 1
            excess += float(np.mean([1.0 / len(r) for r in residuals])) * (len(means) - 1)
        inner_free -= 1 if len(curve.shape) else 0  # the curve's own bending
    within = inner / max(inner_free, 1)
    between = max(outer - within * excess, 0.0) / outer_free if outer_free else 0.0
    return Noise(
        between=float(np.sqrt(between)),
        within=float(np.sqrt(within)),
        num_runs=sum(len(cell.runs) for cell in cells),
        num_repeated=sum(len(cell.runs) > 1 for cell in cells),
    )


def redrawn_rewards(
    cell: Cell, curve: LearningCurve, noise: Noise, num_draws: int, rng: np.random.Generator
) -> FloatArray:
    """Draw the rewards of a setting's runs again, around its curve.

    Returns:
        Rewards, one row a draw, in the order of `Cell.points`, within [0, 1].
    """
    parts = []
    for run in cell.runs:
        offset_S1 = rng.normal(0.0, noise.between, (num_draws, 1))
        spread_ST = rng.normal(0.0, noise.within, (num_draws, len(run.compute_T)))
        parts.append(np.clip(curve(run.compute_T) + offset_S1 + spread_ST, 0.0, 1.0))
    return np.concatenate(parts, axis=1)


def refitted(
    cells: Sequence[Cell],
    curves: Sequence[LearningCurve],
    *,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> list[list[LearningCurve]]:
    """Fit the curves of all settings again to rewards drawn again.

    Args:
        cells: settings with their runs.
        curves: the curve fitted to each; forms are kept.
        num_draws: S.
        seed: of the draws.

    Returns:
        For each of S draws the curves in the order of the settings.
    """
    noise = noise_of(cells, curves)
    rng = np.random.default_rng(seed)
    of_cell = [
        fit_rows(cell.points()[0], redrawn_rewards(cell, curve, noise, num_draws, rng), curve.form)
        for cell, curve in zip(cells, curves, strict=True)
    ]
    return [list(drawn) for drawn in zip(*of_cell, strict=True)]
