"""Contract: completions follow the model's distribution exactly, for any group sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from apportion.embedded.cells import CHARACTERS
from apportion.embedded.exact import exact_success
from apportion.embedded.likelihood import log_likelihood
from apportion.embedded.model import build_tokenizer
from apportion.embedded.sampler import sample
from apportion.errors import InvalidInputError

PROMPTS = ("1+2=", "gcd(12,18)=", "rev(abcdefgh)=")


def _uneven(model):
    """Random output weights, so that next tokens differ in probability and depend on the past."""
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_(std=0.1)
    return model.eval()


@pytest.fixture(scope="module")
def models():
    special = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    shape = {"vocab_size": 48, "tie_word_embeddings": False, **special}
    rope = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
    }
    torch.manual_seed(1)
    return {
        "llama": _uneven(LlamaForCausalLM(LlamaConfig(**rope, **shape))),
        "gpt2": _uneven(
            GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **shape))
        ),
        "qwen2": _uneven(Qwen2ForCausalLM(Qwen2Config(**rope, **shape))),
    }


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_frequencies_match_exact_likelihoods(models, name):
    """One-character and empty completions: exact probabilities against 6,000 draws a prompt."""
    model, tokenizer = models[name], build_tokenizer()
    num = 6_000
    generator = torch.Generator().manual_seed(0)
    rollouts = sample(model, tokenizer, PROMPTS, num, max_new_tokens=3, generator=generator)
    texts = ["", *CHARACTERS]
    num_token = rollouts.tokens.is_completion_BT.sum(1)
    for b, prompt in enumerate(PROMPTS):
        p = exact_success(model, tokenizer, [prompt] * len(texts), texts)
        # a completion that holds a padding token has more tokens than characters
        drawn = [
            text
            for text, group, finished, length in zip(
                rollouts.text_N, rollouts.group_N, rollouts.is_finished_N, num_token, strict=True
            )
            if group == b and finished and length == len(text) + 1
        ]
        count = np.array([drawn.count(t) for t in texts])
        sd = np.sqrt(num * p * (1 - p))
        assert count.sum() > 50
        assert np.all(np.abs(count - num * p) < 4.5 * sd + 1)


def test_likelihood_of_sampled_tokens_agrees_with_a_fresh_pass(models):
    """The masks and positions of sampler and likelihood describe the same sequence."""
    model, tokenizer = models["llama"], build_tokenizer()
    rollouts = sample(
        model, tokenizer, PROMPTS, [2, 0, 3], generator=torch.Generator().manual_seed(1)
    )
    together = log_likelihood(model, rollouts.tokens)
    for n in range(len(rollouts)):
        alone = log_likelihood(model, rollouts.tokens.rows(torch.tensor([n])))
        torch.testing.assert_close(alone[0], together[n], rtol=1e-4, atol=1e-4)


def test_groups_are_flat_ragged_and_may_be_empty(models):
    rollouts = sample(models["llama"], build_tokenizer(), PROMPTS, [3, 0, 2])
    assert rollouts.group_N.tolist() == [0, 0, 0, 2, 2]
    assert len(rollouts) == len(rollouts.text_N) == len(rollouts.tokens) == 5


def test_generator_makes_it_reproducible_and_leaves_the_global_state(models):
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return sample(models["llama"], build_tokenizer(), PROMPTS, 8, generator=generator).text_N

    before = torch.get_rng_state()
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_written_padding_token_shows_in_the_text(models):
    rollouts = sample(
        models["llama"], build_tokenizer(), PROMPTS, 300, generator=torch.Generator().manual_seed(3)
    )
    is_pad = (rollouts.tokens.completion_BT == 0) & rollouts.tokens.is_completion_BT
    assert is_pad.any()
    for text, row in zip(rollouts.text_N, is_pad, strict=True):
        assert text.count("<pad>") == int(row.sum())


def test_unfinished_rows_are_marked_and_padding_follows_the_end(models):
    rollouts = sample(
        models["llama"],
        build_tokenizer(),
        PROMPTS,
        200,
        max_new_tokens=2,
        generator=torch.Generator().manual_seed(2),
    )
    tokens = rollouts.tokens
    ends = ((tokens.completion_BT == 1) & tokens.is_completion_BT).any(1)
    assert torch.equal(ends, rollouts.is_finished_N)
    assert 0 < int(ends.sum()) < len(rollouts)
    assert (tokens.completion_BT[~tokens.is_completion_BT] == 0).all()
    assert (tokens.is_completion_BT[~ends].sum(1) == 2).all()


@pytest.mark.parametrize("counts", [0, [1, 2], [1, -1, 1], [1, 1.5, 1]])
def test_impossible_counts_are_refused(models, counts):
    with pytest.raises(InvalidInputError, match="num_rollouts"):
        sample(models["llama"], build_tokenizer(), PROMPTS, counts)
