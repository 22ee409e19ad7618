"""Measures of forecasts: error, log score, reliability, and coverage of the stated doubt.

Axes: B groups (one a prompt), M bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray


def forecast_error(forecast: Forecast, success_B: ArrayLike) -> float:
    """Return the mean absolute error of the forecast against success rates, true or observed.

    >>> forecast_error(Forecast.of_success([0.5, 0.2]), [0.4, 0.2]).__round__(3)
    0.05
    """
    success_B = validate.probability("success_B", success_B, size=len(forecast))
    return float(np.abs(forecast.mean_B - success_B).mean()) if len(forecast) else 0.0


def log_score(
    forecast: Forecast,
    num_rollouts_B: ArrayLike,
    reward_sum_B: ArrayLike,
    *,
    floor: float = 1e-3,
) -> float:
    """Return the mean log probability of a rollout under the forecast; nearer to 0 is better.

    ``sum_q k_q log m_q + (n_q - k_q) log(1 - m_q)  /  sum_q n_q``, m cut to [floor, 1 - floor]: a
    forecast of 0 that is wrong once would otherwise cost everything.

    Args:
        forecast: what was believed before sampling.
        num_rollouts_B: scored rollouts n.
        reward_sum_B: their successes k.
        floor: how far forecasts are kept from 0 and 1.

    >>> log_score(Forecast.of_success([0.5]), [4], [1]).__round__(4)
    -0.6931
    """
    num_B, sum_B = _outcomes(forecast, num_rollouts_B, reward_sum_B)
    mean_B = np.clip(forecast.mean_B, floor, 1.0 - floor)
    score_B = sum_B * np.log(mean_B) + (num_B - sum_B) * np.log1p(-mean_B)
    return float(score_B.sum() / num_B.sum()) if num_B.sum() else 0.0


def log_likelihood(
    forecast: Forecast,
    num_rollouts_B: ArrayLike,
    reward_sum_B: ArrayLike,
    *,
    floor: float = 1e-3,
) -> float:
    """Return the mean log probability of a group under forecast *and doubt*; nearer to 0 is better.

    k of n under the Beta distribution of the forecast's mean and variance (beta-binomial),
    ``log C(n, k) + log B(a + k, b + n - k) - log B(a, b)``; binomial where there is no doubt. Means
    are cut to [floor, 1 - floor]. Unlike `log_score` it rewards honest doubt.

    Args:
        forecast: what was believed before sampling.
        num_rollouts_B: scored rollouts n.
        reward_sum_B: their successes k; fractions count as such.
        floor: how far forecasts are kept from 0 and 1.

    >>> log_likelihood(Forecast.of_success([0.5], [1 / 12]), [1], [1]).__round__(4)
    -0.6931
    """
    from scipy.special import betaln, gammaln

    num_B, sum_B = _outcomes(forecast, num_rollouts_B, reward_sum_B)
    if not len(num_B):
        return 0.0
    mean_B = np.clip(forecast.mean_B, floor, 1.0 - floor)
    # a + b = m(1-m)/var - 1, between almost certain and almost two points.
    doubt_B = np.maximum(forecast.var_B, 1e-300)
    strength_B = np.clip(mean_B * (1.0 - mean_B) / doubt_B - 1.0, 1e-3, 1e9)
    a_B, b_B = mean_B * strength_B, (1.0 - mean_B) * strength_B
    ways_B = gammaln(num_B + 1.0) - gammaln(sum_B + 1.0) - gammaln(num_B - sum_B + 1.0)
    beta_B = betaln(a_B + sum_B, b_B + num_B - sum_B) - betaln(a_B, b_B)
    return float((ways_B + beta_B).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Forecasts and what came of them, by bins of the forecast.

    Attributes:
        edge_M: M + 1 bounds of the bins on [0, 1].
        forecast_M: mean forecast of the rollouts in the bin; NaN if it is empty.
        observed_M: their success rate; NaN if it is empty.
        num_rollouts_M: rollouts in the bin.
        error: mean absolute gap between the two, over rollouts.
    """

    edge_M: FloatArray
    forecast_M: FloatArray
    observed_M: FloatArray
    num_rollouts_M: IntArray
    error: float


