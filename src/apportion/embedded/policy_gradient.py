"""The policy gradient estimated from rollouts of unequal groups.

The exact gradient that it estimates is `apportion.embedded.exact.exact_gradient`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from apportion import advantage, validate
from apportion.embedded.likelihood import TokenBatch, scored_inputs, weighted_gradient
from apportion.embedded.sampler import Rollouts
from apportion.embedded.tasks import Problem, scores
from apportion.validate import FloatArray

Estimator = Literal["rloo", "dr_grpo", "grpo"]


def reward(rollouts: Rollouts, problems: Sequence[Problem]) -> FloatArray:
    """0/1 rewards of rollouts of these problems, by the scorer of reasoning-gym."""
    posed = [problems[b] for b in rollouts.group_N.tolist()]
    return np.array(scores(posed, rollouts.text_N), dtype=np.float64)


def estimate_gradient(
    model: PreTrainedModel,
    rollouts: Rollouts,
    reward_N: FloatArray,
    *,
    estimator: Estimator = "rloo",
    weighting: advantage.Weighting = "prompt",
) -> torch.Tensor:
    """Estimated gradient of the mean success from rollouts.

        g = 1/N sum_j w_j A_j  d/d theta log pi(y_j | q_j)

    A is the advantage, w restores the objective of equal groups (``weighting="prompt"``) or is 1.
    With "rloo" and prompt weights its mean is `apportion.embedded.exact.exact_gradient`; "dr_grpo"
    and "grpo" have the means that equal groups give them.

    Args:
        model: the policy that sampled the rollouts.
        rollouts: N rollouts, two or more a prompt (a single one has no advantage).
        reward_N: their rewards.
        estimator: "rloo", "dr_grpo" or "grpo".
        weighting: every "prompt" or every "rollout" counts the same.

    Returns:
        Flat gradient, to be ascended, in the order of ``model.parameters()``.
    """
    validate.choice("estimator", estimator, ("rloo", "dr_grpo", "grpo"))
    validate.choice("weighting", weighting, ("prompt", "rollout"))
    group_N = rollouts.group_N.numpy()
    weight_N = getattr(advantage, estimator)(reward_N, group_N) / len(group_N)
    if weighting == "prompt":
        centring: advantage.Centring = "leave_one_out" if estimator == "rloo" else "mean"
        weight_N = weight_N * advantage.prompt_weight(group_N, centring=centring)
    tokens, weight_U = merged(rollouts, torch.from_numpy(weight_N))
    return weighted_gradient(model, tokens, weight_U, of="log_likelihood")


@torch.no_grad()
def score_norm(model: PreTrainedModel, rollouts: Rollouts) -> FloatArray:
    """Norm of each rollout's score with respect to the output layer, ``|d log pi / d W|``.

    ``d log pi / d W = sum_t (onehot(y_t) - pi_t) h_t'``, which one forward pass gives.

    Args:
        model: the policy.
        rollouts: N rollouts.

    Returns:
        ``norm_N``.
    """
    tokens, device = rollouts.tokens, model.device
    _, inputs = scored_inputs(model, tokens)
    output = model(**inputs, output_hidden_states=True)
    hidden = output.hidden_states[-1][:, -output.logits.shape[1] :]
    error = -output.logits.softmax(-1)
    written = tokens.completion_BT.to(device)
    error.scatter_add_(2, written[..., None], torch.ones_like(error[..., :1]))
    error *= tokens.is_completion_BT.to(device)[..., None]
    gradient = torch.einsum("ntv,ntd->nvd", error, hidden)
    norm_N: FloatArray = gradient.flatten(1).norm(dim=1).double().cpu().numpy()
    return norm_N


def merged(rollouts: Rollouts, weight_N: torch.Tensor) -> tuple[TokenBatch, torch.Tensor]:
    """The U distinct rollouts with their summed weights: equal ones share one forward pass.

    Args:
        rollouts: N rollouts.
        weight_N: a weight of each, or a row of weights.
    """
    tokens = rollouts.tokens
    length_N = tokens.is_completion_BT.sum(1, keepdim=True)
    key = torch.cat([rollouts.group_N[:, None], length_N, tokens.completion_BT], dim=1)
    _, member_N = torch.unique(key, dim=0, return_inverse=True)
    num_distinct = int(member_N.max()) + 1
    weight_U = weight_N.new_zeros((num_distinct, *weight_N.shape[1:]))
    weight_U.index_add_(0, member_N, weight_N)
    first_U = torch.full((num_distinct,), len(member_N))
    first_U.scatter_reduce_(0, member_N, torch.arange(len(member_N)), "amin")
    return tokens.rows(first_U), weight_U
