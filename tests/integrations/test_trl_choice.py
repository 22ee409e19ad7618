"""Choosing prompts: candidates beside the batch, some of which get nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import trl_helpers as helpers
from datasets import Dataset
from test_trl_checkpoint import StopAt, lines
from test_trl_trainer import by_hand, record_rewards

from apportion.allocator import RolloutAllocator
from apportion.audit.choice import choice_of
from apportion.errors import InvalidInputError
from apportion.integrations.trl import AdaptiveGRPOConfig, checks
from apportion.integrations.trl.candidates import DrawnRows
from apportion.integrations.trl.checks import check_dataset
from apportion.predictor import Beta, Oracle
from apportion.readers import read
from apportion.run_log import read_config, read_groups

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = [0, 3, 2, 0, 6, 0, 5, 0]
"""Of 4 heads and 4 further candidates."""

HALVES = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}


def chooser(**options):
    options = {"lower": 2, "upper": 8, "objective": "progress", "do_no_harm": False} | options
    return RolloutAllocator(Beta(), **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("grpo", {}),
        ("grpo", {"scale_rewards": "none", "loss_type": "bnpo", **HALVES}),
        ("grpo", {"steps_per_generation": 4, "per_device_train_batch_size": 4}),
        ("grpo", {"generation_batch_size": 16, "gradient_accumulation_steps": 2}),
        ("rloo", {}),
    ],
)
def test_only_the_chosen_are_sampled_and_weighed(tmp_path, kind, options):
    allocator = helpers.FixedChooser(SIZES)
    trainer = helpers.build(tmp_path, kind, allocator=allocator, candidates=2, **options)
    rewards, trace = record_rewards(trainer), helpers.Trace(trainer)
    helpers.trained(trainer)
    scale = options.get("scale_rewards", "batch")
    assert len(rewards) == len(allocator.asked) >= 1
    parts = zip(rewards, trace["advantages"], allocator.asked, allocator.told, strict=True)
    for (reward_NK, group_N, prompt_N), got_N, (keys, budget, _), outcomes in parts:
        assert len(set(keys)) == 8
        np.testing.assert_array_equal(np.bincount(group_N), [3, 2, 6, 5])
        assert len(set(prompt_N)) == 4
        np.testing.assert_allclose(
            got_N.numpy(), by_hand(reward_NK, group_N, kind, scale=scale), atol=2e-5
        )
        assert outcomes.prompt_B.tolist() == [keys[i] for i in (1, 2, 4, 6)]
        assert outcomes.num_requested_B.tolist() == [3, 2, 6, 5]
        assert budget == 16
    assert set(allocator.num_even) == {4}


def test_what_is_logged(tmp_path):
    options = {"rollout_log_dir": str(tmp_path / "log"), "prompt_key_column": "problem"}
    allocator = helpers.FixedChooser(SIZES)
    trainer = helpers.build(tmp_path, allocator=allocator, candidates=2, **options)
    helpers.trained(trainer)
    line = trainer.state.log_history[0]
    assert line["rollouts/gain_ratio"] == 1.5
    assert line["rollouts/num_prompts"] == 4
    assert line["rollouts/num_candidates"] == 8
    assert (line["rollouts/group_size_min"], line["rollouts/group_size_max"]) == (2, 6)
    assert "rollouts/variance_ratio" not in line
    assert "variance_ratio" not in lines(tmp_path)[0]
    groups = read_groups(tmp_path / "log")
    assert len(groups) == 12
    assert groups["num_requested"].min() >= 2
    np.testing.assert_allclose(groups["forecast_mean"], [0.25, 0.3, 0.4, 0.5] * 3)
    config = read_config(tmp_path / "log")
    assert (config["objective"], config["candidates"]) == ("progress", 2)
    found = choice_of(read([tmp_path / "log"]))  # what an audit makes of it
    assert found.is_followed
    assert (found.objective, found.candidates, found.exploration) == ("progress", 2, 0.1)
    assert (found.rollouts_per_prompt, found.prompts_per_step) == (4, 4)
    assert (found.lower, found.upper) == (2, 16)
    assert (found.expected_gain, found.num_decided) == (1.5, 3)


def test_the_share_of_the_data_set_that_was_touched_is_logged(tmp_path):
    trainer = helpers.build(tmp_path, candidates=3, max_steps=4)
    helpers.trained(trainer)
    allocator = trainer.planner.allocator
    assert (allocator.objective, allocator.exploration) == ("coverage", 0.1)
    touched = helpers.logged(trainer, "rollouts/share_touched")
    assert touched[0] == pytest.approx(4 / 24)  # it splits evenly while it knows nothing
    assert touched == sorted(touched)
    assert touched[-1] == pytest.approx(allocator.share_touched)


EVEN = [4] * 4 + [0] * 4


@pytest.mark.parametrize("options", [{}, {"allocator_mode": "shadow"}, {"candidates": 1}])
def test_an_even_decision_is_stock_bit_for_bit(tmp_path, options):
    sizes = SIZES if "allocator_mode" in options else EVEN
    allocator = helpers.FixedChooser(sizes)
    ours = helpers.build(tmp_path / "a", allocator=allocator, **{"candidates": 2, **options})
    theirs = helpers.build(tmp_path / "b", stock=True)
    assert torch.equal(helpers.trained(ours), helpers.trained(theirs))
    line = ours.state.log_history[0]
    assert line["rollouts/num_prompts"] == 4
    if "allocator_mode" in options:
        assert line["rollouts/shadow_gain_ratio"] == 1.5
        assert line["rollouts/shadow_num_prompts"] == 4
        assert line["rollouts/shadow_group_size_max"] == 6
        assert "rollouts/gain_ratio" not in line


def test_the_default_allocator_without_skill_is_stock(tmp_path):
    ours = helpers.build(tmp_path / "a", candidates=2, max_steps=2)
    theirs = helpers.build(tmp_path / "b", stock=True, max_steps=2)
    assert torch.equal(helpers.trained(ours), helpers.trained(theirs))
    assert helpers.logged(ours, "rollouts/fallback") == [1.0, 1.0]


def test_a_decision_for_other_prompts_of_the_even_size_is_not_even(tmp_path):
    allocator = helpers.FixedChooser([0] * 4 + [4] * 4)
    trainer = helpers.build(tmp_path, allocator=allocator, candidates=2, max_steps=1)
    rewards = record_rewards(trainer)
    helpers.trained(trainer)
    keys = allocator.asked[0][0]
    assert allocator.told[0].prompt_B.tolist() == list(keys[4:])
    assert len(set(rewards[0][2])) == 4


def test_choosing_within_the_batch(tmp_path):
    """The second route: small groups, whose prompts are the candidates."""
    truth = {f"p{i}": [0.0, 0.5][i % 2] for i in range(24)}
    allocator = RolloutAllocator(
        Oracle(lambda keys: np.array([truth[str(key)] for key in keys])),
        objective="progress",
        exploration=0.0,
        do_no_harm=False,
    )
    options = {"num_generations": 2, "prompt_key_column": "problem", "shuffle_dataset": False}
    trainer = helpers.build(tmp_path, allocator=allocator, objective="progress", **options)
    rewards = record_rewards(trainer)
    helpers.trained(trainer)
    sizes = [np.bincount(group_N).tolist() for _, group_N, _ in rewards]
    assert sizes == [[4, 4, 4, 4]] * 3
    assert helpers.logged(trainer, "rollouts/num_prompts") == [4.0] * 3
    assert helpers.logged(trainer, "rollouts/gain_ratio")[0] > 1.0
    prompts = {prompt for _, _, prompt_N in rewards for prompt in prompt_N}
    assert all(int(prompt[:2]) % 2 for prompt in prompts)


def test_small_groups_fall_back_to_all_prompts_evenly(tmp_path):
    options = {"num_generations": 2, "max_steps": 1}
    ours = helpers.build(tmp_path / "a", objective="coverage", **options)
    theirs = helpers.build(tmp_path / "b", stock=True, **options)
    assert torch.equal(helpers.trained(ours), helpers.trained(theirs))
    assert helpers.logged(ours, "rollouts/num_prompts") == [8.0]
    assert ours.planner.allocator.objective == "coverage"


def test_a_resumed_run_draws_and_decides_as_the_one_never_cut(tmp_path):
    def run(folder, *, stop=None, resume=None):
        trainer = helpers.build(
            folder,
            allocator=chooser(),
            candidates=3,
            max_steps=6,
            save_strategy="steps",
            save_steps=3,
            rollout_log_dir=str(folder / "log"),
            callbacks=[StopAt(stop)] if stop else [],
        )
        start = {} if resume is None else {"resume_from_checkpoint": str(folder / resume)}
        return helpers.trained(trainer, **start)

    whole = run(tmp_path / "whole")
    run(tmp_path / "cut", stop=4)
    assert torch.equal(run(tmp_path / "cut", resume="checkpoint-3"), whole)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    groups = read_groups(tmp_path / "cut" / "log")
    assert groups.equals(read_groups(tmp_path / "whole" / "log"))
    assert groups["num_requested"].n_unique() > 1


def test_further_rows_are_drawn_apart_from_the_batch():
    data = list(helpers.dataset())
    drawn = DrawnRows(data, 3, seed=1)
    first, again = drawn(4, data[:4]), DrawnRows(data, 3, seed=1)(4, data[:4])
    assert first == again
    assert len({row["prompt"] for row in [*first, *data[:4]]}) == 12
    assert drawn(5, data[:4]) != first  # another step
    assert drawn(4, data[4:8])[:4] != first[:4]  # another batch of the same step
    assert DrawnRows(data, 3, seed=2)(4, data[:4]) != first
    # Rows of the same key are one prompt, and columns are those of the batch.
    keyed = DrawnRows(data, 2, seed=1, key_column="level")
    bare = [{name: data[0][name] for name in ("prompt", "level")}]
    (row,) = keyed(0, bare)
    assert set(row) == {"prompt", "level"}
    assert row["level"] != data[0]["level"]


def test_too_few_distinct_prompts_are_less_to_choose_from_and_do_not_end_a_run(caplog):
    data = list(helpers.dataset())
    bare = [{name: data[0][name] for name in ("prompt", "level")}]
    few = DrawnRows(data, 6, seed=1, key_column="level")
    assert [len(few(step, bare)) for step in range(3)] == [4, 4, 4]
    assert caplog.text.count("has 5 distinct prompts, but candidates 6 asks") == 1


def test_distinct_prompts_are_counted_no_further_than_there_are_enough(monkeypatch):
    class Rows:
        def __init__(self, num_rows, num_distinct):
            self.num_rows, self.num_distinct, self.num_read = num_rows, num_distinct, 0

        def __len__(self):
            return self.num_rows

        def __getitem__(self, index):
            self.num_read += 1
            return {"prompt": f"{index % self.num_distinct}"}

    args = AdaptiveGRPOConfig("out", **BASE, candidates=2)  # of 4 prompts
    enough, few = Rows(100, 8), Rows(100, 7)
    check_dataset(args, enough, draws=True)
    assert enough.num_read == 8
    check_dataset(args, few)
    assert few.num_read == 0
    with pytest.raises(InvalidInputError, match=r"the 100 rows .* hold 7 distinct prompts"):
        check_dataset(args, few, draws=True)
    monkeypatch.setattr(checks, "_MOST_COUNTED", 99)
    check_dataset(args, few, draws=True)


def test_own_rows_in_place_of_drawn_ones(tmp_path):
    data, asked = list(helpers.dataset()), []

    def extra_rows(step, heads):
        asked.append((step, len(heads)))
        return data[-3:]

    allocator = helpers.FixedChooser([8, 0, 0, 0, 0, 8, 0])
    trainer = helpers.build(
        tmp_path, allocator=allocator, extra_rows=extra_rows, train_dataset=helpers.dataset(20)
    )
    rewards = record_rewards(trainer)
    helpers.trained(trainer)
    assert asked == [(0, 4), (1, 4), (2, 4)]
    assert all(prompt_N[-1] == data[-2]["prompt"] for _, _, prompt_N in rewards)


def test_environments_meet_the_row_of_a_chosen_candidate(tmp_path):
    rows = [
        {**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in helpers.dataset()
    ]
    seen = []

    def by_environment(environments, problem, **_):
        seen.append([(e.problem, p) for e, p in zip(environments, problem, strict=True)])
        return [1.0] * len(problem)

    trainer = helpers.build(
        tmp_path,
        allocator=helpers.FixedChooser(SIZES),
        candidates=2,
        tok=helpers.chat_tokenizer(),
        train_dataset=Dataset.from_list(rows),
        environment_factory=helpers.Echo,
        reward_funcs=by_environment,
        max_completion_length=8,
    )
    helpers.trained(trainer)
    assert all(own == told for pairs in seen for own, told in pairs)
    assert all(len({own for own, _ in pairs}) == 4 for pairs in seen)


@pytest.mark.parametrize("removes", [False, True])
def test_candidates_have_the_columns_of_the_batch(tmp_path, removes):
    allocator = helpers.FixedChooser([0, 3, 2, 0, 6, 0, 5, 0])
    trainer = helpers.build(
        tmp_path,
        allocator=allocator,
        candidates=2,
        remove_unused_columns=removes,
        prompt_key_column="problem",
        reward_funcs=lambda prompts, **_: [float(len(p) % 2) for p in prompts],
    )
    seen = []
    stock = trainer._calculate_rewards
    trainer._calculate_rewards = lambda rows, *others: seen.append(rows) or stock(rows, *others)
    helpers.trained(trainer)
    columns = {frozenset(row) for rows in seen for row in rows}
    assert len(columns) == 1
    kept = set() if removes else {"ok", "level"}
    assert columns.pop() >= {"prompt", "problem", "group_index", *kept}


@helpers.needs_trl("1.9")
def test_a_stream_is_chosen_from_within_its_batches_only(tmp_path):
    stream = helpers.dataset().to_iterable_dataset()
    with pytest.raises(InvalidInputError, match="the training set is a stream"):
        helpers.build(tmp_path, candidates=2, train_dataset=stream)
    options = {"num_generations": 2, "train_dataset": stream, "allocator": chooser()}
    trainer = helpers.build(tmp_path, objective="progress", **options)
    helpers.trained(trainer)
    assert min(helpers.logged(trainer, "rollouts/num_prompts")) < 8


def test_what_cannot_choose_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"chooses from 28, but the data set has 24 rows"):
        helpers.build(tmp_path, candidates=7)
    with pytest.raises(InvalidInputError, match=r"from 8, but the 24 rows .* 5 distinct prompts"):
        helpers.build(tmp_path, candidates=2, prompt_key_column="level")
    plain = RolloutAllocator(Beta())
    with pytest.raises(InvalidInputError, match=r"candidates 2\), but the allocator gives every"):
        helpers.build(tmp_path, candidates=2, allocator=plain)
    with pytest.raises(InvalidInputError, match="and extra_rows"):
        helpers.build(tmp_path, extra_rows=lambda step, heads: [])
    helpers.build(tmp_path, candidates=7, allocator_mode="uniform")
    wrong = helpers.build(tmp_path, candidates=2, allocator=helpers.FixedChooser([2]))
    helpers.trained(wrong)  # 8 x 2 = 16
    short = helpers.build(tmp_path, candidates=2, allocator=helpers.FixedChooser([3]))
    with pytest.raises(InvalidInputError, match="least 0 and all together 16"):
        helpers.trained(short)


BASE = {**helpers.DEFAULTS, "scale_rewards": "batch"}


def test_settings_of_choosing():
    assert AdaptiveGRPOConfig("out", **BASE).goal == "variance"
    assert AdaptiveGRPOConfig("out", **BASE, candidates=3).goal == "coverage"
    assert AdaptiveGRPOConfig("out", **BASE, objective="progress").goal == "progress"
    for options, message in (
        ({"candidates": 0}, "candidates is 0"),
        ({"candidates": 2, "objective": "variance"}, "gives every prompt of the batch its share"),
        ({"objective": "speed"}, "objective is 'speed'"),
        ({"exploration": 1.0}, r"exploration is 1, but must be a share"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            AdaptiveGRPOConfig("out", **BASE, **options)


@pytest.mark.filterwarnings("error:.*nothing to allocate:UserWarning")
def test_one_prompt_a_batch_is_enough_to_choose(tmp_path):
    AdaptiveGRPOConfig("out", **{**BASE, "num_generations": 16}, candidates=2)
    AdaptiveGRPOConfig("out", **{**BASE, "num_generations": 2}, objective="progress")


def test_settings_that_an_allocator_overrides_are_warned_of(tmp_path):
    tok = helpers.tokenizer()
    for options, message in (
        ({"objective": "coverage"}, r"objective coverage is ignored: .* own \(progress\)"),
        ({"exploration": 0.3}, r"exploration 0.3 is ignored"),
    ):
        with pytest.warns(UserWarning, match=message):
            helpers.AdaptiveGRPOTrainer(
                helpers.model(tok),
                helpers.reward,
                args=AdaptiveGRPOConfig(str(tmp_path), **BASE, candidates=2, **options),
                train_dataset=helpers.dataset(),
                processing_class=tok,
                allocator=chooser(),
            )
