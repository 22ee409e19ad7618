"""Contract: on the same rollouts the plain loop and the TRL trainer take the same gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from apportion.allocator import RolloutAllocator
from apportion.embedded.model import load
from apportion.embedded.policy_gradient import estimate_gradient, reward
from apportion.embedded.pools import pool
from apportion.embedded.regularisation import regularisation_gradient
from apportion.embedded.sampler import MAX_TOKENS, Rollouts, sample
from apportion.integrations.trl import (
    AdaptiveGRPOConfig,
    AdaptiveGRPOTrainer,
)
from apportion.predictor import Oracle

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class FixedSampler:
    """Samples with the loop's own sampler, one rollout a row of the trainer."""

    def __init__(self, problems):
        self.problem_of = {p.prompt: p for p in problems}
        self.rollouts, self.posed = None, None

    def __call__(self, prompts, trainer):
        model = trainer.accelerator.unwrap_model(trainer.model)
        generator = torch.Generator().manual_seed(0)
        self.rollouts = sample(
            model,
            trainer.processing_class,
            prompts,
            np.ones(len(prompts), dtype=int),
            max_new_tokens=MAX_TOKENS,
            generator=generator,
        )
        self.posed = [self.problem_of[prompt] for prompt in prompts]
        tokens = self.rollouts.tokens
        return {
            "prompt_ids": [
                row[keep].tolist()
                for row, keep in zip(tokens.prompt_BP, tokens.is_prompt_BP, strict=True)
            ],
            "completion_ids": [
                row[keep].tolist()
                for row, keep in zip(tokens.completion_BT, tokens.is_completion_BT, strict=True)
            ],
            "logprobs": None,
        }


def move_a_little(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator)


class Catch(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).double()


@pytest.mark.filterwarnings("ignore:.*rollout_func", "ignore:The entropy bonus averages")
@pytest.mark.parametrize(
    ("micro_batch", "kl", "entropy"),
    [(48, 0.0, 0.0), (16, 0.0, 0.0), (48, 0.3, 0.0), (16, 0.3, 0.0), (48, 0.0, 0.1)],
)
def test_dr_grpo_takes_the_same_gradient(tmp_path, micro_batch, kl, entropy):
    problems = list(pool("mixed").problems)[:12]
    sampler, catch = FixedSampler(problems), Catch()
    model, tokenizer = load()
    # Unequal groups, whatever the policy does: an allocator that believes in fixed numbers.
    belief = Oracle(lambda ids: np.linspace(0.01, 0.5, 12)[np.array(ids, dtype=int)])
    trainer = AdaptiveGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: reward(sampler.rollouts, sampler.posed).tolist(),
        args=AdaptiveGRPOConfig(
            str(tmp_path),
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=48 // micro_batch,
            num_generations=4,
            max_completion_length=MAX_TOKENS,
            max_steps=1,
            max_grad_norm=0.0,
            learning_rate=0.0,
            loss_type="dr_grpo",
            scale_rewards="none",
            beta=kl,
            entropy_coef=entropy,
            prompt_key_column="number",
            shuffle_dataset=False,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            save_strategy="no",
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": p.prompt, "number": str(i)} for i, p in enumerate(problems)]
        ),
        rollout_func=sampler,
        callbacks=[catch],
        allocator=RolloutAllocator(belief, upper=16, do_no_harm=False),
    )
    policy = load()[0]
    if kl:  # the divergence from itself has no slope
        move_a_little(model)
        move_a_little(policy)
    trainer.train()
    group_N = torch.tensor([problems.index(p) for p in sampler.posed])
    assert len(set(torch.bincount(group_N).tolist())) > 1
    rewards = reward(sampler.rollouts, sampler.posed)
    assert 0 < rewards.sum() < len(rewards)
    rollouts = Rollouts(
        group_N, sampler.rollouts.tokens, sampler.rollouts.text_N, sampler.rollouts.is_finished_N
    )
    ours = estimate_gradient(policy, rollouts, rewards, estimator="dr_grpo")
    terms = regularisation_gradient(
        policy, load()[0], rollouts, kl=kl, entropy=entropy, longest=MAX_TOKENS
    )
    assert (float(terms.norm()) > 0.05 * float(ours.norm())) == bool(kl or entropy)
    ours = (ours + terms).double()
    # TRL divides by the longest completion and descends; the direction and size agree beside that.
    torch.testing.assert_close(-catch.gradient * MAX_TOKENS, ours, rtol=1e-3, atol=1e-6)
