import json
from dataclasses import replace

import pytest

from apportion.errors import InvalidInputError, RunFolderError
from apportion.run_log import lock_folder
from apportion.sweep.settings import RateRule, grid
from apportion.sweep.sweep import (
    SWEEP_FILE,
    Sweep,
    evaluated_steps,
    load,
    start,
)
from apportion.training.config import TrainConfig, fitting_micro_batch

BASE = TrainConfig(arm="uniform", evaluation_spacing="doubling")


def settings(sizes=(4, 8), seeds=(0,), budget=2000):
    return tuple(
        grid(
            rollouts_per_prompt=sizes,
            prompts_per_step=[4],
            rates=[RateRule(learning_rate=1e-4, tuned_at=16, rule="constant")],
            allocators=["uniform"],
            seeds=seeds,
            budget=budget,
        )
    )


def sweep_in(tmp_path, **changes):
    return Sweep(base=BASE, settings=settings(**changes), folder=tmp_path / "sweep")


def test_what_was_written_is_read_back(tmp_path):
    sweep = start(replace(sweep_in(tmp_path), micro_batch=8))
    assert load(sweep.folder) == sweep
    assert start(sweep) == sweep


def test_runs_are_added(tmp_path):
    first = start(sweep_in(tmp_path))
    both = start(sweep_in(tmp_path, sizes=(8, 16), seeds=(0, 1)))
    assert both.settings[:2] == first.settings
    assert len(both.settings) == 5
    assert start(first) == both


def test_another_task_or_budget_is_refused(tmp_path):
    sweep = start(sweep_in(tmp_path))
    with pytest.raises(RunFolderError, match="pool 'mixed', but now pool is 'hard'"):
        start(replace(sweep, base=replace(BASE, pool="hard")))
    with pytest.raises(InvalidInputError, match="of 125 steps, but now it would have 187"):
        start(sweep_in(tmp_path, budget=3000))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    sweep = sweep_in(tmp_path)
    sweep.folder.mkdir()
    (sweep.folder / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty"):
        start(sweep)
    assert [path.name for path in sweep.folder.iterdir()] == ["notes.txt"]


def test_one_sweep_at_a_time(tmp_path):
    sweep = start(sweep_in(tmp_path))
    with lock_folder(sweep.folder), pytest.raises(RunFolderError, match="another process"):
        start(sweep)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "other"}', '{"format": "apportion-sweep"}']
)
def test_a_damaged_file_is_told(tmp_path, text):
    sweep = start(sweep_in(tmp_path))
    (sweep.folder / SWEEP_FILE).write_text(text)
    with pytest.raises(RunFolderError, match="cannot be read as a sweep"):
        start(sweep)


def test_a_run_is_done_when_it_was_judged_at_its_end(tmp_path):
    job = sweep_in(tmp_path).jobs[0]
    assert not job.is_done
    job.folder.mkdir(parents=True)
    line = {"step": job.until, "split": "held_out", "avg": 0.5}
    path = job.folder / "evaluations.jsonl"
    path.write_text(json.dumps(line | {"split": "pool"}) + "\n" + json.dumps(line))
    assert not job.is_done, "a line without its end was torn"
    path.write_text(json.dumps(line) + "\n{torn\n[]\n")
    assert job.is_done
    assert evaluated_steps(job.folder) == {125}


def test_micro_batches_divide_the_step():
    assert [fitting_micro_batch(8, size) for size in (64, 12, 7, 4)] == [8, 6, 7, 4]
    assert fitting_micro_batch(None, 64) is None


@pytest.mark.parametrize("inside", ["", "sweep"])
def test_a_file_is_no_folder(tmp_path, inside):
    (tmp_path / "file").write_text("")
    sweep = replace(sweep_in(tmp_path), folder=tmp_path / "file" / inside)
    with pytest.raises(RunFolderError, match=r"cannot be written: .*\. Name another folder"):
        start(sweep)
