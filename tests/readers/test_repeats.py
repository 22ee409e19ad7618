"""Steps that stand twice: resumes, epochs, copies and shards, in one file and in several."""

import numpy as np
import pytest
from group_helpers import as_dict, oracle, record, write
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.readers import read


def at(rows, low, high=10**9):
    return [row for row in rows if low <= row["step"] <= high]


def check(path, wanted, *words):
    recording = read([path])
    found = as_dict(recording.groups)
    expected = oracle(wanted)
    assert found == expected
    for word in words:
        assert any(word in note for note in recording.notes), recording.notes
    if not words:
        assert recording.notes == ()


@given(
    seed=st.integers(0, 1000), crash=st.integers(4, 20), back=st.integers(1, 3), first=st.booleans()
)
def test_a_resume_appended_to_the_file(tmp_path_factory, seed, crash, back, first):
    start = int(first)
    before = record(range(start, crash), seed=seed)
    resumed = max(crash - 1 - back, start + 1)
    after = record(range(resumed, crash + 5), seed=seed + 1)
    kept = [row for row in before if row["step"] < resumed]
    path = write(tmp_path_factory.mktemp("resume") / "r.jsonl", before + after)
    shared = {(r["step"], r["prompt"]) for r in before} & {(r["step"], r["prompt"]) for r in after}
    if shared:
        check(path, kept + after, f"falls back from {crash - 1} to {resumed}")


@given(
    seed=st.integers(0, 1000),
    num_steps=st.integers(4, 9),
    num_epochs=st.integers(2, 6),
    last=st.integers(2, 4),
    first=st.integers(0, 1),
)
def test_steps_that_start_again_with_each_epoch(
    tmp_path_factory, seed, num_steps, num_epochs, last, first
):
    rows, wanted = [], []
    for epoch in range(num_epochs):
        size = last if epoch == num_epochs - 1 else num_steps
        one = record(range(first, first + size), seed=seed + epoch)
        rows += one
        wanted += [row | {"step": row["step"] + epoch * num_steps} for row in one]
    visits = [{(r["step"], r["prompt"]) for r in rows}, {(r["step"], r["prompt"]) for r in wanted}]
    path = write(tmp_path_factory.mktemp("epoch") / "r.jsonl", rows)
    if len(visits[0]) < len(visits[1]):
        check(path, wanted, "starts again")


def test_a_run_started_anew_in_the_same_file_counts_once(tmp_path):
    before, after = record(range(6)), record(range(20))
    for row in after:
        row["reward"] = 1.0 - row["reward"]
    check(write(tmp_path / "r.jsonl", before + after), after, "falls back from 5 to 0")


def test_a_file_that_holds_its_rows_twice(tmp_path):
    rows = record(range(8))
    check(write(tmp_path / "r.jsonl", rows + rows), rows, "holds the same rows once more")
    check(write(tmp_path / "r.jsonl", rows * 3), rows, "holds the same rows 2 times more")


@given(st.integers(0, 1000))
def test_every_row_twice_in_a_row(tmp_path_factory, seed):
    rows = record(range(12), seed=seed)
    path = tmp_path_factory.mktemp("twice") / "r.jsonl"
    check(write(path, [row for row in rows for _ in range(2)]), rows, "stands twice in a row")
    check(write(path, rows), rows)


def test_every_list_twice_in_a_row_and_without_steps(tmp_path):
    rng = np.random.default_rng(0)
    lists = [
        {"step": s, "prompt": f"p{p}", "rewards": rng.integers(0, 2, 4).tolist()}
        for s in range(6)
        for p in range(5)
    ]
    write(tmp_path / "r.jsonl", [row for row in lists for _ in range(2)])
    groups = read([tmp_path / "r.jsonl"]).groups
    assert groups.num_rollouts_G.tolist() == [4] * 30
    rows = [{k: v for k, v in row.items() if k != "step"} for row in record(range(12))]
    wanted = as_dict(read([write(tmp_path / "r.jsonl", rows)]).groups)
    write(tmp_path / "r.jsonl", [row for row in rows for _ in range(2)])
    recording = read([tmp_path / "r.jsonl"])
    assert as_dict(recording.groups) == wanted
    assert "Every row of r.jsonl stands twice in a row: each counts once." in recording.notes


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_any_order_are_left_as_they_are(tmp_path, seed):
    rng = np.random.default_rng(seed)
    rows = record(range(6), seed=seed)
    check(write(tmp_path / "r.jsonl", [rows[at] for at in rng.permutation(len(rows))]), rows)
    late = np.argsort([row["step"] + 2 * rng.random() for row in rows])
    check(write(tmp_path / "r.jsonl", [rows[at] for at in late.tolist()]), rows)
    by_prompt = sorted(rows, key=lambda row: row["prompt"])
    check(write(tmp_path / "r.jsonl", by_prompt), rows)
    by_rollout = [row for first in range(4) for row in rows[first::4]]
    check(write(tmp_path / "r.jsonl", by_rollout), rows)


