"""The share of groups without signal at other n, with intervals for all that counts leave open.

Axes: K counts of successes in n rollouts, J points on the grid of p, C cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.success_distribution import Estimate, SuccessDistribution, binomial, widened
from apportion.validate import FloatArray

_HALF_CHI_SQUARE = 1.9207294103470292
"""Half of the 95% point of chi-square with one degree of freedom."""
_MOST_CUTS = 60
_NEAR = 2e-3
_SOLVER_NOISE = 1e-6
_NUM_HALVINGS = 40


def shares_without_signal(
    distribution: SuccessDistribution, sizes: Sequence[int]
) -> tuple[Estimate, ...]:
    """Return the share of groups of each n that would be all right or all wrong.

    ``E[p^n + (1-p)^n]``. The interval holds its values over `LikelyMixtures`, and those over the
    mixtures with the fitted moments, moved outwards by what resampling the prompts says. The
    second alone is too narrow at large n: the moments of a fit often leave one mixture only.

    Args:
        distribution: of success, from `fit_success`.
        sizes: n.

    >>> from apportion.success_distribution import fit_success
    >>> (share,) = shares_without_signal(fit_success([4, 4], [8, 8], [0, 1], num_draws=0), [2])
    >>> share.low < 0.5 < share.value < 0.55 < share.high
    True
    """
    likely = LikelyMixtures(distribution)
    shares = []
    for size in sizes:
        value_J = distribution.success_J**size + (1.0 - distribution.success_J) ** size
        value = float(distribution.weight_J @ value_J)
        drawn = widened(value, distribution.weight_DJ @ value_J, distribution.range_of(value_J))
        low, high = likely.least(value_J), -likely.least(-value_J)
        shares.append(
            Estimate(
                value=value,
                low=max(min(drawn.low, low), 0.0),
                high=min(max(drawn.high, high), 1.0),
            )
        )
    return tuple(shares)


class LikelyMixtures:
    """Mixtures of binomials that a likelihood ratio test at 5% does not tell from the fit.

    ``sum_k q_k log(q_k / (chance w)_k) <= 1.92 / G``, q the fitted chances of the counts, G the
    groups as if they were independent. The set is convex; a linear programme over cuts that touch
    it gives ends that are never too narrow. The cuts serve every value.

    Source: cuts at the boundary of a convex set: Veinott, 1967.
    """

    def __init__(self, distribution: SuccessDistribution) -> None:
        """Take the fit, and the counts of groups of `num_moments` rollouts."""
        count_K = np.arange(distribution.num_moments + 1)
        chance_KJ = binomial(
            count_K, np.full_like(count_K, distribution.num_moments), distribution.success_J
        )
        fitted_K = chance_KJ @ distribution.weight_J
        kept_K = fitted_K > 1e-12
        self._weight_J = distribution.weight_J
        self._chance_KJ = chance_KJ[kept_K]
        self._fitted_K = fitted_K[kept_K]
        self._limit = _HALF_CHI_SQUARE / distribution.num_independent
        self._cut_CJ: list[FloatArray] = []

    def least(self, value_J: FloatArray) -> float:
        """Return the least E[value(p)], at most 0.002 too low."""
        from scipy.optimize import linprog

        middle = float(self._weight_J @ value_J)
        low = float(value_J.min())
        for _ in range(_MOST_CUTS):
            # The first row binds nothing: it stands for no cuts.
            rows_CJ = -np.stack([np.zeros_like(value_J), *self._cut_CJ])
            best = linprog(
                value_J,
                A_ub=rows_CJ,
                b_ub=-np.append(0.0, np.ones(len(self._cut_CJ))),
                A_eq=np.ones((1, len(value_J))),
                b_eq=[1.0],
                bounds=(0, None),
                options={"presolve": False},  # slower than what it saves here
            )
            if best.x is None:
                break
            low = float(value_J @ best.x)
            share, touched_K = self._boundary(self._chance_KJ @ best.x)
            if (1.0 - share) * (middle - low) <= _NEAR:
                break
            self._cut_CJ.append((self._fitted_K / touched_K) @ self._chance_KJ)
        return min(low, middle) - _SOLVER_NOISE

    def _boundary(self, chance_K: FloatArray) -> tuple[float, FloatArray]:
        """Return how far from the fit towards these chances the set reaches, and the point."""
        step_K = chance_K - self._fitted_K
        if self._is_likely(chance_K):
            return 1.0, chance_K
        inner, outer = 0.0, 1.0
        for _ in range(_NUM_HALVINGS):
            middle = (inner + outer) / 2.0
            if self._is_likely(self._fitted_K + middle * step_K):
                inner = middle
            else:
                outer = middle
        return inner, self._fitted_K + inner * step_K

    def _is_likely(self, chance_K: FloatArray) -> bool:
        if (chance_K <= 0.0).any():
            return False
        apart = float(self._fitted_K @ np.log(self._fitted_K / chance_K))
        return apart <= self._limit
