"""Contract: an audit says when prompts were chosen, keeps how, and claims nothing beyond them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from audit_helpers import call, drawn_run, flat, printed, recording_of, replay_result
from hypothesis import given
from hypothesis import strategies as st

from apportion.allocator import RolloutAllocator
from apportion.audit import audit, bounds_to_replay
from apportion.audit.choice import choice_of
from apportion.audit.forgetting import forgotten
from apportion.cli.audit import audit_as_json
from apportion.cli.audit_verdict import verdict
from apportion.errors import InvalidInputError
from apportion.predictor import Beta
from apportion.recording import Curve
from apportion.run_log import RunLog
from apportion.training.config import ARMS, TrainConfig
from apportion.types import Outcomes, Prompts

TRL = {
    "allocator_mode": "adaptive",
    "objective": "coverage",
    "candidates": 3,
    "exploration": 0.2,
    "rollouts_per_prompt": 4,
    "prompts_per_step": 16.0,
    "lower": 2,
    "upper": 12,
}
SHADOW = TRL | {"allocator_mode": "shadow"}
TRAIN = {"train": TrainConfig(prompts_per_step=16).to_dict()}
GROUPS = drawn_run(0, prompts=3, visits=2)
LOSING = replay_result(saving=-0.02, saving_interval=(-0.1, 0.05))


def curve(values):
    return Curve(step_T=np.arange(len(values)), value_T=np.array(values, dtype=float))


def run_of(config, groups=None, **curves):
    found = recording_of(drawn_run(0) if groups is None else groups, config=config)
    return replace(
        found,
        source="apportion run folder",
        curves={name: curve(values) for name, values in curves.items()},
    )


def audited(config, replayed=None, *, lower=None, upper=None, **curves):
    recording = run_of(config, **curves)
    replayed = replay_result() if replayed is None else replayed
    return audit(recording, replayed, lower=lower, upper=upper, num_draws=5)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("objective", ["variance", "progress", "coverage"])
def test_a_run_of_train_chose_where_its_configuration_says_so(arm, objective):
    config = TrainConfig(arm=arm, objective=objective, upper=9, lower=3, candidates=5)
    found = choice_of(run_of({"train": config.to_dict()}))
    assert (found is not None) == config.chooses
    if found is not None:
        assert found.is_followed
        assert (found.objective, found.candidates) == (objective, 5)
        assert (found.rollouts_per_prompt, found.prompts_per_step) == (4, 64)
        assert (found.lower, found.upper) == (config.least, config.most) == (3, 9)


def test_what_is_not_told_is_as_the_trainer_has_it():
    found = choice_of(run_of(TRAIN))
    assert found.upper == TrainConfig().most
    assert found.exploration is None
    assert (found.expected_gain, found.num_decided) == (None, 0)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"train": None},
        {"allocator_mode": "adaptive"},  # of before prompts were chosen
        TRL | {"objective": "variance"},
        TRL | {"allocator_mode": "uniform"},
        {"train": {"arm": "adaptive", "rollouts_per_prompt": 4}},
    ],
)
def test_other_runs_did_not_choose(config):
    recording = run_of(config)
    assert choice_of(recording) is None
    text = printed(audit(recording, replay_result(), num_draws=5))
    assert "chosen prompts" not in text
    assert "were chosen" not in text
    assert "objective=" not in text


def test_the_gain_is_that_of_the_steps_in_which_the_forecast_decided():
    ratios = {"gain_ratio": [1.0, 2.0, 4.0, math.nan, 3.0], "fallback": [1, 0, 0.5, 0, 0]}
    found = choice_of(run_of(TRL, **ratios))
    assert (found.expected_gain, found.num_decided) == (2.5, 2)
    assert choice_of(run_of(SHADOW, **ratios)).expected_gain is None
    never = choice_of(run_of(TRL, gain_ratio=[1.0], fallback=[1.0]))
    assert (never.expected_gain, never.num_decided) == (None, 0)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 9.0), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=9
    )
)
def test_the_gain_agrees_with_plain_python(steps):
    ratios, fallbacks = zip(*steps, strict=True)
    shadow = choice_of(run_of(SHADOW, GROUPS, shadow_gain_ratio=ratios, fallback=fallbacks))
    own = choice_of(run_of(TRL, GROUPS, gain_ratio=ratios, fallback=fallbacks))
    decided = sorted(ratio for ratio, fallback in steps if fallback == 0.0)
    assert shadow.num_decided == own.num_decided == len(decided)
    if decided:
        middle = (decided[(len(decided) - 1) // 2] + decided[len(decided) // 2]) / 2
        assert shadow.expected_gain == own.expected_gain == pytest.approx(middle)


def test_a_damaged_configuration_is_one_sentence():
    for wrong in ({"candidates": None}, {"lower": "two"}):
        with pytest.raises(InvalidInputError, match=r"run\.json is damaged"):
            choice_of(run_of(TRL | wrong))
    without = {name: value for name, value in TRL.items() if name != "rollouts_per_prompt"}
    with pytest.raises(InvalidInputError, match="rollouts_per_prompt"):
        choice_of(run_of(without))


def test_a_record_of_chosen_prompts_claims_nothing_beyond_them():
    found = audited(TRL, gain_ratio=[1.0, 2.0, 3.0], fallback=[1, 0, 0])
    said = verdict(found)
    assert said["waste"].endswith(
        "The prompts were chosen: this speaks of them, not of all of the data."
    )
    assert said["saving"].startswith("Cannot be said: the run chose its prompts, and those it left")
    assert (
        "expected 2.50 times the coverage of an even step (median of the 2 steps in which they "
        "decided): a promise, not a measurement." in said["saving"]
    )
    assert "On the chosen prompts, the forecasts can be trusted" in said["saving"]
    for figure in ("15.0%", "fewer rollouts", "cannot be saved"):
        assert figure not in said["saving"]
    text = flat(printed(found))
    assert "this is no random sample of the data" in text
    assert "What choosing bought is not in the record" in text
    assert "rests on few looks at those left out" in text
    assert "Replayed on the chosen prompts" in text
    answer = audit_as_json(found)
    assert answer["summary"]["choice"]["candidates"] == 3
    assert answer["saved"] is None
    json.dumps(answer, allow_nan=False)


def test_what_chose_is_kept_whatever_the_replay_says():
    for replayed in (replay_result(), LOSING, None):
        found = audit(run_of(TRL), replayed, num_draws=5)
        use = found.settings
        assert (use.mode, use.rollouts_per_prompt, use.prompts_per_step) == ("adaptive", 4, 16)
        assert (use.lower, use.upper) == (2, 12)
        lines = [line.strip() for line in use.trl]
        assert {"candidates=3,", 'objective="coverage",', "exploration=0.2,"} <= set(lines)
        assert verdict(found)["set"] == (
            "Keep it: n = 4, 16 prompts an even step, candidates = 3, objective coverage, between "
            "2 and 12 rollouts a chosen prompt."
        )
    assert not any("exploration" in line for line in audited(TRAIN).settings.trl)
    batch = audited(TRL | {"candidates": 1, "exploration": 0.1}).settings.trl
    assert not any("candidates" in line or "exploration" in line for line in batch)
    assert '    objective="coverage",' in batch


def test_bounds_of_the_user_go_before_those_of_the_run():
    recording = run_of(TRL)
    assert bounds_to_replay(recording) == (2, 12)
    assert bounds_to_replay(recording, lower=3, upper=7) == (3, 7)
    use = audited(TRL, lower=6, upper=9).settings
    assert (use.lower, use.upper, use.rollouts_per_prompt) == (6, 9, 6)
    assert use.prompts_per_step == 11  # 64 rollouts, as near as it divides
    assert any("the run had n = 4" in reason for reason in use.reasons)
    assert any("your bounds" in reason for reason in use.reasons)
    assert bounds_to_replay(recording, upper=3) == (2, 3)


def test_a_shadow_run_is_a_sample_and_keeps_what_it_would_have_chosen_by():
    found = audited(SHADOW, shadow_gain_ratio=[2.0, 2.0], fallback=[0, 0])
    said = verdict(found)
    assert "chosen" not in said["waste"]
    assert "15.0% [10.0, 20.0] fewer rollouts" in said["saving"]
    assert "This is of splitting a batch alone, not of choosing prompts." in said["saving"]
    assert "would have expected 2.00 times the coverage" in said["saving"]
    assert found.settings.mode == "adaptive"
    assert "no random sample" not in printed(found)
    assert '    objective="coverage",' in found.settings.trl
    losing = audited(SHADOW, LOSING)
    assert losing.settings.mode == "shadow"
    assert '    allocator_mode="shadow",' in losing.settings.trl
    assert verdict(losing)["set"].endswith("a chosen prompt, in shadow mode still.")


def test_groups_of_two_have_something_to_choose():
    small = TRL | {"rollouts_per_prompt": 2, "candidates": 1}
    for config in (small, small | {"allocator_mode": "shadow"}):
        found = audit(run_of(config, drawn_run(0, n=2)), None, num_draws=5)
        assert found.settings.nothing_to_move is None
        assert found.settings.mode == config["allocator_mode"]
        assert "nothing to move" not in printed(found)


def test_the_command_says_so_of_a_run_folder(tmp_path, replays, monkeypatch, capsys):
    keys = tuple(f"p{at}" for at in range(40))
    rng = np.random.default_rng(0)
    with RunLog.create(tmp_path / "run", TRL) as log:
        for step in range(3):
            group_N = np.repeat(np.arange(40), 4)
            reward_N = (rng.random(160) < 0.4).astype(float)
            log.log_groups(Outcomes.of_rewards(keys, reward_N, group_N, step=step))
            log.log_step(step, {"gain_ratio": 2.0 + step, "fallback": float(step == 0)})
    code, out, err = call(monkeypatch, capsys, tmp_path / "run")
    assert (code, err) == (0, "")
    assert (replays[0][1]["lower"], replays[0][1]["upper"]) == (2, 12)
    assert "expected 3.50 times the coverage of an even step (median of the 2 steps" in out
    assert "no random sample" in out
    assert "    candidates=3,\n" in out
    assert '    objective="coverage",\n' in out


@pytest.mark.filterwarnings("ignore")  # theirs, about their own settings
def test_lines_of_a_choice_are_what_the_trainer_takes(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    lines = audited(TRL).settings.trl
    code = "\n".join(lines).replace('    "out",', '    "out", use_cpu=True, bf16=False,')
    names = {}
    exec(code.partition("trainer =")[0], names)
    args = names["args"]
    assert (args.candidates, args.goal, args.exploration) == (3, "coverage", 0.2)
    assert (args.lower, args.most, args.num_generations) == (2, 12, 4)
    assert args.generation_batch_size == 64


def recorded(objective, seed, *, num_prompts=120, num_steps=72):
    """Groups of 64 rollouts a step where success stays constant; even batches if None."""
    rng = np.random.default_rng(seed)
    id_Q = np.array([f"p{row:03d}" for row in range(num_prompts)])
    success_Q = rng.beta(0.5, 0.5, num_prompts)
    allocator = RolloutAllocator(Beta(), objective=objective or "progress", upper=16)
    prompt, success, num = [], [], []
    for step in range(num_steps):
        row_B = rng.choice(num_prompts, 48, replace=False)
        num_B = np.where(np.arange(48) < 16, 4, 0)
        if objective is not None:
            prompts = Prompts(id_B=id_Q[row_B])
            num_B = allocator.allocate(prompts, 64, prompts_per_step=16).num_rollouts_B
        row_B, num_B = row_B[num_B > 0], num_B[num_B > 0]
        success_B = rng.binomial(num_B, success_Q[row_B])
        group_N = np.repeat(np.arange(len(row_B)), num_B)
        place_N = np.arange(64) - np.repeat(np.cumsum(num_B) - num_B, num_B)
        reward_N = (place_N < success_B[group_N]).astype(float)
        allocator.observe(Outcomes.of_rewards(id_Q[row_B], reward_N, group_N, step=step))
        prompt, success, num = [*prompt, *row_B], [*success, *success_B], [*num, *num_B]
    return np.array(prompt), np.array(success), np.array(num)


def test_choosing_leaves_more_prompts_unvaried_and_names_none_forgotten_wrongly():
    """What docs/audit.md says of these lists where success stays as it is."""
    unvaried = {}
    for objective in (None, "progress", "coverage"):
        prompt_G, success_G, num_G = recorded(objective, seed=0)
        assert len(forgotten(prompt_G, success_G, num_G).prompt_F) == 0
        right_Q = np.bincount(prompt_G, weights=success_G, minlength=120)
        drawn_Q = np.bincount(prompt_G, weights=num_G, minlength=120)
        is_alike_Q = (drawn_Q > 0) & ((right_Q == 0) | (right_Q == drawn_Q))
        unvaried[objective] = int(is_alike_Q.sum())
    for objective in ("progress", "coverage"):
        assert 1.5 < unvaried[objective] / unvaried[None] < 3.0