def reliability(
    forecast: Forecast, num_rollouts_B: ArrayLike, reward_sum_B: ArrayLike, *, num_bins: int = 10
) -> Reliability:
    """Return success rates by bins of equal width of the forecast.

    >>> bins = reliability(Forecast.of_success([0.2, 0.9]), [4, 4], [1, 4], num_bins=2)
    >>> bins.observed_M, bins.error.__round__(3)
    (array([0.25, 1.  ]), 0.075)
    """
    num_B, sum_B = _outcomes(forecast, num_rollouts_B, reward_sum_B)
    num_bins = validate.whole_number("num_bins", num_bins, at_least=1)
    edge_M = np.linspace(0.0, 1.0, num_bins + 1)
    bin_B = np.minimum((forecast.mean_B * num_bins).astype(np.int64), num_bins - 1)

    def total(weight_B: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(bin_B, weights=weight_B, minlength=num_bins))

    num_M = total(num_B.astype(np.float64))
    empty = np.full(num_bins, np.nan)
    forecast_M = np.divide(total(num_B * forecast.mean_B), num_M, out=empty.copy(), where=num_M > 0)
    observed_M = np.divide(total(sum_B), num_M, out=empty, where=num_M > 0)
    gap_M = np.where(num_M > 0, np.abs(forecast_M - observed_M), 0.0)
    return Reliability(
        edge_M=edge_M,
        forecast_M=forecast_M,
        observed_M=observed_M,
        num_rollouts_M=num_M.astype(np.int64),
        error=float(num_M @ gap_M / num_M.sum()) if num_M.sum() else 0.0,
    )


def standardised_error(
    forecast: Forecast, num_rollouts_B: ArrayLike, reward_sum_B: ArrayLike
) -> FloatArray:
    """Return ``(k/n - m) / sqrt(var + reward_var / n)``: mean square 1 if the doubt is honest.

    >>> standardised_error(Forecast.of_success([0.5]), [4], [4])
    array([2.])
    """
    num_B, sum_B = _outcomes(forecast, num_rollouts_B, reward_sum_B, at_least=1)
    spread_B = np.sqrt(forecast.var_B + forecast.reward_var_B / num_B)
    gap_B = sum_B / num_B - forecast.mean_B
    # A forecast without any spread is right exactly or infinitely wrong.
    certain_B = np.where(gap_B == 0.0, 0.0, np.where(gap_B > 0.0, np.inf, -np.inf))
    return np.divide(gap_B, spread_B, out=certain_B, where=spread_B > 0.0)


def coverage(
    forecast: Forecast,
    num_rollouts_B: ArrayLike,
    reward_sum_B: ArrayLike,
    *,
    level: float = 0.9,
) -> float:
    """Return the share of success rates within the central interval that the forecast states.

    The interval is ``m +- z sqrt(var + reward_var / n)``, z being the normal quantile of `level`;
    an honest forecast covers about `level`. For few rollouts near 0 or 1 the rates are too coarse
    for the normal curve and cover more.

    >>> coverage(Forecast.of_success([0.5, 0.5]), [4, 4], [2, 4])
    0.5
    """
    if not 0.0 < level < 1.0:
        raise InvalidInputError(f"level is {level:g}, but must lie between 0 and 1.")
    z = NormalDist().inv_cdf(0.5 + 0.5 * level)
    error_B = standardised_error(forecast, num_rollouts_B, reward_sum_B)
    return float((np.abs(error_B) <= z).mean()) if error_B.size else 0.0


def _outcomes(
    forecast: Forecast, num_rollouts_B: ArrayLike, reward_sum_B: ArrayLike, *, at_least: int = 0
) -> tuple[IntArray, FloatArray]:
    num_B = validate.counts("num_rollouts_B", num_rollouts_B, size=len(forecast), at_least=at_least)
    sum_B = validate.vector("reward_sum_B", reward_sum_B, size=len(forecast))
    bad_i = np.flatnonzero((sum_B < 0.0) | (sum_B > num_B))
    if bad_i.size:
        at = int(bad_i[0])
        raise InvalidInputError(
            f"reward_sum_B[{at}] is {sum_B[at]:g}, outside [0, {num_B[at]}]: rewards must lie in "
            "[0, 1]."
        )
    return num_B, sum_B
