"""DAPO's dynamic sampling: keep the groups that have both right and wrong rollouts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.controls.posterior import checked_outcomes


def dapo(
    num_correct_B: ArrayLike, num_rollouts_B: ArrayLike, num_prompts: int
) -> NDArray[np.bool_]:
    """Keep the first `num_prompts` groups with ``0 < correct < n``.

    Args:
        num_correct_B: successes of each candidate (B).
        num_rollouts_B: its rollouts (B).
        num_prompts: size of the training batch.

    Returns:
        Mask of the groups to train on (B); fewer than `num_prompts` if there are no more.

    Source: Yu et al., "DAPO: an open-source LLM reinforcement learning system at scale",
    arXiv:2503.14476, section 3.2.

    >>> dapo([0, 2, 8, 7, 1], [8, 8, 8, 8, 8], 2)
    array([False,  True, False,  True, False])
    """
    total_B = validate.counts("num_rollouts_B", num_rollouts_B)
    correct_B, failed_B = checked_outcomes(num_correct_B, total_B, len(total_B))
    num = validate.whole_number("num_prompts", num_prompts, at_least=1)
    is_mixed_B = (correct_B > 0.0) & (failed_B > 0.0)
    return is_mixed_B & (np.cumsum(is_mixed_B) <= num)
