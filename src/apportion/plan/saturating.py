"""Least squares of saturating curves, many at once, by a search over their shape alone.

A saturating curve is ``R(C) = floor (1 - h(C)) + ceiling h(C)`` with h rising from 0 to 1. Given
the shape of h, the best floor and ceiling within ``0 <= floor <= ceiling <= 1`` have a closed form;
so one or two numbers are left to search for, on a grid that is made finer around the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from apportion.validate import FloatArray

Rise = Callable[[FloatArray, FloatArray], FloatArray]
"""h(compute, shape), broadcast; the last axis of `shape` holds logarithms of its numbers."""

_FINER = 5
"""Rounds in which the grid is made finer, each by `_ZOOM`."""
_ZOOM = 4.0
_AROUND = np.arange(-_ZOOM, _ZOOM + 1.0) / _ZOOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Best curves for S rows of rewards.

    Attributes:
        shape_SP: numbers of the shape, in natural logarithms.
        floor_S: reward at no compute.
        ceiling_S: reward at endless compute.
        error_S: root of the mean squared residual.
        at_edge_S: whether the shape lies at an edge of the search, so that it is not identified.
    """

    shape_SP: FloatArray
    floor_S: FloatArray
    ceiling_S: FloatArray
    error_S: FloatArray
    at_edge_S: np.ndarray


def exponential(compute: FloatArray, shape: FloatArray) -> FloatArray:
    """``h = 1 - exp(-rate C)``, shape (log rate,)."""
    rise: FloatArray = -np.expm1(-np.exp(shape[..., 0]) * compute)
    return rise


def sigmoid(compute: FloatArray, shape: FloatArray) -> FloatArray:
    """``h = 1 / (1 + (C_mid / C)^B)``, shape (log C_mid, log B).

    Source: ScaleRL (Khatri et al., 2025), equation 1.
    """
    from scipy.special import expit

    with np.errstate(divide="ignore"):
        rise: FloatArray = expit(np.exp(shape[..., 1]) * (np.log(compute) - shape[..., 0]))
    return rise


def fit(rise: Rise, axes: list[FloatArray], compute_T: FloatArray, reward_ST: FloatArray) -> Fits:
    """Fit one curve to every row of rewards.

    Args:
        rise: h.
        axes: evenly spaced grid of each number of the shape.
        compute_T: rollouts of each point.
        reward_ST: rewards of S curves at the same points.
    """
    num_S = len(reward_ST)
    grid_GP = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    h_GT = rise(compute_T, grid_GP[:, None, :])
    cost_SG = _costs(h_GT[None], reward_ST)[0]
    shape_SP = grid_GP[cost_SG.argmin(1)]
    low_P, high_P = np.array([a[0] for a in axes]), np.array([a[-1] for a in axes])
    width_P = np.array([a[1] - a[0] for a in axes])
    around_AP = np.stack(np.meshgrid(*[_AROUND] * len(axes), indexing="ij"), -1)
    around_AP = around_AP.reshape(-1, len(axes))
    for _ in range(_FINER):
        near_SAP = np.clip(shape_SP[:, None] + around_AP * width_P, low_P, high_P)
        h_SAT = rise(compute_T, near_SAP[:, :, None, :])
        best_S = _costs(h_SAT, reward_ST)[0].argmin(1)
        shape_SP = near_SAP[np.arange(num_S), best_S]
        width_P = width_P / _ZOOM
    cost_S1, floor_S1, ceiling_S1 = _costs(rise(compute_T, shape_SP[:, None, None, :]), reward_ST)
    slack_P = (high_P - low_P) * 1e-6
    return Fits(
        shape_SP=shape_SP,
        floor_S=floor_S1[:, 0],
        ceiling_S=ceiling_S1[:, 0],
        error_S=np.sqrt(np.maximum(cost_S1[:, 0], 0.0) / len(compute_T)),
        at_edge_S=((shape_SP <= low_P + slack_P) | (shape_SP >= high_P - slack_P)).any(1),
    )


def _costs(h_SGT: FloatArray, reward_ST: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the squared error, floor and ceiling of every row for every shape, each (S, G).

    The optimum is the free one if it is feasible, else the best on an edge of the triangle
    ``0 <= floor <= ceiling <= 1``.
    """
    rest_SGT = 1.0 - h_SGT
    hh, hr, rr = (
        (h_SGT * h_SGT).sum(-1),
        (h_SGT * rest_SGT).sum(-1),
        (rest_SGT * rest_SGT).sum(-1),
    )
    hy = (h_SGT @ reward_ST[..., None])[..., 0]
    ry = (rest_SGT @ reward_ST[..., None])[..., 0]
    yy = (reward_ST * reward_ST).sum(-1)[:, None]

    def cost(floor: FloatArray, ceiling: FloatArray) -> FloatArray:
        fitted = floor**2 * rr + 2.0 * floor * ceiling * hr + ceiling**2 * hh
        total: FloatArray = yy - 2.0 * (floor * ry + ceiling * hy) + fitted
        return total

    determinant = np.maximum(hh * rr - hr * hr, 1e-300)
    free = ((ry * hh - hy * hr) / determinant, (hy * rr - ry * hr) / determinant)
    is_feasible = (free[0] >= 0.0) & (free[0] <= free[1]) & (free[1] <= 1.0)
    is_feasible &= determinant > 1e-12 * np.maximum(hh * rr, 1e-300)
    mean = np.clip((hy + ry) / reward_ST.shape[-1], 0.0, 1.0) + np.zeros_like(hy)
    tiny = 1e-300
    edges = [
        (np.zeros_like(hy), np.clip(hy / np.maximum(hh, tiny), 0.0, 1.0)),
        (np.clip((ry - hr) / np.maximum(rr, tiny), 0.0, 1.0), np.ones_like(hy)),
        (mean, mean),
    ]
    best_floor, best_ceiling = edges[0]
    best = cost(*edges[0])
    for floor, ceiling in edges[1:]:
        other = cost(floor, ceiling)
        better = other < best
        best = np.where(better, other, best)
        best_floor = np.where(better, floor, best_floor)
        best_ceiling = np.where(better, ceiling, best_ceiling)
    best = np.where(is_feasible, cost(*free), best)
    return (
        best,
        np.where(is_feasible, free[0], best_floor),
        np.where(is_feasible, free[1], best_ceiling),
    )
