import json
import subprocess
import sys
from dataclasses import replace

import pytest
from cli_helpers import call
from sweep_helpers import left_by

from apportion.embedded.model import checkpoint_path
from apportion.embedded.pools import pool
from apportion.errors import InvalidInputError
from apportion.readers.runs import read_runs
from apportion.run_log import read_groups
from apportion.sweep.adaptive import Goal, sweep_adaptively
from apportion.sweep.embedded_run import run_embedded
from apportion.sweep.make import make
from apportion.sweep.on_ray import run_on_ray
from apportion.sweep.result import described
from apportion.sweep.settings import RateRule, grid
from apportion.sweep.sweep import Sweep, start
from apportion.training import run as running
from apportion.training.config import TrainConfig
from apportion.training.processes import run_all

FLAGS = ["--rollouts-per-prompt", "2,4", "--prompts-per-step", "4", "--budget", "320"]
FLAGS += ["--seeds", "1", "--evaluations", "3", "--limit", "40"]


def sweep_in(folder, sizes=(2, 4)):
    rule = RateRule(learning_rate=5e-5, tuned_at=256, rule="sqrt")
    settings = grid(
        rollouts_per_prompt=sizes,
        prompts_per_step=[4],
        rates=[rule],
        allocators=["uniform"],
        seeds=[0],
        budget=320,
    )
    base = TrainConfig(
        arm="uniform", limit=40, num_evaluations=3, evaluation_spacing="doubling", max_tokens=9
    )
    return start(Sweep(base=base, settings=tuple(settings), folder=folder))


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    sweep = sweep_in(tmp_path_factory.mktemp("local") / "sweep")
    polls = []
    assert run_all(sweep.jobs, make, num_processes=2, on_poll=polls.append) == {}
    assert polls
    return sweep


def test_both_engines_make_the_same_runs(local, tmp_path):
    sweep = sweep_in(tmp_path / "sweep")
    failures = run_on_ray(
        sweep.jobs, address=None, num_processes=1, gpus_per_run=0.0, on_poll=lambda jobs: None
    )
    assert failures == {}
    assert len(left_by(local.folder)) == 2
    assert left_by(sweep.folder) == left_by(local.folder)


def test_what_is_done_is_not_made_again(local):
    def never(*_):
        raise AssertionError

    assert all(job.is_done for job in local.jobs)
    assert run_all(local.jobs, never, num_processes=1, on_poll=lambda jobs: None) == {}


def test_the_command_makes_the_same_runs_and_says_what_they_reached(local, tmp_path):
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "apportion", "sweep", *FLAGS, "--out", str(out)]
    first = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    content = json.loads(first.stdout)
    assert left_by(out) == left_by(local.folder)
    assert content["rollouts"] == content["grid_rollouts"] == 640
    assert [run["is_done"] for run in content["runs"]] == [True, True]
    assert all(0.2 < run["reward"] < 0.5 for run in content["runs"])
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "2 runs done before." in again.stderr
    assert f"apportion fit {out}" in again.stdout
    assert left_by(out) == left_by(local.folder)


def test_runs_of_a_sweep_are_read_as_they_were_set(local):
    runs, notes = read_runs([local.folder])
    assert notes == []
    settings = {setting.name: setting for setting in local.settings}
    assert {run.name for run in runs} == set(settings)
    for run in runs:
        setting = settings[run.name]
        assert run.rollouts_per_prompt == setting.rollouts_per_prompt
        assert run.learning_rate == setting.learning_rate
        assert run.compute_T[-1] == setting.budget
        assert run.num_prompts == 40


def test_an_adaptive_sweep_stops_within_its_share_and_goes_on_as_it_was(tmp_path):
    rule = RateRule(learning_rate=5e-5, tuned_at=256, rule="sqrt")
    settings = grid(
        rollouts_per_prompt=[2, 4],
        prompts_per_step=[4],
        rates=[rule],
        allocators=["uniform"],
        seeds=[0, 1],
        budget=960,
    )
    base = TrainConfig(arm="uniform", limit=40, num_evaluations=9, evaluation_spacing="doubling")
    goal = Goal(target=9600.0, share=0.5, num_at_once=2)

    def here(jobs, on_poll):
        for job in jobs:
            if not job.is_done:
                run_embedded(job.config, job.folder, until=job.until)
        on_poll(jobs)
        return {}

    def swept(folder, engine):
        sweep = start(Sweep(base=base, settings=tuple(settings), folder=folder))
        made = []
        last, failures = sweep_adaptively(
            sweep, goal, engine, on_poll=lambda jobs: None, on_decision=made.append
        )
        assert failures == {}
        return sweep, last, made

    sweep, last, made = swept(tmp_path / "whole", here)
    content = described(sweep, {}, last)
    assert last.stop
    assert 0 < content["rollouts"] <= 0.5 * content["grid_rollouts"]
    assert content["adaptive"]["share_of_grid"] == content["rollouts"] / content["grid_rollouts"]
    assert {one.candidate.rollouts_per_prompt for one in made[0].extensions} == {2, 4}

    class KilledError(Exception):
        pass

    def killed(jobs, on_poll):
        here(jobs[:1], on_poll)
        raise KilledError

    for _ in range(2):
        with pytest.raises(KilledError):
            swept(tmp_path / "torn", killed)
    again, end, _ = swept(tmp_path / "torn", here)
    assert left_by(again.folder) == left_by(sweep.folder)
    assert end == last


