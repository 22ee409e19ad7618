"""The policy gradient of groups that are counted, not listed.

A group of n rollouts is the number of times that each mode was drawn. With 0/1 rewards and any
advantage that sums to 0 over the group, ``sum_j A_j (onehot(mode_j) - policy)`` has no policy term
left, so that in the logits of the problem

    ``g_k = w c_k / n ([k is correct] - r)``,    r = c_correct / n,

with a weight w by the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.advantage import EPSILON
from apportion.simulation.training import Estimator
from apportion.validate import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """The sizes of the groups of a step, and what follows from them.

    The weights are those of `apportion.advantage.prompt_weight`, so that every prompt that was
    sampled has the same say: n/(n-1) for "rloo", (G-1)/G n/(n-1) for the others, G the mean size.
    On equal groups the latter is 1.

    Attributes:
        num_RB: rollouts of each prompt; (1, 1) if all are equal.
        weight_RB: weight of each group in the mean over the prompts sampled; 0 below two rollouts.
        bessel_RB: n/(n-1); 0 below two rollouts.
        num_sampled_R1: prompts that were sampled.
        estimator: of the gradient.
    """

    num_RB: IntArray
    weight_RB: FloatArray
    bessel_RB: FloatArray
    num_sampled_R1: FloatArray
    estimator: Estimator

    @classmethod
    def of(cls, num_RB: IntArray, prompts_per_step: int, estimator: Estimator) -> Groups:
        """Weigh groups of these sizes."""
        was_sampled_RB = num_RB > 0
        num_sampled_R1 = was_sampled_RB.mean(axis=1, keepdims=True) * prompts_per_step
        mean_size_R1 = num_RB.mean(axis=1, keepdims=True) * prompts_per_step / num_sampled_R1
        bessel_RB = np.where(num_RB > 1, num_RB / np.maximum(num_RB - 1.0, 1.0), 0.0)
        weight_RB = bessel_RB / num_sampled_R1
        if estimator != "rloo":
            weight_RB = weight_RB * (1.0 - 1.0 / mean_size_R1)
        return cls(
            num_RB=num_RB,
            weight_RB=weight_RB,
            bessel_RB=bessel_RB,
            num_sampled_R1=num_sampled_R1,
            estimator=estimator,
        )


def group_gradient(
    count_RBK: IntArray, correct_RB: IntArray, groups: Groups
) -> tuple[FloatArray, FloatArray]:
    """Return the gradient of the mean success of a step in each problem's logits, and the rewards.

    Args:
        count_RBK: how often each mode was drawn.
        correct_RB: place of each correct mode in the flattened counts.
        groups: sizes and weights.

    Returns:
        gradient_RBK, which sums to the step's gradient over B; mean reward_RB of each group, 0
        where nothing was drawn.

    >>> groups = Groups.of(np.array([[4]]), 1, "rloo")
    >>> gradient_RBK, reward_RB = group_gradient(np.array([[[1, 3]]]), np.array([[0]]), groups)
    >>> gradient_RBK, reward_RB
    (array([[[ 0.25, -0.25]]]), array([[0.25]]))
    """
    share_RBK = np.divide(count_RBK, np.maximum(groups.num_RB, 1)[..., None], order="C")
    reward_RB = share_RBK.reshape(-1)[correct_RB]
    weight_RB = groups.weight_RB
    if groups.estimator == "grpo":
        std_RB = np.sqrt(reward_RB * (1.0 - reward_RB) * groups.bessel_RB)
        weight_RB = weight_RB / (std_RB + EPSILON)
    share_RBK *= (-weight_RB * reward_RB)[..., None]
    share_RBK.reshape(-1)[correct_RB] = weight_RB * (reward_RB * (1.0 - reward_RB))
    return share_RBK, reward_RB
