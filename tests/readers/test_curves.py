"""What is a scalar log and what is none; which curve is which."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from curve_helpers import points, read, read_whatever
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.readers import curves
from apportion.readers import read as read_recording
from apportion.readers.scalars import quoted_number, whole_step
from apportion.recording import Curve
from apportion.run_log import RunLog
from apportion.types import Outcomes

ROLLOUTS = [
    {"step": step, "prompt": f"What is {i}?", "completion": "x", "reward": float(j % 2)}
    for step in range(3)
    for i in range(2)
    for j in range(4)
]


def lines(rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def curve(*value: float) -> Curve:
    return Curve(step_T=np.arange(len(value)), value_T=np.array(value))


def without(*names: str) -> list[dict]:
    return [{name: row[name] for name in row if name not in names} for row in ROLLOUTS]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rollouts.jsonl", lines(ROLLOUTS)),
        ("rollouts.jsonl", lines(without("step"))),
        ("rollouts.jsonl", lines(without("prompt", "completion"))),
        ("rollouts.jsonl", lines([{"step": 1, "prompt_id": 7, "reward": 1.0}])),
        ("groups.jsonl", lines([{"step": 1, "rewards": [0.0, 1.0]}])),
        ("verl/3.jsonl", lines([{"input": "2+2", "output": "4", "score": 1.0, "step": 3}])),
        ("rollouts.json", json.dumps(ROLLOUTS).encode()),
        ("tables.json", json.dumps({"columns": ["step"], "data": [[1]]}).encode()),
        ("rollouts.csv", b"step,prompt,reward\n1,a,0\n1,a,1\n"),
        ("rollouts.csv", b"step,reward\n1,0\n1,1\n1,1\n1,0\n"),
        ("rollouts.csv", b"prompt_id,reward\n1,0\n"),
        ("config.json", b'{"learning_rate": 1e-6}'),
        ("config.yaml", b"learning_rate: 1e-6\n"),
        ("text.log", b"[INFO] step: 1, reward: 0.5\n[2026] hello\n"),
        ("array.json", b"[1, 2, 3]"),
        ("text.json", b'"step"'),
        ("empty", b""),
        ("blank.jsonl", b"\n\n\n"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
        ("zeros", bytes(100)),
        ("events.out.tfevents.1.torn", b"\x18\0\0"),
    ],
)
def test_no_scalar_log(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert curves.read(path) is None


def test_tables_and_empty_folders_are_no_scalar_log(tmp_path):
    assert curves.read(tmp_path) is None
    path = tmp_path / "completions_00001.parquet"
    pl.DataFrame(ROLLOUTS).write_parquet(path)
    assert curves.read(path) is None
    assert curves.read(tmp_path) is None
    assert curves.read(Path("/dev/null")) is None


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInputError, match=r"nothing.csv does not exist"):
        curves.read(tmp_path / "nothing.csv")


@pytest.mark.parametrize("name", ["metrics.jsonl", "logging.jsonl"])
def test_plain_rows(tmp_path, name):
    """Training and evaluation may log at one step, each under its names."""
    rows = [
        {"step": 1, "time": "12:00", "reward": 0.25, "epoch": 0.1},
        {"step": 2, "time": "12:01", "reward": 0.5, "epoch": 0.2},
        {"step": 2, "eval_reward": 0.75, "epoch": 0.2},
    ]
    (tmp_path / name).write_bytes(lines(rows))
    for path in (tmp_path, tmp_path / name):
        found, notes = read(path)
        assert points(found["reward"]) == [(1, 0.25), (2, 0.5)]
        assert points(found["eval_reward"]) == [(2, 0.75)]
        assert set(found) == {"reward", "eval_reward", "epoch"}
        assert notes == []


def test_a_plain_csv(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,reward,text\n2,0.5,x\n1,0.25,y\n")
    found, notes = read(path)
    assert {name: points(one) for name, one in found.items()} == {"reward": [(1, 0.25), (2, 0.5)]}
    assert notes == []


def test_a_text_in_place_of_a_reward(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(lines([{"step": 1, "reward": "oops"}, {"step": 2, "reward": 0.5}]))
    found, notes = read(path)
    assert points(found["reward"]) == [(2, 0.5)]
    assert notes == [
        "1 text in the place of numbers left out, the first 'oops' for 'reward' at step 1."
    ]


def test_a_list_of_log_entries(tmp_path):
    """As ``json.dump(trainer.state.log_history, file)`` leaves it."""
    path = tmp_path / "log_history.json"
    path.write_text(json.dumps([{"step": 5, "reward": 0.5}, {"step": 10, "reward": 0.75}]))
    assert points(read(path)[0]["reward"]) == [(5, 0.5), (10, 0.75)]


def test_our_own_run_folder(tmp_path):
    outcomes = Outcomes.of_rewards(["a"], [1.0, 0.0], [0, 0], step=0)
    with RunLog.create(tmp_path, {"seed": 0}) as log:
        for step, reward in enumerate((0.25, 0.5)):
            log.log_step(step, {"reward_prompt_mean": reward, "frac_groups_without_signal": 0.5})
        log.log_groups(outcomes)
        assert curves.read(tmp_path / "groups.jsonl") is None
    found, notes = read(tmp_path)
    known = curves.known(found)
    assert known.reward is found["reward_prompt_mean"]
    assert known.share_without_signal is found["frac_groups_without_signal"]
    assert notes == []


def test_the_state_of_a_trainer_goes_before_other_logs(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(lines([{"step": 1, "loss": 0.5}]))
    state = {"global_step": 1, "log_history": [{"step": 1, "reward": 0.5}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert set(read(tmp_path)[0]) == {"reward"}


def test_names_that_are_known():
    trl = {
        "reward": "reward",
        "share_without_signal": "frac_reward_zero_std",
        "completion_length": "completions/mean_length",
        "truncated_share": "completions/clipped_ratio",
        "num_tokens": "num_tokens",
        "step_seconds": "step_time",
        "entropy": "entropy",
        "kl": "kl",
        "learning_rate": "learning_rate",
    }
    for prefix in ("", "train/", "eval_", "eval/"):
        given_curves = {prefix + name: curve(0.5) for name in trl.values()}
        known = curves.known(given_curves)
        for field, name in trl.items():
            assert getattr(known, field) is given_curves[prefix + name]
        assert known.generation_seconds is None
    assert curves.known({}) == curves.KnownCurves()


@pytest.mark.parametrize(
    "best_first",
    [
        ["rollouts/reward_prompt_mean", "reward", "critic/score/mean", "eval_reward"],
        ["train/reward", "critic/rewards/mean", "eval/reward"],
        ["critic/score/mean", "critic/rewards/mean"],
    ],
)
def test_the_best_name_counts(best_first):
    given_curves = {name: curve(0.5) for name in reversed(best_first)}
    for name in best_first:
        assert curves.known(given_curves).reward is given_curves[name]
        given_curves[name] = curve(np.nan)
    assert curves.known(given_curves).reward is None


def test_the_names_are_those_that_trl_logs():
    import inspect

    from trl import GRPOTrainer

    source = inspect.getsource(GRPOTrainer)
    for names in curves._TRL.values():
        assert f'["{names[0]}"]' in source or names[0] == "learning_rate"


@given(st.binary(max_size=300), st.sampled_from(["a", "a.csv", "a.json", "a.jsonl", "a.wandb"]))
def test_any_bytes_under_any_name(tmp_path_factory, content, name):
    folder = tmp_path_factory.mktemp("bytes")
    read_whatever(folder / name, content)
    read_whatever(folder / name, b"\xff\xfe" + content)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), min_size=1), st.integers(2, 6))
def test_several_rows_a_step_are_rollouts(tmp_path_factory, steps, size):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [{"step": step, "reward": reward} for step, reward in steps for _ in range(size)]
    path.write_bytes(lines(rows))
    assert curves.read(path) is None


@given(st.integers(-(2**70), 2**70))
def test_steps(number):
    expected = number if 0 <= number < 2**63 else None
    assert whole_step(number) == whole_step(str(number)) == expected


@given(st.floats())
def test_quoted_numbers(number):
    assert np.array_equal(float(quoted_number(str(number))), number, equal_nan=True)


TABLE = [{"step": 1, "train/reward": 0.5, "loss": 2.0}, {"step": 2, "train/reward": 0.25}]


def _separated(delimiter, axis):
    lines = [[axis, "train/reward", "loss"], ["1", "0.5", "2.0"], ["2", "0.25", ""]]
    return "".join(delimiter.join(line) + "\n" for line in lines).encode()


def _parquet(axis):
    frame = pl.DataFrame([{axis if k == "step" else k: v for k, v in r.items()} for r in TABLE])
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


def _json_lines(axis):
    rows = [{axis if k == "step" else k: v for k, v in row.items()} for row in TABLE]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


STEPS = [
    *("_step", "step", "Step", "global_step", "train/global_step", "trainer/global_step"),
    *("training_step", "train_step", "train/step", "policy_step", "iteration", "iter"),
]
FORMS = {
    "history.csv": lambda axis: _separated(",", axis),
    "semicolon.csv": lambda axis: _separated(";", axis),
    "history.tsv": lambda axis: _separated("\t", axis),
    "history.txt": lambda axis: _separated(",", axis),
    "history.csv.gz": lambda axis: gzip.compress(_separated(",", axis)),
    "history.jsonl": _json_lines,
    "history.jsonl.gz": lambda axis: gzip.compress(_json_lines(axis)),
    "history.parquet": _parquet,
}


@pytest.mark.parametrize("axis", STEPS)
@pytest.mark.parametrize("name", FORMS)
def test_a_table_of_scalars_alone_is_a_recording(tmp_path, name, axis):
    (tmp_path / name).write_bytes(FORMS[name](axis))
    for path in (str(tmp_path / name), tmp_path):
        recording = read_recording([path])
        assert recording.groups is None
        assert recording.source == "scalar curves"
        reward, loss = recording.curves["train/reward"], recording.curves["loss"]
        assert (reward.step_T.tolist(), reward.value_T.tolist()) == ([1, 2], [0.5, 0.25])
        assert loss.value_T.tolist() == [2.0]
        assert recording.notes == ()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer_state.json", json.dumps({"global_step": 1, "log_history": [TABLE[0]]})),
        ("rows.json", json.dumps(TABLE)),
        ("columns.json", json.dumps({"_step": {"0": 1}, "train/reward": {"0": 0.5}})),
        ("verl.jsonl", json.dumps({"step": 1, "data": {"train/reward": 0.5}}) + "\n"),
        ("verl.log", "step:1 - train/reward:0.5 - actor/lr:1e-06\n"),
        ("printed.log", "{'loss': 2.0, 'train/reward': 0.5, 'epoch': 0.1}\n" * 2),
        ("chart.csv", "Step,run - train/reward\n1,0.5\n"),
        ("frame.csv", ",_step,_runtime,index,id,train/reward\n0,1,2.5,7,7,0.5\n"),
    ],
)
def test_every_log_of_scalars_alone_is_a_recording(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    for path in (tmp_path / name, tmp_path):
        recording = read_recording([path])
        assert recording.groups is None
        assert recording.curves["train/reward"].value_T[0] == 0.5


def test_tables_of_rollouts_are_no_scalars(tmp_path):
    for header in ("step,prompt,loss", "step,uid,loss"):
        content = f"{header}\n1,2,3\n2,3,4\n".replace(",", "\t")
        (tmp_path / "t.tsv").write_text(content)
        assert curves.read(tmp_path / "t.tsv") is None
