"""The compute frontier: the best reward attained with C rollouts, and the n that attains it.

``f(C) = max_{j : C_j <= C} R_j`` over points; over fitted curves, their upper envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.learning_curve import LearningCurve
from apportion.validate import FloatArray, IntArray

RewardOf = Callable[[FloatArray | float], FloatArray]
NUM_LEVELS = 400
"""Levels of compute, evenly spaced in its logarithm, at which an envelope is drawn."""
REACH = 1.25
"""A curve is trusted to go on as fitted up to this many times its last point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where the frontier passes from one curve to another.

    Attributes:
        compute: rollouts.
        reward: of both curves there.
        leaving: number of the curve that was best before.
        entering: number of the curve that is best from here on.
    """

    compute: float
    reward: float
    leaving: int
    entering: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Upper envelope of curves.

    Attributes:
        compute_K: rollouts, rising.
        reward_K: of the best curve there.
        curve_K: number of that curve.
        is_observed_K: whether that curve was observed at this compute, not extrapolated to it.
        crossovers: in order of compute.
        start_S: rollouts from which each curve counts.
    """

    compute_K: FloatArray
    reward_K: FloatArray
    curve_K: IntArray
    is_observed_K: np.ndarray
    crossovers: tuple[Crossover, ...]
    start_S: FloatArray


def record_points(compute_N: ArrayLike, reward_N: ArrayLike, *, bin_width: float = 0.0) -> IntArray:
    """Return the positions of the record-breaking points, in order of compute.

    ``i`` breaks the record if ``R_i > max_{j : C_j < C_i} R_j``; with bins, if it is the first to
    reach its bin of reward. Of several at one compute only the best can.

    Args:
        compute_N: rollouts of each evaluation, of all runs together.
        reward_N: reward there.
        bin_width: width of the bins that rewards are put into first; 0 for none.

    >>> record_points([1, 2, 3, 4], [0.1, 0.3, 0.2, 0.4])
    array([0, 1, 3])

    Source: IsoCompute Playbook, definition of record-breaking points.
    """
    compute = validate.vector("compute_N", compute_N)
    reward = validate.vector("reward_N", reward_N, size=len(compute))
    if validate.number("bin_width", bin_width) < 0.0:
        raise InvalidInputError(f"bin_width is {bin_width}, but must be 0 or more.")
    if not len(compute):
        return np.empty(0, dtype=np.int64)
    # A billionth of a bin keeps 0.3 / 0.1 in the bin that it belongs to.
    level = np.floor(reward / bin_width + 1e-9) if bin_width else reward
    order = np.lexsort((-reward, compute))
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(level[order])[:-1]])
    return order[level[order] > best_before].astype(np.int64)


def frontier(
    curves: Sequence[LearningCurve],
    size_S: ArrayLike,
    *,
    low: float | None = None,
    high: float | None = None,
    num_levels: int = NUM_LEVELS,
    extrapolate: bool = False,
) -> Frontier:
    """Return the upper envelope of fitted curves.

    A curve counts from where it was observed, or from where it last rises above the curves of
    smaller n if that is earlier: fitted curves may also cross far below their first point, where
    nothing was measured. A little after its last point it is held at what it has attained, which a
    run of more budget has as well.

    Args:
        curves: S fitted curves.
        size_S: n of each, by which they are put in order.
        low: rollouts to begin at; the first observed if None.
        high: rollouts to end at; the last observed if None.
        num_levels: levels of compute between them, evenly spaced in its logarithm.
        extrapolate: whether curves go on to rise as they were fitted instead.

    >>> slow, fast = (
    ...     LearningCurve.exponential(
    ...         ceiling=a, loss=a, rate=k, observed_from=1e3, observed_to=1e6
    ...     )
    ...     for a, k in [(0.8, 2e-6), (0.5, 8e-6)]
    ... )
    >>> [round(x.compute) for x in frontier([fast, slow], [8, 64]).crossovers]
    [471619]

    Source: IsoCompute Playbook, compute-optimal frontier.
    """
    size = validate.vector("size_S", size_S, size=len(curves))
    if not len(curves):
        raise InvalidInputError("A frontier needs at least one curve.")
    low = min(max(c.observed_from, 1.0) for c in curves) if low is None else low
    high = max(c.observed_to for c in curves) if high is None else high
    if not 0.0 < low <= high:
        raise InvalidInputError(f"low is {low:g} and high {high:g}, but 0 < low <= high must hold.")
    compute_K = np.geomspace(low, high, num_levels if low < high else 1)
    reach = np.inf if extrapolate else REACH
    reward_of = [_held(curve, reach) for curve in curves]
    reward_SK = np.stack([reward(compute_K) for reward in reward_of])
    start_S = _starts(curves, size, compute_K)
    counting_SK = np.where(compute_K >= start_S[:, None], reward_SK, -np.inf)
    order = np.argsort(size, kind="stable")
    curve_K = order[counting_SK[order].argmax(0)]
    reward_K = counting_SK[curve_K, np.arange(len(compute_K))]
    seen = np.array([(c.observed_from, c.observed_to) for c in curves])[curve_K]
    is_some_K = np.isfinite(reward_K)
    return Frontier(
        compute_K=compute_K[is_some_K],
        reward_K=reward_K[is_some_K],
        curve_K=curve_K[is_some_K],
        is_observed_K=((seen[:, 0] <= compute_K) & (compute_K <= seen[:, 1]))[is_some_K],
        crossovers=tuple(_crossovers(reward_of, compute_K[is_some_K], curve_K[is_some_K])),
        start_S=start_S,
    )


def _starts(
    curves: Sequence[LearningCurve], size_S: FloatArray, compute_K: FloatArray
) -> FloatArray:
    """Return the rollouts from which each curve counts."""
    start_S = np.array([curve.observed_from for curve in curves])
    below_K = np.full(len(compute_K), -np.inf)
    for number in np.argsort(size_S, kind="stable"):
        reward_K = curves[number](compute_K)
        is_above_K = reward_K > below_K
        rises = np.flatnonzero(~is_above_K[:-1] & is_above_K[1:])
        if len(rises):
            start_S[number] = min(start_S[number], compute_K[rises[-1]])
        counts_K = compute_K >= start_S[number]
        below_K = np.where(counts_K, np.maximum(below_K, reward_K), below_K)
    return start_S


def _held(curve: LearningCurve, reach: float) -> RewardOf:
    """Return a curve that is flat from `reach` times its last point on."""
    return lambda compute: curve(np.minimum(compute, reach * curve.observed_to))


def _crossovers(
    curves: Sequence[Callable[[FloatArray | float], FloatArray]],
    compute_K: FloatArray,
    curve_K: IntArray,
) -> list[Crossover]:
    from scipy.optimize import brentq

    found = []
    for k in np.flatnonzero(np.diff(curve_K)):
        leaving, entering = int(curve_K[k]), int(curve_K[k + 1])

        def lead(log_compute: float, old: int = leaving, new: int = entering) -> float:
            at = np.exp(log_compute)
            return float(curves[new](at) - curves[old](at))

        before, after = np.log(compute_K[k]), np.log(compute_K[k + 1])
        if lead(before) < 0.0 < lead(after):
            at = float(np.exp(brentq(lead, before, after)))
        else:  # the curve begins here, or equals the other
            at = float(compute_K[k + 1])
        found.append(
            Crossover(
                compute=at, reward=float(curves[entering](at)), leaving=leaving, entering=entering
            )
        )
    return found
