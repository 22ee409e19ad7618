"""The advantages of stock TRL, restated to watch over them, and the same over unequal groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import trl
from packaging.version import Version
from torch import Tensor
from trl.trainer.utils import nanstd

from apportion.advantage import EPSILON, Scale, Weighting
from apportion.integrations import groups

NONE_IS_UNSCORED = Version(trl.__version__) >= Version("1.6")
"""Before, a rollout for which every reward function returned None got the reward 0."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Advantages over unequal groups.

    Attributes:
        advantage_N: with the weights that keep the objective, if asked for.
        zero_std_fraction: what TRL logs as ``frac_reward_zero_std``.
    """

    advantage_N: Tensor
    zero_std_fraction: float


class Formula(Protocol):
    """How rewards become advantages. `penalty_N` is what RLOO subtracts: beta times the KL."""

    def reward(self, reward_NK: Tensor) -> Tensor:
        """Combine the reward functions into one reward a rollout; NaN where none scored it."""
        ...

    def stock(self, reward_NK: Tensor, num_generations: int, penalty_N: Tensor | None) -> Tensor:
        """Return what the unmodified trainer computes on equal groups, operation by operation."""
        ...

    def ragged(
        self,
        reward_NK: Tensor,
        group_N: Tensor,
        num_groups: int,
        *,
        weighting: Weighting,
        penalty_N: Tensor | None,
    ) -> Ragged:
        """Return the advantages of unequal groups, weighted."""
        ...


@dataclass(frozen=True, slots=True)
class GRPOFormula:
    """Mean-centred advantages of `GRPOTrainer`.

    Attributes:
        weight_K: weight of each reward function.
        scale: deviation to divide by.
        per_function: normalise each reward function in its group first (GDPO).
    """

    weight_K: Tensor
    scale: Scale
    per_function: bool

    @classmethod
    def of(cls, trainer: Any) -> GRPOFormula:
        """Read a trainer's settings."""
        aggregation = trainer.multi_objective_aggregation
        weight = trainer.reward_weights.to(trainer.accelerator.device)
        return cls(weight, trainer.scale_rewards, aggregation == "normalize_then_sum")

    def reward(self, reward_NK: Tensor) -> Tensor:
        """Combine the reward functions."""
        return _combined(reward_NK, self.weight_K, unscored=True)

    def stock(self, reward_NK: Tensor, num_generations: int, penalty_N: Tensor | None) -> Tensor:
        """Return what `GRPOTrainer` computes on equal groups."""
        if self.per_function:
            grouped = reward_NK.view(-1, num_generations, reward_NK.shape[1])
            std = nanstd(grouped, dim=1, keepdim=True)
            normed = (grouped - torch.nanmean(grouped, dim=1, keepdim=True)) / (std + EPSILON)
            total = (normed.view(reward_NK.shape) * self.weight_K).nansum(dim=1)
            total = _masked(total, reward_NK, NONE_IS_UNSCORED)
            advantage = (total - torch.nanmean(total)) / (nanstd(total) + EPSILON)
            return torch.nan_to_num(advantage, nan=0.0)
        reward = _combined(reward_NK, self.weight_K, unscored=NONE_IS_UNSCORED)
        grouped = reward.view(-1, num_generations)
        advantage = grouped - torch.nanmean(grouped, dim=1, keepdim=True)
        if self.scale == "group":
            advantage = advantage / (nanstd(grouped, dim=1, keepdim=True) + EPSILON)
        elif self.scale == "batch":
            advantage = advantage / (nanstd(reward) + EPSILON)
        return torch.nan_to_num(advantage.view(-1), nan=0.0)

    def ragged(
        self,
        reward_NK: Tensor,
        group_N: Tensor,
        num_groups: int,
        *,
        weighting: Weighting,
        penalty_N: Tensor | None,
    ) -> Ragged:
        """Return the advantages of unequal groups, weighted by ``(G - 1) / (n_i - 1)``."""
        reward = self.reward(reward_NK)
        if self.per_function:
            advantage, std_N = self._per_function(reward_NK, group_N, num_groups, weighting)
        else:
            advantage = groups.grpo(
                reward, group_N, num_groups, scale=self.scale, weighting=weighting
            )
            if self.scale == "batch":
                std = groups.batch_std(reward, group_N, num_groups, weighting=weighting)
                std_N = std.expand_as(reward)
            else:
                std_N = groups.group_std(reward, group_N, num_groups)[group_N]
        if weighting == "prompt":
            scored = (~torch.isnan(reward)).to(advantage.dtype)
            advantage = advantage * groups.prompt_weight(
                scored, group_N, num_groups, centring="mean"
            )
        return Ragged(advantage, _share_of_zeros(std_N))

    def _per_function(
        self, reward_NK: Tensor, group_N: Tensor, num_groups: int, weighting: Weighting
    ) -> tuple[Tensor, Tensor]:
        mean = groups.group_mean(reward_NK, group_N, num_groups)[group_N]
        std = groups.group_std(reward_NK, group_N, num_groups)[group_N]
        normed = (reward_NK - mean) / (std + EPSILON)
        total = _masked((normed * self.weight_K).nansum(dim=1), reward_NK, True)
        batch = groups.batch_std(total, group_N, num_groups, weighting=weighting, centred=True)
        by_prompt = weighting == "prompt"
        centre = groups.group_mean(total, group_N, num_groups) if by_prompt else total
        size = groups.group_size(total, group_N, num_groups)[group_N]
        advantage = torch.nan_to_num((total - torch.nanmean(centre)) / (batch + EPSILON), nan=0.0)
        return torch.where(size > 1, advantage, 0.0), batch.expand_as(total)


