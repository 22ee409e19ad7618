r"""How noisy the gradient of one prompt is, as a law of how many rollouts it gets.

With ``n`` rollouts, advantages ``A_j`` and projected scores ``Z_j`` that do not depend on the
rewards, one prompt contributes ``G = w_n sum_j A_j Z_j``. Its variance, in units of
``Var(Z) = 1`` and for rewards 0/1 (rewards -1/+1 add a factor 4 to all but GRPO):

=====================  ======================  ======================  =======================
law                    advantages              weights `w_n` up to a   variance
                                               constant
=====================  ======================  ======================  =======================
`rloo`                 leave-one-out           1/n                     Var(R) / (n-1)
`rloo`                 mean-centred            1/(n-1)                 Var(R) / (n-1)
`dr_grpo`              mean-centred            1/n (as published)      Var(R) (n-1) / n^2
`grpo`                 over sample std         1/(n-1)                 s / (n-1)
`grpo_population_std`  over population std     1/n                     s / n
=====================  ======================  ======================  =======================

``s = E[1 - p^n - (1-p)^n]`` is the chance that the group is not constant, averaged over what is
believed about ``p``: a Beta distribution with the forecast's mean and variance. `rloo` and
`dr_grpo` need only ``E[p(1-p)]``, the forecast's `reward_var_B`, and so hold for real-valued
rewards too; the laws of GRPO are for 0/1 rewards.

Source: VIP, Nguyen et al., ICLR 2026, Propositions 4.2 (Dr. GRPO) and 4.3 (RLOO). The laws of GRPO
follow from ``sum_j A_j^2 = n - 1`` (sample std) or ``n`` (population std) in every group that is
not constant.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError, NonConvexLawError
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

_SURE = 1e-12
"""Share of the largest possible doubt below which a belief is taken for a point (or two)."""

_SHIFT = 8
"""Steps by which arguments of the gamma function are raised before Stirling's series is used."""


@dataclass(frozen=True, slots=True)
class KnownLaw:
    """A law of gradient variance that can be minimised exactly.

    Attributes:
        name: how `allocate` knows it.
        convex_from: smallest n from which it is convex and decreasing.
        variance: (forecast, n_B) -> variance_B.
        drop: (forecast, n_B) -> variance(n) - variance(n+1), without cancellation.
        crossing: (forecast, price) -> real n near which the drop falls to the price, if there is a
            closed form.

    >>> RLOO(Forecast.of_success([0.5, 0.1]), [2, 10])
    array([0.25, 0.01])
    """

    name: str
    convex_from: int
    variance: Callable[[Forecast, IntArray], FloatArray]
    drop: Callable[[Forecast, IntArray], FloatArray]
    crossing: Callable[[Forecast, float], FloatArray] | None = None

    def __call__(self, forecast: Forecast, num_rollouts_B: ArrayLike) -> FloatArray:
        """Return the gradient variance of each prompt (B), in units of the variance of a score.

        Raises:
            InvalidInputError: fewer than 2 rollouts, or another number of prompts.
        """
        num_B = validate.counts("num_rollouts_B", num_rollouts_B, size=len(forecast), at_least=2)
        return self.variance(forecast, num_B)


