"""Choice of prompts by reward variance alone: the controls of choosing with a better aim."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds, validate
from apportion.controls.mopps import nearest
from apportion.controls.shares import in_proportion
from apportion.errors import InfeasibleBudgetError, InvalidInputError
from apportion.validate import FloatArray, IntArray


def equal_n(reward_var_B: ArrayLike, num_prompts: int, budget: int) -> IntArray:
    """Split evenly over the `num_prompts` candidates of the largest reward variance.

    Args:
        reward_var_B: variance of one reward of each candidate, ``p(1-p)`` for 0/1 rewards (B).
        num_prompts: how many candidates to take.
        budget: rollouts in all.

    Returns:
        Rollouts of each candidate (B), 0 for those left out; ties and the remainder by position.

    Raises:
        InvalidInputError: a negative variance, or more prompts than candidates.

    Source: ours; selection near success one half as in MoPPS, without its draw.

    >>> equal_n([0.25, 0.0, 0.16, 0.24], 2, 8)
    array([4, 0, 0, 4])
    """
    variance_B = _variances(reward_var_B)
    is_taken_B = nearest(-variance_B, num_prompts)
    total, none_B, all_B = bounds.feasible(budget, 0, None, size=len(variance_B))
    return bounds.even_split(total, none_B, np.where(is_taken_B, all_B, 0))


def proportional(
    reward_var_B: ArrayLike, budget: int, *, lower: int = 2, upper: int | None = None
) -> IntArray:
    """Give ``n_i ~ p_i (1 - p_i)`` over the candidates, none to those whose share is too small.

    Candidates are left out from the least variance on until every share reaches `lower`.

    Args:
        reward_var_B: variance of one reward of each candidate (B).
        budget: rollouts in all.
        lower: fewest rollouts of a candidate that gets any, at least 1.
        upper: most rollouts; None is the budget.

    Returns:
        Rollouts of each candidate (B); rounded by largest remainders, ties by position.

    Raises:
        InvalidInputError: a negative variance.
        InfeasibleBudgetError: the budget is below `lower`, or the upper bounds exclude it.

    Source: ours; `proportional_variance` as a rule of choice.

    >>> proportional([0.25, 0.0, 0.01, 0.15], 16)
    array([10,  0,  0,  6])
    """
    variance_B = _variances(reward_var_B)
    total, _, upper_B = bounds.feasible(budget, 0, upper, size=len(variance_B))
    least = validate.whole_number("lower", lower, at_least=1)
    if total < least:
        raise InfeasibleBudgetError(
            f"budget is {total}, below lower = {least}. Raise the budget or lower `lower`."
        )
    weight_B = variance_B if variance_B.any() else np.ones_like(variance_B)
    order_B = np.argsort(-weight_B, kind="stable")
    share_B = weight_B[order_B] / np.cumsum(weight_B[order_B])  # of the last of the first k
    num_reached = int(np.searchsorted(-share_B * total, -float(least), side="right"))
    num_needed = -(-total // int(upper_B.max())) if upper is not None else 1
    taken = np.sort(order_B[: max(num_reached, num_needed)])
    num_B: IntArray = np.zeros(len(variance_B), dtype=np.int64)
    num_B[taken] = in_proportion(weight_B[taken], total, least, upper)
    return num_B


def _variances(reward_var_B: ArrayLike) -> FloatArray:
    variance_B = validate.vector("reward_var_B", reward_var_B)
    if (variance_B < 0.0).any():
        raise InvalidInputError(
            f"reward_var_B holds {variance_B.min():g}, but must not be negative."
        )
    return variance_B
