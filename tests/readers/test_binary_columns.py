"""A 0/1 column beside a shaped reward is named."""

import json

import numpy as np
import polars as pl
import pytest

from apportion.readers import Columns, read

DAPO = "acc in this dump is 0 or 1: audit it with --reward-column acc."


def dump(path, scores, **columns):
    rows = [
        {"input": f"q{at // 4}", "output": "o", "score": score, "step": 1}
        | {name: values[at] for name, values in columns.items()}
        for at, score in enumerate(scores)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


SHAPED = [-1.3, 1.0, -1.0, 0.7, 1.0, 0.2, -1.0, 1.0]
RIGHT = [score > 0 for score in SHAPED]


def test_verl_with_a_shaped_reward(tmp_path):
    dump(tmp_path / "1.jsonl", SHAPED, acc=RIGHT)
    dump(tmp_path / "2.jsonl", [1.0] * 4, acc=[True] * 4)
    recording = read([tmp_path])
    assert recording.notes[-1] == DAPO
    alone = read([tmp_path], Columns(reward="acc"))
    assert alone.reward_range == (0.0, 1.0)
    assert DAPO not in alone.notes


@pytest.mark.parametrize(
    ("scores", "acc"),
    [
        ([float(right) for right in RIGHT], RIGHT),  # the reward is it
        ([2.0 * right - 1.0 for right in RIGHT], RIGHT),  # two values alone
        (SHAPED, [0.5, *RIGHT[1:]]),
        (SHAPED, [1] * 8),
        (SHAPED, ["yes"] * 8),
        (SHAPED, [None] * 8),
        (SHAPED, [[1]] * 8),
    ],
)
def test_nothing_is_said_of_other_columns(tmp_path, scores, acc):
    dump(tmp_path / "1.jsonl", scores, acc=acc)
    assert read([tmp_path]).notes == ()


@pytest.mark.parametrize("name", ["acc", "Accuracy", "correct", "is_correct", "success", "passed"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_any_table(tmp_path, name, form):
    rows = [
        {"prompt": f"p{at // 4}", "reward": score, name: right}
        for at, (score, right) in enumerate(zip(SHAPED, RIGHT, strict=True))
    ]
    path = tmp_path / f"r.{form}"
    frame = pl.DataFrame(rows)
    {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[form](
        path
    )
    said = f"{name} in this dump is 0 or 1: audit it with --reward-column {name}."
    assert said in read([path]).notes


def test_a_value_of_a_later_chunk_counts(tmp_path, monkeypatch):
    from apportion.readers import tabular

    monkeypatch.setattr(tabular, "_CHUNK_ROWS", 4)
    dump(tmp_path / "1.jsonl", SHAPED, acc=RIGHT, correct=[*RIGHT[:7], 7])
    assert read([tmp_path]).notes == (DAPO,)


def test_components_of_trl(tmp_path):
    rng = np.random.default_rng(0)
    right_N, length_N = rng.integers(0, 2, 32).astype(float), rng.random(32)
    total_N = right_N + length_N
    group = total_N.reshape(8, 4)
    advantage_N = (group - group.mean(axis=1, keepdims=True)).ravel()
    pl.DataFrame(
        {
            "step": [1] * 32,
            "prompt": [f"p{at // 4}" for at in range(32)],
            "completion": ["x"] * 32,
            "right": right_N,
            "length": length_N,
            "advantage": advantage_N,
        }
    ).write_parquet(tmp_path / "completions_00001.parquet")
    said = "right in this dump is 0 or 1: audit it with --reward-column right."
    assert read([tmp_path]).notes[-1] == said
