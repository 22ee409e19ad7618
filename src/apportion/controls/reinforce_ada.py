"""Reinforce-Ada, estimation-based: harder prompts get more, by an estimate of their pass rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.controls.shares import in_proportion
from apportion.validate import IntArray

PRIOR, DECAY = (1.0, 16.0), 0.9
"""Beta prior of a pass rate and what earlier counts keep at each visit, as in the code."""
_LEAST_RATE = 1e-6


def reinforce_ada(
    success_B: ArrayLike, budget: int, *, lower: ArrayLike = 1, upper: ArrayLike | None = None
) -> IntArray:
    """Give in proportion to ``1 / sqrt(p_i)``, within the bounds.

    This is the sampling half of the paper's hybrid strategy for the objective ``E log p``; the
    other half multiplies the advantages of a prompt by ``1 / sqrt(mean reward)`` and is up to the
    trainer. The released code samples by ``1 / p`` instead. Rates come from `BetaPosterior` with
    `PRIOR` and `DECAY`; those below 1e-6 count as 1e-6.

    Args:
        success_B: estimated pass rate of each prompt (B).
        budget: rollouts in all.
        lower: fewest rollouts, for all or each prompt (B).
        upper: most rollouts, likewise; None is the budget.

    Returns:
        Rollouts of each prompt (B); rounded by largest remainders, ties by position.

    Source: Xiong et al., "Reinforce-Ada: an adaptive sampling framework under non-linear RL
    objectives", arXiv:2510.04996v3, Algorithm 1, line 5.

    >>> reinforce_ada([0.04, 0.25, 1.0], 16)
    array([10,  4,  2])
    """
    success_B = validate.probability("success_B", success_B)
    return in_proportion(1.0 / np.sqrt(np.maximum(success_B, _LEAST_RATE)), budget, lower, upper)
