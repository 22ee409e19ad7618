import json
from dataclasses import replace

import numpy as np
import pytest

from apportion.plan.runs import cells_of
from apportion.readers.runs import read_runs
from apportion.run_log import RunLog, read_groups
from apportion.sweep import embedded_run
from apportion.sweep.embedded_run import STATE_FILE, run_embedded
from apportion.training.config import TrainConfig

SMALL = TrainConfig(
    arm="uniform",
    prompts_per_step=4,
    rollouts_per_prompt=4,
    steps=24,
    limit=60,
    num_evaluations=5,
    evaluation_spacing="doubling",
    seed=3,
)
ARMS = ("uniform", "adaptive")


class KilledError(Exception):
    pass


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch):
    """Judge on fewer problems: what is tested here does not depend on their number."""
    load_task = embedded_run.load_task

    def small(config):
        task = load_task(config)
        task.evaluation["held_out"] = task.evaluation["held_out"][:20]
        return task

    monkeypatch.setattr(embedded_run, "load_task", small)


@pytest.fixture(scope="module")
def whole():
    return {}


def config_of(arm):
    return replace(SMALL, arm=arm)


def logged(folder):
    """Return all that a run left for others to read."""
    return (
        (folder / "evaluations.jsonl").read_bytes(),
        (folder / "steps.jsonl").read_bytes(),
        read_groups(folder).sort("step", maintain_order=True).write_json(),
        {path.name: path.read_bytes() for path in (folder / "evaluations").glob("*.parquet")},
    )


@pytest.fixture
def uninterrupted(whole, tmp_path):
    def run_of(arm):
        if arm not in whole:
            run_embedded(config_of(arm), tmp_path / f"whole-{arm}", until=SMALL.steps)
            whole[arm] = logged(tmp_path / f"whole-{arm}")
        return whole[arm]

    return run_of


def test_a_run_leaves_what_fit_and_audit_read(tmp_path):
    run_embedded(SMALL, tmp_path / "run", until=SMALL.steps)
    (run,), notes = read_runs([tmp_path / "run"])
    assert notes == []
    assert (run.rollouts_per_prompt, run.prompts_per_step, run.num_prompts) == (4, 4, 60)
    assert run.compute_T.tolist() == [16 * step for step in SMALL.evaluation_steps]
    assert run.compute_T[-1] == SMALL.budget
    assert len(cells_of([run])) == 1
    groups = read_groups(tmp_path / "run")
    assert groups["num_rollouts"].sum() == SMALL.budget
    assert groups["prompt"].n_unique() <= 60
    assert not (tmp_path / "run" / STATE_FILE).exists(), "nothing is left to go on with"


@pytest.mark.parametrize("arm", ARMS)
def test_a_run_that_pauses_equals_one_that_does_not(uninterrupted, tmp_path, arm):
    for until in (6, 12, 24):
        run_embedded(config_of(arm), tmp_path / "run", until=until)
    assert logged(tmp_path / "run") == uninterrupted(arm)


@pytest.mark.filterwarnings("ignore:.*dropped a torn last line")
@pytest.mark.parametrize("arm", ARMS)
def test_a_kill_anywhere_changes_nothing(uninterrupted, tmp_path, monkeypatch, arm):
    rng = np.random.default_rng(0)
    folder = tmp_path / "run"
    monkeypatch.setattr(embedded_run, "SAVE_SECONDS", 0.0)
    for _ in range(4):
        fatal = int(rng.integers(1, 60))
        with monkeypatch.context() as patch:
            die_at(patch, fatal)
            try:
                run_embedded(config_of(arm), folder, until=SMALL.steps)
                break
            except KilledError:
                tear(folder, rng)
    run_embedded(config_of(arm), folder, until=SMALL.steps)
    assert logged(folder) == uninterrupted(arm)


def die_at(patch, fatal):
    """Raise at the so manieth write of any kind, before or after it."""
    writes = [0]

    def dying(function):
        def wrapper(*arguments, **keywords):
            writes[0] += 1
            if writes[0] == fatal:
                raise KilledError
            found = function(*arguments, **keywords)
            writes[0] += 1
            if writes[0] == fatal:
                raise KilledError
            return found

        return wrapper

    for name in ("log_step", "log_groups", "log_evaluation", "checkpoint"):
        patch.setattr(RunLog, name, dying(getattr(RunLog, name)))
    # What a kill would not do: write once more on the way out.
    patch.setattr(RunLog, "close", RunLog._release)
    patch.setattr(embedded_run, "save_state", dying(embedded_run.save_state))


def tear(folder, rng):
    """Leave part of a line at the end of a file, as a kill in the middle of a write does."""
    path = folder / str(rng.choice(["steps.jsonl", "groups.jsonl", "evaluations.jsonl"]))
    if path.exists():
        with path.open("a") as file:
            file.write('{"step": 99, "spl'[: int(rng.integers(1, 18))])


def test_a_run_without_its_state_begins_again(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    run_embedded(SMALL, folder, until=12)
    (folder / STATE_FILE).unlink()
    run_embedded(SMALL, folder, until=24)
    assert logged(folder) == uninterrupted("uniform")


def test_the_pool_is_judged_at_both_ends(tmp_path):
    run_embedded(SMALL, tmp_path, until=SMALL.steps)
    rows = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["split"] == "pool"] == [0, 24]
