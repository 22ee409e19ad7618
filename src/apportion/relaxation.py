"""The published solution: split rollouts as if they were divisible, then round.

``min sum_i V_i(n_i)  s.t.  sum_i n_i = C,  L_i <= n_i <= U_i``, real n. At the optimum every prompt
strictly within its bounds has the same marginal drop, the multiplier lambda of the budget. Prompts
whose reward cannot vary take what is left once all others are at their upper bound.

Source: VIP, Nguyen et al., ICLR 2026, Theorems 5.1 and 5.2 and Algorithm 2. `allocation` gives the
exact whole-number optimum instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds, validate
from apportion.errors import InvalidInputError, NonConvexLawError
from apportion.gradient_variance import KnownLaw
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

_PRECISION = 1e-13
"""Relative error of the budget at which the search for the multiplier stops."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The optimum over real numbers.

    Attributes:
        num_rollouts_B: real numbers within the bounds that sum to the budget.
        multiplier: lambda, the marginal drop that all prompts within their bounds share (0 if more
            rollouts buy nothing).
    """

    num_rollouts_B: FloatArray
    multiplier: float


def relax_rloo(
    reward_var_B: ArrayLike, budget: float, *, lower: ArrayLike = 2, upper: ArrayLike | None = None
) -> Relaxation:
    """Minimise ``sum a_i / (n_i - 1)``: ``n_i = clip(1 + sqrt(a_i / lambda), L_i, U_i)``.

    Args:
        reward_var_B: variance ``a_i`` of one reward of each prompt (B).
        budget: rollouts in all.
        lower: fewest rollouts, at least 2, for all or each prompt (B).
        upper: most rollouts, likewise; None is the budget.

    Raises:
        InvalidInputError: malformed or infeasible input.

    Source: VIP, Nguyen et al., ICLR 2026, Theorem 5.2.

    >>> relax_rloo([0.25, 0.25, 0.09], 16).num_rollouts_B
    array([6., 6., 4.])
    """
    variance_B, total, lower_B, upper_B = _problem("rloo", 2, reward_var_B, budget, lower, upper)
    return solve_rloo(variance_B, total, lower_B, upper_B)


def relax_dr_grpo(
    reward_var_B: ArrayLike, budget: float, *, lower: ArrayLike = 3, upper: ArrayLike | None = None
) -> Relaxation:
    """Minimise ``sum a_i (n_i - 1) / n_i^2``; ``n_i`` is the root of ``lambda = a_i (n-2) / n^3``.

    Beyond ``a_i (L-2)/L^3 <= lambda`` it is L, below ``a_i (U-2)/U^3`` it is U.

    Args:
        reward_var_B: variance ``a_i`` of one reward of each prompt (B).
        budget: rollouts in all.
        lower: fewest rollouts, at least 3, for all or each prompt (B).
        upper: most rollouts, likewise; None is the budget.

    Raises:
        InvalidInputError: malformed or infeasible input.

    Source: VIP, Nguyen et al., ICLR 2026, Theorem 5.1.

    >>> relax_dr_grpo([0.25, 0.25], 16).num_rollouts_B
    array([8., 8.])
    """
    variance_B, total, lower_B, upper_B = _problem("dr_grpo", 3, reward_var_B, budget, lower, upper)
    return solve_dr_grpo(variance_B, total, lower_B, upper_B)


def round_greedily(
    relaxed_B: ArrayLike,
    law: KnownLaw,
    forecast: Forecast,
    budget: float,
    *,
    upper: ArrayLike | None = None,
) -> IntArray:
    """Round down, then give each rollout left to the prompt whose variance it lowers most.

    Args:
        relaxed_B: real rollouts of each prompt (B), summing to the budget.
        law: the law whose drops are compared.
        forecast: what is believed about the prompts.
        budget: rollouts in all.
        upper: most rollouts, for all or each prompt (B); None is the budget.

    Returns:
        Whole rollouts of each prompt (B); ties go to the fewer rollouts, then by position.

    Raises:
        InfeasibleBudgetError: the rounded-down numbers or the upper bounds exclude the budget.

    Source: VIP, Nguyen et al., ICLR 2026, Algorithm 2.

    >>> from apportion.gradient_variance import RLOO
    >>> round_greedily([2.5, 3.5], RLOO, Forecast.of_success([0.1, 0.5]), 6)
    array([3, 3])
    """
    size = len(forecast)
    floor_B = np.floor(validate.vector("relaxed_B", relaxed_B, size=size))
    total, num_B, upper_B = bounds.feasible(budget, floor_B, upper, size=size)
    num_B = num_B.copy()
    drop_B = law.drop(forecast, num_B)
    heap = [
        (-drop, num, at)
        for at, (drop, num) in enumerate(zip(drop_B.tolist(), num_B.tolist(), strict=True))
        if num < upper_B[at]
    ]
    heapq.heapify(heap)
    for _ in range(total - int(num_B.sum())):
        _, num, at = heapq.heappop(heap)
        num_B[at] = num + 1
        if num + 1 < upper_B[at]:
            drop = law.drop(forecast.take([at]), num_B[at : at + 1])[0]
            heapq.heappush(heap, (-float(drop), num + 1, at))
    return num_B


def solve_rloo(
    reward_var_B: FloatArray, budget: int, lower_B: IntArray, upper_B: IntArray
) -> Relaxation:
    """Solve Theorem 5.2 on input that was checked."""
    return scale_to_budget(np.sqrt(reward_var_B), budget, lower_B, upper_B, offset=1.0)


def solve_dr_grpo(
    reward_var_B: FloatArray, budget: int, lower_B: IntArray, upper_B: IntArray
) -> Relaxation:
    """Solve Theorem 5.1 on input that was checked."""
    root_B = np.sqrt(reward_var_B)

    def numbers(scale: float) -> tuple[FloatArray, float]:
        # With z^2 = a/lambda the cubic n^3 = z^2 (n - 2) has real positive roots from z^2 = 27 on;
        # the largest is the one above 3.
        z_B = np.maximum(root_B * scale, 27**0.5)
        angle_B = np.arccos(np.maximum(-(27**0.5) / z_B, -1.0)) / 3.0
        free_B = np.where(z_B > 27**0.5, (2 / 3**0.5) * z_B * np.cos(angle_B), 3.0)
        num_B = np.clip(free_B, lower_B, upper_B)
        inner_B = (num_B == free_B) & (free_B > 3.001)  # at 3 the slope is infinite
        n_B = free_B[inner_B]
        slope_B = root_B[inner_B] * (n_B - 2.0) ** 1.5 / (np.sqrt(n_B) * (n_B - 3.0))
        return num_B, float(slope_B.sum())

    return _solve(root_B, numbers, budget, lower_B, upper_B, offset=-1.0)


def scale_to_budget(
    weight_B: FloatArray, budget: int, lower_B: IntArray, upper_B: IntArray, *, offset: float = 0.0
) -> Relaxation:
    """Find ``t = 1/sqrt(lambda)`` such that ``clip(offset + t w_i, L_i, U_i)`` sums to C."""

    def numbers(scale: float) -> tuple[FloatArray, float]:
        free_B = weight_B * scale
        free_B += offset
        num_B = np.clip(free_B, lower_B, upper_B)
        return num_B, float(weight_B.sum(where=num_B == free_B))

    return _solve(weight_B, numbers, budget, lower_B, upper_B, offset=offset)


def _solve(
    weight_B: FloatArray,
    numbers: Callable[[float], tuple[FloatArray, float]],
    budget: int,
    lower_B: IntArray,
    upper_B: IntArray,
    *,
    offset: float,
) -> Relaxation:
    """Search the scale ``t = 1/sqrt(lambda)`` at which the numbers sum to the budget."""
    settled_B = np.where(weight_B > 0.0, upper_B, lower_B)
    if budget > settled_B.sum():
        rest = scale_to_budget(np.ones_like(weight_B), budget, settled_B, upper_B)
        return Relaxation(rest.num_rollouts_B, 0.0)
    if not weight_B.any():
        return Relaxation(settled_B.astype(np.float64), 0.0)
    start = (budget - offset * len(weight_B)) / float(weight_B.sum())
    scale = _bracketed_newton(numbers, float(budget), start)
    return Relaxation(numbers(scale)[0], 1.0 / scale / scale if scale > 0.0 else np.inf)


def _bracketed_newton(
    numbers: Callable[[float], tuple[FloatArray, float]], target: float, scale: float
) -> float:
    """Find the scale at which a rising sum meets the target: Newton inside a bracket, else halve.

    The paper bisects lambda; the bracket is the same, the steps within it are fewer.
    """
    low, high = 0.0, np.inf
    for step in range(2000):
        num_B, slope = numbers(scale)
        gap = target - float(num_B.sum())
        if abs(gap) <= _PRECISION * target:
            break
        low, high = (scale, high) if gap > 0.0 else (low, scale)
        guess = scale + gap / slope if slope > 0.0 and step % 8 < 6 else np.nan
        if not low < guess < high:
            guess = _between(low, high)
        if guess in (low, high):
            break
        scale = guess
    return scale


def _between(low: float, high: float) -> float:
    if high == np.inf:
        return low * 2.0
    if low == 0.0:
        return high * 0.5
    return float(np.sqrt(low) * np.sqrt(high)) if high > 2.0 * low else low + (high - low) / 2.0


def _problem(
    name: str,
    convex_from: int,
    reward_var_B: ArrayLike,
    budget: float,
    lower: ArrayLike,
    upper: ArrayLike | None,
) -> tuple[FloatArray, int, IntArray, IntArray]:
    variance_B = validate.vector("reward_var_B", reward_var_B)
    if (variance_B < 0.0).any():
        raise InvalidInputError(
            f"reward_var_B holds {variance_B.min():g}, but must not be negative."
        )
    total, lower_B, upper_B = bounds.feasible(budget, lower, upper, size=len(variance_B))
    if lower_B.min() < convex_from:
        raise NonConvexLawError(
            f"The law {name} is not convex and decreasing from lower = {lower_B.min()}; "
            f"it is from {convex_from}. Set lower to {convex_from} or more."
        )
    return variance_B, total, lower_B, upper_B
