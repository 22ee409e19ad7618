"""Pilot-Commit: a few rollouts for many prompts, the rest for those in between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.controls.posterior import checked_outcomes
from apportion.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Triage:
    """What becomes of each prompt after its pilot; a prompt is exactly one of the three.

    Attributes:
        is_kept_B: gets the rest of its rollouts now and is trained on.
        is_evicted_B: solved; not sampled again.
        is_deferred_B: too hard or too easy for now; skipped until its next turn.
    """

    is_kept_B: NDArray[np.bool_]
    is_evicted_B: NDArray[np.bool_]
    is_deferred_B: NDArray[np.bool_]


def pilot_commit(
    num_correct_B: ArrayLike,
    num_rollouts_B: ArrayLike,
    *,
    lower: float = 0.25,
    upper: float = 0.25,
    solved: float = 1.0,
) -> Triage:
    """Keep a prompt if ``lower <= k/n <= 1 - upper``, evict it if ``k/n >= solved``.

    Args:
        num_correct_B: successes of each pilot (B).
        num_rollouts_B: rollouts of each pilot (B), at least 1.
        lower: rates below it are too hard. 0.25 in the released configuration, 0.125 in the README
            and the paper's main runs.
        upper: rates above one minus it are too easy.
        solved: rate from which a prompt is evicted, at least ``1 - upper``.

    Raises:
        InvalidInputError: thresholds outside [0, 1] or crossing.

    Source: Kim et al., "Spend your rollouts where it counts: rollout allocation for group-based RL
    post-training", arXiv:2605.26606, section 3.3, and its code.

    >>> pilot_commit([0, 2, 6, 7, 8], [8, 8, 8, 8, 8]).is_kept_B
    array([False,  True,  True, False, False])
    """
    total_B = validate.counts("num_rollouts_B", num_rollouts_B, at_least=1)
    correct_B, _ = checked_outcomes(num_correct_B, total_B, len(total_B))
    least, margin, done = validate.probability("thresholds", [lower, upper, solved]).tolist()
    if least > 1.0 - margin or done < 1.0 - margin:
        raise InvalidInputError(
            f"lower {least:g}, 1 - upper {1.0 - margin:g} and solved {done:g} must not fall."
        )
    rate_B = correct_B / total_B
    is_evicted_B = rate_B >= done
    is_kept_B = (least <= rate_B) & (rate_B <= 1.0 - margin) & ~is_evicted_B
    return Triage(is_kept_B, is_evicted_B, ~is_kept_B & ~is_evicted_B)
