"""Whole numbers within bounds that sum to a budget, the even split, and searches between bounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.errors import InfeasibleBudgetError, InvalidInputError
from apportion.validate import IntArray

_LARGEST_BUDGET = 2**40
"""So that sums over a million prompts stay within 64 bits."""


def feasible(
    budget: float, lower: ArrayLike, upper: ArrayLike | None, *, size: int
) -> tuple[int, IntArray, IntArray]:
    """Return the budget and the bounds of each prompt, checked against one another.

    Args:
        budget: rollouts in all.
        lower: fewest rollouts, one for all prompts or one each (B).
        upper: most rollouts, likewise; None is the budget.
        size: B, the number of prompts.

    Returns:
        budget, `lower_B` and `upper_B`; no upper bound is above the budget.

    Raises:
        InvalidInputError: no prompts, or a number that is not whole or is negative.
        InfeasibleBudgetError: bounds that cross, or that exclude the budget.

    >>> feasible(10, 2, None, size=3)
    (10, array([2, 2, 2]), array([10, 10, 10]))
    """
    if size == 0:
        raise InvalidInputError("The batch is empty. Give at least one prompt.")
    total = validate.whole_number("budget", budget, at_least=0)
    if total > _LARGEST_BUDGET:
        raise InvalidInputError(f"budget is {total}, but must be at most 2^40.")
    lower_B = _each("lower", lower, size)
    upper_B = np.full(size, total) if upper is None else _each("upper", upper, size)
    crossed_i = np.flatnonzero(lower_B > upper_B) if upper is not None else np.empty(0, np.int64)
    if crossed_i.size:
        at = int(crossed_i[0])
        raise InfeasibleBudgetError(
            f"lower[{at}] is {lower_B[at]}, above upper[{at}] = {upper_B[at]}. "
            "Lower the one or raise the other."
        )
    least = lower_B.sum(dtype=np.float64)
    if least > total:
        raise InfeasibleBudgetError(
            f"budget is {total}, but the lower bounds of {size} prompts need {least:.0f} rollouts. "
            "Raise the budget, lower `lower`, or take fewer prompts."
        )
    most = upper_B.sum(dtype=np.float64)
    if most < total:
        raise InfeasibleBudgetError(
            f"budget is {total}, but the upper bounds of {size} prompts allow only {most:.0f} "
            "rollouts. Cut the budget, raise `upper`, or take more prompts."
        )
    return total, lower_B, np.minimum(upper_B, total)


def even_split(budget: int, lower_B: IntArray, upper_B: IntArray) -> IntArray:
    """Split a feasible budget evenly: the prompt with fewest rollouts first, then by position.

    ``n_i = clip(level, lower_i, upper_i)``, the remainder by position.

    >>> even_split(10, np.array([1, 1, 6]), np.array([9, 9, 9]))
    array([2, 2, 6])
    """
    level = _level(budget, lower_B, upper_B)
    split_B: IntArray = np.clip(level, lower_B, upper_B)
    open_i = np.flatnonzero((lower_B <= level) & (level < upper_B))
    split_B[open_i[: budget - int(split_B.sum())]] += 1
    return split_B


def raised_while(
    is_worth: Callable[[IntArray], NDArray[np.bool_]], low_B: IntArray, high_B: IntArray
) -> IntArray:
    """Raise each number from `low` to at most `high` while one more is worth it, by halving.

    Args:
        is_worth: n_B -> whether one more than n is; once it is not, it is not for any larger n.
        low_B: numbers to start from.
        high_B: numbers to end at.

    >>> raised_while(lambda num_B: num_B < np.array([3, 9]), np.array([1, 1]), np.array([8, 8]))
    array([3, 8])
    """
    while (open_B := low_B < high_B).any():
        middle_B = (low_B + high_B) // 2
        worth_B = is_worth(middle_B)
        low_B = np.where(open_B & worth_B, middle_B + 1, low_B)
        high_B = np.where(open_B & ~worth_B, middle_B, high_B)
    return low_B


def middle_price(cheap: float, dear: float) -> float:
    """Return a price between two: the geometric mean of distant ones, the mean of close ones.

    >>> middle_price(1.0, 100.0), middle_price(4.0, 5.0)
    (10.0, 4.5)
    """
    if dear > 2.0 * cheap:
        return float(np.sqrt(cheap) * np.sqrt(dear))
    return cheap + (dear - cheap) / 2.0


def _level(budget: int, lower_B: IntArray, upper_B: IntArray) -> int:
    """Return the highest level whose clipped sum stays within the budget."""
    average = budget // len(lower_B)
    if lower_B.max() <= average < upper_B.min():
        return average
    low, high = int(lower_B.min()), int(upper_B.max())
    while low < high:
        middle = (low + high + 1) // 2
        if np.clip(middle, lower_B, upper_B).sum() <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _each(name: str, bound: ArrayLike, size: int) -> IntArray:
    array = validate.numbers(name, bound)
    if array.ndim == 0:
        return np.full(size, validate.whole_number(name, array, at_least=0))
    return validate.counts(name, array, size=size)
