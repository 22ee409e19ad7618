"""Group-relative advantages over unequal groups, and the weights that keep the objective.

Rewards are flat, ``group_N`` says which prompt each rollout belongs to. A NaN reward was not
scored: it counts in no mean and no size, and its advantage is 0. A group with one scored rollout
has nothing to be compared with: its advantage is 0 as well, never the raw reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray, IntArray

Scale = Literal["group", "batch", "none"]
Weighting = Literal["prompt", "rollout"]
Centring = Literal["leave_one_out", "mean"]

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as in TRL."""


def rloo(reward_N: ArrayLike, group_N: ArrayLike) -> FloatArray:
    """Reward minus the mean of the others in its group.

    ``A_j = r_j - sum_{k != j} r_k / (n - 1)``, whose expected gradient is free of n. Kool, van
    Hoof and Welling, *Buy 4 REINFORCE samples, get a baseline for free!*, 2019.

    Args:
        reward_N: one reward a rollout; NaN where it was not scored.
        group_N: group of each rollout, any whole numbers.

    Returns:
        advantage_N.

    Raises:
        InvalidInputError: the arrays disagree in length, or a group is not a whole number.

    >>> rloo([1, 0, 0, 1, 1], [0, 0, 0, 1, 1])
    array([ 1. , -0.5, -0.5,  0. ,  0. ])
    """
    batch = _Batch.of(reward_N, group_N)
    size_N = batch.size_B[batch.group_N]
    factor_N = np.divide(size_N, size_N - 1.0, where=size_N > 1, out=np.zeros(len(size_N)))
    return np.where(batch.scored_N, batch.centred_N * factor_N, 0.0)


def grpo(
    reward_N: ArrayLike,
    group_N: ArrayLike,
    *,
    scale: Scale = "group",
    weighting: Weighting = "prompt",
    epsilon: float = EPSILON,
) -> FloatArray:
    """Reward minus the mean of its group, over a standard deviation.

    ``A_j = (r_j - mean) / (std + epsilon)``, with Bessel's correction. The batch's deviation is
    taken with ``weighting="prompt"`` such that its square has the expectation that equal groups
    would give it, whatever the sizes. Shao et al., *DeepSeekMath*, 2024, equation 20.

    Args:
        reward_N: one reward a rollout; NaN where it was not scored.
        group_N: group of each rollout, any whole numbers.
        scale: divide by the deviation of the group, of the batch, or not at all.
        weighting: for the batch's deviation, let every prompt or every rollout count the same.
        epsilon: added to the deviation.

    Returns:
        advantage_N, to be multiplied by `prompt_weight` with ``centring="mean"``.

    Raises:
        InvalidInputError: the arrays disagree in length, a group is not a whole number, or a name
            is unknown.

    >>> grpo([1, 0, 0, 0], [0, 0, 0, 0], epsilon=0)
    array([ 1.5, -0.5, -0.5, -0.5])
    """
    validate.choice("scale", scale, ["group", "batch", "none"])
    validate.choice("weighting", weighting, ["prompt", "rollout"])
    batch = _Batch.of(reward_N, group_N)
    if scale == "none":
        return batch.centred_N
    if scale == "group":
        std_N = np.sqrt(batch.var_B)[batch.group_N]
    else:
        std_N = np.full(len(batch.centred_N), batch.std(weighting))
    defined = np.isfinite(std_N) & (std_N + epsilon > 0.0)
    return np.divide(
        batch.centred_N, std_N + epsilon, where=defined, out=np.zeros(len(batch.centred_N))
    )


def dr_grpo(reward_N: ArrayLike, group_N: ArrayLike) -> FloatArray:
    """Reward minus the mean of its group.

    ``A_j = r_j - mean``. Liu et al., *Understanding R1-Zero-like training*, 2025, section 3.

    Args:
        reward_N: one reward a rollout; NaN where it was not scored.
        group_N: group of each rollout, any whole numbers.

    Returns:
        advantage_N, to be multiplied by `prompt_weight` with ``centring="mean"``.

    Raises:
        InvalidInputError: the arrays disagree in length, or a group is not a whole number.

    >>> dr_grpo([1, 0, 0, 1], [0, 0, 0, 0])
    array([ 0.5, -0.5, -0.5,  0.5])
    """
    return _Batch.of(reward_N, group_N).centred_N


