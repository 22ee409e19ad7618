"""Plain rules, each ``rule(forecast, budget, *, lower, upper) -> num_rollouts_B``."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds
from apportion.controls.shares import in_proportion
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray


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
    return in_proportion(forecast.reward_var_B, budget, lower, upper)


def proportional_std(
    forecast: Forecast, budget: int, *, lower: ArrayLike = 2, upper: ArrayLike | None = None
) -> IntArray:
    """Give in proportion to the reward's standard deviation: ``n_i ~ sqrt(p_i (1 - p_i))``.

    Source: Neyman, J. R. Stat. Soc. 97, 1934: optimal for the variance of a stratified mean, and of
    RLOO up to the one rollout that is spent on the baseline.

    >>> proportional_std(Forecast.of_success([0.1, 0.5]), 32)
    array([12, 20])
    """
    return in_proportion(np.sqrt(forecast.reward_var_B), budget, lower, upper)


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
