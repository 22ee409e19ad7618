"""Contract: sampling estimates exact success; finite differences give the exact gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apportion.embedded.exact import exact_gradient, exact_success
from apportion.embedded.likelihood import encode, log_likelihood, pad_rows
from apportion.embedded.model import build_model, build_tokenizer, load
from apportion.embedded.pools import pool
from apportion.embedded.sampler import sample
from apportion.embedded.tasks import scores
from apportion.errors import InvalidInputError

PROMPTS = ["1+2=", "gcd(12,18)=", "rev(abcdefgh)=", "7*8="]
ANSWERS = ["3", "6", "hgfedcba", "56"]


@pytest.fixture(scope="module")
def fresh():
    return build_model(seed=0).eval(), build_tokenizer()


@pytest.fixture(scope="module")
def shipped():
    return load()


def _middling(num: int):
    """Problems of the mixed pool that succeed sometimes."""
    mixed = pool("mixed")
    rows = np.flatnonzero((mixed.success_Q > 0.1) & (mixed.success_Q < 0.9))[:num]
    return [mixed.problems[q] for q in rows], mixed.success_Q[rows]


def test_success_matches_sampled_rewards(shipped):
    problems, success = _middling(24)
    num = 400
    rollouts = sample(
        *shipped,
        [p.prompt for p in problems],
        num,
        generator=torch.Generator().manual_seed(0),
    )
    reward = scores([problems[b] for b in rollouts.group_N.tolist()], rollouts.text_N)
    rate = np.reshape(reward, (len(problems), num)).mean(1)
    sd = np.sqrt(success * (1 - success) / num)
    assert np.all(np.abs(rate - success) < 4.5 * sd)
    assert np.mean(((rate - success) / sd) ** 2) == pytest.approx(1, abs=0.9)


def test_gradient_matches_finite_differences(fresh):
    model, tokenizer = build_model(seed=0).double().eval(), fresh[1]
    weights = [0.1, 0.2, 0.3, 0.4]
    gradient = exact_gradient(model, tokenizer, PROMPTS, ANSWERS, weights)
    torch.manual_seed(0)
    direction = torch.randn_like(gradient)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    step, values = 1e-5, []
    for sign in (1, -1):
        torch.nn.utils.vector_to_parameters(before + sign * step * direction, model.parameters())
        values.append(exact_success(model, tokenizer, PROMPTS, ANSWERS) @ weights)
    numeric = (values[0] - values[1]) / (2 * step)
    assert float(gradient @ direction) == pytest.approx(numeric, rel=1e-4)


def test_default_weights_are_the_mean_and_grad_fields_stay(fresh):
    model, tokenizer = fresh
    mean = exact_gradient(model, tokenizer, PROMPTS, ANSWERS)
    weighted = exact_gradient(model, tokenizer, PROMPTS, ANSWERS, [0.25] * 4)
    torch.testing.assert_close(mean, weighted)
    assert mean.shape == (sum(p.numel() for p in model.parameters()),)
    assert all(p.grad is None for p in model.parameters())


def test_padding_order_and_batch_size_do_not_matter(fresh):
    together = exact_success(*fresh, PROMPTS, ANSWERS)
    alone = [exact_success(*fresh, [p], [a])[0] for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-4)
    np.testing.assert_allclose(
        exact_success(*fresh, PROMPTS[::-1], ANSWERS[::-1], batch_size=2)[::-1], alone, rtol=1e-4
    )


def test_empty_answer_is_the_chance_to_stop_at_once(fresh):
    model, tokenizer = fresh
    batch = encode(tokenizer, ["1+2="], [""])
    with torch.no_grad():
        stop_at_once = float(log_likelihood(model, batch).exp())
        logits = model(input_ids=batch.prompt_BP).logits[0, -1]
    assert stop_at_once == pytest.approx(
        float(logits.softmax(-1)[tokenizer.eos_token_id]), rel=1e-5
    )


def test_a_padding_token_that_is_also_the_end_token_is_kept(fresh):
    """Many tokenizers pad with the end token; masks, not ids, tell padding."""
    model, tokenizer = fresh
    twin = build_tokenizer()
    twin.pad_token = twin.eos_token
    np.testing.assert_allclose(
        exact_success(model, twin, PROMPTS, ANSWERS),
        exact_success(model, tokenizer, PROMPTS, ANSWERS),
        rtol=1e-4,
    )


def test_wrong_input_is_refused(fresh):
    with pytest.raises(InvalidInputError, match="at least one"):
        exact_success(*fresh, [], [])
    with pytest.raises(InvalidInputError, match="as many completions"):
        exact_success(*fresh, PROMPTS, ANSWERS[:1])
    with pytest.raises(InvalidInputError, match="weights"):
        exact_gradient(*fresh, PROMPTS, ANSWERS, [1.0])
    bare = build_tokenizer()
    bare.pad_token = None
    with pytest.raises(InvalidInputError, match="pad token"):
        encode(bare, PROMPTS, ANSWERS)


def test_pad_rows_sides():
    assert pad_rows([[5], [6, 7]], 0, left=False)[0].tolist() == [[5, 0], [6, 7]]
    assert pad_rows([[5], [6, 7]], 0, left=True)[1].tolist() == [[False, True], [True, True]]
