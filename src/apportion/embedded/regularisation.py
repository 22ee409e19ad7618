"""KL and entropy terms of the plain loop, as TRL's Dr. GRPO loss has them.

TRL divides that loss by the longest completion T, its entropy bonus aside; the plain loop does not,
so the bonus is T times as large here and both take the same direction.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from apportion import advantage
from apportion.embedded.likelihood import TokenBatch, scored_inputs
from apportion.embedded.policy_gradient import merged
from apportion.embedded.sampler import Rollouts


def regularisation_gradient(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    rollouts: Rollouts,
    *,
    kl: float,
    entropy: float,
    longest: int,
    batch_size: int = 128,
) -> torch.Tensor:
    """Gradient of the terms that hold a policy back, to be added to the policy gradient.

        -beta/N sum_j w_j sum_t log(pi / pi_0)(y_jt)  d/d theta log pi(y_jt)
        +  alpha T  d/d theta mean_jt H_jt

    The first estimates the slope of the divergence of each next token from pi_0, without bias; w is
    the weight that gives every prompt the same say. H is the entropy of the next token, its mean
    over all tokens of the batch.

    Args:
        model: the policy that sampled the rollouts.
        reference: the policy pi_0 that it is held to.
        rollouts: N rollouts.
        kl: beta.
        entropy: alpha.
        longest: T, tokens of a completion at most.
        batch_size: rows in one forward pass.

    Returns:
        Flat gradient, to be ascended, in the order of ``model.parameters()``.
    """
    num_N = len(rollouts)
    group_N = rollouts.group_N.numpy()
    weight_N2 = np.stack([advantage.prompt_weight(group_N) / num_N, np.ones(num_N)], axis=1)
    tokens, weight_U2 = merged(rollouts, torch.from_numpy(weight_N2))
    num_tokens = int(rollouts.tokens.is_completion_BT.sum())
    weight_U2 = weight_U2 * torch.tensor([-kl, entropy * longest / num_tokens])
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for row_B in tokens.order_by_length().split(batch_size):
        batch = tokens.rows(row_B)
        pulled_B, entropy_B = _terms(model, reference, batch)
        weight_B2 = weight_U2[row_B].to(pulled_B)
        objective = (torch.stack([pulled_B, entropy_B], dim=1) * weight_B2).sum()
        for sum_, part in zip(total, torch.autograd.grad(objective, parameters), strict=True):
            sum_ += part
    return torch.cat([t.flatten() for t in total])


def _terms(
    model: PreTrainedModel, reference: PreTrainedModel, batch: TokenBatch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what has the slope of the divergence, and the entropy, summed over tokens."""
    _, inputs = scored_inputs(model, batch)
    written_BT1 = batch.completion_BT.to(model.device)[..., None]
    is_token_BT = batch.is_completion_BT.to(model.device)
    log_BTV = model(**inputs).logits.log_softmax(-1)
    with torch.no_grad():
        fixed_BTV = reference(**inputs).logits.log_softmax(-1)
        log_ratio_BT = (log_BTV - fixed_BTV).gather(2, written_BT1)[..., 0]
    pulled_BT = log_ratio_BT * log_BTV.gather(2, written_BT1)[..., 0]
    entropy_BT = -(log_BTV.exp() * log_BTV).sum(-1)
    return (pulled_BT * is_token_BT).sum(1), (entropy_BT * is_token_BT).sum(1)
