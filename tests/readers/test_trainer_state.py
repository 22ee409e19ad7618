"""States that transformers itself wrote, and what its callbacks print."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from curve_helpers import check_every_cut, points, read, read_whatever
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerState
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from apportion.readers import curves

HISTORY = [
    {"epoch": 0.5, "loss": 0.25, "reward": 0.5, "frac_reward_zero_std": 0.5, "step": 1},
    {"epoch": 1.0, "loss": 0.125, "reward": 0.75, "frac_reward_zero_std": 0.25, "step": 2},
    {"epoch": 1.0, "eval_loss": 0.5, "eval_reward": 0.625, "step": 2},
    {"epoch": 1.0, "train_loss": 0.1875, "train_runtime": 3.5, "step": 2},
]


def save(path: Path, history: list[dict], global_step: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    step = history[-1]["step"] if global_step is None else global_step
    TrainerState(log_history=history, global_step=step, max_steps=100).save_to_json(str(path))
    return path


def test_a_saved_state(tmp_path):
    found, notes = read(save(tmp_path / "trainer_state.json", HISTORY))
    assert notes == []
    assert points(found["reward"]) == [(1, 0.5), (2, 0.75)]
    assert points(found["eval_reward"]) == [(2, 0.625)]
    assert points(found["epoch"]) == [(1, 0.5), (2, 1.0)]
    assert points(found["train_runtime"]) == [(2, 3.5)]
    known = curves.known(found)
    assert known.reward is found["reward"]
    assert known.share_without_signal is found["frac_reward_zero_std"]


def test_any_name_of_the_file_will_do(tmp_path):
    assert "reward" in read(save(tmp_path / "state-of-my-run.txt", HISTORY))[0]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.floats(allow_nan=False, allow_infinity=False)), min_size=1
    )
)
def test_against_a_dictionary(tmp_path_factory, logged):
    """Steps in any order, again and again: ascending, the last one counts."""
    path = tmp_path_factory.mktemp("state") / "trainer_state.json"
    found, notes = read(save(path, [{"reward": value, "step": step} for step, value in logged]))
    assert points(found["reward"]) == sorted(dict(logged).items())
    doubled = {step for step, _ in logged if len({v for s, v in logged if s == step}) > 1}
    assert bool(notes) == bool(doubled)


def test_the_newest_checkpoint_counts(tmp_path):
    save(tmp_path / "checkpoint-9" / "trainer_state.json", HISTORY[:1], global_step=9)
    save(tmp_path / "checkpoint-10" / "trainer_state.json", HISTORY, global_step=10)
    found, notes = read(tmp_path)
    assert (len(found["reward"].step_T), notes) == (2, [])
    save(tmp_path / "trainer_state.json", [*HISTORY, {"reward": 1.0, "step": 11}])
    assert points(read(tmp_path)[0]["reward"])[-1] == (11, 1.0)


def test_a_newer_state_that_is_torn_to_nothing_is_passed_over(tmp_path):
    save(tmp_path / "checkpoint-1" / "trainer_state.json", HISTORY, global_step=1)
    newer = save(tmp_path / "checkpoint-2" / "trainer_state.json", HISTORY, global_step=2)
    newer.write_bytes(newer.read_bytes()[:100])
    found, notes = read(tmp_path)
    assert len(found["reward"].step_T) == 2
    assert len(notes) == 1
    assert "checkpoint-1" in notes[0]
    (tmp_path / "checkpoint-1" / "trainer_state.json").unlink()
    assert curves.read(tmp_path) is None


def test_odd_values_are_counted(tmp_path):
    history = [
        {"reward": math.nan, "loss": None, "step": 1},
        {"reward": math.inf, "loss": 10**400, "step": 2},
        {"reward": "0.5", "loss": "broken", "done": True, "table": [1, 2], "step": 3},
        {"reward": "NaN", "loss": 1, "note": "no number at all", "step": 4},
        {"reward": 9.0},
        {"reward": 9.0, "step": -1},
        {"reward": 9.0, "step": 1.5},
        {"reward": 9.0, "step": True},
        {"reward": 9.0, "step": 2**70},
        {"reward": 1.0, "step": 5.0},
    ]
    found, notes = read(save(tmp_path / "trainer_state.json", history, global_step=5))
    np.testing.assert_array_equal(found["reward"].step_T, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(found["reward"].value_T, [np.nan, np.nan, 0.5, np.nan, 1.0])
    np.testing.assert_array_equal(found["loss"].value_T, [np.nan, np.nan, 1.0])
    assert set(found) == {"reward", "loss", "done"}
    assert notes == [
        "5 values are NaN, infinite or null; the curves hold NaN there.",
        "1 value is true or false, counted as 1 and 0.",
        "1 text in the place of numbers left out, the first 'broken' for 'loss' at step 3.",
        "5 rows have no whole step number and count for nothing.",
    ]


def test_a_history_without_entries(tmp_path):
    path = tmp_path / "trainer_state.json"
    assert read(save(path, [], global_step=0)) == ({}, ["The log holds no numbers."])


def test_a_history_larger_than_one_read(tmp_path):
    history = [{"reward": step / 7, "text": "x" * 200, "step": step} for step in range(9000)]
    found, notes = read(save(tmp_path / "trainer_state.json", history))
    assert notes == []
    np.testing.assert_array_equal(found["reward"].value_T, np.arange(9000) / 7)


def test_cut_at_every_byte(tmp_path):
    check_every_cut(save(tmp_path / "trainer_state.json", HISTORY))
    path = save(tmp_path / "trainer_state.json", HISTORY)
    path.write_bytes(path.read_bytes().partition(b'"eval_loss"')[0])
    assert read(path)[1] == ["The file is torn after 2 entries; what follows was left out."]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
ENTRIES = st.dictionaries(st.sampled_from(["step", "reward", "data", "_step", "epoch"]), VALUES)


@given(st.lists(ENTRIES | VALUES), st.booleans())
def test_any_json_is_read_or_left(tmp_path_factory, entries, as_lines):
    folder = tmp_path_factory.mktemp("json")
    state = {"global_step": 3, "log_history": entries}
    read_whatever(folder / "trainer_state.json", json.dumps(state).encode())
    read_whatever(folder / "rows.json", json.dumps(entries).encode())
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    read_whatever(folder / "rows.jsonl", lines.encode())


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_left(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    read_whatever(folder / "trainer_state.json", content)
    read_whatever(folder / "half.json", b'{"log_history": [{"step": 1, "a": 2}, ' + content)


def test_nesting_without_end(tmp_path):
    read_whatever(tmp_path / "deep.json", b'{"log_history": [{"step": 1, "a": ' + b"[" * 200_000)
    read_whatever(tmp_path / "deep.jsonl", b'{"step": 1, "a": ' + b'{"a":' * 200_000)


# What the callbacks of transformers print.


def print_history(callback, capsys, history) -> str:
    """Let a real callback of transformers print every entry."""
    state = TrainerState(max_steps=10, is_local_process_zero=True, is_world_process_zero=True)
    if isinstance(callback, ProgressCallback):
        callback.on_train_begin(None, state, None)
    for entry in history:
        logs = {name: value for name, value in entry.items() if name != "step"}
        callback.on_log(None, state, None, logs=logs)
    if isinstance(callback, ProgressCallback):
        callback.on_train_end(None, state, None)
    out, err = capsys.readouterr()
    return err + out


@pytest.mark.parametrize("callback", [PrinterCallback, ProgressCallback])
def test_printed_with_quotes(tmp_path, capsys, callback):
    path = tmp_path / "train.log"
    path.write_text("Loading\n" + print_history(callback(), capsys, HISTORY), encoding="utf-8")
    found, notes = read(path)
    assert notes == ["The printed dictionaries carry no step; steps are their order in the log."]
    assert points(found["reward"]) == [(1, 0.5), (2, 0.75)]
    assert points(found["eval_reward"]) == [(2, 0.625)]
    assert points(found["train_runtime"]) == [(2, 3.5)]


def test_printed_without_quotes(tmp_path):
    """As transformers before version 5 printed them, among progress bars and colours."""
    lines = [
        "  0%|          | 0/10 [00:00<?, ?it/s]\r 10%|# | 1/10 {'loss': nan, 'reward': 0.5, "
        "'rewards/f/mean': None, 'epoch': 0.1}\r\n",
        "\x1b[32m{'loss': 1e-05, 'grad_norm': inf, 'reward': 0.75, 'epoch': 0.2}\x1b[0m\n",
        "{'not': 'a log'} {'reward': 9.0}\n",
        "{'loss': 0.5, 'reward': 1.0, 'epoch': 0.1}\n",
        "{'loss': 0.5, 'rew",
    ]
    path = tmp_path / "train.log"
    path.write_bytes("".join(lines).encode())
    found, notes = read(path)
    np.testing.assert_array_equal(found["loss"].value_T, [np.nan, 1e-5, 0.5])
    assert points(found["reward"]) == [(1, 0.5), (2, 0.75), (3, 1.0)]
    assert np.isnan(found["rewards/f/mean"].value_T).all()
    assert notes == [
        "The last line is torn and was left out.",
        "The printed dictionaries carry no step; steps are their order in the log.",
        "The epoch falls back 1 time, as after a resume; the order goes on counting.",
        "3 values are NaN, infinite or null; the curves hold NaN there.",
    ]


def test_printed_with_a_step(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("{'loss': 0.5, 'epoch': 0.1, 'global_step/max_steps': '5/25'}\n")
    found, notes = read(path)
    assert (points(found["loss"]), notes) == ([(5, 0.5)], [])


def test_a_printed_log_cut_at_every_byte(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text(print_history(PrinterCallback(), capsys, HISTORY))
    check_every_cut(path)
