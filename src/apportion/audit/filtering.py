"""Whether groups without signal were thrown away before they were recorded.

A trainer that samples until enough groups have signal records only those. Chance does not make
such a record: a mixture of binomial counts that often has 1 of n right must sometimes have none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.success_distribution import NUM_POINTS, binomial, fit_weights, grid
from apportion.validate import IntArray

_UNLIKELY = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtering:
    """What is missing from a record.

    Attributes:
        found: whether groups without signal are missing beyond chance.
        chance: probability of so few all-wrong, or so few all-right, groups under the best
            fit, whichever is smaller.
        share_before: share of groups without signal before they were thrown away, if all were;
            0 where nothing is missing. Rough: what hardly ever has signal leaves no trace.
    """

    found: bool
    chance: float
    share_before: float


def find_filtering(
    num_success_G: ArrayLike, num_rollouts_G: ArrayLike, *, all_wrong: float, all_right: float
) -> Filtering:
    """Test whether all-wrong or all-right groups are missing, given how the others are spread.

    ``P(X <= x)``, X binomial: the share that the fitted distribution expects, among all groups.
    The distribution is fitted to the same counts, so a record that is a mixture passes.

    Args:
        num_success_G: successes of each group.
        num_rollouts_G: scored rollouts of each group, at least 2.
        all_wrong: share of all-wrong groups under the fit, from `fit_success`.
        all_right: share of all-right groups under the fit.

    >>> found = find_filtering([1, 1, 1] * 50, [2] * 150, all_wrong=0.25, all_right=0.25)
    >>> found.found, found.share_before > 0.4
    (True, True)
    """
    from scipy.stats import binom

    num_G = validate.counts("num_rollouts_G", num_rollouts_G, at_least=2)
    success_G = validate.counts("num_success_G", num_success_G, size=len(num_G))
    wrong, right = int((success_G == 0).sum()), int((success_G == num_G).sum())
    chance = min(
        float(binom.cdf(wrong, len(num_G), all_wrong)),
        float(binom.cdf(right, len(num_G), all_right)),
    )
    found = chance < _UNLIKELY
    return Filtering(
        found=found, chance=chance, share_before=_share_before(success_G, num_G) if found else 0.0
    )


def _share_before(success_G: IntArray, num_G: IntArray) -> float:
    """Fit truncated binomials ``P(k | n, p) / (1 - p^n - (1-p)^n)`` to the groups with signal.

    Of those drawn at p, one in ``1 - p^n - (1-p)^n`` is kept. Where fewer than half a success (or
    failure) is expected that share is too small to turn around, so the grid ends there.
    """
    kept_G = (success_G > 0) & (success_G < num_G)
    size = int(np.median(num_G[kept_G])) if kept_G.any() else 2
    count_K = np.bincount(success_G[kept_G & (num_G == size)], minlength=size + 1)[1:size]
    if not count_K.sum():
        return 0.0
    grid_J = grid(NUM_POINTS)
    grid_J = grid_J[(grid_J >= 0.5 / size) & (grid_J <= 1.0 - 0.5 / size)]
    kept_J = 1.0 - grid_J**size - (1.0 - grid_J) ** size
    k_K = np.arange(1, size)
    chance_KJ = binomial(k_K, np.full_like(k_K, size), grid_J) / kept_J
    weight_J = fit_weights(chance_KJ, count_K[None].astype(np.float64))[0]
    return float(1.0 - 1.0 / (weight_J @ (1.0 / kept_J)))
