import json
import multiprocessing
import warnings

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import ApportionError, RunFolderError, StateError
from apportion.run_log import RunLog, cut_back, read_config, read_groups, read_lines
from apportion.state_file import load_state, save_state
from apportion.types import Forecast, Outcomes, Prompts


def groups_of(step, ids=("a", "b"), seed=0):
    rng = np.random.default_rng(seed + step)
    group_N = np.repeat(np.arange(len(ids)), 4)
    return Outcomes.of_rewards(ids, rng.integers(0, 2, len(group_N)), group_N, step=step)


def write_run(folder, steps, *, checkpoint_at=(), resume_step=None, close=True):
    log = RunLog.create(folder, {"seed": 1}, resume_step=resume_step)
    for step in steps:
        if step in checkpoint_at:
            log.checkpoint()
        log.log_step(step, {"reward": step / 10, "bad": float("nan")})
        log.log_batch(step, {"seconds": 0.5})
        log.log_groups(groups_of(step), Forecast.of_success([0.5, 0.25], [0.01, 0.02]))
        log.log_evaluation(
            step,
            compute=8 * step,
            split="pool",
            values={"avg": 0.5},
            prompts=["a", "b"],
            success_Q=np.array([0.2, 0.8]),
        )
    if close:
        log.close()
    return log


def contents(folder):
    return (
        read_lines(folder / "steps.jsonl"),
        read_groups(folder).to_dicts(),
        read_lines(folder / "evaluations.jsonl"),
    )


def test_what_is_written_is_read(tmp_path):
    write_run(tmp_path, range(4), checkpoint_at={2})
    steps, groups, evaluations = contents(tmp_path)
    assert [row["step"] for row in steps] == [0, 1, 2, 3]
    assert steps[1]["bad"] is None
    assert [row["step"] for row in groups] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert groups[0]["forecast_mean"] == 0.5
    assert groups[0]["reward_sum"] == groups_of(0).reward_sum_B[0]
    assert len(evaluations) == 4
    assert read_config(tmp_path) == {"seed": 1}


@pytest.mark.parametrize("checkpoint_at", [(), (2,), (1, 3), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("resume_step", [0, 2, 3, 6])
def test_resumed_run_equals_uninterrupted_one(tmp_path, checkpoint_at, resume_step):
    write_run(tmp_path / "whole", range(8))
    write_run(tmp_path / "cut", range(6), checkpoint_at=checkpoint_at)
    write_run(tmp_path / "cut", range(resume_step, 8), resume_step=resume_step)
    steps, groups, evaluations = contents(tmp_path / "cut")
    whole_steps, whole_groups, whole_evaluations = contents(tmp_path / "whole")
    assert steps == whole_steps
    assert groups == whole_groups
    # The evaluation of the checkpointed weights stands, and the resumed run repeats it.
    assert [e for e in evaluations if e["step"] != resume_step] == [
        e for e in whole_evaluations if e["step"] != resume_step
    ]


@given(st.data())
def test_kill_at_any_byte_loses_nothing_before_it(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, range(3), close=False)._release()
    path = folder / data.draw(st.sampled_from(["steps.jsonl", "groups.jsonl"]))
    whole = path.read_bytes()
    size = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:size])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = read_lines(path)
    complete = whole[:size].count(b"\n")
    # A line that lacks only its line break is whole all the same.
    assert len(rows) - complete in (0, 1)
    assert len(caught) == (size > 0 and whole[size - 1 : size] != b"\n" and len(rows) == complete)


def test_kill_between_part_and_truncation_repeats_no_group(tmp_path):
    log = write_run(tmp_path, range(3), close=False)
    before = (tmp_path / "groups.jsonl").read_bytes()
    log.checkpoint()
    (tmp_path / "groups.jsonl").write_bytes(before)
    assert len(read_groups(tmp_path)) == 6
    log.close()
    assert len(read_groups(tmp_path)) == 6


def test_cut_inside_a_part(tmp_path):
    write_run(tmp_path, range(5))
    cut_back(tmp_path, 2)
    assert read_groups(tmp_path)["step"].to_list() == [0, 0, 1, 1]
    assert not (tmp_path / "evaluations" / "pool-00000003.parquet").exists()
    assert (tmp_path / "evaluations" / "pool-00000002.parquet").exists()
    cut_back(tmp_path, 0)
    assert len(read_groups(tmp_path)) == 0


