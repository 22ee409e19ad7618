"""Real runs of the trainers on a tiny model: unequal groups, by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import trl_helpers as helpers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from apportion import advantage
from apportion.errors import FormulaDriftError, InvalidInputError
from apportion.integrations.trl import AdaptiveRolloutConfig, AdaptiveRolloutMixin
from apportion.integrations.trl.rows import group_heads

pytestmark = pytest.mark.filterwarnings("ignore")


def record_rewards(trainer):
    """Keep each gathered reward matrix and the groups that reward functions were told."""
    kept = []
    stock = trainer._calculate_rewards

    def calculated(inputs, *others):
        reward_NK = stock(inputs, *others)
        groups = np.array([row["group_index"] for row in inputs])
        kept.append((reward_NK.double().numpy().copy(), groups, [row["prompt"] for row in inputs]))
        return reward_NK

    trainer._calculate_rewards = calculated
    return kept


def by_hand(reward_NK, group_N, kind, *, scale="batch", weights=(1.0,)):
    reward_N = np.nansum(reward_NK * np.array(weights), axis=1)
    reward_N[np.isnan(reward_NK).all(axis=1)] = np.nan
    scored_N = ~np.isnan(reward_N)
    if kind == "rloo":
        value_N, centring = advantage.rloo(reward_N, group_N), "leave_one_out"
    else:
        value_N, centring = advantage.grpo(reward_N, group_N, scale=scale), "mean"
    return value_N * advantage.prompt_weight(group_N, centring=centring, scored_N=scored_N)


def nothing(completions, **_):
    return [None] * len(completions)


async def slow_length(completions, **_):
    return [len(c) / 4 for c in completions]


def twins():
    return Dataset.from_list([helpers.dataset()[4]] * 8)


def stream():
    return Dataset.from_list(list(helpers.dataset())).to_iterable_dataset()


SIZES = [2, 2, 8, 4]
RAGGED_CASES = [
    ("grpo", {}),
    ("grpo", {"scale_rewards": "group"}),
    ("grpo", {"scale_rewards": "none", "loss_type": "bnpo", "gradient_accumulation_steps": 2}),
    ("grpo", {"steps_per_generation": 4, "per_device_train_batch_size": 4, "loss_type": "grpo"}),
    ("grpo", {"generation_batch_size": 16, "gradient_accumulation_steps": 2}),
    ("grpo", {"num_iterations": 2, "max_steps": 4, "mask_truncated_completions": True}),
    pytest.param("grpo", {"train_dataset": stream}, marks=helpers.needs_trl("1.9")),
    ("grpo", {"train_dataset": twins, "max_steps": 2}),
    ("grpo", {"reward_funcs": [helpers.reward_or_none]}),
    (
        "grpo",
        {
            "reward_funcs": [helpers.reward, helpers.reward_or_none, slow_length, nothing],
            "reward_weights": [1.0, 0.5, 0.3, 1.0],
        },
    ),
    ("grpo", {"dataloader_num_workers": 2, "max_steps": 2}),
    ("rloo", {}),
    ("rloo", {"gradient_accumulation_steps": 2, "num_generations": 4}),
]


@pytest.mark.parametrize(("kind", "options"), RAGGED_CASES)
def test_ragged_advantages_are_those_computed_by_hand(tmp_path, kind, options):
    options = {k: v() if callable(v) else v for k, v in options.items()}
    allocator = helpers.FixedAllocator(SIZES)
    trainer = helpers.build(tmp_path, kind, allocator=allocator, **options)
    rewards, trace = record_rewards(trainer), helpers.Trace(trainer)
    helpers.trained(trainer)
    scale = options.get("scale_rewards", "batch")
    weights = options.get("reward_weights", (1.0,))
    assert trace.batches
    for (reward_NK, group_N, prompt_N), got_N in zip(rewards, trace["advantages"], strict=True):
        sizes = [SIZES[i % 4] for i in range(group_N.max() + 1)]
        np.testing.assert_array_equal(np.bincount(group_N), sizes)
        assert len({(g, p) for g, p in zip(group_N, prompt_N, strict=True)}) == len(sizes)
        want_N = by_hand(reward_NK, group_N, kind, scale=scale, weights=weights)
        np.testing.assert_allclose(got_N.numpy(), want_N, atol=2e-5)
    assert any(np.abs(got.numpy()).max() > 0 for got in trace["advantages"])
    for (_, budget, _), outcomes in zip(allocator.asked, allocator.told, strict=True):
        assert outcomes.num_requested_B.sum() == budget
    sums = [
        float(np.nansum(np.where(np.isnan(r).all(1), 0, np.nansum(r * weights, 1))))
        for r, _, _ in rewards
    ]
    told = [float(out.reward_sum_B.sum()) for out in allocator.told]
    np.testing.assert_allclose(told, sums, atol=1e-5)


def test_logged_numbers_are_repaired_and_added(tmp_path):
    trainer = helpers.build(
        tmp_path,
        allocator=helpers.FixedAllocator(SIZES),
        scale_rewards="none",
        log_completions=True,
    )
    trace, rewards = helpers.Trace(trainer), record_rewards(trainer)
    helpers.trained(trainer)
    reward_NK, group_N, _ = rewards[0]
    mean_B = np.bincount(group_N, weights=reward_NK[:, 0]) / np.array(SIZES)
    line = trainer.state.log_history[0]
    assert line["rollouts/reward_prompt_mean"] == pytest.approx(mean_B.mean())
    assert line["reward"] == pytest.approx(reward_NK.mean())
    assert (line["rollouts/group_size_min"], line["rollouts/group_size_max"]) == (2, 8)
    dead_B = (mean_B == 0) | (mean_B == 1)
    assert line["rollouts/frac_groups_without_signal"] == pytest.approx(dead_B.mean())
    assert line["frac_reward_zero_std"] == pytest.approx(dead_B[group_N].mean())
    assert line["rollouts/allocation_seconds"] > 0
    assert line["rollouts/variance_ratio"] == 0.5
    assert line["rollouts/forecast_mae"] == pytest.approx(np.abs(mean_B - 0.5).mean())
    assert list(trainer._logs["advantages"]) == trace["advantages"][-1].tolist()


def test_evaluation_is_left_alone(tmp_path):
    trainer = helpers.build(
        tmp_path,
        allocator=helpers.FixedAllocator(SIZES),
        eval_dataset=helpers.dataset(4),
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=4,
    )
    helpers.trained(trainer)
    assert helpers.logged(trainer, "eval_reward")
    assert trainer.num_generations == 4


def test_environments_meet_the_row_of_their_group(tmp_path):
    rows = [
        {**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in helpers.dataset()
    ]
    seen = []

    def by_environment(environments, problem, **_):
        seen.append([(e.problem, p) for e, p in zip(environments, problem, strict=True)])
        return [e._score() for e in environments]

    trainer = helpers.build(
        tmp_path,
        allocator=helpers.FixedAllocator(SIZES),
        tok=helpers.chat_tokenizer(),
        train_dataset=Dataset.from_list(rows),
        environment_factory=helpers.Echo,
        reward_funcs=by_environment,
        max_completion_length=8,
    )
    helpers.trained(trainer)
    assert max(helpers.logged(trainer, "tools/call_frequency")) > 0
    assert all(own == told for pairs in seen for own, told in pairs)


def test_rollout_functions_see_one_prompt_a_row(tmp_path):
    tok = helpers.tokenizer()
    seen = []

    def rollout(prompts, trainer):
        seen.append((len(prompts), len(set(prompts)), trainer.num_generations))
        ids = [tok(prompt)["input_ids"] for prompt in prompts]
        return {
            "prompt_ids": ids,
            "completion_ids": [[3 + i % 8, 1] for i in range(len(prompts))],
            "logprobs": [[-1.0, -1.0]] * len(prompts),
            "mark": list(range(len(prompts))),
        }

    marks = []

    def marked(completions, ok, mark, group_index, **_):
        marks.append((mark, group_index))
        return helpers.reward(completions, ok)

    trainer = helpers.build(
        tmp_path,
        allocator=helpers.FixedAllocator(SIZES),
        tok=tok,
        rollout_func=rollout,
        reward_funcs=marked,
    )
    helpers.trained(trainer)
    assert seen[0] == (16, 4, 1)
    assert marks[0] == (list(range(16)), np.repeat(range(4), SIZES).tolist())
    assert trainer.num_generations == 4


def test_normalising_each_reward_first(tmp_path):
    """GDPO: by hand for one reward function, where it is group scaling whitened."""
    options = {"multi_objective_aggregation": "normalize_then_sum"}
    even = helpers.build(tmp_path / "a", allocator=helpers.FixedAllocator([4]), **options)
    stock = helpers.build(tmp_path / "b", stock=True, **options)
    assert torch.equal(helpers.trained(even), helpers.trained(stock))
    trainer = helpers.build(tmp_path / "c", allocator=helpers.FixedAllocator(SIZES), **options)
    rewards, trace = record_rewards(trainer), helpers.Trace(trainer)
    helpers.trained(trainer)
    for (reward_NK, group_N, _), got_N in zip(rewards, trace["advantages"], strict=True):
        reward_N = reward_NK[:, 0]
        z_N = advantage.grpo(reward_N, group_N, scale="group")
        alive = np.array([np.ptp(z_N[group_N == g]) > 0 for g in range(4)])
        var = (alive * 1.0).mean() * (1 - 4 / 16) * 16 / 15
        want_N = z_N / (np.sqrt(var) + 1e-4) * advantage.prompt_weight(group_N, centring="mean")
        np.testing.assert_allclose(got_N.numpy(), want_N, rtol=2e-3, atol=1e-5)


def test_drift_is_noticed(tmp_path, monkeypatch):
    trainer = helpers.build(tmp_path, allocator=helpers.FixedAllocator(SIZES))
    stock = GRPOTrainer._generate_and_score_completions

    def tampered(self, inputs):
        output = stock(self, inputs)
        output["advantages"] = output["advantages"] * 1.05
        return output

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", tampered)
    with pytest.raises(FormulaDriftError, match="differ from the formula known to us"):
        helpers.trained(trainer)
    assert trainer.num_generations == 4


def test_a_loss_that_bypasses_the_weight_is_noticed(tmp_path, monkeypatch):
    tok = helpers.tokenizer()
    helpers.model(tok).save_pretrained(tmp_path / "model")
    tok.save_pretrained(tmp_path / "model")
    trainer = helpers.build(
        tmp_path,
        allocator=helpers.FixedAllocator(SIZES),
        beta=0.1,
        model=str(tmp_path / "model"),
    )

    def without_kl(self, model, inputs):
        return torch.ones(1, requires_grad=True).sum()

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", without_kl)
    with pytest.raises(FormulaDriftError, match="cannot be weighted"):
        helpers.trained(trainer)


def test_another_samplers_layout_is_named():
    rows = [{"prompt": "a"}, {"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]
    assert group_heads(rows[:3], 4, 2) == [rows[0], rows[2]]
    with pytest.raises(InvalidInputError, match=r"Rows 2 and 3 .* each prompt must stand 2 times"):
        group_heads(rows, 0, 2)


def test_other_subclasses_can_be_mixed_in(tmp_path):
    gmpo = pytest.importorskip("trl.experimental.gmpo")

    @dataclass
    class AdaptiveGMPOConfig(AdaptiveRolloutConfig, gmpo.GMPOConfig):
        pass

    class AdaptiveGMPOTrainer(AdaptiveRolloutMixin, gmpo.GMPOTrainer):
        pass

    tok = helpers.tokenizer()
    options = {**helpers.DEFAULTS, "scale_rewards": "none"}
    trainer = AdaptiveGMPOTrainer(
        helpers.model(tok),
        helpers.reward,
        args=AdaptiveGMPOConfig(str(tmp_path), **options),
        train_dataset=helpers.dataset(),
        processing_class=tok,
        allocator=helpers.FixedAllocator(SIZES),
    )
    rewards, trace = record_rewards(trainer), helpers.Trace(trainer)
    helpers.trained(trainer)
    for (reward_NK, group_N, _), got_N in zip(rewards, trace["advantages"], strict=True):
        want_N = by_hand(reward_NK, group_N, "grpo", scale="none")
        np.testing.assert_allclose(got_N.numpy(), want_N, atol=2e-5)


def test_rloo_with_kl_runs_and_passes_its_own_alarm(tmp_path):
    tok = helpers.tokenizer()
    helpers.model(tok).save_pretrained(tmp_path / "model")
    tok.save_pretrained(tmp_path / "model")
    trainer = helpers.build(
        tmp_path,
        "rloo",
        allocator=helpers.FixedAllocator(SIZES),
        beta=0.05,
        num_iterations=2,
        max_steps=4,
        model=str(tmp_path / "model"),
    )
    trace = helpers.Trace(trainer)
    helpers.trained(trainer)
    assert len(trace.batches) == 2
    assert max(helpers.logged(trainer, "kl")) > 0


def test_wrong_allocators_are_named(tmp_path):
    lavish = helpers.FixedAllocator(SIZES)
    lavish.lower = 6
    with pytest.raises(InvalidInputError, match="lower is 6, so 4 prompts need 24"):
        helpers.build(tmp_path, allocator=lavish)
    greedy = helpers.build(tmp_path, allocator=helpers.FixedAllocator([8]))
    with pytest.raises(InvalidInputError, match="all together 16"):
        helpers.trained(greedy)
    with pytest.raises(InvalidInputError, match="prompt_key_column is 'id'"):
        helpers.build(tmp_path, prompt_key_column="id")


def test_a_stock_configuration_is_refused_with_the_way_out(tmp_path):
    args = GRPOConfig(str(tmp_path), report_to="none", use_cpu=True, bf16=False)
    tok = helpers.tokenizer()
    data, policy = helpers.dataset(), helpers.model(tok)
    with pytest.raises(InvalidInputError, match="Use AdaptiveGRPOConfig"):
        helpers.AdaptiveGRPOTrainer(policy, helpers.reward, args, data, processing_class=tok)