def prompt_weight(
    group_N: ArrayLike,
    *,
    centring: Centring = "leave_one_out",
    mean_group_size: float | None = None,
    scored_N: ArrayLike | None = None,
) -> FloatArray:
    """Weight of each rollout that gives every prompt the say it has under equal groups.

    ``G / n_i`` on leave-one-out advantages, ``(G - 1) / (n_i - 1)`` on mean-centred ones, where n_i
    counts the scored rollouts of the prompt and G those of all prompts over the prompts asked for.
    Averaged over rollouts, the expected gradient is then the one of equal groups of G.

    Args:
        group_N: group of each rollout, any whole numbers; a prompt without any rollout is unknown
            here, one without a scored rollout still counts as asked for.
        centring: what the advantages were compared with.
        mean_group_size: G, if the batch is not all there is.
        scored_N: whether each rollout was scored; all were if None.

    Returns:
        weight_N; 0 where not scored, and on mean-centred groups of one.

    Raises:
        InvalidInputError: the arrays disagree in length, or a name is unknown.

    >>> prompt_weight([0, 0, 1, 1, 1, 1], centring="mean").round(2)
    array([2.  , 2.  , 0.67, 0.67, 0.67, 0.67])
    """
    validate.choice("centring", centring, ["leave_one_out", "mean"])
    group = validate.vector("group_N", group_N)
    scored = np.ones(len(group), dtype=bool) if scored_N is None else np.asarray(scored_N, bool)
    batch = _Batch.of(np.where(scored, 0.0, np.nan), group)
    mean_size = batch.mean_size if mean_group_size is None else mean_group_size
    less = 1.0 if centring == "mean" else 0.0
    size_N = batch.size_B[batch.group_N]
    usable_N = batch.scored_N & (size_N > less)
    return np.divide(
        mean_size - less, size_N - less, where=usable_N, out=np.zeros(len(batch.group_N))
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rewards by group, with the moments that every formula here is made of."""

    group_N: IntArray
    scored_N: NDArray[np.bool_]
    size_B: FloatArray
    mean_B: FloatArray
    centred_N: FloatArray
    var_B: FloatArray

    @classmethod
    def of(cls, reward_N: ArrayLike, group_N: ArrayLike) -> _Batch:
        reward = np.asarray(reward_N, dtype=np.float64)
        if reward.ndim != 1:
            raise InvalidInputError(f"reward_N must have one axis, got shape {reward.shape}.")
        label = validate.vector("group_N", group_N)
        if len(label) != len(reward):
            raise InvalidInputError(
                f"group_N has {len(label)} values, but there are {len(reward)} rewards."
            )
        if (label != np.rint(label)).any():
            raise InvalidInputError("group_N must hold whole numbers.")
        group = np.unique(label, return_inverse=True)[1].reshape(-1)
        num_groups = int(group.max()) + 1 if len(group) else 0
        scored = np.isfinite(reward)

        def total(value_N: FloatArray) -> FloatArray:
            return np.bincount(group, weights=value_N, minlength=num_groups).astype(np.float64)

        size_B = total(scored.astype(np.float64))
        known_N = np.where(scored, reward, 0.0)
        mean_B = np.divide(
            total(known_N), size_B, where=size_B > 0, out=np.full(num_groups, np.nan)
        )
        centred_N = np.where(scored & (size_B[group] > 1), reward - mean_B[group], 0.0)
        var_B = np.divide(
            total(centred_N**2), size_B - 1.0, where=size_B > 1, out=np.full(num_groups, np.nan)
        )
        return cls(group, scored, size_B, mean_B, centred_N, var_B)

    @property
    def mean_size(self) -> float:
        """G: scored rollouts over prompts asked for."""
        return float(self.size_B.sum()) / max(len(self.size_B), 1)

    def std(self, weighting: Weighting) -> float:
        """Deviation of all scored rewards; NaN below two.

        Over rollouts it is the usual one. Over prompts, with N scored rollouts of Q prompts,
        ``N/(N-1) mean_i[(m_i - m)^2 + s_i^2 ((n_i - 1)/n_i + (1/n_i - Q/N)/Q)]``: the first part
        of the factor turns s_i^2 into the second moment about m_i, the second takes out what the
        sizes n_i add to the spread of the means. On equal groups both agree.
        """
        some = self.size_B > 0
        num, num_groups = float(self.size_B.sum()), float(some.sum())
        if num < 2.0:
            return float("nan")
        size, mean = self.size_B[some], self.mean_B[some]
        within = np.nan_to_num(self.var_B[some])
        if weighting == "rollout":
            centre = float(np.sum(size * mean)) / num
            square = float(np.sum((size - 1.0) * within + size * (mean - centre) ** 2)) / num
        else:
            factor = (size - 1.0) / size + (1.0 / size - num_groups / num) / num_groups
            square = float(np.mean((mean - mean.mean()) ** 2 + within * factor))
        return float(np.sqrt(max(square, 0.0) * num / (num - 1.0)))
