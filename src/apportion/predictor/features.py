"""Finite features of a kernel of several widths, so that a process over prompts has few weights.

    K(x, x') = 1/3 sum_s exp(-|x - x'|^2 / (2 (s m)^2)),  s in 0.2, 0.4, 0.8
    phi(x) . phi(x') ~ K(x, x')

m is the median distance of rows. The narrow part tells near twins apart, the wide part carries
what little text says of a hard problem; no single width does well on both.

Nystroem's construction: with the kernel matrix ``U diag(s) U'`` of A anchors, the leading M
eigenvectors give ``phi(x) = diag(s_M)^(-1/2) U_M' k(x)``, the best M features for the anchors;
between anchors ``phi(x) . phi(x)`` falls short of 1 where x is far from all of them.

Source: Williams and Seeger, "Using the Nystroem method to speed up kernel machines", NIPS 2000.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.errors import StateError
from apportion.predictor.rows import State, saved
from apportion.validate import FloatArray

NUM_ANCHORS = 512
NUM_FEATURES = 96
_WIDEST, _NUM_WIDTHS = 0.8, 3
"""Widths as shares of the median distance, each half of the one before."""
_MAX_MEDIAN_ROWS = 1_000
_RELATIVE_RANK = 1e-6
_ROUNDING = 1e-7
"""A distance below this share of the largest one from the centre counts as none."""
_LEAST_DISTANCE = 1e-100
"""A median below it counts as none, so that its square stays above the smallest float."""


class KernelFeatures:
    """Maps rows (B, D) to M features whose products are the kernel.

    Rows of NaN (prompts that brought no features) have phi = 0: the kernel tells nothing of them.

    >>> row_QD = np.linspace(0.0, 1.0, 9)[:, None]
    >>> phi_QM = KernelFeatures.fit(row_QD)(row_QD)
    >>> kernel_QQ = multi_scale_kernel(row_QD, row_QD, median_distance(row_QD))
    >>> bool(np.allclose(phi_QM @ phi_QM.T, kernel_QQ))
    True
    """

    def __init__(self, anchor_AD: FloatArray, map_AM: FloatArray, scale: float) -> None:
        """Use `KernelFeatures.fit`."""
        self._anchor_AD, self._map_AM, self._scale = anchor_AD, map_AM, scale

    @classmethod
    def fit(cls, feature_QD: FloatArray) -> KernelFeatures:
        """Choose anchors evenly among the rows, the scale and the features.

        Args:
            feature_QD: rows to learn from; at most `NUM_ANCHORS` become anchors.
        """
        known_QD = feature_QD[~np.isnan(feature_QD).any(axis=1)]
        if known_QD.shape[0] == 0 or known_QD.shape[1] == 0:
            return cls(np.zeros((0, feature_QD.shape[1])), np.zeros((0, 0)), 1.0)
        scale = median_distance(known_QD)
        anchor_AD = np.unique(known_QD[evenly(len(known_QD), NUM_ANCHORS)], axis=0)
        value_A, vector_AA = np.linalg.eigh(multi_scale_kernel(anchor_AD, anchor_AD, scale))
        num_kept = int(np.sum(value_A[-NUM_FEATURES:] > _RELATIVE_RANK * value_A[-1]))
        leading = slice(len(value_A) - num_kept, None)
        vector_AM = vector_AA[:, leading]
        # The sign of an eigenvector is arbitrary; fix it, so that equal input gives equal features.
        vector_AM = vector_AM * np.sign(
            vector_AM[np.abs(vector_AM).argmax(axis=0), np.arange(num_kept)]
        )
        return cls(anchor_AD, vector_AM / np.sqrt(value_A[leading]), scale)

    @property
    def num_inputs(self) -> int:
        """D."""
        return int(self._anchor_AD.shape[1])

    @property
    def num_features(self) -> int:
        """M."""
        return int(self._map_AM.shape[1])

    def __call__(self, feature_BD: FloatArray) -> FloatArray:
        """Return ``phi_BM``."""
        missing_B = np.asarray(np.isnan(feature_BD).any(axis=1))
        if missing_B.any():
            feature_BD = np.where(missing_B[:, None], 0.0, feature_BD)
        kernel_BA = multi_scale_kernel(feature_BD, self._anchor_AD, self._scale)
        phi_BM: FloatArray = kernel_BA @ self._map_AM
        phi_BM[missing_B] = 0.0
        return phi_BM

    def state_dict(self) -> State:
        """Return anchors, map and scale."""
        return {
            "anchor_AD": self._anchor_AD.copy(),
            "anchor_map_AM": self._map_AM.copy(),
            "bandwidth": np.array([self._scale]),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, NDArray[Any]]) -> KernelFeatures:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        anchor_AD = saved(state, "anchor_AD", num_axes=2)
        map_AM = saved(state, "anchor_map_AM", size=len(anchor_AD), num_axes=2)
        return cls(anchor_AD, map_AM, saved_bandwidth(state))


def squared_distance(left_AD: FloatArray, right_BD: FloatArray) -> FloatArray:
    """Return ``|x_a - y_b|^2``, (A, B), as ``|x|^2 - 2xy + |y|^2`` about the mean of the right.

    Without a common centre the squares of features far from 0 would cancel digits away.

    >>> squared_distance(np.array([[0.0]]), np.array([[3.0], [4.0]]))
    array([[ 9., 16.]])
    """
    if len(right_BD):
        center_D = right_BD.mean(axis=0)
        same = left_AD is right_BD
        right_BD = right_BD - center_D
        left_AD = right_BD if same else left_AD - center_D
    squared_AB = -2.0 * (left_AD @ right_BD.T)
    squared_AB += (left_AD**2).sum(axis=1)[:, None]
    squared_AB += (right_BD**2).sum(axis=1)
    return np.maximum(squared_AB, 0.0, out=squared_AB)


def median_distance(feature_QD: FloatArray) -> float:
    """Return the median distance of pairs; 1 if rows do not differ, or by less than 1e-100.

    Source: the median heuristic of VIP, Nguyen et al., ICLR 2026, Sec. 5.1.

    >>> median_distance(np.array([[0.0], [1.0], [3.0]]))
    2.0
    """
    row_AD = feature_QD[evenly(len(feature_QD), _MAX_MEDIAN_ROWS)]
    squared_AA = squared_distance(row_AD, row_AD)
    distance_P = np.sqrt(squared_AA[np.triu_indices(len(row_AD), k=1)])
    if distance_P.size == 0:
        return 1.0
    # Equal rows come out a rounding error apart, which is no scale.
    reach_A = np.sqrt(((row_AD - row_AD.mean(axis=0)) ** 2).sum(axis=1))
    distance_P[distance_P <= _ROUNDING * reach_A.max()] = 0.0
    median = float(np.median(distance_P))
    # More than half of the pairs may be duplicates: then the others tell the scale.
    scale = median if median > 0.0 else float(distance_P.mean())
    return scale if scale >= _LEAST_DISTANCE else 1.0


def evenly(size: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` row numbers, evenly spaced over `size` rows.

    >>> evenly(9, 3)
    array([0, 4, 8])
    """
    return np.linspace(0, size - 1, min(size, most)).astype(np.int64)


