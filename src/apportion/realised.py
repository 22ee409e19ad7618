"""What allocations were worth on recorded rewards: realised gradient variance, and the saving.

With s^2 the sample variance of a group's rewards, ``E[s^2] = Var(R)``: where a law is linear in
Var(R), ``V(n) = Var(R) c(n)``, the product ``s^2 c(n)`` is what n rollouts would have left, without
bias, as long as n was chosen before these rewards. Axes: G groups, S shares of uniform's budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from apportion.errors import InvalidInputError
from apportion.gradient_variance import LAWS
from apportion.recording import GroupTable
from apportion.types import Forecast
from apportion.validate import FloatArray, IntArray

LINEAR_LAWS = ("rloo", "dr_grpo")
_ONE_HALF = 0.25
_ROUNDING = 1e-9


def unit_variance(law: object) -> Callable[[IntArray], FloatArray]:
    """Return c(n), the gradient variance for rewards of variance 1.

    Raises:
        InvalidInputError: the law is not linear in Var(R), so single groups cannot score it.

    >>> unit_variance("rloo")(np.array([2, 5]))
    array([1.  , 0.25])
    """
    name = getattr(law, "name", law)
    if name not in LINEAR_LAWS:
        raise InvalidInputError(
            f"The law is {name!r}, but recorded groups can score {' and '.join(LINEAR_LAWS)} "
            "alone, which are linear in the variance of a reward. Replay with one of them."
        )
    known = LAWS[str(name)]

    def unit(num_G: IntArray) -> FloatArray:
        even = Forecast.of_success(np.full(len(num_G), 0.5))
        return np.asarray(known(even, num_G) / _ONE_HALF)

    return unit


def sample_variance(groups: GroupTable) -> FloatArray:
    """Return s^2 of each group (G), without bias for Var(R); NaN below two rewards.

    >>> from apportion.recording import table_of_counts
    >>> sample_variance(table_of_counts(["a", "b"], [0, 0], [2, 4], 4)).round(3)
    array([0.333, 0.   ])
    """
    num_G = groups.num_rollouts_G.astype(np.float64)
    many_G = num_G >= 2.0
    size_G = np.where(many_G, num_G, 2.0)
    square_G = groups.reward_sumsq_G - groups.reward_sum_G**2 / size_G
    # Groups that are constant up to float noise vary by nothing.
    variance_G = np.where(groups.signal_G, np.maximum(square_G, 0.0) / (size_G - 1.0), 0.0)
    return np.asarray(np.where(many_G, variance_G, np.nan))


def saving_of(share_S: Sequence[float], variance_S: FloatArray, level: float) -> float:
    """Return 1 - the share of the budget at which a falling variance reaches a level.

    ``log variance`` is interpolated in ``log share``. Where the rule is worse than uniform at the
    full budget, it would need as many times the rollouts as its variance is larger (variance falls
    about as 1 / budget): the saving is then negative. Where even the least share is enough, the
    saving is what that share leaves: more cannot be said.

    >>> saving_of([1.0, 0.5], np.array([1.0, 2.0]), 1.0)
    0.0
    >>> saving_of([1.0, 0.5], np.array([0.5, 1.0]), 1.0)
    0.5
    >>> saving_of([1.0, 0.5], np.array([1.5, 3.0]), 1.0)
    -0.5
    """
    if not level > 0.0 or not (variance_S > 0.0).all():
        return 0.0
    if variance_S[0] >= level * (1.0 - _ROUNDING):
        return min(1.0 - float(variance_S[0]) / level, 0.0) + 0.0
    log_S = np.log(np.maximum.accumulate(variance_S))
    return 1.0 - float(np.exp(np.interp(np.log(level), log_S, np.log(np.asarray(share_S)))))


def saving_interval(
    share_S: Sequence[float],
    variance_SG: FloatArray,
    even_G: FloatArray,
    prompt_G: IntArray,
    *,
    num_resamples: int = 400,
    seed: int = 0,
) -> tuple[float, float]:
    """Return a 95% interval of the saving: prompts are drawn anew, each with all its visits."""
    num_prompts = int(prompt_G.max()) + 1
    sums_SQ = np.array(
        [np.bincount(prompt_G, weights=row_G, minlength=num_prompts) for row_G in variance_SG]
    )
    even_Q = np.bincount(prompt_G, weights=even_G, minlength=num_prompts)
    random = np.random.default_rng(seed)
    savings = []
    for _ in range(num_resamples):
        times_Q = random.multinomial(num_prompts, np.full(num_prompts, 1.0 / num_prompts))
        savings.append(saving_of(share_S, sums_SQ @ times_Q, float(even_Q @ times_Q)))
    low, high = np.quantile(savings, [0.025, 0.975])
    return float(low), float(high)