def test_a_folder_that_a_machine_does_not_see_is_told(tmp_path):
    job = replace(sweep_in(tmp_path / "sweep").jobs[0], folder=tmp_path / "elsewhere" / "run")
    assert "where all machines see the same files" in make(*job.arguments)
    assert not (tmp_path / "elsewhere").exists()


def test_your_own_model_is_swept_and_its_runs_go_on(tmp_path):
    problems = pool("mixed").problems[:40]
    data = tmp_path / "data.jsonl"
    lines = [json.dumps({"prompt": p.prompt, "answer": p.answer}) for p in problems]
    data.write_text("\n".join(lines) + "\n")
    settings = grid(
        rollouts_per_prompt=[2],
        prompts_per_step=[4],
        rates=[RateRule(learning_rate=1e-4, tuned_at=8, rule="sqrt")],
        allocators=["uniform"],
        seeds=[0],
        budget=160,
    )
    base = TrainConfig(
        arm="uniform",
        model=str(checkpoint_path()),
        dataset=str(data),
        held_out=6,
        limit=20,
        max_tokens=9,
        num_evaluations=3,
        evaluation_spacing="doubling",
    )
    sweep = start(Sweep(base=base, settings=tuple(settings), folder=tmp_path / "s", micro_batch=8))
    paused = sweep.job(settings[0], until=10)
    assert running.run(paused.config, paused.folder, until=10) == {}
    assert paused.is_done
    assert not sweep.jobs[0].is_done
    assert running.run(paused.config, paused.folder, resume=True)["num_rollouts"] == 160
    assert sweep.jobs[0].is_done
    straight = tmp_path / "straight"
    running.run(paused.config, straight)
    for name in ("evaluations.jsonl",):
        assert (paused.folder / name).read_bytes() == (straight / name).read_bytes()
    assert read_groups(paused.folder).equals(read_groups(straight))
    (run,), _ = read_runs([tmp_path / "s"])
    assert run.compute_T.tolist() == [0.0, 80.0, 112.0, 160.0]
    assert run.num_prompts == 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "How far should each run go"),
        (["--budget", "100"], "would make 1 steps"),
        (["--budget", "1e5", "--rollouts-per-prompt", "four"], "--rollouts-per-prompt is 'four'"),
        (["--budget", "1e5", "--rate-rule", "cubic"], "cubic"),
        (["--budget", "1e5", "--allocator", "vip"], "uniform, adaptive"),
        (["--budget", "1e5", "--seeds", "0"], "--seeds is 0"),
        (["--budget", "nan"], "--budget"),
        (["--budget", "1e5", "--address", "auto"], "with --ray alone"),
        (["--budget", "1e5", "--processes", "0"], "--processes is 0"),
        (["--budget", "1e5", "--model", "x"], "without --dataset"),
        (["--budget", "1e5", "--prompts-per-step", "0"], "--prompts-per-step is 0"),
        (["--budget", "1e5", "--learning-rate", "1e-4,nan"], "every rate must be above 0"),
        (["--budget", "1e5", "--learning-rate", "0"], "every rate must be above 0"),
        (["--list", "none.csv"], "cannot be read"),
        (["--budget", "1e5", "--target", "1e6"], "with --adaptive alone"),
        (["--budget", "1e5", "--adaptive", "--share", "2"], "--share 2"),
        (
            ["--budget", "1e5", "--adaptive", "--allocator", "uniform,adaptive"],
            "cannot compare allocators",
        ),
    ],
)
def test_mistakes_cost_nothing(monkeypatch, capsys, tmp_path, arguments, says):
    code, shown, error = call(monkeypatch, capsys, "sweep", *arguments, "--out", tmp_path / "sweep")
    assert code == 2
    assert says in error
    assert shown == ""
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(tmp_path, address):
    sweep = sweep_in(tmp_path / "sweep")
    with pytest.raises(InvalidInputError, match="No Ray cluster answers"):
        run_on_ray(sweep.jobs, address=address, num_processes=1, gpus_per_run=0.0, on_poll=print)


@pytest.mark.parametrize("adaptive", [[], ["--adaptive", "--share", "1"]])
def test_a_model_that_is_nowhere_fails_run_by_run_in_words(tmp_path, adaptive):
    data = tmp_path / "data.jsonl"
    rows = [json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(40)]
    data.write_text("\n".join(rows) + "\n")
    flags = ["--model", str(tmp_path / "none"), "--dataset", str(data), "--budget", "1000"]
    flags += ["--rollouts-per-prompt", "4", "--prompts-per-step", "8", "--seeds", "1", *adaptive]
    found = subprocess.run(
        [sys.executable, "-m", "apportion", "sweep", *flags, "--out", str(tmp_path / "sweep")],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "cannot be loaded" in found.stderr
    assert "Traceback" not in found.stderr
    assert "No run has made a step.\n" in found.stdout


def test_nothing_is_swept_where_nothing_would_judge(monkeypatch, capsys, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    flags = ["--model", checkpoint_path(), "--dataset", data, "--held-out", "0", "--budget", "1e5"]
    code, _, error = call(monkeypatch, capsys, "sweep", *flags, "--out", tmp_path / "sweep")
    assert code == 2
    assert "--held-out is 0 and at most a fifth of 1 prompts" in error
