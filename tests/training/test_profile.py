"""Profiles of the embedded model and of a model in a folder: exact truth, kills, refusals."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from apportion.difficulty import Profile
from apportion.embedded.model import checkpoint_path, load
from apportion.embedded.pools import pool
from apportion.errors import InvalidInputError, RunFolderError, StateError
from apportion.prompt_key import prompt_key
from apportion.run_log import lock_folder
from apportion.training import profile as profiling
from apportion.training.config import TrainConfig
from apportion.training.profile import ProfileConfig, read_profile, run_profile
from apportion.training.task import ID_COLUMN, PRIOR_COUNT, PRIOR_MEAN, load_task, read_prior

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SMALL = ProfileConfig(pool="bimodal", limit=40, num_samples=4, prompts_per_batch=16, seed=3)
COLUMNS = ("prompt", "success", "num_rollouts")
FILES = ("profile.json", "samples.jsonl", "prior.parquet")


def content(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def true_success(folder, name):
    known = dict(zip(pool(name).prompts, pool(name).success_Q, strict=True))
    table = pl.read_parquet(folder / "prior.parquet")
    return np.array([known[prompt] for prompt in table["prompt"]]), table


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    seen = []
    described = run_profile(SMALL, folder, on_batch=lambda *told: seen.append(told))
    return folder, described, seen


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Thirty-two embedded problems as a data set of the user's own."""
    folder = tmp_path_factory.mktemp("own")
    problems = pool("bimodal").problems[:32]
    rows = [json.dumps({"prompt": q.prompt, "answer": q.answer}) + "\n" for q in problems]
    (folder / "data.jsonl").write_text("".join(rows))
    return ProfileConfig(
        model=str(checkpoint_path()),
        dataset=str(folder / "data.jsonl"),
        num_samples=8,
        prompts_per_batch=8,
        max_tokens=10,
    )


@pytest.mark.parametrize("name", ["mixed", "hard", "bimodal"])
def test_the_mean_is_the_exact_success_within_sampling_error(tmp_path, name):
    config = ProfileConfig(pool=name, limit=256, num_samples=16, prompts_per_batch=128)
    described = run_profile(config, tmp_path)
    true_Q, table = true_success(tmp_path, name)
    assert len(true_Q) == table["prompt"].n_unique() == 256
    error = np.sqrt((true_Q * (1 - true_Q)).sum() / 16) / 256
    summary = described["summary"]
    assert abs(summary["mean"]["value"] - true_Q.mean()) < 3 * error
    assert summary["mean"]["low"] <= pool(name).success_Q.mean() <= summary["mean"]["high"]
    z_Q = (table["num_success"] - 16 * true_Q) / np.sqrt(np.maximum(16 * true_Q * (1 - true_Q), 1))
    assert np.abs(z_Q).max() < 5
    for n in (4, 8, 16):
        found = summary["no_signal_at_n"][str(n)]
        assert found["low"] <= (true_Q**n + (1 - true_Q) ** n).mean() <= found["high"]


def test_what_a_profile_leaves_behind(whole):
    folder, described, seen = whole
    table = pl.read_parquet(folder / "prior.parquet")
    assert table.columns == [ID_COLUMN, *COLUMNS, "num_success", "num_samples"]
    assert (table["success"] * 4 == table["num_success"]).all()
    assert (table["num_rollouts"] == 4).all()
    assert json.loads((folder / "profile.json").read_text()) == described
    assert described["config"]["limit"] == 40
    assert described["summary"]["num_rollouts"] == 160
    found = read_profile(folder)
    assert found.num_samples == 4
    assert found.histogram.tolist() == described["histogram"]
    assert sorted(found.num_success_Q) == sorted(table["num_success"])
    assert read_profile(folder / "profile.json").summary() == found.summary()
    assert [done for done, _, _ in seen] == [0, 16, 32, 40]
    assert {total for _, total, _ in seen} == {40}
    assert seen[-1][2] == pytest.approx(described["summary"]["mean"]["value"])


