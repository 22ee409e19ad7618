"""A run cut at a checkpoint and resumed is the run that was never cut, run log included."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import trl_helpers as helpers
from transformers import TrainerCallback

from apportion.allocator import RolloutAllocator
from apportion.errors import RunFolderError, StateError
from apportion.integrations.trl.mixin import STATE_FILE
from apportion.predictor import Beta, FilterBank
from apportion.run_log import read_config, read_groups
from apportion.state_file import load_state

pytestmark = pytest.mark.filterwarnings("ignore")


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step
        return control


def learner():
    return RolloutAllocator(Beta(), lower=2, upper=8, do_no_harm=False)


def run(folder, allocator, *, stop=None, resume=None, **options):
    # 24 prompts, 4 a step: the 6 steps of the first epoch, past which stock TRL does not resume.
    trainer = helpers.build(
        folder,
        allocator=allocator,
        max_steps=6,
        save_strategy="steps",
        save_steps=3,
        rollout_log_dir=str(folder / "log"),
        callbacks=[StopAt(stop)] if stop else [],
        prompt_key_column="level",
        **options,
    )
    if resume is None:
        return trainer, helpers.trained(trainer)
    return trainer, helpers.trained(trainer, resume_from_checkpoint=str(folder / resume))


def lines(folder):
    rows = [json.loads(row) for row in (folder / "log" / "steps.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "allocation_seconds"} for row in rows]


@pytest.mark.parametrize("kind", ["Beta", "default"])
def test_resumed_equals_uninterrupted(tmp_path, kind):
    def make():
        return learner() if kind == "Beta" else None

    whole, weights = run(tmp_path / "whole", make())
    run(tmp_path / "cut", make(), stop=4)  # it dies after a step that the checkpoint lacks
    again, resumed = run(tmp_path / "cut", make(), resume="checkpoint-3")
    assert torch.equal(weights, resumed)
    ours, theirs = again.planner.allocator.state_dict(), whole.planner.allocator.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in ours)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert [row["step"] for row in lines(tmp_path / "cut")] == list(range(6))
    groups, whole_groups = (
        read_groups(tmp_path / "cut" / "log"),
        read_groups(tmp_path / "whole" / "log"),
    )
    assert groups.equals(whole_groups)
    assert len(groups) == 24
    assert groups["num_requested"].sum() == 96
    if kind == "Beta":
        assert groups["num_requested"].n_unique() > 1


def test_what_is_saved(tmp_path):
    trainer, _ = run(tmp_path, learner(), stop=3)
    state, header = load_state(tmp_path / "checkpoint-3" / STATE_FILE)
    assert header["step"] == 3
    assert state["id_lengths"].size == len(trainer.planner.allocator) > 1
    config = read_config(tmp_path / "log")
    assert (config["rollouts_per_prompt"], config["prompts_per_step"]) == (4, 4)
    assert config["num_steps"] == 6
    groups = read_groups(tmp_path / "log")
    assert groups["num_tokens"].sum() > 0
    assert groups["num_truncated"].sum() > 0
    assert groups["policy_step"].to_list() == groups["step"].to_list()


def test_several_generations_a_step_make_one_line(tmp_path):
    trainer = helpers.build(
        tmp_path,
        allocator=learner(),
        gradient_accumulation_steps=2,
        generation_batch_size=16,
        rollout_log_dir=str(tmp_path / "log"),
    )
    helpers.trained(trainer)
    assert [row["step"] for row in lines(tmp_path)] == [0, 1, 2]
    assert len(read_groups(tmp_path / "log")) == 24


def test_a_checkpoint_without_our_state_warns_and_another_predictors_is_refused(tmp_path):
    run(tmp_path, learner(), stop=3)
    other = RolloutAllocator(FilterBank(), lower=2, upper=8)
    with pytest.raises(StateError):
        run(tmp_path, other, resume="checkpoint-3")
    (tmp_path / "checkpoint-3" / STATE_FILE).unlink()
    trainer = helpers.build(tmp_path, allocator=learner(), max_steps=6)
    trainer.create_optimizer_and_scheduler(6)
    with pytest.warns(UserWarning, match="the allocator starts knowing nothing"):
        trainer._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-3"))


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_sampled(tmp_path):
    trainer, _ = run(tmp_path, learner(), stop=3)
    allocator = helpers.FixedAllocator([4])
    again = helpers.build(tmp_path, allocator=allocator, rollout_log_dir=str(tmp_path / "log"))
    for each in (again, trainer):  # a second call of train is another run from the start
        with pytest.raises(RunFolderError, match="already holds a run"):
            each.train()
    assert allocator.asked == []
    assert [row["step"] for row in lines(tmp_path)] == [0, 1, 2]
