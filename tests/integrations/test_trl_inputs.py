"""What reaches the allocator from a trainer's data set and rewards, and what is refused."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import trl_helpers as helpers
from datasets import Dataset
from transformers import set_seed

from apportion.allocator import RolloutAllocator
from apportion.errors import InvalidInputError
from apportion.predictor import Beta, FilterBank
from apportion.types import Prompts

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = [2, 2, 8, 4]


def test_keys_columns_and_priors_reach_the_allocator(tmp_path):
    rows = [{**row, "rate": 0.25, "seen": 8} for row in helpers.dataset()]
    allocator = RolloutAllocator(Beta(), lower=2, upper=8)
    trainer = helpers.build(
        tmp_path,
        allocator=allocator,
        train_dataset=Dataset.from_list(rows),
        prompt_key_column="problem",
        prior_mean_column="rate",
        prior_count_column="seen",
        remove_unused_columns=True,
        reward_funcs=lambda completions, **_: [float(c[:1] == "a") for c in completions],
        max_steps=1,
    )
    helpers.trained(trainer)
    assert all(key.startswith("p") for key in trainer.planner.read([rows[0]]).id_B.tolist())
    assert trainer.planner.read(rows[:2]).prior_mean_B.tolist() == [0.25, 0.25]
    assert len(allocator) == 4


def test_default_allocator_learns_from_words(tmp_path):
    trainer = helpers.build(tmp_path, max_steps=6)
    helpers.trained(trainer)
    assert trainer.planner.embed is not None
    assert len(trainer.planner.allocator) == 24
    assert helpers.logged(trainer, "rollouts/fallback")[0] == 1.0
    sums = helpers.logged(trainer, "rollouts/num_rollouts")
    assert sums == [16.0] * 6


def test_a_fallback_is_logged_with_its_reason(tmp_path, caplog):
    class Timid(helpers.FixedAllocator):
        def allocate(self, prompts, budget, *, step=None):
            return replace(super().allocate(prompts, budget, step=step), reason="I do not know.")

    trainer = helpers.build(tmp_path, allocator=Timid([4]))
    with caplog.at_level("INFO", logger="apportion"):
        helpers.trained(trainer)
    assert helpers.logged(trainer, "rollouts/fallback") == [1.0] * 3
    assert [record.message for record in caplog.records].count("I do not know.") == 1


def test_rewards_of_minus_one_and_one_with_their_range(tmp_path):
    def signed(completions, ok, **_):
        return [2.0 * value - 1.0 for value in helpers.reward(completions, ok)]

    trainer = helpers.build(tmp_path, reward_funcs=signed, reward_low=-1.0, max_steps=2)
    set_seed(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*outside reward_range")
        trainer.train()
    assert trainer.planner.allocator.reward_range == (-1.0, 1.0)
    assert all(miss <= 1.0 for miss in helpers.logged(trainer, "rollouts/forecast_mae"))


def test_features_of_ones_own_are_found_by_key(tmp_path):
    data = helpers.dataset()
    feature_BD = np.log2(np.array(data["level"], dtype=float))[:, None]
    allocator = RolloutAllocator(FilterBank(), lower=2, upper=8)
    allocator.add(Prompts(id_B=list(data["problem"]), feature_BD=feature_BD))
    trainer = helpers.build(tmp_path, allocator=allocator, prompt_key_column="problem")
    helpers.trained(trainer)
    assert trainer.planner.embed is None
    assert len(allocator) == 24
    feature_QD = allocator.state_dict()["predictor.feature_QD"]
    np.testing.assert_array_equal(feature_QD, feature_BD)


@pytest.mark.parametrize("mode", ["adaptive", "shadow", "uniform"])
@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_infinite_rewards_stop_before_the_update(tmp_path, kind, mode):
    def lucky(completions, **_):
        return [0.0, None, -math.inf, *[1.0] * (len(completions) - 3)]

    trainer = helpers.build(
        tmp_path, kind, reward_funcs=[helpers.reward, lucky], allocator_mode=mode
    )
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with pytest.raises(
        InvalidInputError, match=r"function 1 \(lucky\) gave rollout 2 .* -inf, but"
    ):
        helpers.trained(trainer)
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert trainer.num_generations == 4


def test_infinite_rewards_that_trl_takes_out_are_no_error(tmp_path):
    def lucky(completions, **_):
        return [math.inf, *[0.0] * (len(completions) - 1)]

    allocator = helpers.FixedAllocator(SIZES)
    options = {"reward_funcs": lucky, "reward_clip_range": (0.0, 1.0), "max_steps": 1}
    helpers.trained(helpers.build(tmp_path, "rloo", allocator=allocator, **options))
    options = {"reward_funcs": [helpers.reward, lucky], "reward_weights": [1.0, 0.0]}
    weights = helpers.trained(helpers.build(tmp_path, allocator=allocator, **options))
    assert torch.isfinite(weights).all()
