"""The expected gradient of unequal groups is that of equal groups, through TRL's own losses.

A policy with one number a prompt succeeds with probability sigmoid(theta_q). Rewards are 0 or 1, so
the expectation over everything that can happen is a finite sum, taken exactly: every number of
successes in every group, with its binomial weight. Losses and advantages are the trainers' own.
Prompts that were not chosen have size 0; those that were weigh the same.
"""

from __future__ import annotations

import inspect
import itertools
import math

import pytest
import torch
import trl_helpers as helpers
from packaging.version import Version
from trl import __version__ as trl_version

from apportion.integrations.trl.mixin import _Batch
from apportion.integrations.trl.weighted_loss import TOKENS, WEIGHT

pytestmark = pytest.mark.filterwarnings("ignore")

THETA = [-1.2, 0.1, 1.5]
LENGTHS = [1, 2, 4]
EVEN, RAGGED = (4, 4, 4), (2, 3, 7)
EVEN_CHOICE, RAGGED_CHOICE = (6, 0, 6), (3, 0, 9)
LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo"]
if Version(trl_version) >= Version("1.0"):
    LOSSES.append("vespo")


class Bandit:
    """Stands in for the policy: token 2 is success, token 3 failure, both followed by filler."""

    def __init__(self, trainer, failure_is_longer=0):
        self.theta = torch.tensor(THETA, requires_grad=True)
        self.failure_is_longer = failure_is_longer
        stock = inspect.signature(trainer.__class__.__mro__[2]._get_per_token_logps_and_entropies)
        self.num_returned = 3 if "compute_aux_loss" in stock.parameters else 2
        trainer._get_per_token_logps_and_entropies = self.logps
        self.trainer = trainer

    def logps(self, model, input_ids, attention_mask, logits_to_keep, *_, **__):
        prompt_N, first_N = input_ids[:, 0], input_ids[:, 1]
        logit_N = torch.where(first_N == 2, self.theta[prompt_N], -self.theta[prompt_N])
        per_token = torch.zeros(len(input_ids), logits_to_keep)
        per_token = torch.cat(
            [torch.nn.functional.logsigmoid(logit_N)[:, None], per_token[:, 1:]], 1
        )
        return (per_token, torch.zeros_like(per_token), None)[: self.num_returned]

    def batch(self, sizes, successes):
        prompt_N = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
        group_N = torch.unique(prompt_N, return_inverse=True)[1]
        reward_N = torch.cat(
            [torch.arange(n).lt(k).float() for n, k in zip(sizes, successes, strict=True)]
        )
        length_N = torch.tensor(LENGTHS)[prompt_N]
        length_N = length_N + self.failure_is_longer * (reward_N == 0).long()
        mask = (torch.arange(int(length_N.max())) < length_N[:, None]).long()
        completion = torch.zeros_like(mask)
        completion[:, 0] = torch.where(reward_N > 0, 2, 3)
        output = {
            "prompt_ids": prompt_N[:, None].clone(),
            "prompt_mask": torch.ones(len(prompt_N), 1, dtype=torch.long),
            "completion_ids": completion,
            "completion_mask": mask,
            "num_items_in_batch": mask.sum(),
        }
        with torch.no_grad():
            # Where the reference policy stands does not matter; where the sampler stands does.
            old = self.logps(
                None, torch.cat([prompt_N[:, None], completion], 1), None, mask.shape[1]
            )
            output["ref_per_token_logps"] = old[0] - 0.3 * (mask.cumsum(1) == 1) * reward_N[:, None]
            output["old_logps"] = (old[0] * mask).sum(1)
        return group_N, reward_N, output

    def gradient(self, sizes, successes):
        trainer = self.trainer
        group_N, reward_N, output = self.batch(sizes, successes)
        reward_NK, penalty_N = reward_N[:, None], None
        if hasattr(trainer, "reward_clip_range") and trainer.beta:
            gap = (output["old_logps"][:, None] - output["ref_per_token_logps"]) * output[
                "completion_mask"
            ]
            penalty_N = trainer.beta * gap[:, 0]
        is_even = sizes in (EVEN, EVEN_CHOICE)
        stock_size = max(sizes) if is_even else 4
        output["advantages"] = trainer._formula.stock(reward_NK, stock_size, penalty_N)
        if not is_even:
            batch = _Batch(int(group_N.max()) + 1, group_N, False, 0, 0, reward_NK=reward_NK)
            trainer._metrics["train"]["frac_reward_zero_std"].append(0.0)
            trainer._overwrite(batch, output, penalty_N)
        loss = trainer._compute_loss(None, output)
        return torch.autograd.grad(loss, self.theta)[0].double()

    def expected(self, sizes):
        success = torch.sigmoid(self.theta).tolist()
        total = torch.zeros(3, dtype=torch.float64)
        for successes in itertools.product(*(range(n + 1) for n in sizes)):
            chance = math.prod(
                math.comb(n, k) * p**k * (1 - p) ** (n - k)
                for n, k, p in zip(sizes, successes, success, strict=True)
            )
            total += chance * self.gradient(sizes, successes)
        return total


def bandit(tmp_path, kind="grpo", failure_is_longer=0, **options):
    options = {
        "per_device_train_batch_size": 12,
        "max_completion_length": 5,
        "allocator": helpers.FixedAllocator(RAGGED),
        **options,
    }
    trainer = helpers.build(tmp_path, kind, **options)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return Bandit(trainer, failure_is_longer)


