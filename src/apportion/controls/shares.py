"""Shares of a budget in proportion to weights, in whole numbers and within bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds, relaxation
from apportion.validate import FloatArray, IntArray

_NEGLIGIBLE = 1e-100
"""Share of the largest weight that counts as none: its multiples would leave the floats."""


def in_proportion(
    weight_B: FloatArray, budget: int, lower: ArrayLike, upper: ArrayLike | None
) -> IntArray:
    """Clip ``t w_i`` to the bounds, then round by largest remainders, ties by position.

    A weight of 0 gets the lower bound while any other prompt has room.

    >>> in_proportion(np.array([0.2, 0.5, 0.5]), 10, 0, None)
    array([2, 4, 4])
    """
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
