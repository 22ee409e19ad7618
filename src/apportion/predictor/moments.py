"""One-dimensional Gaussian integrals of the logistic function, for many prompts at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apportion.validate import FloatArray

_MOST_NEWTON = 64
"""About 6 are taken; large groups far from what was expected take more."""
_NEAR_ENOUGH = 1e-6
"""Distance from the mode, in standard deviations, that moves no digit of the moments."""
_NUM_PASSES = 2


class Quadrature(NamedTuple):
    """Gauss-Hermite nodes x for the standard normal; log_weight holds ``log w + x^2 / 2``."""

    node_K: FloatArray
    weight_K: FloatArray
    log_weight_K: FloatArray


def _gauss_hermite(num_nodes: int) -> Quadrature:
    node_K, weight_K = np.polynomial.hermite_e.hermegauss(num_nodes)
    weight_K = weight_K / weight_K.sum()
    return Quadrature(node_K, weight_K, np.log(weight_K) + 0.5 * node_K**2)


FINE = _gauss_hermite(32)
QUICK = _gauss_hermite(16)
"""In half the time of `FINE`: for priors of variance 12 the mean is within 0.5 % of a standard
deviation and the variance within 1 %, at 50 within 3.5 % and 5 %."""


class Tilted(NamedTuple):
    """Moments of a tilted Gaussian, and the log of its integral."""

    mean_B: FloatArray
    var_B: FloatArray
    log_evidence_B: FloatArray


def sigmoid(logit: FloatArray) -> FloatArray:
    """Return ``1 / (1 + exp(-logit))`` without overflow.

    >>> sigmoid(np.array([0.0, 800.0]))
    array([0.5, 1. ])
    """
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logit, -700.0, 700.0))))


def logistic_moments(mean_B: FloatArray, var_B: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of ``sigmoid(f)`` for ``f ~ N(mean, var)``, by Gauss-Hermite.

    Args:
        mean_B: means of the latent logits, shape (B,).
        var_B: their variances, shape (B,).

    Returns:
        Two arrays of shape (B,); the variance is at most m(1-m).

    >>> mean, var = logistic_moments(np.array([0.0]), np.array([0.0]))
    >>> mean, var
    (array([0.5]), array([0.]))
    """
    value_KB = sigmoid(mean_B + np.sqrt(var_B) * FINE.node_K[:, None])
    first_B = FINE.weight_K @ value_KB
    second_B = FINE.weight_K @ (value_KB - first_B) ** 2
    return first_B, np.minimum(second_B, first_B * (1.0 - first_B))


def tilted_moments(
    mean_B: FloatArray,
    var_B: FloatArray,
    success_B: FloatArray,
    count_B: FloatArray,
    quadrature: Quadrature = FINE,
) -> Tilted:
    """Return mean, variance and log integral of ``N(f; mean, var) sigmoid(f)^k sigmoid(-f)^(n-k)``.

    Gauss-Hermite nodes are laid around the mode and then laid again around the first estimate of
    the moments, so that posteriors far from the prior, or much narrower, keep their digits.

    Args:
        mean_B: prior means of the logits, shape (B,).
        var_B: prior variances, positive, shape (B,).
        success_B: successes k, may be fractions, shape (B,).
        count_B: trials n, may be fractions, shape (B,).
        quadrature: the nodes.

    Returns:
        Posterior means and variances, and the log probability of these trials in their order,
        each of shape (B,).

    Moment matching of one site: Minka, "Expectation propagation", UAI 2001, Sec. 3; moving the
    nodes: Naylor and Smith, Applied Statistics 31 (1982).

    >>> tilted = tilted_moments(*np.array([[0.0], [1.0], [4.0], [4.0]]))
    >>> tilted.mean_B.round(3), tilted.var_B.round(3), tilted.log_evidence_B.round(3)
    (array([1.096]), array([0.587]), array([-2.028]))
    """
    center_B = _mode(mean_B, var_B, success_B, count_B)
    rate_B = sigmoid(center_B)
    spread_B = 1.0 / (1.0 / var_B + count_B * rate_B * (1.0 - rate_B))
    for _ in range(_NUM_PASSES):
        logit_KB = center_B + np.sqrt(spread_B) * quadrature.node_K[:, None]
        log_KB = success_B * logit_KB
        log_KB -= count_B * _softplus(logit_KB)
        log_KB -= (logit_KB - mean_B) ** 2 / (2.0 * var_B)
        log_KB += quadrature.log_weight_K[:, None]
        highest_B = log_KB.max(axis=0)
        weight_KB = np.exp(log_KB - highest_B)
        total_B = weight_KB.sum(axis=0)
        evidence_B = highest_B + np.log(total_B) + 0.5 * np.log(spread_B / var_B)
        center_B = (weight_KB * logit_KB).sum(axis=0) / total_B
        spread_B = (weight_KB * (logit_KB - center_B) ** 2).sum(axis=0) / total_B
    # A log-concave likelihood never widens a Gaussian.
    return Tilted(center_B, np.minimum(spread_B, var_B), evidence_B)


def _mode(
    mean_B: FloatArray, var_B: FloatArray, success_B: FloatArray, count_B: FloatArray
) -> FloatArray:
    """Return about the root of ``(f - mean)/var + n sigmoid(f) - k``, by bracketed Newton steps."""
    low_B = mean_B - var_B * (count_B - success_B)
    high_B = mean_B + var_B * success_B
    smooth_B = (success_B + 0.5) / (count_B + 1.0)
    data_B = np.log(smooth_B / (1.0 - smooth_B))
    weight_B = count_B * smooth_B * (1.0 - smooth_B) * var_B
    mode_B = np.clip((mean_B + weight_B * data_B) / (1.0 + weight_B), low_B, high_B)
    for i in range(_MOST_NEWTON):
        rate_B = sigmoid(mode_B)
        slope_B = (mode_B - mean_B) / var_B + count_B * rate_B - success_B
        curvature_B = 1.0 / var_B + count_B * rate_B * (1.0 - rate_B)
        far_B = np.abs(slope_B) > _NEAR_ENOUGH * np.sqrt(curvature_B)
        if not far_B.any():
            break
        low_B = np.where(slope_B < 0.0, mode_B, low_B)
        high_B = np.where(slope_B > 0.0, mode_B, high_B)
        next_B = mode_B - slope_B / curvature_B
        # Newton steps may jump to and fro for ever: every eighth time halve the bracket instead.
        astray_B = (next_B < low_B) | (next_B > high_B) | (i % 8 == 7)
        next_B = np.where(astray_B, 0.5 * (low_B + high_B), next_B)
        mode_B = np.where(far_B, next_B, mode_B)
    return mode_B


def _softplus(logit: FloatArray) -> FloatArray:
    return np.asarray(np.maximum(logit, 0.0) + np.log1p(np.exp(-np.abs(logit))))
