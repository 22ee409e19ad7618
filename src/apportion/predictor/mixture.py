"""Candidates weighed by how well they foretold: their weights, and the moments of the mixture."""

from __future__ import annotations

import numpy as np

from apportion.validate import FloatArray


def weights(score_K: FloatArray) -> FloatArray:
    """Return weights in proportion to ``exp(score)`` that sum to 1.

    >>> weights(np.array([-2000.0, -2000.0]))
    array([0.5, 0.5])
    """
    weight_K = np.exp(score_K - score_K.max())
    return np.asarray(weight_K / weight_K.sum())


def moments(
    mean_BK: FloatArray, var_BK: FloatArray, weight_K: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance (B) of a mixture of K beliefs.

    >>> moments(np.array([[0.0, 2.0]]), np.array([[1.0, 1.0]]), np.array([0.5, 0.5]))
    (array([1.]), array([2.]))
    """
    mean_B = mean_BK @ weight_K
    return mean_B, (var_BK + (mean_BK - mean_B[:, None]) ** 2) @ weight_K
