"""Prompts and outcomes by numbers, for the tests of all predictors."""

import dataclasses

import numpy as np

from apportion.predictor import FilterBank
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


def bank_of(feature_BD, size=None, **arguments):
    bank = FilterBank(**arguments)
    bank.add(prompts(len(feature_BD) if size is None else size, feature_BD))
    return bank


def real_outcomes(reward_BN, step=0, policy_step_B=None):
    """Groups of real-valued rewards, one list a prompt."""
    found = outcomes(
        [np.sum(group) for group in reward_BN],
        [len(group) for group in reward_BN],
        step,
        policy_step_B,
    )
    square_B = np.array([np.square(group).sum() for group in reward_BN], dtype=np.float64)
    return dataclasses.replace(found, reward_sumsq_B=square_B)


def assert_legal(forecast):
    for array in (forecast.mean_B, forecast.var_B, forecast.reward_var_B):
        assert np.isfinite(array).all()
    assert ((forecast.mean_B > 0.0) & (forecast.mean_B < 1.0)).all()
    most_B = forecast.mean_B * (1.0 - forecast.mean_B)
    assert ((forecast.var_B > 0.0) & (forecast.var_B <= most_B)).all()
    assert (forecast.reward_var_B >= 0.0).all()
    assert (forecast.reward_var_B <= most_B - forecast.var_B).all()


def assert_equal_states(left, right):
    left, right = left.state_dict(), right.state_dict()
    assert set(left) == set(right)
    for name, array in left.items():
        assert array.dtype in (np.float64, np.int64)
        np.testing.assert_array_equal(array, right[name], err_msg=name)