def assert_same_gradient_of_the_chosen(policy):
    even, ragged = policy.expected(EVEN_CHOICE), policy.expected(RAGGED_CHOICE)
    assert float(even[[0, 2]].abs().min()) > 1e-4
    assert float(ragged[1]) == 0.0
    torch.testing.assert_close(ragged, even, rtol=1e-5, atol=1e-8)


def ratio(policy):
    return policy.expected(RAGGED) / policy.expected(EVEN)


def assert_same_gradient(policy):
    even, ragged = policy.expected(EVEN), policy.expected(RAGGED)
    assert float(even.abs().min()) > 1e-4
    torch.testing.assert_close(ragged, even, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_every_loss_exactly(tmp_path, loss_type):
    policy = bandit(tmp_path, loss_type=loss_type, scale_rewards="none")
    assert_same_gradient(policy)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_kl_is_weighted_alike_exactly(tmp_path, loss_type):
    tok = helpers.tokenizer()
    helpers.model(tok).save_pretrained(tmp_path / "model")
    tok.save_pretrained(tmp_path / "model")
    policy = bandit(
        tmp_path, loss_type=loss_type, scale_rewards="none", beta=0.3, model=str(tmp_path / "model")
    )
    assert_same_gradient(policy)


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_chosen_prompts_weigh_the_same_in_every_loss(tmp_path, loss_type, beta):
    tok = helpers.tokenizer()
    helpers.model(tok).save_pretrained(tmp_path / "model")
    tok.save_pretrained(tmp_path / "model")
    options = {"loss_type": loss_type, "scale_rewards": "none", "beta": beta}
    policy = bandit(tmp_path, model=str(tmp_path / "model"), **options)
    assert_same_gradient_of_the_chosen(policy)


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_the_gradient_is_the_mean_over_the_chosen_prompts(tmp_path, kind):
    """Exactly for leave-one-out advantages; centred ones shrink it by the share of their mean."""
    options = {"loss_type": "dr_grpo", "scale_rewards": "none"} if kind == "grpo" else {}
    policy = bandit(tmp_path, kind, **options)
    success = torch.sigmoid(policy.theta.detach().double())
    exact = success * (1 - success) / 2
    exact[1] = 0.0
    shrunk = (1 - 2 / 12) / policy.trainer.max_completion_length if kind == "grpo" else 1.0
    torch.testing.assert_close(
        policy.expected(RAGGED_CHOICE), -exact * shrunk, rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_rloo_exactly_with_the_penalty_in_the_reward(tmp_path, beta):
    tok = helpers.tokenizer()
    helpers.model(tok).save_pretrained(tmp_path / "model")
    tok.save_pretrained(tmp_path / "model")
    policy = bandit(tmp_path, "rloo", beta=beta, model=str(tmp_path / "model"))
    assert_same_gradient(policy)
    assert_same_gradient_of_the_chosen(policy)


def test_without_weights_the_objective_is_another(tmp_path):
    policy = bandit(tmp_path, loss_type="dapo", scale_rewards="none", weighting="rollout")
    got = ratio(policy)
    assert got[2] / got[0] > 2.0


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "sapo", "luspo"])
def test_losses_without_token_counts_are_exact_whatever_the_lengths(tmp_path, loss_type):
    options = {"loss_type": loss_type, "scale_rewards": "none"}
    if loss_type == "luspo":  # of tokens, early releases divided it by the longest completion
        options["importance_sampling_level"] = "sequence"
    assert_same_gradient(bandit(tmp_path, failure_is_longer=1, **options))


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo"])
def test_lengths_that_depend_on_success_leave_a_term_of_order_one_over_n(tmp_path, loss_type):
    policy = bandit(tmp_path, loss_type=loss_type, scale_rewards="none", failure_is_longer=1)
    torch.testing.assert_close(ratio(policy), torch.ones(3).double(), rtol=0, atol=0.03)


@pytest.mark.parametrize(("scale", "most"), [("batch", 0.12), ("group", 0.6)])
def test_scaling_by_the_batch_is_nearly_right_and_by_the_group_is_not(tmp_path, scale, most):
    policy = bandit(tmp_path, loss_type="dr_grpo", scale_rewards=scale)
    spread = ratio(policy)
    off = float((spread / spread.mean() - 1).abs().max())
    assert off < most
    if scale == "group":
        assert off > 0.15


def test_whitened_rloo_is_nearly_right(tmp_path):
    policy = bandit(tmp_path, "rloo", normalize_advantages=True)
    assert float((ratio(policy) - 1).abs().max()) < 0.2


def test_micro_batches_of_bnpo_add_up_to_the_batch(tmp_path):
    policy = bandit(tmp_path, loss_type="bnpo", scale_rewards="none")
    trainer = policy.trainer
    group_N, reward_N, output = policy.batch(RAGGED, (1, 1, 3))
    output["advantages"] = trainer._formula.stock(reward_N[:, None], 4, None)
    trainer._metrics["train"]["frac_reward_zero_std"].append(0.0)
    batch = _Batch(3, group_N, False, 0, 0, reward_NK=reward_N[:, None])
    trainer._overwrite(batch, output, None)
    whole = trainer._compute_loss(None, output)
    trainer.args.steps_per_generation = 2
    shared = {TOKENS, "num_items_in_batch"}
    halves = [
        {k: v if k in shared else v[part] for k, v in output.items()}
        for part in (slice(0, 12, 2), slice(1, 12, 2))
    ]
    assert all(WEIGHT in half for half in halves)
    mean = sum(trainer._compute_loss(None, half) for half in halves) / 2
    torch.testing.assert_close(mean, whole)
