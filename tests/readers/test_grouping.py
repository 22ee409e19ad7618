import json
from pathlib import Path

import numpy as np
import pytest
from group_helpers import as_dict, oracle, rollouts
from hypothesis import given
from hypothesis import strategies as st

from apportion.metrics import has_signal
from apportion.readers import read, tabular
from apportion.readers.columns import Columns
from apportion.readers.grouping import Grouper, differs
from apportion.readers.prompts import PromptTable
from apportion.readers.rollouts import parts_of
from apportion.readers.tally import Tally


def grouped(files, *, has_step=True, marks=None, size=7):
    """Group rows file by file, a few rows at a time."""
    tally = Tally()
    grouper, prompts = Grouper(tally), PromptTable()
    columns = Columns(prompt="prompt", reward="reward", step="step" if has_step else None)
    for at, rows in enumerate(files):
        grouper.start_file(Path(f"{at}.jsonl"), has_step=has_step)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            chunk = {name: [row[name] for row in part] for name in ("prompt", "reward", "step")}
            mark_R = None if marks is None else np.array(marks[start : start + size])
            grouper.add(parts_of(chunk, columns, prompts, tally, f"{at}", mark_R=mark_R))
    return grouper.finish(prompts, has_marks=marks is not None), tally.sentences()


def without_lengths(groups):
    return {
        key: {name: one for name, one in group.items() if name not in ("tokens", "truncated")}
        for key, group in groups.items()
    }


@given(seed=st.integers(0, 10_000), size=st.integers(1, 40), shuffle=st.booleans())
def test_chunk_borders_do_not_matter(seed, size, shuffle):
    rows = rollouts(seed)
    if shuffle:
        np.random.default_rng(seed).shuffle(rows)
    groups, notes = grouped([rows], size=size)
    assert without_lengths(as_dict(groups)) == without_lengths(oracle(rows))
    assert notes == ()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1)), max_size=40), st.integers(1, 9)
)
def test_visits_stand_for_steps_that_are_not_recorded(pairs, size):
    rows = [{"prompt": prompt, "reward": reward, "step": None} for prompt, reward in pairs]
    visits, count, before = [], {}, None
    for prompt, reward in pairs:
        if prompt != before:
            count[prompt] = count.get(prompt, 0) + 1
        before = prompt
        visits.append({"step": count[prompt], "prompt": prompt, "reward": reward})
    groups, notes = grouped([rows], has_step=False, size=size)
    if not rows:
        assert groups is None
    elif len(count) < sum(count.values()) == len(rows):
        assert groups.step_G.tolist() == [1] * len(count)
        assert "never follow one another" in notes[0]
    else:
        assert without_lengths(as_dict(groups)) == without_lengths(oracle(visits))
        assert notes == ("Steps are not recorded: the v-th visit of a prompt stands for step v.",)


def test_rows_of_one_prompt_in_two_files_are_two_visits():
    rows = [{"prompt": "a", "reward": 1, "step": None}] * 2
    groups, _ = grouped([rows, rows], has_step=False)
    assert groups.step_G.tolist() == [1, 2]


@pytest.mark.parametrize("rewards", [[1, 0], [[1, 0], [1, 1]]])
def test_count_rows_are_visits_each(tmp_path, rewards):
    if isinstance(rewards[0], list):
        rows = [{"prompt": "a", "rewards": one} for one in rewards]
    else:
        rows = [{"prompt": "a", "k": one, "n": 2} for one in rewards]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recording = read([tmp_path / "r.jsonl"])
    assert recording.groups.step_G.tolist() == [1, 2]
    assert not recording.has_steps
    assert recording.notes == (
        "Steps are not recorded: the v-th visit of a prompt stands for step v.",
    )


def test_interleaved_rows_without_steps_are_one_group_a_prompt(tmp_path):
    rows = [{"prompt": f"p{i}", "reward": j % 2} for j in range(4) for i in range(3)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recording = read([tmp_path / "r.jsonl"])
    assert recording.groups.num_rollouts_G.tolist() == [4, 4, 4]
    assert "never follow one another" in recording.notes[0]


def test_hidden_groups_are_those_whose_parts_differ_and_whose_sum_does_not():
    pairs = zip("aabbcc", [1, 1, 1, 1, 0, 1], strict=True)
    rows = [{"prompt": prompt, "reward": reward, "step": 1} for prompt, reward in pairs]
    groups, _ = grouped([rows], marks=[1.0, 2.0, 1.0, 1.0, 1.0, 2.0], size=1)
    assert groups.hidden_G.tolist() == [True, False, False]
    assert groups.signal_G.tolist() == [False, False, True]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e9, 1e9)), min_size=1, max_size=30))
def test_signal_follows_the_rule_of_the_metrics(pairs):
    _, group_N = np.unique([group for group, _ in pairs], return_inverse=True)
    reward_N = np.array([reward for _, reward in pairs])
    low, high = np.full(group_N.max() + 1, np.inf), np.full(group_N.max() + 1, -np.inf)
    np.minimum.at(low, group_N, reward_N)
    np.maximum.at(high, group_N, reward_N)
    assert differs(low, high).tolist() == has_signal(reward_N, group_N).tolist()


@given(st.integers(0, 10_000))
def test_the_later_of_two_files_wins(seed):
    first, second = rollouts(seed), [row | {"step": row["step"] + 1} for row in rollouts(seed + 1)]
    shared = {
        row["step"]
        for row in second
        if (row["step"], row["prompt"]) in {(one["step"], one["prompt"]) for one in first}
    }
    repeated = {row["step"] for row in second} if shared else set()
    kept = [row for row in first if row["step"] not in repeated]
    groups, notes = grouped([first, second])
    assert without_lengths(as_dict(groups)) == without_lengths(oracle(kept + second))
    assert bool(notes) == bool(shared)


def test_memory_is_bounded_when_groups_lie_scattered(monkeypatch):
    monkeypatch.setattr("apportion.readers.grouping._MOST_PENDING", 10)
    rows = rollouts(1, num_steps=6)
    np.random.default_rng(0).shuffle(rows)
    groups, _ = grouped([rows], size=3)
    assert without_lengths(as_dict(groups)) == without_lengths(oracle(rows))


def test_words_beyond_the_limit_are_not_kept():
    prompts = PromptTable(largest_text=10)
    assert prompts.numbers(["five words", "and more", "five words", "id"]).tolist() == [0, 1, 0, 2]
    assert prompts.text_Q == ("five words", "", "")
    assert prompts.num_without_text == 2


def test_a_long_file_is_read_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(tabular, "_CHUNK_ROWS", 5)
    monkeypatch.setattr(tabular, "_PARQUET_ROWS", 5)
    rows = rollouts(4, num_steps=8)
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert as_dict(read([tmp_path / "r.jsonl"]).groups) == oracle(rows)
    import polars as pl

    pl.DataFrame(rows).write_parquet(tmp_path / "r.parquet", row_group_size=7)
    assert as_dict(read([tmp_path / "r.parquet"]).groups) == oracle(rows)
