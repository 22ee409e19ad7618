"""Prompts and outcomes by numbers, for the tests of all predictors."""

import numpy as np

from apportion.types import Outcomes, Prompts


def prompts(size, feature_BD=None, **fields):
    return Prompts(id_B=np.arange(size).astype(np.str_), feature_BD=feature_BD, **fields)


def outcomes(success_B, count_B, step=0, policy_step_B=None):
    num_B = np.asarray(count_B, dtype=np.int64)
    sum_B = np.asarray(success_B, dtype=np.float64)
    policy_B = np.full(len(num_B), step) if policy_step_B is None else np.asarray(policy_step_B)
    return Outcomes(
        prompt_B=np.arange(len(num_B)).astype(np.str_),
        num_requested_B=num_B,
        num_rollouts_B=num_B,
        reward_sum_B=sum_B,
        reward_sumsq_B=sum_B,
        num_tokens_B=0 * num_B,
        num_truncated_B=0 * num_B,
        step=step,
        policy_step_B=policy_B.astype(np.int64),
    )


def rewards(rate_B, step=0, policy_step_B=None, count=8):
    """Groups of equal size with these success rates."""
    return outcomes(np.asarray(rate_B) * count, np.full(len(rate_B), count), step, policy_step_B)
