"""Peers that decide from what one step shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from apportion import controls
from apportion.embedded.peers.placing import placed
from apportion.validate import IntArray

if TYPE_CHECKING:
    from apportion.embedded.step import Step


def uniform(step: Step) -> IntArray:
    """Give every prompt of the batch the same (GRPO, Shao et al., 2024)."""
    return placed(len(step), slice(step.prompts_per_step), step.rollouts_per_prompt)


def dapo(step: Step) -> None:
    """Draw groups from fresh candidates until enough are mixed; train on those.

    Candidates come a batch at a time until `prompts_per_step` groups are mixed, the candidates run
    out, or the run cannot pay for another round; groups beyond that number are dropped. All are
    charged, so a step costs up to the candidates times the group size. Published runs generate
    three batches at once, which costs more.

    Source: DAPO, Yu et al., arXiv:2503.14476, dynamic sampling.
    """
    size, group = step.prompts_per_step, step.rollouts_per_prompt
    is_kept_B = np.zeros(len(step), dtype=bool)
    for start in range(0, len(step), size):
        at = np.arange(start, min(start + size, len(step)))
        if start > 0 and step.num_left < group * len(at):
            break
        step.draw(placed(len(step), at, group))
        is_kept_B = controls.dapo(step.num_correct_B, step.num_rollouts_B, size)
        if is_kept_B.sum() == size:
            break
    step.keep(is_kept_B)


def gvm(step: Step) -> IntArray:
    """Measure acceptance and gradient norms in a pilot on the batch, then give what is left.

    The pilot takes half the rollouts per prompt (at least 2), as in the released script, where both
    stages sample 8 a prompt; here it is inside the budget and trained on. The published norm is
    over accepted rollouts and the allocation is renewed once for thousands of prompts; here it is
    over all pilot rollouts and renewed every step.

    Source: GVM-RAFT, Yao et al., arXiv:2505.02391.
    """
    size, group = step.prompts_per_step, step.rollouts_per_prompt
    pilot = min(max(2, group // 2), group)
    correct_B = step.draw(placed(len(step), slice(size), pilot))[:size]
    rest = step.budget - pilot * size
    num_B = controls.gvm(correct_B / pilot, step.score_norm_B()[:size], rest)
    return placed(len(step), slice(size), num_B)


def equal_n(step: Step) -> IntArray:
    """Give the candidates of the largest expected reward variance a full group each.

    Source: ours; a control on the forecast that the loop's belief makes.
    """
    return controls.equal_n(step.forecast.reward_var_B, step.prompts_per_step, step.budget)


def proportional(step: Step) -> IntArray:
    """Give in proportion to the expected reward variance, none below 2 rollouts.

    Source: ours; a control on the forecast that the loop's belief makes.
    """
    return controls.proportional(step.forecast.reward_var_B, step.budget, lower=2)
