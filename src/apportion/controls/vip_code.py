"""VIP's allocation as its authors' released code does it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from apportion import bounds, relaxation, validate
from apportion.errors import InvalidInputError
from apportion.gradient_variance import KnownLaw
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

_EASY = 0.8
"""Predictions from here on are taken for 1."""
_EPS = 1e-6
"""How far predictions are kept from 0 and 1."""
_WHOLE = 1e-9
"""Rounding error below which a number just under a whole one counts as it."""


def vip_code(
    success_B: ArrayLike,
    budget: int,
    *,
    lower: int = 4,
    upper: int | None = 16,
    keep: int = 4,
    bias: float = 0.0,
) -> IntArray:
    """Minimise ``sum p_i (1-p_i) / n_i`` for either estimator; predictions from 0.8 on count as 1.

    This is the released default, the rule "vip": neither theorem of the paper, and no bias. With a
    bias it is ``sum p_i (1-p_i) / (n_i - 1) + bias n_i log p_i``, which earlier versions minimised
    (7e-4 for RLOO, 4e-4 for GRPO). The solution over real numbers is rounded down, the rest goes
    one by one where the objective falls most, and numbers below `keep` become 0, their rollouts
    going to the largest numbers. Where all predictions are equal the split is even.

    The code differs in three ways, none of which can be repeated exactly. It solves with SLSQP at
    the default tolerance, which stops early: ``[5.25, 10.75, 12, 12, 12, 4, 4, 4]`` in the example,
    and so ``[5, 11, 12, 12, 12, 4, 4, 4]``. It breaks ties from the end. And equal predictions that
    the budget cannot serve with `keep` each are drawn at random; here the first ones are served.

    Args:
        success_B: predicted success of each prompt (B).
        budget: rollouts in all.
        lower: fewest rollouts in the solution over real numbers, at least 1, or 2 with a bias.
            Published for 8 a prompt; at a mean of 4 nothing can move unless it is lowered.
        upper: most rollouts; None is the budget.
        keep: fewest rollouts of a prompt that gets any.
        bias: how much is paid for rollouts of prompts that are predicted to fail, at least 0.

    Returns:
        Rollouts of each prompt (B). The last prompt served by those below `keep` may stay below.

    Raises:
        InvalidInputError: a prediction outside [0, 1], or a bias below 0.
        InfeasibleBudgetError: the bounds exclude the budget.

    Source: the repository of VIP, Nguyen et al., ICLR 2026, and its earlier versions.

    >>> vip_code([0.01, 0.1, 0.2, 0.4, 0.5, 0.8, 0.95, 0.99], 64, upper=12)
    array([ 4, 12, 12, 12, 12,  4,  4,  4])
    """
    success_B = validate.probability("success_B", success_B)
    bias = validate.number("bias", bias)
    if bias < 0.0:
        raise InvalidInputError(f"bias is {bias:g}, but must be at least 0.")
    shift = 1 if bias > 0.0 else 0
    validate.whole_number("lower", lower, at_least=1 + shift)
    least = validate.whole_number("keep", keep, at_least=0)
    total, lower_B, upper_B = bounds.feasible(budget, lower, upper, size=len(success_B))
    p_B = np.clip(np.where(success_B >= _EASY, 1.0, success_B), _EPS, 1.0 - _EPS)
    relaxed_B = _relaxed(p_B, total, lower_B, upper_B, bias=bias, shift=shift)
    num_B = relaxation.round_greedily(
        relaxed_B, _law(bias, shift), Forecast.of_success(p_B), total, upper=upper_B
    )
    return _without_small(num_B, upper_B, least)


def _relaxed(
    p_B: FloatArray, total: int, lower_B: IntArray, upper_B: IntArray, *, bias: float, shift: int
) -> FloatArray:
    """Solve ``n_i = shift + sqrt(a_i / (lambda + bias log p_i))`` on budget, within the bounds."""
    variance_B = p_B * (1.0 - p_B)
    pay_B = -bias * np.log(p_B)

    def numbers(price: float) -> FloatArray:
        net_B = price - pay_B
        free_B = shift + np.sqrt(variance_B / np.where(net_B > 0.0, net_B, np.inf))
        num_B: FloatArray = np.clip(np.where(net_B > 0.0, free_B, upper_B), lower_B, upper_B)
        return num_B

    low = 0.5 * float((variance_B / (upper_B - shift) ** 2).min())
    high = float((variance_B / (lower_B - shift) ** 2 + pay_B).max())
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if numbers(middle).sum() > total else (low, middle)
    return numbers(high) + _WHOLE


def _law(bias: float, shift: int) -> KnownLaw:
    """Return the objective as a law whose drops are compared when rounding."""

    def variance(forecast: Forecast, num_B: IntArray) -> FloatArray:
        return forecast.reward_var_B / (num_B - shift) + bias * num_B * np.log(forecast.mean_B)

    def drop(forecast: Forecast, num_B: IntArray) -> FloatArray:
        product_B = (num_B - float(shift)) * (num_B - float(shift) + 1.0)
        return forecast.reward_var_B / product_B - bias * np.log(forecast.mean_B)

    return KnownLaw("vip_code", 1 + shift, variance, drop)


def _without_small(num_B: IntArray, upper_B: IntArray, least: int) -> IntArray:
    """Set numbers below `least` to 0 and give what they had to the largest ones, up to `upper`."""
    kept_B = np.where(num_B >= least, num_B, 0)
    freed = int((num_B - kept_B).sum())
    for at in np.argsort(-kept_B, kind="stable").tolist():
        more = min(freed, int(upper_B[at] - kept_B[at]))
        kept_B[at] += more
        freed -= more
    return kept_B
