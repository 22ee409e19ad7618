"""Whether runs show a best n at all: none does where no reward rose, or where all rose alike.

Axes: T evaluations, S settings, K levels of compute.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.plan.learning_curve import LearningCurve
from apportion.plan.runs import Cell, Run
from apportion.validate import FloatArray

_TIMES = 3.0
"""Standard errors that a difference takes."""
_NUM_PARTS = 4
_NUM_LEVELS = 12


def why_no_best(cells: Sequence[Cell], curves: Sequence[LearningCurve]) -> str:
    """Say why no setting is best; empty if one is.

    None improved if, in every run, no later quarter of its evaluations has a mean above that of the
    first quarter by more than three standard errors. None differs if fitted curves, where
    all were observed, are no further apart (root mean square over compute) than three standard
    errors of a difference of such quarters.

    Args:
        cells: settings.
        curves: fitted to each.
    """
    noise_S = np.array([_noise(cell, curve) for cell, curve in zip(cells, curves, strict=True)])
    if not any(
        _improved(run, noise)
        for cell, noise in zip(cells, noise_S, strict=True)
        for run in cell.runs
    ):
        return "No run improved on where it began, beyond the noise: no n is best. Train longer."
    if len(cells) > 1 and _are_alike(cells, curves, noise_S):
        return (
            "There is no difference between the settings beyond the noise: no n is best. Evaluate "
            "on more problems, or add seeds."
        )
    return ""


def _noise(cell: Cell, curve: LearningCurve) -> float:
    """Return the standard deviation of one reward about its curve.

    By second differences, which a straight rise leaves at 0, or what the curve misses if less.
    """
    seconds = [np.diff(run.reward_T, n=2) for run in cell.runs if len(run.reward_T) > 2]
    by_seconds = float(np.sqrt(np.mean(np.concatenate(seconds) ** 2) / 6.0)) if seconds else 0.0
    sampled = float(np.sqrt(max(run.sampling_variance().max() for run in cell.runs)))
    return max(min(by_seconds, curve.rmse), sampled)


def _improved(run: Run, noise: float) -> bool:
    if len(run.reward_T) < 2:
        return True
    parts = np.array_split(run.reward_T, min(_NUM_PARTS, len(run.reward_T)))
    first = parts[0]
    return any(
        part.mean() - first.mean() > _TIMES * noise * np.sqrt(1.0 / len(part) + 1.0 / len(first))
        for part in parts[1:]
    )


def _are_alike(cells: Sequence[Cell], curves: Sequence[LearningCurve], noise_S: FloatArray) -> bool:
    low, high = max(c.observed_from for c in curves), min(c.observed_to for c in curves)
    if low >= high:
        return False
    compute_K = np.geomspace(low, high, _NUM_LEVELS)
    reward_SK = np.stack([curve(compute_K) for curve in curves])
    num_S = np.array([sum(len(run.reward_T) for run in cell.runs) for cell in cells])
    error_S = noise_S * np.sqrt(_NUM_PARTS / np.maximum(num_S, _NUM_PARTS))
    apart = np.sqrt(np.mean(np.ptp(reward_SK, axis=0) ** 2))
    most = _TIMES * np.sqrt(2.0) * float(error_S.max()) + 1e-9
    return bool(apart <= most)
