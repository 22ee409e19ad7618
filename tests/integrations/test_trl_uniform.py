"""Where nothing should differ from stock TRL: even splits, and modes that leave the rows alone."""

from __future__ import annotations

import pytest
import torch
import trl_helpers as helpers
from trl import GRPOTrainer

from apportion.errors import InvalidInputError
from apportion.integrations.trl.rows import expand

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = [2, 2, 8, 4]


STOCK_CASES = [
    ("grpo", {"reward_funcs": [helpers.reward_or_none]}),
    ("grpo", {}),
    ("grpo", {"loss_type": "grpo", "scale_rewards": "group"}),
    ("grpo", {"loss_type": "bnpo", "scale_rewards": "none", "gradient_accumulation_steps": 2}),
    ("grpo", {"loss_type": "dr_grpo", "num_iterations": 2, "max_steps": 4}),
    ("grpo", {"loss_type": "cispo", "steps_per_generation": 2, "per_device_train_batch_size": 8}),
    ("rloo", {}),
    ("rloo", {"normalize_advantages": True, "reward_clip_range": (0.0, 0.5)}),
]


@pytest.mark.parametrize(("kind", "options"), STOCK_CASES)
def test_an_even_allocator_is_stock_bit_for_bit(tmp_path, kind, options):
    ours = helpers.build(tmp_path / "ours", kind, allocator=helpers.FixedAllocator([4]), **options)
    options = {"beta": 0.0, **options} if kind == "rloo" else options
    theirs = helpers.build(tmp_path / "theirs", kind, stock=True, **options)
    our_trace, their_trace = helpers.Trace(ours), helpers.Trace(theirs)
    assert torch.equal(helpers.trained(ours), helpers.trained(theirs))
    pairs = zip(our_trace["advantages"], their_trace["advantages"], strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert any(bool(a.any()) for a in our_trace["advantages"])
    shared = ("loss", "grad_norm", "reward", "reward_std", "frac_reward_zero_std")
    for name in shared:
        assert helpers.logged(ours, name) == helpers.logged(theirs, name), name


def test_shadow_trains_as_stock_and_logs_what_would_have_been(tmp_path):
    shadow = helpers.build(
        tmp_path / "a", allocator=helpers.FixedAllocator(SIZES), allocator_mode="shadow"
    )
    stock = helpers.build(tmp_path / "b", stock=True)
    assert torch.equal(helpers.trained(shadow), helpers.trained(stock))
    line = shadow.state.log_history[0]
    assert line["rollouts/shadow_variance_ratio"] == 0.5
    assert line["rollouts/shadow_group_size_max"] == 8
    assert line["rollouts/group_size_max"] == 4
    assert "rollouts/variance_ratio" not in line


def test_uniform_asks_nobody(tmp_path):
    trainer = helpers.build(tmp_path, allocator_mode="uniform")
    helpers.trained(trainer)
    assert trainer.planner.allocator is None
    assert helpers.logged(trainer, "rollouts/reward_prompt_mean")
    assert not helpers.logged(trainer, "rollouts/forecast_mae")


def test_shadow_does_not_mind_another_formula(tmp_path, monkeypatch):
    stock = GRPOTrainer._generate_and_score_completions

    def tampered(self, inputs):
        output = stock(self, inputs)
        output["advantages"] = output["advantages"] * 1.05
        return output

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", tampered)
    allocator = helpers.FixedAllocator(SIZES)
    helpers.trained(helpers.build(tmp_path, allocator=allocator, allocator_mode="shadow"))


def with_stock_keywords(prompts, completions, completion_ids, ok, problem, level, **known):
    """A reward function that lists what stock TRL gives it, and nothing else."""
    assert set(known) <= {"trainer_state", "log_extra", "log_metric", "environments"}
    return helpers.reward(completions, ok)


@pytest.mark.parametrize("mode", ["shadow", "uniform"])
def test_rows_stay_as_stock_has_them(tmp_path, mode):
    options = {"reward_funcs": with_stock_keywords, "allocator_mode": mode}
    trainer = helpers.build(tmp_path, **options)
    given, reached = [], []
    stock = trainer._calculate_rewards
    outer = trainer._generate_and_score_completions
    trainer._calculate_rewards = lambda rows, *others: reached.append(rows) or stock(rows, *others)
    trainer._generate_and_score_completions = lambda rows: given.append(rows) or outer(rows)
    helpers.trained(trainer)
    assert len(given) == 3
    assert all(a is b for a, b in zip(given, reached, strict=True))


@pytest.mark.parametrize("mode", ["shadow", "uniform"])
def test_a_group_index_of_ones_own_is_kept_or_refused(tmp_path, mode):
    data = helpers.dataset().add_column("group_index", [100 + i for i in range(24)])
    seen = []

    def watched(completions, ok, group_index, **_):
        seen.extend(group_index)
        return helpers.reward(completions, ok)

    trainer = helpers.build(tmp_path, reward_funcs=watched, allocator_mode=mode, train_dataset=data)
    helpers.trained(trainer)
    assert min(seen) >= 100
    with pytest.raises(InvalidInputError, match=r"has a column 'group_index'.*Rename the column"):
        helpers.build(tmp_path, train_dataset=data)
    with pytest.raises(InvalidInputError, match="Rename the column"):
        expand([{"prompt": "a", "group_index": 3}], [0, 0])  # a stream tells its columns late


def test_adaptive_rows_have_their_group_even_if_even(tmp_path):
    seen = []

    def watched(completions, ok, group_index, **_):
        seen.append(group_index)
        return helpers.reward(completions, ok)

    even = helpers.FixedAllocator([4])
    helpers.trained(helpers.build(tmp_path, allocator=even, reward_funcs=watched))
    assert seen == [[i // 4 for i in range(16)]] * 3
