"""Arms side by side: paired differences over seeds, and the rollouts to a level.

Arms that share seeds share prompts and budget, so differences are taken seed by seed: the spread
between seeds, usually larger than the effect, cancels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with a confidence interval; the bounds are NaN where one seed allows none."""

    mean: float
    low: float
    high: float
    num_seeds: int

    @property
    def is_above_zero(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low > 0.0

    @property
    def is_below_zero(self) -> bool:
        """Whether the whole interval lies below zero."""
        return self.high < 0.0


def paired_difference(arm_S: ArrayLike, base_S: ArrayLike, *, level: float = 0.95) -> Interval:
    """Student interval of the mean difference between two arms, paired by seed.

    ``d_s = arm_s - base_s;  mean(d) -+ t_{level, S-1} std(d) / sqrt(S)``

    Args:
        arm_S: result of the arm for each of S seeds.
        base_S: result of the arm that it is compared with, for the same seeds in the same order.
        level: coverage of the interval.

    Raises:
        InvalidInputError: lengths differ, no seed, values that are not finite, or `level` outside
            (0, 1).

    >>> paired_difference([0.3, 0.4], [0.2, 0.2]).mean
    0.15
    """
    _check_level(level)
    arm = validate.vector("arm_S", arm_S)
    base = validate.vector("base_S", base_S)
    if len(arm) != len(base) or not len(arm):
        raise InvalidInputError(
            f"Both arms need the same seeds, at least one, got {len(arm)} and {len(base)}."
        )
    difference_S = arm - base
    mean = float(difference_S.mean())
    if len(arm) == 1:
        return Interval(mean=mean, low=np.nan, high=np.nan, num_seeds=1)
    from scipy.stats import t

    error = float(difference_S.std(ddof=1)) / np.sqrt(len(arm))
    reach = float(t.ppf(0.5 + level / 2.0, len(arm) - 1)) * error
    return Interval(mean=mean, low=mean - reach, high=mean + reach, num_seeds=len(arm))


def compute_to_level(compute_T: ArrayLike, reward_T: ArrayLike, level: float) -> float:
    """Compute at which a learning curve first reaches a level, linearly interpolated.

    Args:
        compute_T: rollouts spent at each evaluation, increasing.
        reward_T: what was measured there.
        level: the level to reach.

    Returns:
        The compute, or infinity if the curve never reaches it.

    >>> compute_to_level([0, 100, 200], [0.1, 0.2, 0.4], 0.3)
    150.0
    """
    level = validate.number("level", level)
    compute = validate.vector("compute_T", compute_T)
    reward = validate.vector("reward_T", reward_T, size=len(compute))
    if (np.diff(compute) <= 0).any():
        raise InvalidInputError("compute_T must increase from one evaluation to the next.")
    reached_i = np.flatnonzero(reward >= level)
    if not reached_i.size:
        return float("inf")
    at = int(reached_i[0])
    if at == 0:
        return float(compute[0])
    share = (level - reward[at - 1]) / (reward[at] - reward[at - 1])
    return float(compute[at - 1] + share * (compute[at] - compute[at - 1]))


def share_of_compute(
    compute_T: ArrayLike,
    arm_ST: ArrayLike,
    base_ST: ArrayLike,
    *,
    num_resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Share of the base's rollouts that an arm needs to reach the base's final level.

    Taken on the mean curves over seeds; the interval resamples seeds (pairs stay together). Shares
    above 1 cannot be seen within the budget and stand as infinity.

    Args:
        compute_T: rollouts spent at each of T evaluations, the same for every run.
        arm_ST: curve of the arm for each of S seeds.
        base_ST: curve of the base for the same seeds.
        num_resamples: bootstrap resamples.
        level: coverage of the interval.
        seed: of the bootstrap.

    Raises:
        InvalidInputError: curves of another shape or not finite, no compute spent, or `level`
            outside (0, 1).

    >>> curve = [[0.0, 0.1, 0.2]]
    >>> share_of_compute([0, 10, 20], [[0.0, 0.2, 0.3]], curve).mean
    0.5
    """
    _check_level(level)
    num_resamples = validate.whole_number("num_resamples", num_resamples, at_least=1)
    arm = validate.numbers("arm_ST", arm_ST)
    base = validate.numbers("base_ST", base_ST)
    compute = validate.vector("compute_T", compute_T)
    if arm.shape != base.shape or arm.ndim != 2 or arm.shape[1] != len(compute):
        raise InvalidInputError(
            f"The curves need shape (seeds, {len(compute)}), got {arm.shape} and {base.shape}."
        )
    if not arm.size:
        raise InvalidInputError("The curves are empty. Give at least one seed and one evaluation.")
    for name, curve_ST in (("arm_ST", arm), ("base_ST", base)):
        validate.vector(name, curve_ST.ravel())
    if compute[-1] <= 0.0:
        raise InvalidInputError(
            f"compute_T ends at {compute[-1]:g}, but must end above 0: a share of it is asked for."
        )

    def share(index_S: np.ndarray) -> float:
        final = float(base[index_S].mean(axis=0)[-1])
        return compute_to_level(compute, arm[index_S].mean(axis=0), final) / float(compute[-1])

    num_seeds = len(arm)
    mean = share(np.arange(num_seeds))
    if num_seeds == 1:
        return Interval(mean=mean, low=np.nan, high=np.nan, num_seeds=1)
    rng = np.random.default_rng(seed)
    draws = [share(rng.integers(0, num_seeds, num_seeds)) for _ in range(num_resamples)]
    # Linear interpolation between a number and infinity is undefined: take order statistics.
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], method="nearest")
    return Interval(mean=mean, low=float(low), high=float(high), num_seeds=num_seeds)


def _check_level(level: float) -> None:
    if not 0.0 < validate.number("level", level) < 1.0:
        raise InvalidInputError(f"level is {level:g}, but must lie between 0 and 1.")
