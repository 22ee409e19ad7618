"""Rules that others give rollouts by, to compare with.

Each is ``rule(forecast, budget, *, lower, upper) -> num_rollouts_B``: whole numbers within the
bounds, exactly on budget, the same for the same input.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds, relaxation
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

_NEGLIGIBLE = 1e-100
"""Share of the largest weight that counts as none: its multiples would leave the floats."""


def uniform(
    forecast: Forecast, budget: int, *, lower: ArrayLike = 2, upper: ArrayLike | None = None
) -> IntArray:
    """Split evenly, the remainder by position: ``n_i = clip(level, L_i, U_i)``.

    Source: GRPO, Shao et al., 2024, and every trainer's default.

    >>> uniform(Forecast.of_success([0.1, 0.5, 0.9]), 16)
    array([6, 5, 5])
    """
    return bounds.even_split(*bounds.feasible(budget, lower, upper, size=len(forecast)))


def proportional_variance(
    forecast: Forecast, budget: int, *, lower: ArrayLike = 2, upper: ArrayLike | None = None
) -> IntArray:
    """Give in proportion to the reward variance: ``n_i ~ p_i (1 - p_i)``.

    Source: ours; the control that the ablation of VIP lacks. It concentrates more than the optimum.

    >>> proportional_variance(Forecast.of_success([0.1, 0.5]), 34)
    array([ 9, 25])
    """
    return _proportional(forecast.reward_var_B, budget, lower, upper)


def proportional_std(
    forecast: Forecast, budget: int, *, lower: ArrayLike = 2, upper: ArrayLike | None = None
) -> IntArray:
    """Give in proportion to the reward's standard deviation: ``n_i ~ sqrt(p_i (1 - p_i))``.

    Source: Neyman, J. R. Stat. Soc. 97, 1934: optimal for the variance of a stratified mean, and of
    RLOO up to the one rollout that is spent on the baseline.

    >>> proportional_std(Forecast.of_success([0.1, 0.5]), 32)
    array([12, 20])
    """
    return _proportional(np.sqrt(forecast.reward_var_B), budget, lower, upper)


def inverse_accuracy(
    forecast: Forecast, budget: int, *, lower: ArrayLike = 2, upper: ArrayLike | None = None
) -> IntArray:
    """Give the hardest prompts all they may have: ``min sum n_i log p_i``.

    Source: VIP, Nguyen et al., ICLR 2026, section 6 (ablation), as its code defines it. The
    objective is linear, so all but the prompts at the margin stand at a bound.

    >>> inverse_accuracy(Forecast.of_success([0.1, 0.5, 0.9]), 16, upper=10)
    array([10,  4,  2])
    """
    return _lowest_first(forecast.mean_B, budget, lower, upper)


def inverse_variance(
    forecast: Forecast, budget: int, *, lower: ArrayLike = 2, upper: ArrayLike | None = None
) -> IntArray:
    """Give the prompts of least variance all they may have: ``min sum n_i log p_i (1 - p_i)``.

    Source: VIP, Nguyen et al., ICLR 2026, section 6 (ablation), as its code defines it: the
    opposite of what the theory asks for.

    >>> inverse_variance(Forecast.of_success([0.1, 0.5, 0.8]), 16, upper=10)
    array([10,  2,  4])
    """
    return _lowest_first(forecast.reward_var_B, budget, lower, upper)


def _proportional(
    weight_B: FloatArray, budget: int, lower: ArrayLike, upper: ArrayLike | None
) -> IntArray:
    """Clip ``t w_i`` to the bounds, then round by largest remainders, ties by position."""
    total, lower_B, upper_B = bounds.feasible(budget, lower, upper, size=len(weight_B))
    largest = float(weight_B.max())
    scaled_B = np.where(weight_B > largest * _NEGLIGIBLE, weight_B, 0.0) / (largest or 1.0)
    share_B = relaxation.scale_to_budget(scaled_B, total, lower_B, upper_B).num_rollouts_B
    nearest_B = np.rint(share_B)
    # A share that is whole but for rounding error must not lose its last unit.
    share_B = np.where(np.isclose(share_B, nearest_B, rtol=1e-9, atol=0.0), nearest_B, share_B)
    num_B: IntArray = np.floor(share_B).astype(np.int64)
    remainder_B = np.where(num_B < upper_B, share_B - num_B, -1.0)
    num_B[np.argsort(-remainder_B, kind="stable")[: total - int(num_B.sum())]] += 1
    return num_B


def _lowest_first(
    score_B: FloatArray, budget: int, lower: ArrayLike, upper: ArrayLike | None
) -> IntArray:
    """Raise prompts to their upper bound from the lowest score on; equal scores share evenly."""
    total, lower_B, upper_B = bounds.feasible(budget, lower, upper, size=len(score_B))
    order_B = np.argsort(score_B, kind="stable")
    granted_B = np.cumsum((upper_B - lower_B)[order_B])
    last = min(int(np.searchsorted(granted_B, total - int(lower_B.sum()))), len(order_B) - 1)
    margin = score_B[order_B[last]]
    return bounds.even_split(
        total,
        np.where(score_B < margin, upper_B, lower_B),
        np.where(score_B <= margin, upper_B, lower_B),
    )
