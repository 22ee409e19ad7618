"""Interference: problems that get worse while others get better, with sampling noise taken out.

Two samples of a problem differ by chance alone, so counting those that went down counts noise. Here
the joint distribution of success before and after is estimated from the counts of all problems, and
shares are read off it.

Axes: Q problems, G values of success.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.success_distribution import Estimate
from apportion.validate import FloatArray, IntArray

MARGIN = 0.1
"""Change of success that counts."""
UNSOLVED = 0.02
"""Success up to which a problem counts as not solved."""
_GRID = np.concatenate([[0.0, 0.005, 0.01, 0.02], np.linspace(0.05, 0.95, 19), [0.98, 0.995, 1.0]])
_STEPS = 300
_DRAWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """What happened to problems between two points of a run.

    Attributes:
        mean_change: of success; unbiased.
        change_sd: standard deviation of the change over problems, sampling noise taken out.
        improved: share whose success rose by more than `MARGIN`; intervals are over resampled
            problems.
        worsened: it fell by more.
        never_solved: success at most `UNSOLVED` at both points.
        seen_worsened: share whose observed rates fell by more than the margin: noise and all.
    """

    mean_change: float
    change_sd: float
    improved: Estimate
    worsened: Estimate
    never_solved: Estimate
    seen_worsened: float


def interference(
    num_success_before_Q: ArrayLike,
    num_samples_before: int,
    num_success_after_Q: ArrayLike,
    num_samples_after: int,
    *,
    seed: int = 0,
) -> Interference:
    """Compare the success of problems at two points of a run.

    The joint distribution maximises ``sum_q log sum_gh w_gh Bin(s_q; k, p_g) Bin(t_q; l, p_h)`` by
    expectation maximisation, started from all of it on a ridge around no change.

    Args:
        num_success_before_Q: successes of each problem at the first point.
        num_samples_before: k, samples of each problem there.
        num_success_after_Q: successes of the same problems at the second.
        num_samples_after: l.
        seed: of the resampling of problems.

    Raises:
        InvalidInputError: no problems, lengths differ, fewer than two samples, or more successes
            than samples.

    >>> found = interference([0, 0, 8, 8] * 50, 16, [0, 0, 16, 0] * 50, 16)
    >>> round(found.improved.value, 2), round(found.worsened.value, 2)
    (0.25, 0.25)

    Source: IsoCompute Playbook, section 4.4, which shows histograms and gives no index.
    """
    before = validate.counts("num_success_before_Q", num_success_before_Q)
    after = validate.counts("num_success_after_Q", num_success_after_Q, size=len(before))
    k = validate.whole_number("num_samples_before", num_samples_before, at_least=2)
    m = validate.whole_number("num_samples_after", num_samples_after, at_least=2)
    if not len(before):
        raise InvalidInputError("There are no problems to compare.")
    for name, success_Q, num in (("before", before, k), ("after", after, m)):
        if success_Q.max() > num:
            raise InvalidInputError(
                f"num_success_{name}_Q holds {success_Q.max()}, but there were {num} samples."
            )
    change_Q = after / m - before / k
    noise = _sampling_variance(before, k) + _sampling_variance(after, m)
    rng = np.random.default_rng(seed)
    share_D3 = np.array(
        [
            _shares(before[row_Q], k, after[row_Q], m)
            for row_Q in rng.integers(0, len(before), (_DRAWS, len(before)))
        ]
    )
    value_3 = _shares(before, k, after, m)
    low_3, high_3 = np.quantile(share_D3, [0.025, 0.975], axis=0)
    improved, worsened, never = (
        Estimate(value=float(v), low=float(min(a, v)), high=float(max(b, v)))
        for v, a, b in zip(value_3, low_3, high_3, strict=True)
    )
    return Interference(
        mean_change=float(change_Q.mean()),
        change_sd=float(np.sqrt(max(change_Q.var() - noise, 0.0))),
        improved=improved,
        worsened=worsened,
        never_solved=never,
        seen_worsened=float(np.mean(change_Q < -MARGIN)),
    )


def _sampling_variance(success_Q: IntArray, num: int) -> float:
    """Return the mean variance of observed rates by sampling alone, unbiased."""
    rate_Q = success_Q / num
    return float(np.mean(rate_Q * (1.0 - rate_Q)) / (num - 1))


def _shares(before_Q: IntArray, k: int, after_Q: IntArray, m: int) -> FloatArray:
    """Return the shares that improved, worsened and were never solved."""
    weight_GG = _joint(before_Q, k, after_Q, m)
    change_GG = _GRID[None, :] - _GRID[:, None]
    is_unsolved = (_GRID[:, None] <= UNSOLVED) & (_GRID[None, :] <= UNSOLVED)
    regions = (change_GG > MARGIN + 1e-9, change_GG < -MARGIN - 1e-9, is_unsolved)
    return np.array([weight_GG[region].sum() for region in regions])


def _joint(before_Q: IntArray, k: int, after_Q: IntArray, m: int) -> FloatArray:
    """Return the weights of success before and after that make the counts most likely."""
    pair_U, num_U = np.unique(np.stack([before_Q, after_Q], 1), axis=0, return_counts=True)
    first_UG = _likelihood(pair_U[:, 0], k)
    second_UG = _likelihood(pair_U[:, 1], m)
    ridge = np.exp(-np.abs(_GRID[:, None] - _GRID[None, :]) / MARGIN)
    weight_GG: FloatArray = ridge / ridge.sum()
    for _ in range(_STEPS):
        chance_U = np.einsum("ug,gh,uh->u", first_UG, weight_GG, second_UG, optimize=True)
        weight_GG = weight_GG * (first_UG.T @ ((num_U / chance_U)[:, None] * second_UG))
        weight_GG /= weight_GG.sum()
    return weight_GG


def _likelihood(success_U: IntArray, num: int) -> FloatArray:
    from scipy.stats import binom

    return np.asarray(binom.pmf(success_U[:, None], num, _GRID[None, :]), dtype=np.float64)
