"""Whole runs through TRL on the embedded model: small, but the real thing."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from apportion.embedded.exact import exact_success
from apportion.embedded.loop import train_loop
from apportion.embedded.model import checkpoint_path, load
from apportion.embedded.pools import pool
from apportion.embedding import TextEmbedding
from apportion.errors import InvalidInputError, RunFolderError
from apportion.gain import Coverage
from apportion.prompt_key import prompt_key
from apportion.run_log import lock_folder, read_groups, read_lines
from apportion.training import compare
from apportion.training.arms import allocator_of, prompts_of
from apportion.training.config import TrainConfig
from apportion.training.run import last_checkpoint, run, start_of
from apportion.training.task import load_task
from apportion.types import Forecast

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SMALL = TrainConfig(
    pool="bimodal", prompts_per_step=12, steps=6, num_evaluations=2, save_every=2, seed=1
)


def without_times(rows):
    return [
        {k: v for k, v in row.items() if k not in ("allocation_seconds", "seconds")} for row in rows
    ]


def logged(folder):
    return (
        without_times(read_lines(folder / "steps.jsonl")),
        read_groups(folder).to_dicts(),
        without_times(read_lines(folder / "batches.jsonl")),
        read_lines(folder / "evaluations.jsonl"),
    )


SPLIT = replace(SMALL, objective="variance", candidates=1)
"""The same run, with the budget split over the batch."""


def finished(folder, config):
    seen = []
    summary = run(config, folder, on_step=lambda done, values: seen.append((done, values)))
    return folder, summary, seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("whole"), SPLIT)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("chosen"), replace(SMALL, arm="oracle"))


def test_a_run_is_exactly_on_budget_and_summarised(whole):
    folder, summary, seen = whole
    assert summary["num_rollouts"] == summary["budget"] == 12 * 4 * 6
    groups = read_groups(folder)
    assert [step["num_requested"].sum() for _, step in groups.group_by("step")] == [48] * 6
    assert groups["num_requested"].min() >= 2
    assert groups["num_requested"].max() <= 16
    assert [done for done, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert set(summary["success"]) == {"pool", "held_out"}
    start = summary["success"]["pool"]["before"]
    assert start["num_problems"] == len(pool("bimodal"))
    assert start["avg"] == pytest.approx(pool("bimodal").success_Q.mean(), abs=1e-3)
    assert 0.0 < summary["gradient_variance"]["oracle_against_uniform"] < 1.0
    assert 0.0 < summary["seconds"]["allocation_share"] < 1.0
    json.dumps(summary, allow_nan=False)


def test_a_run_that_chooses_is_on_budget_and_summarised(chosen):
    folder, summary, seen = chosen
    assert summary["num_rollouts"] == summary["budget"] == 12 * 4 * 6
    groups, batches = read_groups(folder), read_lines(folder / "batches.jsonl")
    assert [step["num_requested"].sum() for _, step in groups.group_by("step")] == [48] * 6
    assert groups["num_requested"].min() >= 2
    sizes = [len(step) for _, step in groups.group_by("step", maintain_order=True)]
    assert max(sizes) < 12
    assert [len(batch["success"]) for batch in batches] == sizes
    assert [len(batch["even_success"]) for batch in batches] == [12] * 6
    assert summary["prompts_per_step"] == pytest.approx(np.mean(sizes))
    assert summary["share_touched"] == groups["prompt"].n_unique() / 2000
    assert summary["gradient_variance"] is None
    assert summary["expected_variance"] is None
    ours = even = 0.0
    for batch, (_, step) in zip(batches, groups.group_by("step", maintain_order=True), strict=True):
        truth = Coverage(Forecast.of_success(batch["success"]))
        ours += truth.value(step["num_requested"].to_numpy()).sum()
        even += Coverage(Forecast.of_success(batch["even_success"])).value(np.full(12, 4)).sum()
    assert summary["gain"]["against_uniform"] == pytest.approx(ours / even)
    assert summary["gain"]["against_uniform"] > 1.5
    assert summary["expected_gain"] > 1.5
    assert all(values["num_prompts"] == size for (_, values), size in zip(seen, sizes, strict=True))
    json.dumps(summary, allow_nan=False)


def test_a_pool_smaller_than_the_candidates_is_told_of(tmp_path, monkeypatch):
    problems = pool("bimodal")
    few = replace(
        problems,
        prompts=problems.prompts[:20],
        answers=problems.answers[:20],
        cells=problems.cells[:20],
        success_Q=problems.success_Q[:20],
    )
    real = {"bimodal": few, "held_out": few}
    monkeypatch.setattr("apportion.embedded.pools.pool", real.__getitem__)
    summary = run(replace(SMALL, arm="oracle", steps=2), tmp_path)
    assert summary["notes"] == [
        "3 x 12 = 36 candidates were asked for, but there are 20 prompts: every step chose from "
        "all of them."
    ]
    assert summary["num_rollouts"] == 96


def test_the_plain_loop_chooses_the_same(tmp_path):
    """Same candidates, same forecasts: the same prompts and counts on the first step."""
    problems = list(pool("bimodal").problems)
    prior = tmp_path / "prior.csv"
    rates = [f'"{q.prompt}",{(i * 37 % 100) / 100},8' for i, q in enumerate(problems)]
    prior.write_text("\n".join(["prompt,success,num_rollouts", *rates]) + "\n")
    for arm in ("oracle", "adaptive"):
        config = replace(SMALL, arm=arm, steps=1, prior=str(prior))
        folder = tmp_path / arm
        run(config, folder)
        step = loop_step(config, problems)
        is_sampled = step.num_rollouts_B > 0
        keys = [prompt_key(problems[row].prompt) for row in step.row_B[is_sampled]]
        groups = read_groups(folder)
        assert groups["prompt"].to_list() == keys
        assert groups["num_requested"].to_list() == step.num_rollouts_B[is_sampled].tolist()
        assert len(keys) < 36
        assert any(row >= 12 for row in np.flatnonzero(is_sampled))


def loop_step(config, problems):
    """Make one step of the plain loop with the allocator of the training arm."""
    model, tokenizer = load()
    task = load_task(config)
    row_of = {prompt_key(q.prompt): q for q in problems}

    def success_of(keys):
        found = [row_of[str(key)] for key in keys]
        return exact_success(model, tokenizer, [q.prompt for q in found], [q.answer for q in found])

    embedding = TextEmbedding().fit([row["prompt"] for row in task.rows])
    allocator = allocator_of(config, prompts_of(task.rows, embedding), success_of)
    steps = []
    train_loop(
        model,
        tokenizer,
        problems,
        allocator,
        prompts_per_step=12,
        rollouts_per_prompt=4,
        candidates_per_step=config.num_candidates,
        num_steps=1,
        seed=config.seed,
        evaluation={},
        on_step=steps.append,
    )
    return steps[0]


def test_a_run_from_before_there_was_an_objective_goes_on_as_it_was(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    shutil.rmtree(folder / "checkpoints" / "checkpoint-6")
    kept = json.loads((folder / "run.json").read_text())
    for name in ("objective", "candidates"):
        del kept["config"]["train"][name]
    (folder / "run.json").write_text(json.dumps(kept))
    assert start_of(folder) == SPLIT
    run(start_of(folder), folder, resume=True)
    assert logged(folder) == logged(whole[0])


def test_a_folder_is_not_trained_into_twice(whole):
    with pytest.raises(RunFolderError, match="already holds a run"):
        run(SPLIT, whole[0])


def test_a_resumed_choice_equals_the_uninterrupted_one(chosen, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(chosen[0], folder)
    shutil.rmtree(folder / "checkpoints" / "checkpoint-6")
    run(start_of(folder), folder, resume=True)
    assert logged(folder) == logged(chosen[0])


@pytest.mark.parametrize("fail_at", [1, 3])
def test_a_resumed_run_equals_the_uninterrupted_one(whole, tmp_path, fail_at):
    class KilledError(Exception):
        pass

    def fail(done, values):
        if done == fail_at:
            shutil.copytree(tmp_path / "run", tmp_path / "killed")
            raise KilledError

    with pytest.raises(KilledError):
        run(SPLIT, tmp_path / "run", on_step=fail)
    # What a kill at that moment leaves behind: no checkpoint of the failing step.
    folder = tmp_path / "killed"
    assert start_of(folder) == SPLIT
    checkpoint = last_checkpoint(folder)
    assert (checkpoint is None) == (fail_at < 2)
    summary = run(SPLIT, folder, resume=True)
    assert summary["success"] == whole[1]["success"]
    assert logged(folder) == logged(whole[0])


def test_a_torn_checkpoint_is_passed_over(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    newest = last_checkpoint(folder)
    assert newest.name == "checkpoint-6"
    (newest / "trainer_state.json").unlink()
    assert last_checkpoint(folder).name == "checkpoint-4"
    summary = run(SPLIT, folder, resume=True)
    assert summary["success"] == whole[1]["success"]
    assert logged(folder) == logged(whole[0])


def test_a_refused_resume_leaves_the_other_writer_alone(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    shutil.rmtree(folder / "checkpoints")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with lock_folder(folder), pytest.raises(RunFolderError, match="another process"):
        run(SPLIT, folder, resume=True)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_resume_that_fails_can_be_resumed(whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(whole[0], folder)
    shutil.rmtree(folder / "checkpoints")

    def fail(*_, **__):
        raise InvalidInputError("no model today")

    with monkeypatch.context() as patched:
        patched.setattr("apportion.training.run.load_model", fail)
        with pytest.raises(InvalidInputError, match="no model today"):
            run(SPLIT, folder, resume=True)
    assert start_of(folder) == SPLIT
    assert run(SPLIT, folder, resume=True)["success"] == whole[1]["success"]
    assert logged(folder) == logged(whole[0])


def test_the_uniform_arm_only_watches(tmp_path):
    config = replace(SMALL.with_arm("uniform", 1), steps=3)
    summary = run(config, tmp_path)
    assert set(read_groups(tmp_path)["num_requested"].to_list()) == {4}
    assert summary["gradient_variance"]["against_uniform"] == pytest.approx(1.0)
    assert read_groups(tmp_path)["forecast_mean"].is_not_null().all()
    assert "shadow_variance_ratio" in read_lines(tmp_path / "steps.jsonl")[0]


def test_arms_of_a_seed_see_the_same_prompts(whole, tmp_path):
    run(replace(SPLIT, arm="oracle", steps=3), tmp_path)
    ours, theirs = read_groups(tmp_path), read_groups(whole[0])
    assert ours["prompt"].to_list() == theirs["prompt"].to_list()[: len(ours)]
    # The oracle forecasts exactly what the log then calls the truth.
    batch = read_lines(tmp_path / "batches.jsonl")
    np.testing.assert_allclose(
        ours["forecast_mean"].to_list(),
        np.concatenate([row["success"] for row in batch]),
        rtol=1e-6,
    )


@pytest.mark.parametrize("estimator", ["rloo", "grpo"])
@pytest.mark.filterwarnings("ignore:scale_rewards")
def test_other_estimators(tmp_path, estimator):
    config = replace(SMALL, estimator=estimator, steps=2, kl=0.01)
    assert run(config, tmp_path)["num_rollouts"] == 96


def test_rloo_has_no_entropy_bonus():
    with pytest.raises(InvalidInputError, match="no entropy bonus"):
        replace(SMALL, estimator="rloo", entropy=0.1)


@pytest.fixture
def own(tmp_path):
    problems = pool("mixed").problems[:40]
    lines = [json.dumps({"prompt": p.prompt, "answer": p.answer}) for p in problems]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    return TrainConfig(
        model=str(checkpoint_path()),
        dataset=str(tmp_path / "data.jsonl"),
        prompts_per_step=8,
        steps=4,
        max_tokens=9,
        micro_batch=16,
        held_out=6,
        seed=2,
    )


def test_your_own_model_and_data(own, tmp_path):
    summary = run(own, tmp_path / "run")
    assert summary["num_rollouts"] == 8 * 4 * 4
    assert summary["gradient_variance"] is None
    held_out = summary["success"]["held_out"]
    assert held_out["before"]["num_problems"] == 6
    assert (
        held_out["before"]["worst@8"] <= held_out["before"]["avg"] <= held_out["before"]["pass@8"]
    )


def test_a_failing_reward_loses_no_finished_step(own, tmp_path, monkeypatch):
    (tmp_path / "flaky_reward.py").write_text(
        "calls = 0\n"
        "def reward(completions, **_):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    return [1.0] * (len(completions) - (calls == 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    config = replace(own, reward="flaky_reward:reward", held_out=0)
    with pytest.raises(InvalidInputError, match="returned 31 values for 32"):
        run(config, tmp_path / "run")
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-2"
    summary = run(config, tmp_path / "run", resume=True)
    assert summary["num_rollouts"] == 8 * 4 * 4


def test_a_model_that_is_nowhere_leaves_no_folder(own, tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be loaded"):
        run(replace(own, model=str(tmp_path / "none")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_chat_prompts_need_a_chat_template(own, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"{i}+1="}], "answer": "1"} for i in range(9)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InvalidInputError, match="no chat template"):
        run(own, tmp_path / "run")


def test_rewards_of_another_range(own, tmp_path, monkeypatch):
    (tmp_path / "signed_reward.py").write_text(
        "def reward(completions, answer, **_):\n"
        "    return [2.0 * (c == a) - 1.0 for c, a in zip(completions, answer)]\n"
    )
    monkeypatch.chdir(tmp_path)
    config = replace(own, reward="signed_reward:reward", reward_low=-1.0, held_out=0)
    summary = run(config, tmp_path / "run")
    assert 0.0 <= summary["forecast_error"]["forecast"] <= 1.0
    forecasts = read_groups(tmp_path / "run")["forecast_mean"]
    assert forecasts.min() > 0.0
    assert read_groups(tmp_path / "run")["reward_sum"].min() < 0.0


def test_a_reward_that_scores_nothing_leaves_nothing_to_judge(own, tmp_path, monkeypatch):
    (tmp_path / "empty_reward.py").write_text(
        "def reward(completions, **_):\n    return [None] * len(completions)\n"
    )
    monkeypatch.chdir(tmp_path)
    config = replace(own, reward="empty_reward:reward", held_out=0, steps=2)
    summary = run(config, tmp_path / "run")
    assert summary["forecast_error"] == {"forecast": None, "moving_average": None, "ridge": None}
    assert summary["share_with_signal"] == 0.0
    json.dumps(summary, allow_nan=False)


@pytest.mark.slow
def test_kill_9_at_random_moments_changes_nothing(whole, tmp_path):
    rng = np.random.default_rng(0)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "apportion", "train", "--pool", "bimodal", "--out", str(out)]
    options = ["--prompts-per-step", "12", "--steps", "6", "--evaluations", "2", "--seed", "1"]
    options += ["--save-every", "2", "--objective", "variance"]
    begun = False
    for attempt in range(12):
        arguments = ["--resume"] if begun else options
        process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
        try:
            # Leave one in four the time to end; kill the others wherever they are.
            process.wait(timeout=None if attempt % 4 == 3 else float(rng.uniform(3.0, 14.0)))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        begun = (out / "run.json").exists()
        if (out / "summary.json").exists():
            break
    assert logged(out) == logged(whole[0])


@pytest.mark.slow
def test_an_interrupt_stops_after_the_step_with_a_checkpoint(tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", "train", "--steps", "50", "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
    )
    steps = out / "steps.jsonl"
    while not steps.exists() or steps.read_text().count("\n") < 2:
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"apportion train --resume --out {out}" in error
    assert "Traceback" not in error
    assert last_checkpoint(out) is not None


@pytest.mark.slow
def test_workers_die_with_a_killed_comparison(tmp_path):
    options = ["--compare", "uniform,adaptive", "--seeds", "1", "--processes", "1"]
    options += ["--steps", "200", "--prompts-per-step", "4", "--save-every", "1000"]
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", "train", *options, "--out", str(out)],
        stderr=subprocess.DEVNULL,
    )
    steps = out / "uniform-seed0" / "steps.jsonl"
    while not steps.exists() or steps.read_text().count("\n") < 2:
        assert process.poll() is None
        time.sleep(0.2)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            lock_folder(steps.parent).close()
            break
        except RunFolderError:
            time.sleep(0.5)
    lock_folder(steps.parent).close()
    assert not (out / "adaptive-seed0").exists()


@pytest.mark.slow
def test_arms_side_by_side_in_processes(tmp_path):
    arms = ["uniform", "adaptive", "vip", "oracle"]
    config = replace(SMALL, steps=3)
    compare.start(config, arms, [0, 1], tmp_path)
    jobs = compare.jobs_of(config, arms, [0, 1], tmp_path)
    polls = []
    failures = compare.run_all(jobs, num_processes=2, on_poll=lambda jobs: polls.append(jobs))
    assert failures == {}
    assert polls
    result = compare.compare(jobs)
    assert set(result["arms"]) == set(arms)
    for entry in result["arms"].values():
        assert entry["num_rollouts"] == 12 * 4 * 3
    # Finished runs are not repeated.
    before = [(job.folder / "summary.json").stat().st_mtime_ns for job in jobs]
    compare.run_all(jobs, num_processes=2, on_poll=lambda jobs: None)
    assert before == [(job.folder / "summary.json").stat().st_mtime_ns for job in jobs]
