"""Held-out scores from the success of each problem: exact, or as a finite evaluation measures them.

Axes: ``...`` stands for any, such as evaluations and runs; V held-out problems.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.metrics import pass_at_k
from apportion.validate import FloatArray

K = 4
"""Samples of best@k and worst@k."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Means over problems.

    Attributes:
        mean: success.
        best: chance that at least one of four samples is correct.
        worst: chance that all four are.
    """

    mean: FloatArray
    best: FloatArray
    worst: FloatArray


def exact_scores(success_V: FloatArray) -> Scores:
    """Return the means of ``p``, ``1 - (1 - p)^4`` and ``p^4`` over the last axis.

    >>> exact_scores(np.array([0.0, 0.5])).best
    np.float64(0.46875)
    """
    return Scores(
        mean=success_V.mean(axis=-1),
        best=(1.0 - (1.0 - success_V) ** K).mean(axis=-1),
        worst=(success_V**K).mean(axis=-1),
    )


def measured_scores(success_V: FloatArray, num_samples: int, rng: np.random.Generator) -> Scores:
    """Return what so many samples of each problem show, best@4 and worst@4 without bias.

    Args:
        success_V: exact success.
        num_samples: of each problem; with fewer than four, best and worst are NaN.
        rng: draws the samples.

    >>> measured_scores(np.array([0.0, 1.0]), 4, np.random.default_rng(0)).worst
    np.float64(0.5)
    """
    correct_V = rng.binomial(num_samples, success_V)
    mean = (correct_V / num_samples).mean(axis=-1)
    if num_samples < K:
        nowhere = np.full_like(mean, np.nan)
        return Scores(mean=mean, best=nowhere, worst=nowhere)
    num_V = np.full(correct_V.size, num_samples)
    best_V = pass_at_k(num_V, correct_V.ravel(), K).reshape(correct_V.shape)
    not_all_V = pass_at_k(num_V, num_samples - correct_V.ravel(), K).reshape(correct_V.shape)
    return Scores(mean=mean, best=best_V.mean(axis=-1), worst=1.0 - not_all_V.mean(axis=-1))
