"""Contract: rollouts of unequal groups estimate the exact gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import advantage
from apportion.embedded.exact import exact_gradient
from apportion.embedded.likelihood import log_likelihood
from apportion.embedded.model import build_model, build_tokenizer, load
from apportion.embedded.policy_gradient import estimate_gradient, reward
from apportion.embedded.pools import pool
from apportion.embedded.sampler import sample
from apportion.errors import InvalidInputError


def _middling(num: int):
    """Problems of the mixed pool that succeed sometimes."""
    mixed = pool("mixed")
    rows = np.flatnonzero((mixed.success_Q > 0.1) & (mixed.success_Q < 0.9))[:num]
    return [mixed.problems[q] for q in rows]


def test_rloo_with_unequal_groups_is_unbiased():
    """The mean of 40 estimates points where the exact gradient points, and is as long."""
    model, tokenizer = load()
    problems = _middling(12)
    prompts = [p.prompt for p in problems]
    exact = exact_gradient(model, tokenizer, prompts, [p.answer for p in problems])
    num_rollouts = [2, 4, 8, 24, 48, 60] * 2
    generator = torch.Generator().manual_seed(1)
    estimates = []
    for _ in range(40):
        rollouts = sample(model, tokenizer, prompts, num_rollouts, generator=generator)
        estimates.append(estimate_gradient(model, rollouts, reward(rollouts, problems)))
    estimates = torch.stack(estimates)
    projection = estimates @ exact / exact.square().sum()
    error = float(projection.std() / len(projection) ** 0.5)
    assert float(projection.mean()) == pytest.approx(1, abs=4 * error)
    assert error < 0.1
    assert torch.cosine_similarity(estimates.mean(0), exact, dim=0) > 0.85


def test_equal_weights_of_rollouts_change_the_objective():
    """With weighting="rollout" a prompt counts by its rollouts: the exact gradient so weighted."""
    model, tokenizer = load()
    problems = _middling(12)
    prompts = [p.prompt for p in problems]
    num_rollouts = np.array([8] * 6 + [56] * 6)
    weights = num_rollouts / num_rollouts.sum()
    exact = exact_gradient(model, tokenizer, prompts, [p.answer for p in problems], weights)
    generator = torch.Generator().manual_seed(1)
    projections = []
    for _ in range(30):
        rollouts = sample(model, tokenizer, prompts, num_rollouts, generator=generator)
        estimate = estimate_gradient(
            model, rollouts, reward(rollouts, problems), weighting="rollout"
        )
        projections.append(float(estimate @ exact / exact.square().sum()))
    error = np.std(projections, ddof=1) / len(projections) ** 0.5
    assert np.mean(projections) == pytest.approx(1, abs=4 * error)


@settings(max_examples=12)
@given(
    st.sampled_from(["rloo", "dr_grpo", "grpo"]),
    st.lists(st.integers(2, 9), min_size=3, max_size=3),
    st.integers(0, 1_000),
)
def test_merging_and_trimming_change_nothing(estimator, num_rollouts, seed):
    """Against the sum over single rollouts, with random rewards."""
    model, tokenizer = build_model(seed=0).eval(), build_tokenizer()
    rollouts = sample(
        model,
        tokenizer,
        ("1+2=", "gcd(12,18)=", "rev(abc)="),
        num_rollouts,
        max_new_tokens=3,
        generator=torch.Generator().manual_seed(seed),
    )
    rng = np.random.default_rng(seed)
    reward_N = rng.integers(0, 2, len(rollouts)).astype(float)
    group_N = rollouts.group_N.numpy()
    centring = "leave_one_out" if estimator == "rloo" else "mean"
    weight_N = getattr(advantage, estimator)(reward_N, group_N)
    weight_N = weight_N * advantage.prompt_weight(group_N, centring=centring) / len(rollouts)
    objective = sum(
        w * log_likelihood(model, rollouts.tokens.rows(torch.tensor([n])))[0]
        for n, w in enumerate(weight_N.tolist())
    )
    expected = torch.autograd.grad(objective, list(model.parameters()))
    expected = torch.cat([g.flatten() for g in expected])
    estimate = estimate_gradient(model, rollouts, reward_N, estimator=estimator)
    torch.testing.assert_close(estimate, expected, rtol=1e-3, atol=1e-6)


def test_constant_rewards_give_no_gradient():
    model, tokenizer = build_model(seed=0).eval(), build_tokenizer()
    rollouts = sample(model, tokenizer, ("1+2=", "3+4="), 4)
    assert not estimate_gradient(model, rollouts, np.ones(8)).any()


def test_unknown_names_are_refused():
    model, tokenizer = build_model(seed=0).eval(), build_tokenizer()
    rollouts = sample(model, tokenizer, ("1+2=",), 2)
    with pytest.raises(InvalidInputError, match="estimator"):
        estimate_gradient(model, rollouts, np.ones(2), estimator="ppo")
    with pytest.raises(InvalidInputError, match="weighting"):
        estimate_gradient(model, rollouts, np.ones(2), weighting="token")