def test_the_prior_is_taken_by_train_as_it_stands(whole):
    folder, _, _ = whole
    path = str(folder / "prior.parquet")
    prior = read_prior(path)
    rows = load_task(TrainConfig(pool="bimodal", prior=path)).rows
    known = [row for row in rows if row[PRIOR_COUNT]]
    assert len(known) == len(prior) == 40
    for row in known:
        assert (row[PRIOR_MEAN], row[PRIOR_COUNT]) == prior[row[ID_COLUMN]]


def test_a_finished_profile_is_read_not_sampled(whole, monkeypatch):
    folder, described, _ = whole
    monkeypatch.setattr(profiling, "load_task", None)
    assert run_profile(SMALL, folder) == described


@pytest.mark.parametrize("num_batches", [1, 2])
def test_a_stop_between_batches_changes_nothing(tmp_path, whole, num_batches):
    def stop(done, total, mean):
        if done == 16 * num_batches:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_profile(SMALL, tmp_path, on_batch=stop)
    with pytest.raises(StateError, match="not finished"):
        read_profile(tmp_path)
    seen = []
    run_profile(SMALL, tmp_path, on_batch=lambda *told: seen.append(told[0]))
    assert seen[0] == 16 * num_batches
    assert content(tmp_path) == content(whole[0])


def test_a_stop_inside_a_batch_changes_nothing(tmp_path, whole, monkeypatch):
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return scored(*arguments)

    scored = profiling.score_rows
    monkeypatch.setattr(profiling, "score_rows", failing)
    with pytest.raises(KeyboardInterrupt):
        run_profile(SMALL, tmp_path)
    assert (tmp_path / "samples.jsonl").read_bytes().count(b"\n") == 1
    run_profile(SMALL, tmp_path)
    assert content(tmp_path) == content(whole[0])


def test_a_torn_line_is_sampled_again(tmp_path, whole):
    samples = (whole[0] / "samples.jsonl").read_bytes()
    first, second = samples.index(b"\n") + 1, samples.index(b"\n", samples.index(b"\n") + 1) + 1
    begun = {k: v for k, v in whole[1].items() if k not in ("summary", "histogram", "notes")}
    for cut in (3, first - 1, first, first + 1, second - 1, len(samples) - 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "samples.jsonl").write_bytes(samples[:cut])
        (folder / "profile.json").write_text(json.dumps(begun))
        run_profile(SMALL, folder)
        assert content(folder) == content(whole[0])


def test_a_killed_process_loses_the_batch_in_flight_and_no_more(tmp_path, monkeypatch, own):
    (tmp_path / "killing.py").write_text(
        "import os, signal\n"
        "calls = []\n"
        "def reward(completions, answer, **columns):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 3 and os.path.exists('armed'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return [float(c == a) for c, a in zip(completions, answer)]\n"
    )
    (tmp_path / "armed").touch()
    command = ["profile", "--model", own.model, "--dataset", own.dataset, "--max-tokens", "10"]
    command += ["--reward", "killing:reward", "--samples", "8", "--prompts-per-batch", "8"]
    killed = subprocess.run(
        [sys.executable, "-m", "apportion", *command, "--out", "folder"],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "folder" / "samples.jsonl").read_bytes().count(b"\n") == 2
    (tmp_path / "armed").unlink()
    monkeypatch.chdir(tmp_path)
    config = replace(own, reward="killing:reward")
    run_profile(config, tmp_path / "folder")
    run_profile(config, tmp_path / "other")
    assert content(tmp_path / "folder") == content(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "hard"}, "with --pool bimodal, but this command has --pool hard"),
        ({"num_samples": 8}, "with --samples 4, but this command has --samples 8"),
        ({"limit": None}, "with --limit 40, but this command has no --limit"),
        ({"max_tokens": 8}, "with --max-tokens 9, but"),
        ({"seed": 4}, "with --seed 3, but"),
    ],
)
def test_other_flags_are_refused_by_name(whole, change, message):
    before = content(whole[0])
    with pytest.raises(RunFolderError, match=message):
        run_profile(replace(SMALL, **change), whole[0])
    assert content(whole[0]) == before


def test_another_batch_size_goes_on(tmp_path, whole):
    def stop(done, total, mean):
        if done == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_profile(SMALL, tmp_path, on_batch=stop)
    described = run_profile(replace(SMALL, prompts_per_batch=5), tmp_path)
    assert described["summary"]["num_prompts"] == 40
    ours, theirs = ((f / "samples.jsonl").read_bytes().splitlines() for f in (tmp_path, whole[0]))
    assert ours[0] == theirs[0]
    assert len(ours) == 1 + 5


