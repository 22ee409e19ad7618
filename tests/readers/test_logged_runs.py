"""Runs of a sweep from what TRL and verl logged, in the shapes that their own tests here have."""

from __future__ import annotations

import contextlib
import json
import pickle
import pprint
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import ApportionError, InvalidInputError
from apportion.readers.found_runs import averaged
from apportion.readers.logged_settings import trl_settings, verl_settings
from apportion.readers.runs import read_runs
from apportion.run_log import RunLog

ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "learning_rate": 2e-6,
    "seed": 7,
    "num_generations": 8,
    "generation_batch_size": 64,
    "steps_per_generation": 4,
    "num_iterations": 1,
    "loss_type": "dapo",
}
CONSOLE = {"data.train_batch_size": 32, "actor_rollout_ref.rollout.n": 5}


class Arguments:
    """Stands for the arguments of a trainer; what is pickled of them is their dictionary."""


def write_arguments(folder, told, *, protocol=2):
    """Write them as `torch.save` does: a pickle in a zip file."""
    arguments = Arguments()
    arguments.__dict__.update(told)
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "training_args.bin", "w") as file:
        file.writestr("training_args/version", "3")
        file.writestr("training_args/data.pkl", pickle.dumps(arguments, protocol))
    return folder


def write_state(folder, history):
    folder.mkdir(parents=True, exist_ok=True)
    state = {"global_step": history[-1]["step"], "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def history(metric="eval_reward", steps=(0, 10, 20), **more):
    """Evaluations between steps of training, 20 steps being half an epoch."""
    rows = []
    for step in range(21):
        if step:
            row = {"step": step, "epoch": step / 40, "reward": 0.5, "learning_rate": 1e-6}
            rows.append({**row, **more})
        if step in steps:
            rows.append({"step": step, "epoch": step / 40, metric: 0.25 + step / 100})
    return rows


def test_an_output_folder_of_trl(tmp_path):
    write_state(write_arguments(tmp_path / "mine", ARGUMENTS), history())
    (run,), notes = read_runs([tmp_path])
    assert notes == []
    assert (run.name, run.seed, run.setting) == ("mine", 7, (8, 8, 2e-6, "uniform"))
    np.testing.assert_array_equal(run.compute_T, [0, 640, 1280])
    np.testing.assert_allclose(run.reward_T, [0.25, 0.35, 0.45])
    assert run.num_prompts == 320  # 20 steps of 8 are half of them
    assert (run.evaluation, run.is_filtered) == (None, False)


@pytest.mark.parametrize("place", ["", "trainer_state.json", "checkpoint-20"])
def test_the_state_may_be_given_itself_or_lie_in_a_checkpoint(tmp_path, place):
    folder = tmp_path / "mine"
    inside = folder / "checkpoint-20" if place == "checkpoint-20" else folder
    write_state(write_arguments(inside, ARGUMENTS), history())
    for path in {folder, folder / place}:
        (run,), _ = read_runs([path])
        assert (run.name, run.compute_T[-1]) == ("mine", 1280)


@pytest.mark.parametrize(
    ("changes", "sizes", "rollouts_per_step"),
    [
        ({"num_iterations": 2}, (8, 8), 32),
        ({"steps_per_generation": 16, "generation_batch_size": 256}, (8, 8), 64),
        ({"num_generations": 16}, (16, 4), 64),
        ({"num_generations": 128}, (128, 1), 64),
    ],
)
def test_the_arithmetic_of_trl(tmp_path, changes, sizes, rollouts_per_step):
    found = trl_settings(write_arguments(tmp_path, ARGUMENTS | changes))
    assert (found["rollouts_per_prompt"], found["prompts_per_step"]) == sizes
    assert found["rollouts_per_step"] == rollouts_per_step


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_arguments_that_trl_saved(tmp_path):
    """The real thing, as transformers' trainer saves it, of stock TRL and of ours."""
    import torch
    from trl import GRPOConfig

    from apportion.integrations.trl import AdaptiveGRPOConfig

    common = {
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "learning_rate": 3e-6,
        "seed": 5,
        "bf16": False,
        "use_cpu": True,
    }
    stock = GRPOConfig(str(tmp_path), gradient_accumulation_steps=2, **common)
    torch.save(stock, tmp_path / "training_args.bin")
    assert trl_settings(tmp_path) == {
        "rollouts_per_prompt": 4,
        "prompts_per_step": 8,
        "rollouts_per_step": 32,
        "seed": 5,
        "learning_rate": 3e-6,
        "allocator": "uniform",
    }
    ours = AdaptiveGRPOConfig(str(tmp_path), objective="progress", candidates=2, **common)
    torch.save(ours, tmp_path / "training_args.bin")
    assert trl_settings(tmp_path)["allocator"] == "adaptive (progress, 2 x)"


def test_arguments_are_read_and_never_run(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    for protocol in (2, 4, 5):
        told = {"x": Harmful(), **ARGUMENTS}
        assert trl_settings(write_arguments(tmp_path, told, protocol=protocol))["seed"] == 7
    assert not (tmp_path / "harm").exists()


def test_what_trl_does_not_tell_comes_from_flags(tmp_path):
    write_state(tmp_path / "mine", history())
    (tmp_path / "mine" / "training_args.bin").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(InvalidInputError, match="Give --rollouts-per-prompt"):
        read_runs([tmp_path])
    (run,), _ = read_runs([tmp_path], rollouts_per_prompt=4, prompts_per_step=16)
    assert (run.setting, run.seed) == ((4, 16, 1e-6, "uniform"), 0)
    np.testing.assert_array_equal(run.compute_T, [0, 640, 1280])


def test_our_trainers_say_who_allocated(tmp_path):
    write_state(write_arguments(tmp_path / "out", ARGUMENTS), history())
    told = {"allocator_mode": "adaptive", "objective": "variance", "candidates": 1, "seed": 7}
    RunLog.create(tmp_path / "out" / "rollouts", told).close()
    (run,), _ = read_runs([tmp_path])
    assert (run.name, run.allocator, run.num_prompts) == ("out", "adaptive", 320)


def test_several_held_out_rewards_ask_for_one(tmp_path):
    rows = history("eval_math_reward")
    rows += [{**row, "eval_code_reward": 0.75} for row in rows if "eval_math_reward" in row]
    write_state(write_arguments(tmp_path, ARGUMENTS), rows)
    with pytest.raises(InvalidInputError, match="eval_code_reward and eval_math_reward"):
        read_runs([tmp_path])
    (run,), _ = read_runs([tmp_path], metric="eval_code_reward")
    assert set(run.reward_T) == {0.75}


def test_no_held_out_reward(tmp_path):
    rows = history(steps=(), frac_reward_zero_std=0.25)
    write_state(write_arguments(tmp_path / "mine", ARGUMENTS), rows)
    with pytest.raises(InvalidInputError, match="with --training-reward"):
        read_runs([tmp_path])
    (run,), (note,) = read_runs([tmp_path], training_reward=True)
    assert "The reward of mine is that of training prompts" in note
    np.testing.assert_array_equal(run.compute_T, 64 * np.arange(1, 21))
    assert (run.evaluation, run.is_filtered) == ((8, 8), False)


@pytest.mark.parametrize(("share", "n", "expected"), [(0.0, 8, False), (0.0, 4, True), (0.1, 4, 0)])
def test_filtering_is_seen_where_chance_would_leave_groups_without_signal(
    tmp_path, share, n, expected
):
    """At a reward of 1/2, 160 groups of 8 have 1.25 without signal, 320 groups of 4 have 40."""
    rows = history(steps=(), frac_reward_zero_std=share)
    write_state(write_arguments(tmp_path, {**ARGUMENTS, "num_generations": n}), rows)
    (run,), _ = read_runs([tmp_path], training_reward=True)
    assert run.is_filtered == expected


def verl_log(path, rows, *, before=""):
    lines = [
        " - ".join([f"step:{step}", *(f"{name}:{value!r}" for name, value in row.items())])
        for step, row in rows.items()
    ]
    path.write_text(before + "\n".join([*lines, ""]), encoding="utf-8")
    return path


CORE = "val-core/openai/gsm8k/acc/mean@4"
ROWS = {
    0: {CORE: 0.25, "val-aux/openai/gsm8k/reward/mean@4": 0.5},
    1: {"critic/score/mean": 0.5, "actor/lr": 1e-6},
    2: {"critic/score/mean": 0.5, "actor/lr": 1e-6, CORE: 0.375},
}
COMMAND = "python -m verl.trainer.main_ppo " + " ".join(f"{k}={v}" for k, v in CONSOLE.items())


def printed(n=5, prompts=32, **filtering):
    """Print a configuration as verl does, behind Ray's prefix and colour."""
    told = {
        "actor_rollout_ref": {
            "actor": {"optim": {"betas": [0.9, 0.999], "lr": 1e-06, "name": "a {brace'"}},
            "rollout": {"agent": {"num_workers": 8}, "n": n, "val_kwargs": {"n": 1, "top_k": -1}},
        },
        "algorithm": {"filter_groups": {"enable": False, **filtering}},
        "critic": {"optim": {"lr": 1e-05}, "rollout_n": 1},
        "data": {"custom_cls": {"name": None}, "seed": 3, "train_batch_size": prompts},
    }
    lines = ["step up", *pprint.pformat(told, width=60).split("\n")]
    return "".join(f"\x1b[36m(TaskRunner pid=123)\x1b[0m {line}\n" for line in lines)


@pytest.mark.parametrize("before", [printed(), f"+ {COMMAND}\n", ""])
def test_a_console_log_of_verl(tmp_path, before):
    log = verl_log(tmp_path / "verl.log", ROWS, before=before)
    flags = {} if before else {"rollouts_per_prompt": 5, "prompts_per_step": 32}
    if not before:
        with pytest.raises(InvalidInputError, match="does not tell its rollouts_per_prompt"):
            read_runs([log])
    (run,), notes = read_runs([log], **flags)
    assert notes == []
    assert (run.name, run.setting) == ("verl.log", (5, 32, 1e-6, "uniform"))
    np.testing.assert_array_equal(run.compute_T, [0, 320])
    np.testing.assert_array_equal(run.reward_T, [0.25, 0.375])
    assert run.seed == (3 if "TaskRunner" in before else 0)


def test_a_file_log_of_verl_needs_flags(tmp_path):
    log = tmp_path / "verl.jsonl"
    lines = [json.dumps({"step": step, "data": row}) for step, row in ROWS.items()]
    log.write_text("\n".join([*lines, ""]))
    with pytest.raises(InvalidInputError, match="better put in one CSV"):
        read_runs([log])
    (run,), _ = read_runs([log], rollouts_per_prompt=5, prompts_per_step=32)
    np.testing.assert_array_equal(run.compute_T, [0, 320])


def test_the_command_wins_over_what_is_printed_and_the_last_counts(tmp_path):
    before = f"data.train_batch_size=8 {COMMAND}\n" + printed(n=1, prompts=2)
    found = verl_settings(verl_log(tmp_path / "verl.log", ROWS, before=before))
    assert (found["rollouts_per_prompt"], found["prompts_per_step"]) == (5, 32)
    assert found["learning_rate"] == 1e-6


@pytest.mark.parametrize(
    ("metric", "value"), [("best@2", 0.5), ("worst@2", 0.125), ("val/test_score/x", 0.75)]
)
def test_other_metrics_of_verl(tmp_path, metric, value):
    row = {
        "val-aux/x/acc/best@2/mean": 0.5,
        "val-aux/x/acc/best@2/std": 0.25,
        "val-aux/x/acc/worst@2/mean": 0.125,
        "val/test_score/x": 0.75,
    }
    log = verl_log(tmp_path / "verl.log", {1: row}, before=printed())
    assert read_runs([log], metric=metric)[0][0].reward_T == [value]
    with pytest.raises(InvalidInputError, match="has no held-out best@3"):
        read_runs([log], metric="best@3")


def test_several_data_sources_of_verl_ask_for_one(tmp_path):
    row = {"val-core/a/acc/mean@1": 0.5, "val-core/b/acc/mean@1": 0.25}
    log = verl_log(tmp_path / "verl.log", {1: row}, before=printed())
    with pytest.raises(InvalidInputError, match="several held-out rewards: val-core/a/acc/mean@1"):
        read_runs([log])


def test_dynamic_sampling_costs_all_its_rounds(tmp_path):
    """Rounds 1, 3, unknown (their mean, 2) and 2 of 64 prompts each, groups of 5."""
    rows = {
        step: {"train/num_gen_batches": rounds, "critic/score/mean": 0.5}
        for step, rounds in [(1, 1), (2, 3), (4, 2)]
    }
    rows[4][CORE] = 0.5
    rows[0] = {CORE: 0.25}
    before = printed(enable=True) + "data.gen_batch_size=64\n"
    log = verl_log(tmp_path / "verl.log", rows, before=before)
    (run,), _ = read_runs([log])
    np.testing.assert_array_equal(run.compute_T, [0, 8 * 64 * 5])
    assert not run.is_filtered  # the held-out reward is of all problems
    for row in rows.values():
        row.pop(CORE, None)
    log = verl_log(tmp_path / "verl.log", rows, before=before)
    (run,), _ = read_runs([log], training_reward=True)
    np.testing.assert_array_equal(run.compute_T, 320 * np.array([1, 4, 8]))
    assert run.is_filtered


def test_rewards_outside_the_unit_interval_are_refused(tmp_path):
    log = verl_log(tmp_path / "verl.log", {1: {CORE: -0.5}}, before=printed())
    with pytest.raises(InvalidInputError, match=r"reward of verl.log\[0\] is -0.5, outside"):
        read_runs([log])


def test_what_a_trainer_printed_has_no_compute(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("{'eval_reward': 0.5, 'epoch': 0.5}\n{'reward': 0.5, 'epoch': 1.0}\n")
    with pytest.raises(InvalidInputError, match="without steps, so its compute is unknown"):
        read_runs([log], rollouts_per_prompt=4, prompts_per_step=8)


@given(st.integers(1, 500))
def test_a_long_training_reward_is_averaged_and_nothing_is_lost(num):
    reward_T = np.random.default_rng(num).random(num)
    compute, reward, size = averaged(np.arange(1.0, num + 1.0), reward_T)
    num_T = np.minimum(size, num - size * np.arange(len(compute)))
    assert len(compute) <= 50
    assert (np.diff(compute) > 0).all()
    assert reward @ num_T == pytest.approx(reward_T.sum())
    assert compute @ num_T == pytest.approx(num * (num + 1) / 2)


@given(st.binary(max_size=120), st.integers(0, 200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, at):
    folder = tmp_path_factory.mktemp("out")
    write_state(write_arguments(folder, ARGUMENTS), history(steps=(20,)))
    whole = (folder / "training_args.bin").read_bytes()
    (folder / "training_args.bin").write_bytes(whole[:at] + content + whole[at:])
    log = verl_log(folder / "verl.log", ROWS, before=printed())
    text = log.read_bytes()
    log.write_bytes(text[:at] + content + text[at:])
    for path in (folder, log):
        with contextlib.suppress(ApportionError):
            read_runs([path])


@given(st.text(alphabet="'{}:n\\ 85a\n", max_size=60))
def test_any_printed_braces_end(tmp_path_factory, text):
    log = tmp_path_factory.mktemp("log") / "verl.log"
    log.write_text("'rollout': {" + text)
    assert verl_settings(log).get("rollouts_per_prompt", 1) >= 1
