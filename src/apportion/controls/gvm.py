"""GVM-RAFT: rollouts by gradient norm and acceptance rate, both measured in a pilot."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.controls.shares import in_proportion
from apportion.errors import InvalidInputError
from apportion.validate import IntArray

_LEAST_RATE = 1e-50
"""So that the penalty stays finite."""


def gvm(
    success_B: ArrayLike,
    gradient_norm_B: ArrayLike,
    budget: int,
    *,
    alpha: float = 1e-3,
    beta: float = 2.0,
) -> IntArray:
    """Give in proportion to ``G_i / sqrt(p_i + alpha / p_i^(beta - 1))``; 0 where p or G is 0.

    The second term keeps prompts that are hardly ever solved from taking the budget. Where no
    prompt has both, the published rule divides by 0; the budget is then split evenly.

    Args:
        success_B: acceptance rate of each prompt (B).
        gradient_norm_B: mean norm of the gradient of the log-likelihood of its rollouts (B).
        budget: rollouts in all.
        alpha: weight of the penalty.
        beta: power of the penalty.

    Returns:
        Rollouts of each prompt (B); rounded by largest remainders, ties by position.

    Raises:
        InvalidInputError: a rate outside [0, 1] or a negative norm.

    Source: Yao et al., "Optimizing chain-of-thought reasoners via gradient variance minimization
    in rejection sampling and RL", arXiv:2505.02391, Algorithm 2; settings of its code.

    >>> gvm([0.25, 1.0, 0.0], [1.0, 1.0, 1.0], 30)
    array([20, 10,  0])
    """
    success_B = validate.probability("success_B", success_B)
    norm_B = validate.vector("gradient_norm_B", gradient_norm_B, size=len(success_B))
    if (norm_B < 0.0).any():
        raise InvalidInputError(
            f"gradient_norm_B holds {norm_B.min():g}, but must not be negative."
        )
    alpha, beta = validate.number("alpha", alpha), validate.number("beta", beta)
    if alpha < 0.0:
        raise InvalidInputError(f"alpha is {alpha:g}, but must be at least 0.")
    is_open_B = (success_B > 0.0) & (norm_B > 0.0)
    rate_B = np.where(is_open_B, np.maximum(success_B, _LEAST_RATE), 1.0)
    weight_B = np.where(is_open_B, norm_B / np.sqrt(rate_B + alpha * rate_B ** (1.0 - beta)), 0.0)
    return in_proportion(weight_B, budget, 0, None)