def test_a_first_batch_that_fails_binds_nothing(tmp_path, monkeypatch):
    def failing(*arguments):
        raise InvalidInputError("no")

    with monkeypatch.context() as patch:
        patch.setattr(profiling, "score_rows", failing)
        with pytest.raises(InvalidInputError, match="no"):
            run_profile(SMALL, tmp_path)
    run_profile(replace(SMALL, num_samples=2, limit=8), tmp_path)
    assert read_profile(tmp_path).num_samples == 2


def test_a_model_that_cannot_be_loaded_leaves_nothing(tmp_path, own):
    with pytest.raises(InvalidInputError, match="cannot be loaded"):
        run_profile(replace(own, model="nowhere"), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_folder_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunFolderError, match="already holds a run"):
        run_profile(SMALL, tmp_path)


def test_a_folder_in_use_is_refused(tmp_path):
    with lock_folder(tmp_path), pytest.raises(RunFolderError, match="another process"):
        run_profile(SMALL, tmp_path)


def test_damage_is_told(tmp_path, whole):
    samples = (whole[0] / "samples.jsonl").read_bytes()
    begun = {k: v for k, v in whole[1].items() if k != "summary"}
    (tmp_path / "profile.json").write_text(json.dumps(begun))
    lines = samples.splitlines(keepends=True)
    for damage in (b"{nonsense\n", b"[]\n", b'{"prompt": ["x"], "reward": [[1]]}\n'):
        (tmp_path / "samples.jsonl").write_bytes(lines[0] + damage + lines[2])
        with pytest.raises(StateError, match="damaged in line 2"):
            run_profile(SMALL, tmp_path)
    (tmp_path / "samples.jsonl").write_bytes(lines[1])
    with pytest.raises(RunFolderError, match="other prompts"):
        run_profile(SMALL, tmp_path)
    for text, message in (
        ("{", "cannot be read as a profile"),
        ("[]", "is not the profile"),
        (json.dumps({**begun, "version": 2}), "has version 2"),
        (json.dumps({**begun, "config": None}), "lacks its version"),
    ):
        (tmp_path / "profile.json").write_text(text)
        with pytest.raises(StateError, match=message):
            run_profile(SMALL, tmp_path)
        with pytest.raises(StateError, match=message):
            read_profile(tmp_path)
    with pytest.raises(StateError, match="cannot be read as a profile"):
        read_profile(tmp_path / "none")


def test_a_model_in_a_folder_is_sampled_as_it_is(tmp_path, own):
    described = run_profile(own, tmp_path)
    true_Q, table = true_success(tmp_path, "bimodal")
    assert len(true_Q) == 32  # none is held out
    error = np.sqrt((true_Q * (1 - true_Q)).sum() / 8) / 32
    assert abs(described["summary"]["mean"]["value"] - true_Q.mean()) < 3 * error
    assert (table["num_success"].to_numpy()[true_Q > 0.999] >= 7).all()
    assert (table["num_success"].to_numpy()[true_Q < 0.001] <= 1).all()
    path = str(tmp_path / "prior.parquet")
    train = TrainConfig(model=own.model, dataset=own.dataset, prior=path, held_out=4)
    assert all(row[PRIOR_COUNT] == 8 for row in load_task(train).rows)


def test_cut_off_completions_are_told(tmp_path, own):
    described = run_profile(replace(own, max_tokens=1, limit=8), tmp_path)
    num = described["summary"]["num_truncated"]
    assert 0 < num <= 64
    assert any(f"{num} of 64 completions were cut off at 1 tokens" in n for n in described["notes"])


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    (tmp_path / "our_rewards.py").write_text(
        "def graded(completions, answer, **columns):\n"
        "    return [1.0 if c == a else 0.5 * (len(c) == len(a))\n"
        "            for c, a in zip(completions, answer)]\n"
        "def signed(completions, answer, **columns):\n"
        "    return [1.0 if c == a else -1.0 for c, a in zip(completions, answer)]\n"
        "def silent(completions, answer, **columns):\n"
        "    return [1.0 if c == a else None for c, a in zip(completions, answer)]\n"
    )
    monkeypatch.chdir(tmp_path)