def _rloo(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """``Var(R) / (n-1)``: VIP, Proposition 4.3."""
    return forecast.reward_var_B / (num_B - 1.0)


def _rloo_drop(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """``Var(R) / (n(n-1))``."""
    return forecast.reward_var_B / (num_B * (num_B - 1.0))


def _rloo_crossing(forecast: Forecast, price: float) -> FloatArray:
    """Solve ``n(n-1) = Var(R) / price``."""
    return 0.5 + np.sqrt(0.25 + _quotient(forecast.reward_var_B, price))


def _dr_grpo(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """``Var(R) (n-1) / n^2``: VIP, Proposition 4.2."""
    return forecast.reward_var_B * ((num_B - 1.0) / num_B / num_B)


def _dr_grpo_drop(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """``Var(R) (n^2-n-1) / (n(n+1))^2``."""
    product_B: FloatArray = num_B * (num_B + 1.0)
    return forecast.reward_var_B * ((product_B - 2.0 * num_B - 1.0) / (product_B * product_B))


def _dr_grpo_crossing(forecast: Forecast, price: float) -> FloatArray:
    """Solve ``(h-2)/h^3 = 1/z^2``, the drop about ``h = n + 1/2``, to third order in ``1/z``."""
    z_B = np.sqrt(np.maximum(_quotient(forecast.reward_var_B, price), 1.0))
    return z_B - 1.5 - 1.5 / z_B


def _grpo(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """``s / (n-1)``."""
    return chance_of_mixed_group(forecast, num_B)[0] / (num_B - 1.0)


def _grpo_drop(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """``(s_n - (n-1)(s_{n+1} - s_n)) / (n(n-1))``."""
    mixed_B, rise_B = chance_of_mixed_group(forecast, num_B)
    return np.maximum(mixed_B - (num_B - 1.0) * rise_B, 0.0) / (num_B * (num_B - 1.0))


def _grpo_population_std(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """``s / n``."""
    return chance_of_mixed_group(forecast, num_B)[0] / num_B


def _grpo_population_std_drop(forecast: Forecast, num_B: IntArray) -> FloatArray:
    """``(s_n - n(s_{n+1} - s_n)) / (n(n+1))``."""
    mixed_B, rise_B = chance_of_mixed_group(forecast, num_B)
    return np.maximum(mixed_B - num_B * rise_B, 0.0) / (num_B * (num_B + 1.0))


RLOO = KnownLaw("rloo", 2, _rloo, _rloo_drop, _rloo_crossing)
DR_GRPO = KnownLaw("dr_grpo", 3, _dr_grpo, _dr_grpo_drop, _dr_grpo_crossing)
GRPO = KnownLaw("grpo", 2, _grpo, _grpo_drop)
GRPO_POPULATION_STD = KnownLaw(
    "grpo_population_std", 3, _grpo_population_std, _grpo_population_std_drop
)
LAWS = {law.name: law for law in (RLOO, DR_GRPO, GRPO, GRPO_POPULATION_STD)}
"""The laws that `allocate(variance=...)` knows by name."""


def law_for(estimator: str, *, weighting: str = "prompt", std: str = "sample") -> KnownLaw:
    """Return the law that follows from an advantage estimator and the weights of its loss.

    Args:
        estimator: "rloo" (leave-one-out), "dr_grpo" (mean-centred) or "grpo" (over std).
        weighting: "prompt", every prompt counts the same: G/n on leave-one-out and population-std
            advantages, (G-1)/(n-1) on other mean-centred ones, G the mean group size; "none", the
            plain mean over each group, as published (G/n for all); "rollout", the plain mean over
            all rollouts.
        std: "sample" (n-1, as in TRL and verl) or "population" (n); read by "grpo" only.

    Raises:
        NonConvexLawError: the variance does not fall with n.
        InvalidInputError: an unknown name.

    Warns:
        UserWarning: under "rollout" a prompt's noise grows with n; the law of "prompt" is returned.

    >>> law_for("dr_grpo").name, law_for("dr_grpo", weighting="none").name
    ('rloo', 'dr_grpo')
    """
    validate.choice("estimator", estimator, ("rloo", "dr_grpo", "grpo"))
    validate.choice("weighting", weighting, ("prompt", "rollout", "none"))
    validate.choice("std", std, ("sample", "population"))
    if weighting == "rollout":
        warnings.warn(
            "weighting 'rollout' counts a prompt by its rollouts, so its noise grows with n and "
            "minimising variance is senseless. Set weighting='prompt'; its law is used here.",
            UserWarning,
            stacklevel=2,
        )
    if estimator == "rloo":
        return RLOO
    if estimator == "dr_grpo":
        return DR_GRPO if weighting == "none" else RLOO
    if std == "population":
        return GRPO_POPULATION_STD
    if weighting == "none":
        raise NonConvexLawError(
            "The law of grpo with sample std and weights G/n, s(n-1)/n^2, rises with n until about "
            "n = sqrt(2/p), so there is no lower bound from which more rollouts always help. "
            "Weigh prompts by (G-1)/(n-1): weighting='prompt'."
        )
    return GRPO


def named_law(name: str) -> KnownLaw:
    """Return the law of this name.

    >>> named_law("grpo").convex_from
    2
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"variance is {name!r}, but must be a name or law(forecast, n_B).")
    return LAWS[validate.choice("variance", name, tuple(LAWS))]


def _quotient(reward_var_B: FloatArray, price: float) -> FloatArray:
    with np.errstate(over="ignore"):
        return reward_var_B / price


def chance_of_mixed_group(forecast: Forecast, num_B: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return ``s_n``, the chance of a group that is not constant, and ``s_{n+1} - s_n``.

    With ``q = 1 - p``: ``s_n = E[p(1 - p^{n-1})] + E[q(1 - q^{n-1})]``, a sum of positive terms, so
    that rare successes lose no digits, and ``s_{n+1} - s_n = E[p^n q] + E[q^n p]``.
    """
    mean_B = forecast.mean_B
    miss_B = 1.0 - mean_B
    most_B = mean_B * miss_B
    doubt_B = np.divide(forecast.var_B, most_B, out=np.zeros_like(most_B), where=most_B > 0.0)
    more_B = num_B.astype(np.float64) - 1.0
    again_B = _log_repeat(mean_B, miss_B, doubt_B, more_B)
    remiss_B = _log_repeat(miss_B, mean_B, doubt_B, more_B)
    mixed_B = -mean_B * np.expm1(again_B) - miss_B * np.expm1(remiss_B)
    # After n equal rewards the next one differs with chance (other mean) k/(k+n), k = 1/doubt - 1.
    differ_B = most_B * (1.0 - doubt_B) / (1.0 - doubt_B + doubt_B * num_B)
    return mixed_B, differ_B * (np.exp(again_B) + np.exp(remiss_B))


def _log_repeat(
    mean_B: FloatArray, miss_B: FloatArray, doubt_B: FloatArray, more_B: FloatArray
) -> FloatArray:
    """Return ``log(E[p^n] / E[p])``, n = 1 + more: after one success, that many more.

    ``E[p^n] = B(a+n, b) / B(a, b)`` for Beta(a, b) with ``a + b = 1/doubt - 1``; ``p^n`` where
    there is no doubt; ``p`` where the prompt is sure to be always right or always wrong.
    """
    log_B = np.where(
        miss_B < 0.5,
        np.log1p(-np.minimum(miss_B, 0.5)),
        np.log(np.maximum(mean_B, np.finfo(np.float64).tiny)),
    )
    point_B = more_B * log_B
    if not (doubt_B > _SURE).any():
        return point_B
    within_B = np.clip(doubt_B, _SURE, 1.0 - _SURE)
    count_B = (1.0 - within_B) / within_B
    beta_B = _log_gamma_ratio(mean_B * count_B + 1.0, miss_B * count_B, more_B)
    return np.where(
        doubt_B <= _SURE, point_B, np.where(doubt_B >= 1.0 - _SURE, 0.0, np.minimum(beta_B, 0.0))
    )


def _log_gamma_ratio(x_B: FloatArray, d_B: FloatArray, m_B: FloatArray) -> FloatArray:
    """Return ``log[G(x+m) G(x+d) / (G(x) G(x+d+m))]``, G the gamma function, for ``x >= 1``.

    Differences of ``lgamma`` lose all digits when the belief is sharp (x and d large) or successes
    are rare (d small). Here Stirling's series is differenced by hand: every term is a `log1p` that
    is small when the result is.
    """
    both_B = d_B + m_B
    product_B = d_B * m_B
    y_B = x_B + _SHIFT
    end_B = y_B + both_B
    result_B = (
        (y_B - 0.5) * np.log1p(product_B / (y_B * end_B))
        + m_B * np.log1p(-d_B / end_B)
        + d_B * np.log1p(-m_B / end_B)
        + _stirling_fall(y_B + m_B, d_B)
        - _stirling_fall(y_B, d_B)
    )
    for step in range(_SHIFT):
        z_B = x_B + step
        result_B -= np.log1p(product_B / (z_B * (z_B + both_B)))
    return result_B


def _stirling_fall(y_B: FloatArray, d_B: FloatArray) -> FloatArray:
    """Return ``c(y) - c(y+d)`` for the tail ``c(y) = 1/(12y) - 1/(360y^3) + ...`` of the series.

    ``1/y^k - 1/(y+d)^k = d/(y(y+d)) h_k`` with h_k a sum of products of the two inverses.
    """
    left_B, right_B = 1.0 / y_B, 1.0 / (y_B + d_B)
    product_B = left_B * right_B
    sum_B = left_B * left_B + right_B * right_B
    square_B = product_B * product_B
    h3_B = sum_B + product_B
    h5_B = sum_B * h3_B - square_B
    h7_B = sum_B * h5_B - square_B * h3_B
    h9_B = sum_B * h7_B - square_B * h5_B
    tail_B = 1 / 12 - h3_B / 360 + h5_B / 1260 - h7_B / 1680 + h9_B / 1188
    return d_B * product_B * tail_B
