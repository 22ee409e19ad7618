"""Tables as `wandb.Table` writes them to ``media/table``: a compact JSON object, with NaN."""

import json

import pytest
from group_helpers import as_dict, oracle, rollouts

from apportion.errors import InvalidInputError
from apportion.readers import read
from apportion.readers.tally import Tally
from apportion.readers.wandb_table import wandb_rows, wandb_step

NAME = "completions_{step}_606d6a931e9826e8ba54.table.json"


def log_table(folder, step, rows, *, key=NAME, columns=None):
    folder.mkdir(parents=True, exist_ok=True)
    columns = columns or list(rows[0])
    content = {"columns": columns, "data": [[row[name] for name in columns] for row in rows]}
    text = json.dumps(content, separators=(",", ":"))
    (folder / key.format(step=step)).write_text(text)


def test_a_folder_of_tables(tmp_path):
    media = tmp_path / "run-20260101_120000-abcd1234" / "files" / "media" / "table"
    rows = rollouts(0, num_steps=12)
    for step in range(1, 13):
        log_table(media, step, [row for row in rows if row["step"] == step])
    recording = read([tmp_path])
    assert recording.source == "W&B tables"
    assert as_dict(recording.groups) == oracle(rows)
    assert recording.notes == ()


def test_steps_come_from_the_names_where_no_column_has_them(tmp_path):
    rows = rollouts(1)
    for step in (1, 2, 3):
        part = [row for row in rows if row["step"] == step]
        log_table(tmp_path, step, part, columns=["prompt", "reward", "num_tokens", "truncated"])
    recording = read([tmp_path])
    assert as_dict(recording.groups) == oracle(rows)
    assert recording.has_steps
    assert recording.notes == ("Steps are W&B's own count, from the names of the tables.",)


def test_a_table_that_grows_counts_each_rollout_once(tmp_path):
    rows = rollouts(2)
    for step in (1, 2, 3):
        log_table(tmp_path, step, [row for row in rows if row["step"] <= step])
    recording = read([tmp_path])
    assert as_dict(recording.groups) == oracle(rows)
    assert "stand in a later file too" in recording.notes[0]


def test_completions_of_trl_with_two_reward_functions(tmp_path):
    rows = [
        {"step": 1, "prompt": "a", "completion": "x", "f": f, "g": g, "advantage": f + g - 1.0}
        for f, g in [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)]
    ]
    log_table(tmp_path, 1, rows)
    recording = read([tmp_path])
    assert recording.source == "TRL completions"
    assert recording.groups.reward_sum_G.tolist() == [4.0]
    assert recording.groups.hidden_G.tolist() == [False]
    assert recording.notes == (
        "The reward is the sum of f and g; the recorded advantages agree.",
        "f and g in this dump are 0 or 1: audit one of them with --reward-column f.",
    )


def test_tables_of_validation_and_of_other_runs(tmp_path):
    media = tmp_path / "run-20260101_120000-abcd1234" / "files" / "media" / "table"
    log_table(media, 1, rollouts(0))
    log_table(media / "val", 1, rollouts(1), key="generations_{step}_3df8ef909ace6c57.table.json")
    recording = read([tmp_path])
    assert as_dict(recording.groups) == oracle(rollouts(0))
    assert "1 file holds validation, by its name" in recording.notes[0].replace("their", "its")
    log_table(tmp_path / "run-20260102_120000-efgh5678" / "files", 1, rollouts(2))
    with pytest.raises(InvalidInputError, match="W&B tables of several runs"):
        read([tmp_path])


def test_rows_of_another_width_are_left_out():
    tally = Tally()
    document = {"columns": ["a", 1], "data": [[1, 2], [1], None, [1, 2, 3]]}
    assert wandb_rows(document, "t", tally) == [{"a": 1, "1": 2}]
    assert tally.sentences()[0].startswith("3 of 4 rows of t have another number of values")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        (NAME.format(step=7), 7),
        ("completions.table.json", None),
        ("completions_7.table.json", None),
        ("a_1_2_606d6a931e9826e8ba54.table.json", 2),
    ],
)
def test_steps_in_names(name, step):
    assert wandb_step(name) == step
