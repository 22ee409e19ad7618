r"""What a prompt's rollouts are expected to teach in one step, as a law of how many it gets.

A step along an estimated gradient gains in proportion to its signal, shrunk by the noise of the
estimate. With success probability ``p``, ``v = p(1-p)`` and ``n`` rollouts with leave-one-out
advantages the signal is ``|g| ~ v`` and the noise ``kappa v / (n-1)``; a prompt that is scaled to
its own best step then gains

    ``u(n) = E[ v^2 (n-1) / (n-1 + kappa / v) ]``           (`Progress`)

averaged over what is believed about ``p``: a Beta distribution with the forecast's mean and
variance. `Coverage` counts groups that can teach at all, with at least one success and one failure:

    ``u(n) = E[ 1 - p^n - (1-p)^n ]``                        (`Coverage`)

For a hard prompt that is the chance of a first success, ``1 - (1-p)^n``, without which an all-wrong
group repeats itself; unlike it, it spends nothing on prompts that always succeed.

Both are concave in ``n`` from 1, ``u(0) = u(1) = 0``, and 0 for prompts known to be solved or
hopeless.

Source: ours. For the noise, VIP, Nguyen et al., ICLR 2026, Proposition 4.3; ``kappa`` is about 1
wherever the scores of right and wrong answers are nearly orthogonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.gradient_variance import chance_of_mixed_group
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

KAPPA_RANGE = (0.3, 3.0)
"""Between these the choice of prompts hardly changes; beyond, it narrows to too few or too many."""

_NUM_NODES = 33
_REACH = 8.0
"""Standard deviations of a belief that its average goes out to."""
_SURE = 1e-9
"""Share of the largest possible doubt below which a belief is taken for a point."""


class Gain(Protocol):
    """Expected gain of each of B prompts as a concave function of its rollouts."""

    def value(self, num_B: IntArray) -> FloatArray:
        """Return ``u(n)``, 0 below 2 rollouts."""
        ...

    def rise(self, num_B: IntArray) -> FloatArray:
        """Return ``u(n+1) - u(n)``, for n of at least 1."""
        ...

    def take(self, index: IntArray) -> Gain:
        """Return the gains of the prompts at these positions."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Expected gain of one step, ``u(n) = E[v^2 (n-1) / (n-1 + kappa/v)]``.

    Attributes:
        variance_BJ: ``v`` at J points of each belief.
        weight_BJ: weight of each point times ``v^2``.
        kappa: noise of one rollout's gradient over its signal, per unit of ``v``.
    """

    variance_BJ: FloatArray
    weight_BJ: FloatArray
    kappa: float

    @classmethod
    def of(cls, forecast: Forecast, kappa: float = 1.0) -> Progress:
        """Average over the belief of a forecast.

        Args:
            forecast: B prompts. Rewards other than 0/1 spread less around a mean: ``v`` is scaled
                such that its average is the forecast's `reward_var_B`.
            kappa: noise over signal, more than 0.

        Raises:
            InvalidInputError: kappa is not a positive number.

        >>> gain = Progress.of(Forecast.of_success([0.5, 0.1]))
        >>> gain.value(np.array([5, 5])).round(5)
        array([0.03125, 0.00214])
        """
        if not validate.number("kappa", kappa) > 0.0:
            raise InvalidInputError(f"kappa is {kappa:g}, but must be more than 0; 1 is usual.")
        success_BJ, chance_BJ = _belief(forecast)
        most_B = forecast.mean_B * (1.0 - forecast.mean_B) - forecast.var_B
        spread_B = np.divide(
            forecast.reward_var_B, most_B, out=np.zeros_like(most_B), where=most_B > 0.0
        )
        variance_BJ = spread_B[:, None] * success_BJ * (1.0 - success_BJ)
        return cls(variance_BJ, chance_BJ * variance_BJ**2, float(kappa))

    def value(self, num_B: IntArray) -> FloatArray:
        """Return ``u(n)``."""
        signal_BJ = self.variance_BJ * np.maximum(num_B - 1.0, 0.0)[:, None]
        gain_B: FloatArray = (self.weight_BJ * (signal_BJ / (signal_BJ + self.kappa))).sum(axis=1)
        return gain_B

    def rise(self, num_B: IntArray) -> FloatArray:
        """Return ``u(n+1) - u(n) = E[v^3 kappa / ((vn + kappa)(v(n-1) + kappa))]``."""
        now_BJ = self.variance_BJ * (num_B - 1.0)[:, None] + self.kappa
        next_BJ = now_BJ + self.variance_BJ
        rise_BJ = self.weight_BJ * self.variance_BJ * self.kappa / (now_BJ * next_BJ)
        rise_B: FloatArray = rise_BJ.sum(axis=1)
        return rise_B

    def take(self, index: IntArray) -> Progress:
        """Return the gains of the prompts at these positions."""
        return Progress(self.variance_BJ[index], self.weight_BJ[index], self.kappa)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Chance of a group with a success and a failure, ``u(n) = E[1 - p^n - (1-p)^n]``; 0/1 rewards.

    >>> Coverage(Forecast.of_success([0.5, 0.1])).value(np.array([2, 2]))
    array([0.5 , 0.18])
    """

    forecast: Forecast

    def value(self, num_B: IntArray) -> FloatArray:
        """Return ``u(n)``."""
        chance_B, _ = chance_of_mixed_group(self.forecast, np.maximum(num_B, 1))
        return np.maximum(chance_B, 0.0)

    def rise(self, num_B: IntArray) -> FloatArray:
        """Return ``u(n+1) - u(n) = E[p^n (1-p)] + E[(1-p)^n p]``."""
        return chance_of_mixed_group(self.forecast, num_B)[1]

    def take(self, index: IntArray) -> Coverage:
        """Return the gains of the prompts at these positions."""
        return Coverage(self.forecast.take(index))