def test_graded_rewards_have_a_mean_and_no_verdict(tmp_path, own, rewards):
    described = run_profile(replace(own, reward="our_rewards:graded", limit=16), tmp_path / "a")
    summary = described["summary"]
    assert described["histogram"] is None
    assert summary["verdict"] is None
    assert "pass_at_k" not in summary
    assert summary["best_at_k"]["8"]["value"] > summary["mean"]["value"]
    table = pl.read_parquet(tmp_path / "a" / "prior.parquet")
    assert table.columns == [ID_COLUMN, *COLUMNS]
    assert table["success"].mean() == pytest.approx(summary["mean"]["value"])
    assert len(read_prior(tmp_path / "a" / "prior.parquet")) == 16
    with pytest.raises(InvalidInputError, match="graded"):
        read_profile(tmp_path / "a")


def test_a_reward_outside_its_range_keeps_what_is_sampled(tmp_path, own, rewards):
    config = replace(own, reward="our_rewards:signed", limit=16)
    with pytest.raises(InvalidInputError, match=r"reward is -1, outside \[0, 1\]"):
        run_profile(config, tmp_path / "a")
    seen = []
    described = run_profile(
        replace(config, reward_low=-1.0), tmp_path / "a", on_batch=lambda *told: seen.append(told)
    )
    assert seen[0][0] == 8
    plain = run_profile(replace(own, limit=16), tmp_path / "b")
    assert described["histogram"] == plain["histogram"]


def test_completions_without_a_score_are_failures_and_told(tmp_path, own, rewards):
    described = run_profile(replace(own, reward="our_rewards:silent", limit=16), tmp_path / "a")
    plain = run_profile(replace(own, limit=16), tmp_path / "b")
    assert described["histogram"] == plain["histogram"]
    num = described["summary"]["num_unscored"]
    assert num == 128 - pl.read_parquet(tmp_path / "b" / "prior.parquet")["num_success"].sum()
    assert any("got no score" in note for note in described["notes"])


def test_chat_prompts_reach_the_prior(tmp_path):
    model, tokenizer = load()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    problems = pool("bimodal").problems[:20]
    rows = []
    for i, q in enumerate(problems):
        message = {"role": "user", "content": q.prompt} | ({"name": "x"} if i == 19 else {})
        rows.append(json.dumps({"prompt": [message], "answer": q.answer}) + "\n")
    (tmp_path / "data.jsonl").write_text("".join(rows))
    config = ProfileConfig(
        model=str(tmp_path / "model"), dataset=str(tmp_path / "data.jsonl"), max_tokens=10
    )
    described = run_profile(config, tmp_path / "out")
    success_Q = pool("bimodal").success_Q[:20]
    error = np.sqrt((success_Q * (1 - success_Q)).sum() / 16) / 20
    assert abs(described["summary"]["mean"]["value"] - success_Q.mean()) < 3 * error
    train = TrainConfig(
        model=config.model,
        dataset=config.dataset,
        prior=str(tmp_path / "out" / "prior.parquet"),
        held_out=0,
    )
    rows = load_task(train).rows
    assert all(row[PRIOR_COUNT] == 16 for row in rows)
    assert rows[0][ID_COLUMN] == prompt_key(rows[0]["prompt"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_samples": 1}, "samples is 1, but must be at least 2"),
        ({"limit": 0}, "limit is 0"),
        ({"prompts_per_batch": 0}, "prompts_per_batch is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"pool": "held_out"}, "pool is"),
        ({"reward": "math-verify"}, "bring their own data"),
        ({"model": "m"}, "without --dataset"),
    ],
)
def test_unusable_settings(fields, message):
    with pytest.raises(InvalidInputError, match=message):
        ProfileConfig(**fields)


def test_a_larger_limit_than_there_are_prompts_takes_all(tmp_path, own):
    run_profile(replace(own, limit=1000, num_samples=2), tmp_path)
    assert isinstance(read_profile(tmp_path), Profile)
    assert len(read_profile(tmp_path).num_success_Q) == 32
