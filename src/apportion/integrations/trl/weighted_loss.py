"""What the advantages cannot carry: token counts and KL terms of prompts with unequal groups.

Losses that divide by the tokens of the batch see more tokens from prompts with more rollouts. With
``t_N`` tokens a rollout and G/n_i its prompt's weight, equal groups would have had about
``sum_N t_N G/n_i`` tokens, so that is what the loss must be divided by. The KL term of the loss is
not scaled by the advantage; it gets the same weight G/n_i.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from apportion.integrations import groups

WEIGHT = "rollout_weight"
TOKENS = "rollout_weighted_tokens"

Tensors = dict[str, Any]


class RowBeta(float):
    """A KL coefficient with a weight for each row, which TRL's own loss multiplies by its KL.

    TRL's loss adds ``self.beta * per_token_kl``; with this in the place of ``self.beta`` it adds
    ``weight_N beta per_token_kl`` and none of its code has to be copied. Whoever puts it there must
    check `used` afterwards: an expression that does not multiply from the left goes past it.
    """

    weight_N: Tensor
    used: bool

    def __new__(cls, beta: float, weight_N: Tensor) -> RowBeta:
        """Make the coefficient `beta` with one weight a row."""
        self = super().__new__(cls, beta)
        self.weight_N, self.used = weight_N, False
        return self

    def __mul__(self, other: Any) -> Any:
        """Weight the rows of a tensor; be a number to everything else."""
        if not isinstance(other, Tensor):
            return float(self) * other
        self.used = True
        weight = self.weight_N.reshape(-1, *[1] * (other.ndim - 1)).to(other.dtype)
        return float(self) * (weight * other)


def row_weight(group_N: Tensor, num_groups: int) -> Tensor:
    """Return G/n_i for each rollout, scored or not."""
    return groups.prompt_weight(torch.ones_like(group_N, dtype=torch.float32), group_N, num_groups)


def loss_mask(tensors: Tensors) -> Tensor:
    """Return the mask of tokens that take part in the loss."""
    mask: Tensor = tensors["completion_mask"]
    return mask * tensors["tool_mask"] if tensors.get("tool_mask") is not None else mask


def token_sums(tensors: Tensors, weight_N: Tensor) -> Tensor:
    """Return this process's tokens, plain and weighted."""
    num_tokens_N = loss_mask(tensors).sum(dim=1).to(torch.float32)
    return torch.stack([num_tokens_N.sum(), (weight_N * num_tokens_N).sum()])


def micro_batch_factor(tensors: Tensors, num_micro_batches: int) -> Tensor:
    """Return what makes a loss over the tokens of a micro-batch one over those of the batch.

    ``t_m M / t_w``: t_m tokens of this micro-batch, M micro-batches on all processes, t_w weighted
    tokens of all of them. The micro-batches' mean is then ``sum_N loss_N / t_w``.

    Args:
        tensors: the micro-batch.
        num_micro_batches: M.
    """
    return loss_mask(tensors).sum().clamp(min=1.0) * num_micro_batches / tensors[TOKENS]
