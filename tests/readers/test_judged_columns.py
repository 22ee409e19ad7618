"""Guesses that the rows contradict, steps that are words, and rewards in other spellings."""

import bz2
import json
import lzma
import os

import numpy as np
import polars as pl
import pytest
from group_helpers import as_dict, oracle, record, write

from apportion.errors import InvalidInputError
from apportion.readers import Columns, read
from apportion.readers.column_rows import column_rows
from apportion.readers.trl import find_components

ROWS = record(range(1, 13))


def check(path, wanted, *words, columns=None):
    recording = read([path], columns or Columns())
    assert as_dict(recording.groups) == oracle(wanted)
    assert len(recording.notes) == len(words), recording.notes
    for word, note in zip(words, recording.notes, strict=True):
        assert word in note


def test_an_id_of_rollouts_is_no_group_and_no_prompt(tmp_path):
    path = write(tmp_path / "r.jsonl", [row | {"uid": f"u{at}"} for at, row in enumerate(ROWS)])
    check(path, ROWS, "uid differs with nearly every row and was not used")
    named = read([path], Columns(group="uid")).groups
    assert set(named.num_rollouts_G.tolist()) == {1}
    path = write(tmp_path / "r.jsonl", [row | {"prompt_id": at} for at, row in enumerate(ROWS)])
    check(path, ROWS, "prompt_id differs with nearly every row: prompt was taken for the prompt")
    assert len(read([path], Columns(prompt="prompt_id")).groups) == len(ROWS)


def test_a_category_is_no_group(tmp_path):
    rows = [row | {"group": "math" if row["prompt"] < "p15" else "code"} for row in ROWS]
    path = write(tmp_path / "r.jsonl", rows)
    check(path, ROWS, "group holds several prompts a group and was not used")
    assert len(read([path], Columns(group="group")).groups) < len(oracle(ROWS))


def test_single_rollouts_stay_as_they_are(tmp_path):
    rows = record(range(1, 13), n=1)
    ids = [row | {"prompt_id": row["prompt"], "uid": f"u{at}"} for at, row in enumerate(rows)]
    check(write(tmp_path / "r.jsonl", ids), rows)
    lists = [{"step": 1, "prompt": f"p{at}", "uid": at, "rewards": [0, 1]} for at in range(9)]
    assert len(read([write(tmp_path / "r.jsonl", lists)]).groups) == 9


def test_files_of_one_kind_are_judged_together(tmp_path):
    for step in range(1, 13):
        here = [row | {"group": f"{row['step']}"} for row in ROWS if row["step"] == step]
        write(tmp_path / f"{step}.jsonl", here[: 4 if step == 1 else None])
    wanted = [row for row in ROWS if row["step"] > 1]
    wanted += [row for row in ROWS if row["step"] == 1][:4]
    check(tmp_path, wanted, "group holds several prompts a group and was not used")


@pytest.mark.parametrize("is_mixed", [False, True])
def test_turns_of_an_agent_count_once(tmp_path, is_mixed, monkeypatch):
    monkeypatch.setattr("apportion.readers.tabular._CHUNK_ROWS", 7)
    turns = [
        {
            "input": f"{row['prompt']} turn {turn}" if turn else row["prompt"],
            "output": "x",
            "score": row["reward"] if turn == 2 else 0.5,
            "step": row["step"],
            "uid": f"{row['step']}-{row['prompt']}",
            "traj_uid": f"t{at}",
        }
        for at, row in enumerate(ROWS)
        for turn in range(3)
    ]
    if is_mixed:
        turns = sorted(turns, key=lambda row: (row["step"], row["input"][-6:], row["traj_uid"]))
        turns = sorted(turns, key=lambda row: (row["step"], "turn" in row["input"]))
    write(tmp_path / "r.jsonl", turns)
    check(tmp_path, ROWS, "480 of 720 rows of r.jsonl are earlier turns of a trajectory")


def test_rows_without_steps_that_hardly_ever_follow_one_another(tmp_path):
    rng = np.random.default_rng(0)
    rows = [{"prompt": f"p{at % 40}", "reward": float(at % 3 == 0)} for at in range(800)]
    rows = [rows[at] for at in rng.permutation(800)]
    groups = read([write(tmp_path / "r.jsonl", rows)]).groups
    assert groups.num_rollouts_G.tolist() == [20] * 40


@pytest.mark.parametrize("word", ["step_{}", "global_step_{}", "ckpt-{}", "Step {}", "epoch/{}"])
def test_steps_with_a_name(tmp_path, word):
    rows = [row | {"step": word.format(row["step"])} for row in ROWS]
    check(write(tmp_path / "r.jsonl", rows), ROWS)
    check(tmp_path / "r.jsonl", ROWS, columns=Columns(step="step"))


@pytest.mark.parametrize("value", ["2026-11-30 10:00:00", "train", 0.5])
def test_a_step_column_without_steps(tmp_path, value):
    path = write(tmp_path / "r.jsonl", [row | {"step": value} for row in ROWS])
    recording = read([path])
    assert not recording.has_steps
    said = f"Column step holds no whole numbers ({str(value)!r}) and was not used."
    assert recording.notes[0] == said
    with pytest.raises(InvalidInputError, match=r"Column step of r\.jsonl holds no steps \("):
        read([path], Columns(step="step"))
    write(tmp_path / "r.jsonl", [{"prompt": "Why?", "reward": 1}] * 4)
    with pytest.raises(InvalidInputError, match=r"Column prompt of .* holds no steps \('Why\?'\)"):
        read([path], Columns(step="prompt"))