def test_falls_without_end_keep_memory_small(tmp_path, monkeypatch):
    monkeypatch.setattr("apportion.readers.grouping.MOST_SEGMENTS", 5)
    rows = record(range(6))
    shuffled = [rows[at] for at in np.random.default_rng(0).permutation(len(rows))]
    check(write(tmp_path / "r.jsonl", shuffled), rows)


@pytest.mark.parametrize(
    "names",
    [
        ["rank0.jsonl", "rank1.jsonl"],
        ["rollouts_0.jsonl", "rollouts_1.jsonl"],
        ["rank0/r.jsonl", "rank1/r.jsonl"],
        ["worker-0/dump/r.jsonl", "worker-1/dump/r.jsonl"],
    ],
)
def test_shards_whose_groups_span_files(tmp_path, names):
    rows = record(range(12))
    for rank, name in enumerate(names):
        write(tmp_path / name, rows[rank::2])
    check(tmp_path, rows, "as shards of one run")


@pytest.mark.parametrize(
    "name", ["rank{rank}/{step}.jsonl", "step_{step}_rank_{rank}.jsonl", "{step}_{rank}.jsonl"]
)
def test_shards_of_one_step_each(tmp_path, name):
    rows = record(range(1, 9))
    for step in range(1, 9):
        for rank in range(2):
            here = [row for row in rows if row["step"] == step][rank::2]
            write(tmp_path / name.format(step=step, rank=rank), here)
    check(tmp_path, rows, "as shards of one run")


def test_two_runs_are_refused(tmp_path):
    first, second = record(range(12)), record(range(12), seed=1)
    write(tmp_path / "runA" / "r.jsonl", first)
    write(tmp_path / "runB" / "r.jsonl", second)
    with pytest.raises(InvalidInputError, match="the same steps, in two folders: two runs"):
        read([tmp_path])
    with pytest.raises(InvalidInputError, match="two runs"):
        read([tmp_path / "runA", tmp_path / "runB"])
    write(tmp_path / "runB" / "r.jsonl", at(first, 0, 5))
    with pytest.raises(InvalidInputError, match="two runs"):
        read([tmp_path])
    write(tmp_path / "both" / "a.jsonl", first)
    write(tmp_path / "both" / "b.jsonl", second)
    with pytest.raises(InvalidInputError, match="hold the same steps: two runs"):
        read([tmp_path / "both"])


def test_a_resume_in_another_folder(tmp_path):
    first, second = record(range(10)), record(range(7, 15))
    write(tmp_path / "attempt_1" / "r.jsonl", first)
    write(tmp_path / "attempt_2" / "r.jsonl", second)
    check(tmp_path, at(first, 0, 6) + second, "Steps 7 to 9 stand in more than one file")


def test_a_copy_of_a_file_counts_once(tmp_path):
    rows = record(range(8))
    write(tmp_path / "a.jsonl", rows)
    write(tmp_path / "b.jsonl", rows)
    check(tmp_path, rows, "Rows of a.jsonl stand in a later file too: each counts once.")


def test_a_resume_of_files_of_one_step_each(tmp_path):
    first, second = record(range(1, 9)), record(range(7, 11), seed=1)
    for rows, name in ((first, "{step}_a.jsonl"), (second, "{step}_b.jsonl")):
        for step in {row["step"] for row in rows}:
            write(tmp_path / name.format(step=step), [r for r in rows if r["step"] == step])
    check(tmp_path, at(first, 0, 6) + second, "after a resume")


@pytest.mark.parametrize("factor", [1001, 65_536, 10**12])
def test_steps_that_count_tokens_or_time(tmp_path, factor):
    rows = record(range(1, 9))
    write(tmp_path / "r.jsonl", [row | {"step": row["step"] * factor} for row in rows])
    wanted = [row | {"step": row["step"] - 1} for row in rows]
    check(tmp_path / "r.jsonl", wanted, "seems to count tokens or time")
    scarce = [row | {"step": row["step"] * 1000} for row in rows]
    check(write(tmp_path / "r.jsonl", scarce), scarce)
