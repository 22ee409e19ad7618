"""What an allocator makes of outcomes before it learns: rewards on [0, 1], one group a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.types import Outcomes
from apportion.validate import IntArray

_RANGE_SLACK = 1e-6
_WIDEST, _NARROWEST = 1e100, 1e-100
"""Limits of the reward range, so that squares of rewards stay within floats."""


def checked_range(reward_range: tuple[float, float]) -> tuple[float, float]:
    """Return the lowest and the highest possible reward.

    Raises:
        InvalidInputError: not two finite numbers, the first below the second.
    """
    ends = validate.numbers("reward_range", reward_range)
    if ends.shape != (2,):
        raise InvalidInputError(
            f"reward_range has shape {ends.shape}, but must be the lowest and the highest reward."
        )
    low, high = ends.tolist()
    if not (np.abs(ends) <= _WIDEST).all() or not high - low >= _NARROWEST:
        raise InvalidInputError(
            f"reward_range is ({low:g}, {high:g}), but must be two finite numbers, the first below "
            "the second. Bound your rewards."
        )
    return low, high


def rescaled(
    outcomes: Outcomes, reward_range: tuple[float, float]
) -> tuple[Outcomes, float | None]:
    """Map rewards to [0, 1], ``(r - low) / (high - low)``; sums beyond are clipped.

    Returns:
        The outcomes, and the first group's mean reward that lies outside the range, if one does.
    """
    low, high = reward_range
    width = high - low
    count = outcomes.num_rollouts_B.astype(np.float64)
    total = (outcomes.reward_sum_B - low * count) / width
    square = outcomes.reward_sumsq_B - 2.0 * low * outcomes.reward_sum_B + low**2 * count
    inside = np.clip(total, 0.0, count)
    far = np.abs(total - inside) > _RANGE_SLACK * count
    outside = None
    if far.any():
        at = int(np.flatnonzero(far)[0])
        outside = float(outcomes.reward_sum_B[at] / count[at])
    return replace(outcomes, reward_sum_B=inside, reward_sumsq_B=square / width**2), outside


def are_two_values(outcomes: Outcomes) -> bool:
    """Return whether rewards on [0, 1] are all 0 or 1, for which ``sum r = sum r^2``.

    >>> are_two_values(Outcomes.of_rewards(["a"], [0.0, 1.0], [0, 0], step=0))
    True
    >>> are_two_values(Outcomes.of_rewards(["a"], [0.5, 1.0], [0, 0], step=0))
    False
    """
    between_B = np.abs(outcomes.reward_sum_B - outcomes.reward_sumsq_B)
    return bool((between_B <= _RANGE_SLACK * outcomes.num_rollouts_B).all())


def by_policy_step(row_B: IntArray, outcomes: Outcomes) -> Iterator[tuple[IntArray, Outcomes]]:
    """Yield the groups of each policy step in order, those of one prompt merged.

    Args:
        row_B: of each group's prompt in the allocator's table.
        outcomes: the groups.
    """
    for policy_step in np.unique(outcomes.policy_step_B):
        index = np.flatnonzero(outcomes.policy_step_B == policy_step)
        row, first, place = np.unique(row_B[index], return_index=True, return_inverse=True)
        part = outcomes.take(index)
        if len(row) == len(index):
            yield row_B[index], part
            continue

        def summed(values: NDArray[Any], place: IntArray = place) -> NDArray[Any]:
            return np.bincount(place, weights=values).astype(values.dtype)

        yield (
            row,
            Outcomes(
                prompt_B=part.prompt_B[first],
                num_requested_B=summed(part.num_requested_B),
                num_rollouts_B=summed(part.num_rollouts_B),
                reward_sum_B=summed(part.reward_sum_B),
                reward_sumsq_B=summed(part.reward_sumsq_B),
                num_tokens_B=summed(part.num_tokens_B),
                num_truncated_B=summed(part.num_truncated_B),
                step=part.step,
                policy_step_B=part.policy_step_B[first],
            ),
        )