def test_an_existing_run_is_not_overwritten(tmp_path):
    write_run(tmp_path, range(2))
    with pytest.raises(RunFolderError, match="already holds a run"):
        RunLog.create(tmp_path, {})
    assert len(read_groups(tmp_path)) == 4


def _try_open(folder, queue):
    try:
        RunLog.create(folder, {}, resume_step=0)
        queue.put("opened")
    except ApportionError as error:
        queue.put(str(error))


def test_second_writer_is_refused(tmp_path):
    with RunLog.create(tmp_path, {}):
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=_try_open, args=(tmp_path, queue))
        process.start()
        assert "being written by another process" in queue.get(timeout=60)
        process.join()


def test_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunFolderError, match="holds no readable run"):
        read_config(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": "else"}))
    with pytest.raises(RunFolderError, match="not written by apportion"):
        read_config(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": "apportion-run", "version": 99}))
    with pytest.raises(RunFolderError, match="Upgrade"):
        read_config(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        RunLog.create(tmp_path / "file", {})


def test_unreadable_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"step": 0}\n\xff\xfe\n[1]\n{"step": 1}\n')
    with pytest.warns(UserWarning, match=r"2 unreadable lines \(2, 3\)"):
        assert [row["step"] for row in read_lines(path)] == [0, 1]


def test_state_file_is_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    state = {
        "a": rng.normal(size=(3, 4)),
        "empty": np.zeros(0),
        "i": np.arange(5),
        "b": np.frombuffer(b"text", dtype=np.uint8),
        "view": rng.normal(size=(4, 4)).T,
    }
    save_state(tmp_path / "s.safetensors", state, {"step": 3})
    loaded, header = load_state(tmp_path / "s.safetensors")
    assert header == {"step": 3}
    assert loaded.keys() == state.keys()
    for name, array in state.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)


def test_state_file_errors(tmp_path):
    from safetensors.numpy import save_file

    with pytest.raises(StateError, match="cannot be read"):
        load_state(tmp_path / "none")
    (tmp_path / "torn").write_bytes(b"\x00" * 5)
    with pytest.raises(StateError, match="cannot be read"):
        load_state(tmp_path / "torn")
    save_file({"a": np.zeros(1)}, tmp_path / "other")
    with pytest.raises(StateError, match="not a saved state"):
        load_state(tmp_path / "other")
    save_file(
        {"a": np.zeros(1)}, tmp_path / "new", metadata={"format": "apportion-state", "version": "9"}
    )
    with pytest.raises(StateError, match="Upgrade"):
        load_state(tmp_path / "new")
    for fields in (
        {},
        {"version": "new", "header": "{}"},
        {"version": "1"},
        {"version": "1", "header": "{"},
        {"version": "1", "header": "[]"},
    ):
        save_file(
            {"a": np.zeros(1)}, tmp_path / "x", metadata={"format": "apportion-state"} | fields
        )
        with pytest.raises(StateError, match="is damaged"):
            load_state(tmp_path / "x")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "folder", tmp_path / "torn" / "state"):
        with pytest.raises(RunFolderError, match="cannot be written"):
            save_state(place, {"a": np.zeros(1)})


def test_features_of_prompts_are_kept_once_and_survive_a_resume(tmp_path):
    first = Prompts(id_B=["a", "b"], feature_BD=[[1.0, 2.0], [3.0, 4.0]])
    later = Prompts(id_B=["b", "c"], feature_BD=[[9.0, 9.0], [5.0, 6.0]])
    with RunLog.create(tmp_path, {}) as log:
        log.log_prompts(first)
        log.log_prompts(Prompts(id_B=["x"]))
    with RunLog.create(tmp_path, {}, resume_step=0) as log:
        log.log_prompts(later)
    table = pl.read_parquet(tmp_path / "prompts.parquet")
    assert table["prompt"].to_list() == ["a", "b", "c"]
    assert table["feature"].to_list() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def test_damaged_features_are_written_anew(tmp_path):
    with RunLog.create(tmp_path, {}) as log:
        log.log_prompts(Prompts(id_B=["a"], feature_BD=[[1.0]]))
    (tmp_path / "prompts.parquet").write_bytes(b"torn")
    with (
        pytest.warns(UserWarning, match="written anew"),
        RunLog.create(tmp_path, {}, resume_step=0) as log,
    ):
        log.log_prompts(Prompts(id_B=["b"], feature_BD=[[2.0]]))
    assert pl.read_parquet(tmp_path / "prompts.parquet")["prompt"].to_list() == ["b"]
