"""Rollouts of some candidates as rollouts of all."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion.validate import IntArray


def placed(size: int, at: IntArray | slice, num_rollouts: ArrayLike) -> IntArray:
    """Return `num_rollouts` at the positions `at` of `size` candidates, 0 elsewhere.

    >>> placed(4, np.array([0, 2]), [8, 4])
    array([8, 0, 4, 0])
    """
    num_B: IntArray = np.zeros(size, dtype=np.int64)
    num_B[at] = num_rollouts
    return num_B