def saved_bandwidth(state: Mapping[str, NDArray[Any]], *, unset: bool = False) -> float:
    """Return the saved bandwidth, above 0 (or 0 where `unset` is legal), or raise `StateError`."""
    bandwidth = float(saved(state, "bandwidth", size=1)[0])
    if (unset and bandwidth == 0.0) or _LEAST_DISTANCE <= bandwidth < 1e150:
        return bandwidth
    raise StateError(f"The saved bandwidth is {bandwidth:g}, but must be above 0. Start afresh.")


def gaussian_kernel(left_AD: FloatArray, right_BD: FloatArray, bandwidth: float) -> FloatArray:
    """Return ``exp(-|x_a - y_b|^2 / (2 h^2))``, (A, B).

    >>> gaussian_kernel(np.array([[0.0]]), np.array([[0.0], [1.0]]), 1.0).round(3)
    array([[1.   , 0.607]])
    """
    squared_AB = squared_distance(left_AD, right_BD)
    with np.errstate(over="ignore"):  # far beyond the bandwidth the kernel is 0
        squared_AB *= -0.5 / bandwidth**2
    return np.exp(squared_AB, out=squared_AB)


def multi_scale_kernel(left_AD: FloatArray, right_BD: FloatArray, scale: float) -> FloatArray:
    """Return the mean of Gaussian kernels of 0.8, 0.4 and 0.2 of the scale, (A, B).

    >>> multi_scale_kernel(np.array([[0.0]]), np.array([[0.0], [0.4]]), 1.0).round(3)
    array([[1.   , 0.541]])
    """
    narrowing_AB = gaussian_kernel(left_AD, right_BD, _WIDEST * scale)
    total_AB = narrowing_AB.copy()
    for _ in range(_NUM_WIDTHS - 1):
        narrowing_AB **= 2  # half the width is the fourth power
        narrowing_AB **= 2
        total_AB += narrowing_AB
    total_AB /= _NUM_WIDTHS
    return total_AB