@dataclass(frozen=True, slots=True)
class RLOOFormula:
    """Leave-one-out advantages of `RLOOTrainer`.

    Attributes:
        weight_K: weight of each reward function.
        clip: range that the combined reward is clipped to.
        normalize: whether advantages are whitened over the batch.
    """

    weight_K: Tensor
    clip: tuple[float, float] | None
    normalize: bool

    @classmethod
    def of(cls, trainer: Any) -> RLOOFormula:
        """Read a trainer's settings."""
        clip = trainer.reward_clip_range
        weight = trainer.reward_weights.to(trainer.accelerator.device)
        return cls(weight, tuple(clip) if clip else None, bool(trainer.normalize_advantages))

    def reward(self, reward_NK: Tensor) -> Tensor:
        """Combine the reward functions and clip."""
        return self._clipped(_combined(reward_NK, self.weight_K, unscored=True))

    def stock(self, reward_NK: Tensor, num_generations: int, penalty_N: Tensor | None) -> Tensor:
        """Return what `RLOOTrainer` computes on equal groups."""
        reward = self._clipped(_combined(reward_NK, self.weight_K, unscored=NONE_IS_UNSCORED))
        if penalty_N is not None:
            reward = reward - penalty_N
        grouped = reward.view(-1, num_generations)
        others = (~torch.isnan(grouped)).sum(dim=1, keepdim=True) - 1
        baseline = (torch.nansum(grouped, dim=1, keepdim=True) - grouped) / others
        advantage = (grouped - baseline).view(-1)
        if self.normalize:
            advantage = (advantage - torch.nanmean(advantage)) / (nanstd(advantage) + EPSILON)
        return torch.nan_to_num(advantage, nan=0.0)

    def ragged(
        self,
        reward_NK: Tensor,
        group_N: Tensor,
        num_groups: int,
        *,
        weighting: Weighting,
        penalty_N: Tensor | None,
    ) -> Ragged:
        """Return the advantages of unequal groups, weighted by ``G / n_i``."""
        reward = self.reward(reward_NK)
        if penalty_N is not None:
            reward = reward - penalty_N
        advantage = groups.rloo(reward, group_N, num_groups)
        size = groups.group_size(reward, group_N, num_groups)
        if self.normalize:
            # A leave-one-out advantage is G/(G-1) times a mean-centred one; centred ones have a
            # deviation that does not depend on how the rollouts are spread.
            centred = reward - groups.group_mean(reward, group_N, num_groups)[group_N]
            centred = torch.where(size[group_N] > 1, centred, torch.nan)
            std = groups.batch_std(centred, group_N, num_groups, weighting=weighting, centred=True)
            mean_size = size.sum() / num_groups
            advantage = advantage / (std * mean_size / (mean_size - 1.0) + EPSILON)
        if weighting == "prompt":
            scored = (~torch.isnan(reward)).to(advantage.dtype)
            advantage = advantage * groups.prompt_weight(scored, group_N, num_groups)
        return Ragged(
            torch.nan_to_num(advantage, nan=0.0),
            _share_of_zeros(groups.group_std(reward, group_N, num_groups)),
        )

    def _clipped(self, reward_N: Tensor) -> Tensor:
        return reward_N if self.clip is None else reward_N.clamp(min=self.clip[0], max=self.clip[1])


def _combined(reward_NK: Tensor, weight_K: Tensor, *, unscored: bool) -> Tensor:
    return _masked((reward_NK * weight_K).nansum(dim=1), reward_NK, unscored)


def _masked(value_N: Tensor, reward_NK: Tensor, unscored: bool) -> Tensor:
    if not unscored:
        return value_N
    return torch.where(torch.isnan(reward_NK).all(dim=1), torch.nan, value_N)


def _share_of_zeros(std: Tensor) -> float:
    return torch.isclose(std, torch.zeros_like(std)).float().mean().item()
