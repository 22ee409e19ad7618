"""One-dimensional Gaussian integrals of the logistic function, for many prompts at once."""

from __future__ import annotations

import numpy as np

from apportion.validate import FloatArray

_NODE_K, _WEIGHT_K = np.polynomial.hermite_e.hermegauss(32)
_WEIGHT_K = _WEIGHT_K / _WEIGHT_K.sum()
_LOG_WEIGHT_K = np.log(_WEIGHT_K) + 0.5 * _NODE_K**2
_NUM_NEWTON = 8
_NUM_PASSES = 2


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
    value_BK = sigmoid(mean_B[:, None] + np.sqrt(var_B)[:, None] * _NODE_K)
    first_B = value_BK @ _WEIGHT_K
    second_B = ((value_BK - first_B[:, None]) ** 2) @ _WEIGHT_K
    return first_B, np.minimum(second_B, first_B * (1.0 - first_B))


def tilted_moments(
    mean_B: FloatArray, var_B: FloatArray, success_B: FloatArray, count_B: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of ``N(f; mean, var) sigmoid(f)^k sigmoid(-f)^(n-k)``.

    Gauss-Hermite nodes are laid around the mode and then laid again around the first estimate of
    the moments, so that posteriors far from the prior, or much narrower, keep their digits.

    Args:
        mean_B: prior means of the logits, shape (B,).
        var_B: prior variances, positive, shape (B,).
        success_B: successes k, may be fractions, shape (B,).
        count_B: trials n, may be fractions, shape (B,).

    Returns:
        Posterior means and variances, shape (B,).

    Moment matching of one site: Minka, "Expectation propagation", UAI 2001, Sec. 3; moving the
    nodes: Naylor and Smith, Applied Statistics 31 (1982).

    >>> mean, var = tilted_moments(*np.array([[0.0], [1.0], [4.0], [4.0]]))
    >>> mean.round(3), var.round(3)
    (array([1.096]), array([0.587]))
    """
    center_B = _mode(mean_B, var_B, success_B, count_B)
    rate_B = sigmoid(center_B)
    spread_B = 1.0 / (1.0 / var_B + count_B * rate_B * (1.0 - rate_B))
    for _ in range(_NUM_PASSES):
        logit_BK = center_B[:, None] + np.sqrt(spread_B)[:, None] * _NODE_K
        log_BK = (
            _LOG_WEIGHT_K
            + success_B[:, None] * logit_BK
            - count_B[:, None] * _softplus(logit_BK)
            - 0.5 * (logit_BK - mean_B[:, None]) ** 2 / var_B[:, None]
        )
        weight_BK = np.exp(log_BK - log_BK.max(axis=1, keepdims=True))
        weight_BK /= weight_BK.sum(axis=1, keepdims=True)
        first_B = (weight_BK * logit_BK).sum(axis=1)
        spread_B = (weight_BK * (logit_BK - first_B[:, None]) ** 2).sum(axis=1)
        center_B = first_B
    # A log-concave likelihood never widens a Gaussian.
    return center_B, np.minimum(spread_B, var_B)


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
    for _ in range(_NUM_NEWTON):
        rate_B = sigmoid(mode_B)
        slope_B = (mode_B - mean_B) / var_B + count_B * rate_B - success_B
        low_B = np.where(slope_B < 0.0, mode_B, low_B)
        high_B = np.where(slope_B > 0.0, mode_B, high_B)
        mode_B = mode_B - slope_B / (1.0 / var_B + count_B * rate_B * (1.0 - rate_B))
        outside_B = (mode_B < low_B) | (mode_B > high_B)
        mode_B = np.where(outside_B, 0.5 * (low_B + high_B), mode_B)
    return mode_B


def _softplus(logit: FloatArray) -> FloatArray:
    return np.asarray(np.maximum(logit, 0.0) + np.log1p(np.exp(-np.abs(logit))))