@pytest.mark.parametrize("is_null", [False, True])
def test_steps_that_begin_late(tmp_path, monkeypatch, is_null):
    monkeypatch.setattr("apportion.readers.tabular._PEEKED_LINES", 10)
    monkeypatch.setattr("apportion.readers.tabular._CHUNK_ROWS", 100 if not is_null else 20)
    missing = {"step": None} if is_null else {}
    rows = [{"prompt": row["prompt"], "reward": row["reward"]} | missing for row in ROWS[:60]]
    path = write(tmp_path / "r.jsonl", rows + ROWS[60:])
    check(path, ROWS[60:], "60 of 240 rows of r.jsonl have no whole step and were left out.")


def test_rewards_as_per_cent_and_with_a_comma(tmp_path):
    percent = [row | {"reward": f"{100 * row['reward']:g}%"} for row in ROWS]
    check(write(tmp_path / "r.jsonl", percent), ROWS)
    rows = [row | {"reward": row["reward"] / 2} for row in ROWS]
    comma = [row | {"reward": str(row["reward"]).replace(".", ",")} for row in rows]
    check(write(tmp_path / "r.jsonl", comma), rows)
    lines = [f"{row['step']};{row['prompt']};{row['reward']}" for row in comma]
    (tmp_path / "r.csv").write_text("\n".join(["step;prompt;reward", *lines, ""]))
    check(tmp_path / "r.csv", rows)
    mixed = [*ROWS[:-1], ROWS[-1] | {"reward": "50%"}]
    recording = read([write(tmp_path / "r.jsonl", mixed)])
    assert recording.notes == (
        "1 of 240 rows of r.jsonl has no finite reward and count as asked for, not as scored.",
        "Some rewards of r.jsonl are written like '50%': write all as numbers.",
    )


def test_rewards_far_beyond_the_others_are_said(tmp_path):
    rows = [*ROWS[:-1], ROWS[-1] | {"reward": 1e6}]
    said = "reach from 0 to 1e+06, but all others than 1 of 240 lie within 0 and 1."
    check(write(tmp_path / "r.jsonl", rows), rows, said)
    near = [*ROWS[:-1], ROWS[-1] | {"reward": 9.0}]
    check(write(tmp_path / "r.jsonl", near), near)
    seldom = [row | {"reward": float(at == 7)} for at, row in enumerate(ROWS)]
    check(write(tmp_path / "r.jsonl", seldom), seldom)


@pytest.mark.parametrize("indent", [None, 1])
def test_json_of_columns(tmp_path, indent):
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    (tmp_path / "r.json").write_text(json.dumps(columns, indent=indent))
    check(tmp_path / "r.json", ROWS)
    numbered = {name: {str(at): one for at, one in enumerate(columns[name])} for name in columns}
    (tmp_path / "r.json").write_text(json.dumps(numbered, indent=indent))
    check(tmp_path / "r.json", ROWS)


def test_a_row_is_no_object_of_columns():
    chat = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    for row in (
        {"prompt": "a", "rewards": [0, 1], "lengths": [5, 6]},
        {"messages": chat, "rewards": [0, 1]},
        {"prompt": ["a", "b"], "reward": [1, 0, 1]},
        {"prompt": ["a"], "reward": [1]},
        {"prompt": "a", "reward": 1},
        {},
    ):
        assert column_rows(row) is None


@pytest.mark.parametrize("pack", [bz2, lzma])
def test_other_packed_files_are_named(tmp_path, pack):
    write(tmp_path / "r.jsonl", ROWS)
    (tmp_path / "p").write_bytes(pack.compress((tmp_path / "r.jsonl").read_bytes()))
    with pytest.raises(InvalidInputError, match=r"packed with (bzip2|xz)\. Unpack it first: "):
        read([tmp_path / "p"])
    assert any("Unpack it first" in note for note in read([tmp_path]).notes)


def test_prompts_of_openrlhf(tmp_path):
    rows = [
        {"prompts": row["prompt"], "rewards": row["reward"], "global_step": row["step"]}
        for row in ROWS
    ]
    check(write(tmp_path / "r.jsonl", rows), ROWS)


def test_what_cannot_be_read_twice(tmp_path):
    write(tmp_path / "r.jsonl", ROWS)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match="pipe is a pipe, which cannot be read twice"):
        read([tmp_path / "pipe"])
    with pytest.raises(InvalidInputError, match="/dev/null is a device"):
        read([tmp_path / "r.jsonl", type(tmp_path)("/dev/null")])
    check(tmp_path, ROWS, "1 file cannot be read twice (pipes or devices) and was left out (pipe).")


def test_columns_of_trl_that_are_the_same_within_groups_are_no_rewards(tmp_path):
    (tmp_path / "completions").mkdir()
    for step in range(1, 13):
        here = [row for row in ROWS if row["step"] == step]
        reward_R = np.array([row["reward"] for row in here])
        centred_R = reward_R - reward_R.reshape(-1, 4).mean(axis=1).repeat(4)
        pl.DataFrame(
            {
                "step": [step] * len(here),
                "prompt": [row["prompt"] for row in here],
                "completion": ["c"] * len(here),
                "correct_reward": reward_R,
                "difficulty": [float(row["prompt"][1:]) for row in here],
                "advantage": centred_R,
            }
        ).write_parquet(tmp_path / "completions" / f"completions_{step:05d}.parquet")
    recording = read([tmp_path])
    assert as_dict(recording.groups) == oracle(ROWS)
    assert recording.reward_range == (0.0, 1.0)
    assert recording.notes == (
        "difficulty is the same within every group and affects no advantage: not added to the "
        "reward.",
    )


def test_constant_columns_alone_stay():
    chunk = {"step": [1, 1], "prompt": ["a", "a"], "advantage": [0.0, 0.0]}
    chunk |= {"f": [1.0, 1.0], "g": [0.5, 0.5]}
    assert find_components(["f", "g"], [chunk]).names == ("f", "g")
