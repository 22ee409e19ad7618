"""How much of the gradient's variance any allocation could cut: what Neyman's rule gains.

RLOO's variance of a prompt is ``v / (n-1)``, v = p(1-p). Over a distribution of p and with n
rollouts a prompt on average, an even split has ``E[v] / (n-1)``; the best one gives ``n - 1`` in
proportion to sqrt(v) within its bounds and, where none of them binds, has ``E[sqrt v]^2 / (n-1)``.

Source: Neyman, 1934, for strata of known variance. Real numbers of rollouts, success known.
"""

from __future__ import annotations

import numpy as np

from apportion.success_distribution import Estimate, SuccessDistribution, widened
from apportion.validate import FloatArray

_NUM_HALVINGS = 80
_NUM_PRICES = 17
_NOTHING = 1e-4
"""Mean of p(1-p) below which there is no variance to speak of."""


def largest_cut(
    distribution: SuccessDistribution, mean: float, *, lower: float = 2.0, upper: float = np.inf
) -> Estimate:
    """Return ``1 - (least variance) / (variance of an even split)``.

    The interval holds chance (prompts resampled) and what the counts leave open: sqrt(v) is no
    polynomial, so its mean is known only within a range.

    Args:
        distribution: of success, from `fit_success`; raw rates would promise too much.
        mean: rollouts a prompt on average, above 1.
        lower: fewest rollouts a prompt.
        upper: most rollouts a prompt.

    Returns:
        The cut; 0 where hardly any reward varies.

    >>> from apportion.success_distribution import fit_success
    >>> found = fit_success([0, 0, 8, 4], [8] * 4, range(4), num_draws=0)
    >>> 0.3 < largest_cut(found, 8).value < 0.9
    True
    """
    v_J = distribution.success_J * (1.0 - distribution.success_J)
    if float(distribution.weight_J @ v_J) < _NOTHING or lower >= mean:
        return Estimate(value=0.0, low=0.0, high=0.0)
    even = float(distribution.weight_J @ v_J) / (mean - 1.0)
    least, price = _least(distribution.weight_J[None], v_J, mean, lower, upper)
    low, high = _range_of_least(distribution, v_J, mean, lower, upper, float(price[0, 0]))
    value = 1.0 - float(least[0]) / even
    least_D, _ = _least(distribution.weight_DJ, v_J, mean, lower, upper)
    even_D = distribution.weight_DJ @ v_J / (mean - 1.0)
    cut_D = 1.0 - np.divide(least_D, even_D, out=np.ones_like(even_D), where=even_D > 0.0)
    ends = (min(1.0 - high / even, value), max(1.0 - low / even, value))
    return widened(value, cut_D, ends)


def least_variance(
    distribution: SuccessDistribution, mean: float, *, lower: float = 2.0, upper: float = np.inf
) -> float:
    """Return the least E[v / (n-1)] with that mean of n, success being known."""
    v_J = distribution.success_J * (1.0 - distribution.success_J)
    return float(_least(distribution.weight_J[None], v_J, mean, lower, upper)[0][0])


def _least(
    weight_DJ: FloatArray, v_J: FloatArray, mean: float, lower: float, upper: float
) -> tuple[FloatArray, FloatArray]:
    """Return the least variance (D) and the price of a rollout at it (D, 1), by halving.

    ``min E[v/x]  s.t.  E[x] = mean - 1``: ``x = clip(sqrt(v / price), lower - 1, upper - 1)``.
    """
    low_D1 = np.full((len(weight_DJ), 1), -60.0)
    high_D1 = np.full((len(weight_DJ), 1), 10.0)
    for _ in range(_NUM_HALVINGS):
        middle_D1 = (low_D1 + high_D1) / 2.0
        x_DJ = _rollouts(v_J, np.exp(middle_D1), lower, upper)
        dear_D1 = (weight_DJ * x_DJ).sum(axis=1, keepdims=True) <= mean - 1.0
        low_D1, high_D1 = (
            np.where(dear_D1, low_D1, middle_D1),
            np.where(dear_D1, middle_D1, high_D1),
        )
    price_D1 = np.exp(high_D1)
    x_DJ = _rollouts(v_J, price_D1, lower, upper)
    noise_DJ = np.divide(v_J, x_DJ, out=np.zeros_like(x_DJ), where=x_DJ > 0.0)
    return (weight_DJ * noise_DJ).sum(axis=1), price_D1


def _rollouts(v_J: FloatArray, price_D1: FloatArray, lower: float, upper: float) -> FloatArray:
    return np.asarray(np.clip(np.sqrt(v_J / price_D1), lower - 1.0, upper - 1.0))


def _range_of_least(
    distribution: SuccessDistribution,
    v_J: FloatArray,
    mean: float,
    lower: float,
    upper: float,
    price: float,
) -> tuple[float, float]:
    """Return the range of the least variance over distributions with the same moments.

    By duality ``least = max_price E[h(p)] - price (mean - 1)``, ``h = min_x v/x + price x``, which
    is linear in the distribution: both ends are linear programmes, searched over the price.
    """
    lows, highs = [], []
    for factor in np.geomspace(0.25, 4.0, _NUM_PRICES):
        x_J = _rollouts(v_J, np.array([[factor * price]]), lower, upper)[0]
        noise_J = np.divide(v_J, x_J, out=np.zeros_like(x_J), where=x_J > 0.0)
        low, high = distribution.range_of(noise_J + factor * price * x_J)
        lows.append(low - factor * price * (mean - 1.0))
        highs.append(high - factor * price * (mean - 1.0))
    return max(lows), max(highs)
