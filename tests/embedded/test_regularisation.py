"""Contract: the terms have the gradient of what they are, and do what they are for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import advantage
from apportion.embedded import peers
from apportion.embedded.likelihood import log_likelihood
from apportion.embedded.model import build_model, build_tokenizer, load
from apportion.embedded.plain_loop import PlainLoop
from apportion.embedded.pools import pool
from apportion.embedded.regularisation import regularisation_gradient
from apportion.embedded.sampler import sample


def token_logits(model, rollouts, n):
    """Logits at each token that rollout n wrote, one forward pass of it alone."""
    tokens = rollouts.tokens
    prompt = tokens.prompt_BP[n][tokens.is_prompt_BP[n]]
    written = tokens.completion_BT[n][tokens.is_completion_BT[n]]
    logits = model(input_ids=torch.cat([prompt, written])[None, :-1]).logits[0]
    return logits[len(prompt) - 1 :].double(), written


def expected_gradient(model, reference, rollouts, kl, entropy, longest):
    """Of the two terms, rollout by rollout and token by token."""
    weight_N = advantage.prompt_weight(rollouts.group_N.numpy()) / len(rollouts)
    pulled, entropies = 0.0, []
    for n, weight in enumerate(weight_N.tolist()):
        logits, written = token_logits(model, rollouts, n)
        fixed, _ = token_logits(reference, rollouts, n)
        for t, token in enumerate(written.tolist()):
            log_p, log_q = logits[t].log_softmax(0)[token], fixed[t].log_softmax(0)[token]
            pulled = pulled + weight * (log_p - log_q).item() * log_p
            entropies.append(torch.distributions.Categorical(logits=logits[t]).entropy())
    objective = -kl * pulled + entropy * longest * torch.stack(entropies).mean()
    return flat(torch.autograd.grad(objective, list(model.parameters())))


def flat(gradient):
    return torch.cat([g.flatten() for g in gradient])


@settings(max_examples=8)
@given(
    st.lists(st.integers(2, 6), min_size=3, max_size=3),
    st.floats(0, 2),
    st.floats(0, 2),
    st.integers(0, 1_000),
)
def test_gradient_of_the_terms(num_rollouts, kl, entropy, seed):
    model, reference = build_model(seed=0).eval(), build_model(seed=1).eval()
    rollouts = sample(
        model,
        build_tokenizer(),
        ("1+2=", "gcd(12,18)=", "rev(abc)="),
        num_rollouts,
        max_new_tokens=3,
        generator=torch.Generator().manual_seed(seed),
    )
    found = regularisation_gradient(
        model, reference, rollouts, kl=kl, entropy=entropy, longest=3, batch_size=4
    )
    expected = expected_gradient(model, reference, rollouts, kl, entropy, 3)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_the_pull_is_the_slope_of_the_divergence_of_a_token():
    """Mean over many rollouts of one token, against the divergence over the whole vocabulary."""
    model, reference, tokenizer = load()[0], build_model(seed=1).eval(), load()[1]
    generator = torch.Generator().manual_seed(3)
    rollouts = sample(model, tokenizer, ("1+2=",), 100_000, max_new_tokens=1, generator=generator)
    found = regularisation_gradient(model, reference, rollouts, kl=1.0, entropy=0.0, longest=1)
    prompt = rollouts.tokens.prompt_BP[:1]
    log_p = model(input_ids=prompt).logits[0, -1].log_softmax(0)
    log_q = reference(input_ids=prompt).logits[0, -1].log_softmax(0).detach()
    divergence = (log_p.exp() * (log_p - log_q)).sum()
    exact = -flat(torch.autograd.grad(divergence, list(model.parameters())))
    assert float((found - exact).norm()) < 0.05 * float(exact.norm())


def test_a_policy_is_not_pulled_from_where_it_began():
    model, tokenizer = load()
    rollouts = sample(model, tokenizer, ("1+2=", "3+4="), 4)
    found = regularisation_gradient(model, load()[0], rollouts, kl=1.0, entropy=0.0, longest=9)
    assert float(found.abs().max()) < 1e-5


def trained(**terms):
    model, tokenizer = load()
    problems = list(pool("mixed").problems)[:16]
    loop = PlainLoop(
        model,
        tokenizer,
        problems,
        peers.uniform,
        prompts_per_step=16,
        rollouts_per_prompt=4,
        num_steps=12,
        learning_rate=3e-4,
        num_warmup_steps=1,
        estimator="dr_grpo",
        **terms,
    )
    while not loop.is_over:
        loop.step()
    return loop, model


def held_by(model):
    """Mean divergence from the base model, and mean entropy, over one batch of its own rollouts."""
    base, tokenizer = load()
    prompts = [p.prompt for p in pool("mixed").problems[:16]]
    generator = torch.Generator().manual_seed(9)
    rollouts = sample(model, tokenizer, prompts, 16, generator=generator)
    with torch.no_grad():
        own = log_likelihood(model, rollouts.tokens)
        return float((own - log_likelihood(base, rollouts.tokens)).mean()), -float(own.mean())


@pytest.fixture(scope="module")
def free():
    return held_by(trained()[1])


def test_kl_keeps_a_policy_near(free):
    assert held_by(trained(kl=1.0)[1])[0] < 0.5 * free[0]


def test_entropy_keeps_a_policy_wide(free):
    assert held_by(trained(entropy=0.1)[1])[1] > free[1] + 0.1


def test_a_run_with_terms_goes_on_as_if_it_had_not_stopped():
    def make():
        model, tokenizer = load()
        problems = list(pool("mixed").problems)[:8]
        return PlainLoop(
            model, tokenizer, problems, peers.uniform, prompts_per_step=8, rollouts_per_prompt=4,
            num_steps=6, estimator="dr_grpo", kl=0.5, entropy=0.01,
        )  # fmt: skip

    whole, first, second = make(), make(), make()
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        second.step()
    ends = whole.state_dict(), second.state_dict()
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])
