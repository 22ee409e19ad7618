"""The torch twin gives what the NumPy original gives, and both give TRL's on equal groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import advantage
from apportion.integrations import groups


@st.composite
def batches(draw):
    size_B = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    group_N = np.repeat(np.arange(len(size_B)), size_B)
    value = st.one_of(
        st.sampled_from([0.0, 1.0]), st.floats(-2, 2, width=32), st.just(float("nan"))
    )
    reward_N = np.array(draw(st.lists(value, min_size=len(group_N), max_size=len(group_N))))
    order = np.array(draw(st.permutations(range(len(group_N)))))
    return reward_N[order], group_N[order], len(size_B)


@given(batches())
@settings(deadline=None)
def test_twin_agrees(batch):
    reward_N, group_N, num_groups = batch
    reward, group = torch.tensor(reward_N), torch.tensor(group_N)
    pairs = [
        (advantage.rloo(reward_N, group_N), groups.rloo(reward, group, num_groups)),
        (
            advantage.dr_grpo(reward_N, group_N),
            groups.grpo(reward, group, num_groups, scale="none"),
        ),
    ]
    for scale in ("group", "batch"):
        for weighting in ("prompt", "rollout"):
            options = {"scale": scale, "weighting": weighting, "epsilon": 0.1}
            pairs.append(
                (
                    advantage.grpo(reward_N, group_N, **options),
                    groups.grpo(reward, group, num_groups, **options),
                )
            )
    scored_N = ~np.isnan(reward_N)
    for centring in ("leave_one_out", "mean"):
        pairs.append(
            (
                advantage.prompt_weight(group_N, centring=centring, scored_N=scored_N),
                groups.prompt_weight(
                    torch.tensor(scored_N).double(), group, num_groups, centring=centring
                ),
            )
        )
    for ours, twin in pairs:
        np.testing.assert_allclose(ours, twin.numpy(), rtol=1e-9, atol=1e-9)


@given(batches())
@settings(deadline=None)
def test_sums_to_zero_and_never_the_raw_reward(batch):
    reward_N, group_N, num_groups = batch
    for value_N in (advantage.rloo(reward_N, group_N), advantage.dr_grpo(reward_N, group_N)):
        total_B = np.bincount(group_N, weights=value_N, minlength=num_groups)
        np.testing.assert_allclose(total_B, 0.0, atol=1e-9)
    size_B = np.bincount(group_N, weights=~np.isnan(reward_N), minlength=num_groups)
    lonely = (size_B[group_N] <= 1) | np.isnan(reward_N)
    assert (advantage.rloo(reward_N, group_N)[lonely] == 0).all()
    assert (advantage.grpo(reward_N, group_N)[lonely] == 0).all()


@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 2**31))
@settings(deadline=None, max_examples=50)
def test_equal_groups_give_the_plain_formula(num_generations, num_groups, seed):
    reward_N = np.random.default_rng(seed).normal(size=num_generations * num_groups)
    group_N = np.arange(len(reward_N)) // num_generations
    square = reward_N.reshape(num_groups, num_generations)
    centred = square - square.mean(1, keepdims=True)
    by_group = centred / (square.std(1, ddof=1, keepdims=True) + 1e-4)
    by_batch = centred / (reward_N.std(ddof=1) + 1e-4)
    others = (square.sum(1, keepdims=True) - square) / (num_generations - 1)
    np.testing.assert_allclose(advantage.rloo(reward_N, group_N), (square - others).ravel())
    np.testing.assert_allclose(advantage.grpo(reward_N, group_N), by_group.ravel())
    np.testing.assert_allclose(advantage.dr_grpo(reward_N, group_N), centred.ravel(), atol=1e-12)
    for weighting in ("prompt", "rollout"):
        ours = advantage.grpo(reward_N, group_N, scale="batch", weighting=weighting)
        np.testing.assert_allclose(ours, by_batch.ravel())
    for centring in ("leave_one_out", "mean"):
        np.testing.assert_allclose(advantage.prompt_weight(group_N, centring=centring), 1.0)


def expected(size_B, success_B, value):
    """Exact expectation of value(reward_N, group_N) over all 0/1 reward patterns."""
    group_N = np.repeat(np.arange(len(size_B)), size_B)
    total = 0.0
    for pattern in range(2 ** len(group_N)):
        reward_N = np.array([(pattern >> i) & 1 for i in range(len(group_N))], dtype=float)
        p_N = np.asarray(success_B)[group_N]
        total = total + np.prod(np.where(reward_N > 0, p_N, 1 - p_N)) * value(reward_N, group_N)
    return total


SUCCESS = [0.2, 0.5, 0.9]
SIZES = [[4, 4, 4], [2, 3, 7], [8, 2, 2]]


def gradient(advantages, centring):
    """Weighted mean over rows of advantage times score, per prompt; score of a 0/1 reward."""

    def value(reward_N, group_N):
        p_N = np.asarray(SUCCESS)[group_N]
        score_N = np.where(reward_N > 0, 1 / p_N, -1 / (1 - p_N))
        weight_N = advantage.prompt_weight(group_N, centring=centring)
        row_N = weight_N * advantages(reward_N, group_N) * score_N
        return np.bincount(group_N, weights=row_N, minlength=3) / len(group_N)

    return value


@pytest.mark.parametrize(
    ("advantages", "centring", "scaled"),
    [(advantage.rloo, "leave_one_out", 1.0), (advantage.dr_grpo, "mean", 3 / 4)],
)
@pytest.mark.parametrize("size_B", SIZES)
def test_expected_gradient_is_that_of_equal_groups_exactly(advantages, centring, scaled, size_B):
    # d/dtheta of a success probability with score 1/p, -1/(1-p) is 1; a third for each prompt.
    got_B = expected(size_B, SUCCESS, gradient(advantages, centring))
    np.testing.assert_allclose(got_B, np.full(3, scaled / 3), rtol=1e-12)


@pytest.mark.parametrize("size_B", SIZES)
def test_expected_batch_variance_is_that_of_equal_groups_exactly(size_B):
    def variance(reward_N, group_N):
        return float(
            groups.batch_std(torch.tensor(reward_N), torch.tensor(group_N), 3, weighting="prompt")
            ** 2
        )

    even = expected([4, 4, 4], SUCCESS, variance)
    assert expected(size_B, SUCCESS, variance) == pytest.approx(even, rel=1e-12)


@pytest.mark.parametrize("size_B", SIZES[1:])
def test_batch_scaling_keeps_the_objective_nearly(size_B):
    def scaled(reward_N, group_N):
        return advantage.grpo(reward_N, group_N, scale="batch")

    even_B = expected([4, 4, 4], SUCCESS, gradient(scaled, "mean"))
    got_B = expected(size_B, SUCCESS, gradient(scaled, "mean"))
    # 1/std is not linear, so a term of order 1/N stays: 12 rollouts here, thousands in training.
    np.testing.assert_allclose(got_B / even_B, 1.0, atol=0.12)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="2 values, but there are 3 rewards"):
        advantage.rloo([1, 0, 1], [0, 0])
    with pytest.raises(ValueError, match="whole numbers"):
        advantage.rloo([1, 0], [0, 0.5])
    with pytest.raises(ValueError, match="scale is 'std'"):
        advantage.grpo([1, 0], [0, 0], scale="std")