def best_rollouts(success: ArrayLike, kappa: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Return the rollouts at which a prompt of known success gains most per rollout, and that gain.

    ``n* = 1 + sqrt(kappa / v)`` and ``u(n*) / n* = v^2 / (1 + sqrt(kappa / v))^2``, ``v = p(1-p)``.

    Args:
        success: success probabilities.
        kappa: noise over signal.

    >>> best, gain = best_rollouts([0.5, 0.1, 0.02])
    >>> best.round(1)
    array([3. , 4.3, 8.1])
    """
    success_B = validate.probability("success", success)
    variance_B = success_B * (1.0 - success_B)
    with np.errstate(divide="ignore"):
        best_B = 1.0 + np.sqrt(kappa / variance_B)
    return best_B, variance_B**2 / best_B**2


def _belief(forecast: Forecast) -> tuple[FloatArray, FloatArray]:
    """Return J successes and their weights for each Beta belief, exact where it matters: inside.

    In the angle ``p = sin^2(t)`` a Beta is smooth wherever ``p(1-p)`` is not 0, and about
    ``sqrt(doubt) / 2`` wide. The weights are meant for functions that vanish at 0 and at 1 as fast
    as ``p^2 (1-p)^2`` does; what a belief puts on the ends themselves need not be resolved then.
    """
    from scipy.special import betaln

    mean_B = forecast.mean_B
    most_B = mean_B * (1.0 - mean_B)
    doubt_B = np.divide(forecast.var_B, most_B, out=np.zeros_like(most_B), where=most_B > 0.0)
    is_point_B = doubt_B <= _SURE
    within_B = np.clip(doubt_B, _SURE, 1.0 - _SURE)
    count_B = (1.0 - within_B) / within_B
    inside_B = np.clip(mean_B, 1e-300, 1.0 - 1e-16)
    a_B, b_B = inside_B * count_B, (1.0 - inside_B) * count_B
    centre_B = np.arcsin(np.sqrt(mean_B))
    reach_B = _REACH * 0.5 * np.sqrt(within_B)
    low_B = np.maximum(centre_B - reach_B, 0.0)
    high_B = np.minimum(centre_B + reach_B, 0.5 * np.pi)
    share_J = np.linspace(0.0, 1.0, _NUM_NODES)
    angle_BJ = low_B[:, None] + (high_B - low_B)[:, None] * share_J
    success_BJ = np.sin(angle_BJ) ** 2
    tiny = np.finfo(np.float64).tiny
    log_BJ = (a_B[:, None] - 0.5) * np.log(np.maximum(success_BJ, tiny))
    log_BJ += (b_B[:, None] - 0.5) * np.log(np.maximum(np.cos(angle_BJ) ** 2, tiny))
    at_end_BJ = (angle_BJ <= 0.0) | (angle_BJ >= 0.5 * np.pi)
    log_BJ = np.where(at_end_BJ, -np.inf, log_BJ) - betaln(a_B, b_B)[:, None]
    width_BJ = ((high_B - low_B) / (_NUM_NODES - 1))[:, None] * np.ones(_NUM_NODES)
    width_BJ[:, [0, -1]] *= 0.5
    chance_BJ = 2.0 * np.exp(log_BJ) * width_BJ
    success_BJ[is_point_B] = mean_B[is_point_B, None]
    chance_BJ[is_point_B] = 1.0 / _NUM_NODES
    return success_BJ, chance_BJ
