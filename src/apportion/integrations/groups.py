"""The torch twin of `apportion.advantage`: the same mathematics on tensors that stay on the device.

``group_N`` holds the position of each rollout's prompt, 0 to ``num_groups - 1``; NaN is not scored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apportion.advantage import EPSILON, Centring, Scale, Weighting


def group_total(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Sum the values of each group; further axes are kept.

    >>> group_total(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 1]), 2)
    tensor([3., 4.])
    """
    shape = (num_groups, *value_N.shape[1:])
    return torch.zeros(shape, dtype=value_N.dtype, device=value_N.device).index_add_(
        0, group_N, value_N
    )


def group_size(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Count the scored values of each group, as numbers of the values' own type."""
    scored = (~torch.isnan(value_N)).to(value_N.dtype)
    return group_total(scored, group_N, num_groups)


def group_mean(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Mean of the scored values of each group; NaN where there is none."""
    known = torch.nan_to_num(value_N, nan=0.0)
    return group_total(known, group_N, num_groups) / group_size(value_N, group_N, num_groups)


def group_std(value_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Standard deviation of each group with Bessel's correction; NaN below two scored values."""
    size = group_size(value_N, group_N, num_groups)
    mean = group_mean(value_N, group_N, num_groups)
    square = torch.nan_to_num((value_N - mean[group_N]) ** 2, nan=0.0)
    total = group_total(square, group_N, num_groups)
    return torch.where(size > 1, torch.sqrt(total / (size - 1.0)), torch.nan)


def batch_std(
    value_N: Tensor,
    group_N: Tensor,
    num_groups: int,
    *,
    weighting: Weighting = "prompt",
    centred: bool = False,
) -> Tensor:
    """Deviation of all values, every prompt (or every rollout) counting the same.

    See `apportion.advantage.grpo`; its square has the expectation that equal groups would give it.

    Args:
        value_N: one value a rollout; NaN is left out.
        group_N: group of each rollout.
        num_groups: number of prompts asked for.
        weighting: what counts the same.
        centred: the values have already been centred in their groups, so that the group means do
            not vary with the sizes: the factor on ``s_i^2`` is then ``1 - Q/N``.
    """
    size = group_size(value_N, group_N, num_groups)
    some = size > 0
    size = size[some]
    num, num_some = size.sum(), size.numel()
    if num < 2:
        return torch.full((), torch.nan, dtype=value_N.dtype, device=value_N.device)
    mean = group_mean(value_N, group_N, num_groups)[some]
    within = torch.nan_to_num(group_std(value_N, group_N, num_groups)[some], nan=0.0) ** 2
    if weighting == "rollout":
        centre = (size * mean).sum() / num
        square = ((size - 1.0) * within + size * (mean - centre) ** 2).sum() / num
    else:
        if centred:
            factor = 1.0 - num_some / num
        else:
            factor = (size - 1.0) / size + (1.0 / size - num_some / num) / num_some
        square = ((mean - mean.mean()) ** 2 + within * factor).mean()
    return torch.sqrt(torch.clamp(square, min=0.0) * num / (num - 1.0))


def rloo(reward_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    """Reward minus the mean of the others in its group; see `apportion.advantage.rloo`."""
    size = group_size(reward_N, group_N, num_groups)
    total = group_total(torch.nan_to_num(reward_N, nan=0.0), group_N, num_groups)
    advantage = reward_N - (total[group_N] - reward_N) / (size[group_N] - 1.0)
    return torch.where(size[group_N] > 1, torch.nan_to_num(advantage, nan=0.0), 0.0)


def grpo(
    reward_N: Tensor,
    group_N: Tensor,
    num_groups: int,
    *,
    scale: Scale = "group",
    weighting: Weighting = "prompt",
    epsilon: float = EPSILON,
) -> Tensor:
    """Reward minus the mean of its group, over a deviation; see `apportion.advantage.grpo`."""
    size = group_size(reward_N, group_N, num_groups)
    advantage = reward_N - group_mean(reward_N, group_N, num_groups)[group_N]
    if scale == "group":
        advantage = advantage / (group_std(reward_N, group_N, num_groups)[group_N] + epsilon)
    elif scale == "batch":
        advantage = advantage / (
            batch_std(reward_N, group_N, num_groups, weighting=weighting) + epsilon
        )
    return torch.where(size[group_N] > 1, torch.nan_to_num(advantage, nan=0.0), 0.0)


def prompt_weight(
    scored_N: Tensor, group_N: Tensor, num_groups: int, *, centring: Centring = "leave_one_out"
) -> Tensor:
    """Weight that keeps the objective; see `apportion.advantage.prompt_weight`.

    >>> prompt_weight(torch.ones(6), torch.tensor([0, 0, 1, 1, 1, 1]), 2, centring="leave_one_out")
    tensor([1.5000, 1.5000, 0.7500, 0.7500, 0.7500, 0.7500])

    Args:
        scored_N: 1 where the rollout was scored, else 0, of the type that the weights shall have.
        group_N: group of each rollout.
        num_groups: number of prompts asked for.
        centring: what the advantages were compared with.
    """
    size = group_total(scored_N, group_N, num_groups)
    less = 1.0 if centring == "mean" else 0.0
    weight = (size.sum() / num_groups - less) / (size[group_N] - less)
    return torch.where((size[group_N] > less) & (scored_N > 0), weight, 0.0)
