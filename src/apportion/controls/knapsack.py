"""Knapsack RL: rollouts by the chance of a mixed group times what a success rate may gain."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds, relaxation, validate
from apportion.gradient_variance import KnownLaw
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

CONFIDENCE = 0.9
"""Chance of a mixed group at which a prompt's need counts as met."""
_RAREST = 1e-15
"""Least chance of the rarer outcome, so that the need stays finite."""


def knapsack_value(success_B: ArrayLike, num_rollouts_B: ArrayLike) -> FloatArray:
    """Return ``(1 - p^n - (1-p)^n) p (1-p)^2``: P(gradient not zero) times InfoGain.

    InfoGain is the rise of p in one small gradient step, to first order.

    Source: Knapsack RL, Li et al., arXiv:2509.25849, ProbNonZeroGradient and InfoGain.

    >>> knapsack_value([0.5, 0.0], [2, 2])
    array([0.0625, 0.    ])
    """
    p_B = validate.probability("success_B", success_B)
    num_B = validate.counts("num_rollouts_B", num_rollouts_B, size=len(p_B), at_least=1)
    value_B: FloatArray = (1.0 - p_B**num_B - (1.0 - p_B) ** num_B) * p_B * (1.0 - p_B) ** 2
    return value_B


def knapsack(
    success_B: ArrayLike, budget: int, *, lower: int = 2, upper: int | None = 128
) -> IntArray:
    """Give the rollouts that make ``sum_i value(n_i)`` largest, ``sum_i n_i = budget``.

    The values are concave in n, so giving one at a time to the largest rise is optimal; the authors
    run a dynamic program. Prompts that are never or always solved have no value. Each prompt in
    between is taken to need ``log 0.1 / log max(p, 1-p)`` rollouts over `lower`, rounded down, at
    most `upper`: about what a mixed group with chance 0.9 takes. What the budget holds beyond these
    needs and the lower bounds goes evenly to the never solved prompts, to the always solved ones if
    there are none.

    Args:
        success_B: success rate of each prompt, as last measured (B).
        budget: rollouts in all.
        lower: fewest rollouts of a prompt, at least 1.
        upper: most rollouts; None is the budget.

    Returns:
        Rollouts of each prompt (B); ties by position.

    Raises:
        InfeasibleBudgetError: the bounds exclude the budget.

    Source: Li et al., "Knapsack RL: unlocking exploration of LLMs via optimizing budget
    allocation", arXiv:2509.25849; the fallback and the bounds as in its code.

    >>> knapsack([0.5, 0.1, 1.0], 16)
    array([6, 8, 2])
    """
    p_B = validate.probability("success_B", success_B)
    total, lower_B, upper_B = bounds.feasible(budget, lower, upper, size=len(p_B))
    validate.whole_number("lower", lower, at_least=1)
    start_B = lower_B + _fallback(p_B, total, lower_B, upper_B)
    return relaxation.round_greedily(
        start_B, _VALUE, Forecast.of_success(p_B), total, upper=upper_B
    )


def _fallback(p_B: FloatArray, total: int, lower_B: IntArray, upper_B: IntArray) -> IntArray:
    """Return what prompts without value get of the budget that the others do not need."""
    is_between_B = (p_B > 0.0) & (p_B < 1.0)
    is_idle_B = p_B == 0.0 if (p_B == 0.0).any() else ~is_between_B
    rarer_B = np.maximum(np.where(is_between_B, np.minimum(p_B, 1.0 - p_B), 0.5), _RAREST)
    needed_B = np.minimum(np.log(1.0 - CONFIDENCE) / np.log1p(-rarer_B), upper_B)
    needed = int(np.floor(needed_B[is_between_B]).sum())
    room_B = np.where(is_idle_B, upper_B - lower_B, 0)
    spare = min(total - int(lower_B.sum()) - needed, int(room_B.sum()))
    if spare <= 0:
        return np.zeros_like(lower_B)
    return bounds.even_split(spare, np.zeros_like(room_B), room_B)


def _rise(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """Return ``value(n+1) - value(n) = (p^n (1-p) + (1-p)^n p) p (1-p)^2``."""
    p_B = forecast.mean_B
    q_B = 1.0 - p_B
    return (p_B**num_B * q_B + q_B**num_B * p_B) * p_B * q_B**2


_VALUE = KnownLaw("knapsack", 1, lambda f, n: -knapsack_value(f.mean_B, n), _rise)
