import csv
import gzip
import json
import os

import numpy as np
import polars as pl
import pytest
from group_helpers import as_dict, oracle, rollouts
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.readers import Columns, read


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def json_list(path, rows):
    path.write_text(json.dumps(rows, indent=1))


def separated(delimiter):
    def write(path, rows):
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)

    return write


def parquet(path, rows):
    pl.DataFrame(rows).write_parquet(path)


def table(path, rows):
    columns = list(rows[0])
    data = [[row[name] for name in columns] for row in rows]
    path.write_text(json.dumps({"columns": columns, "data": data}))


def packed(path, rows):
    jsonl(path, rows)
    path.write_bytes(gzip.compress(path.read_bytes()))


def zstandard(path, rows):
    pl.DataFrame(rows).write_ndjson(path, compression="zstd", check_extension=False)


WRITERS = {
    "rows.jsonl": jsonl,
    "rows.json": json_list,
    "rows.csv": separated(","),
    "rows.tsv": separated("\t"),
    "semicolons.csv": separated(";"),
    "rows.parquet": parquet,
    "rows_12.table.json": table,
    "rows.jsonl.gz": packed,
    "rows.jsonl.zst": zstandard,
}


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_every_form_agrees_with_plain_dictionaries(tmp_path, name, texts):
    for seed in range(10):
        rows = rollouts(seed, texts=texts)
        WRITERS[name](tmp_path / name, rows)
        recording = read([tmp_path / name])
        assert as_dict(recording.groups, by_text=texts) == oracle(rows)
        rewards = [row["reward"] for row in rows]
        assert recording.reward_range == (min(rewards), max(rewards))
        assert recording.has_steps
        assert recording.notes == ()
        assert (recording.groups.text_Q is not None) == texts


@given(seed=st.integers(0, 10_000))
def test_the_order_of_rows_within_a_step_does_not_matter(tmp_path_factory, seed):
    rows = rollouts(seed)
    np.random.default_rng(seed).shuffle(rows)
    path = tmp_path_factory.mktemp("order") / "rows.jsonl"
    jsonl(path, rows)
    assert as_dict(read([path]).groups) == oracle(rows)


def test_groups_come_in_the_order_of_the_record(tmp_path):
    rows = [{"step": s, "prompt": p, "reward": 1} for s, p in [(2, "z"), (1, "b"), (2, "a")]]
    jsonl(tmp_path / "rows.jsonl", rows)
    groups = read([tmp_path / "rows.jsonl"]).groups
    assert groups.id_Q[groups.prompt_G].tolist() == ["b", "z", "a"]


def test_rows_that_are_groups(tmp_path):
    counts = [
        {"step": 1, "prompt": "a", "k": 1, "n": 4},
        {"step": 1, "prompt": "b", "k": 4, "n": 4},
    ]
    lists = [
        {"step": 1, "prompt": "a", "rewards": [0, 1, 0, 0]},
        {"step": 1, "prompt": "b", "rewards": [1, 1, 1, True]},
    ]
    spelled = [row | {"rewards": json.dumps(row["rewards"])} for row in lists]
    found = []
    for at, rows in enumerate((counts, lists, spelled)):
        write = separated(",") if at == 2 else jsonl
        write(tmp_path / f"{at}.dump", rows)
        recording = read([tmp_path / f"{at}.dump"])
        found.append(as_dict(recording.groups))
        assert recording.reward_range == (0.0, 1.0)
    assert found[0] == found[1] == found[2]
    assert found[0][1, "a"]["sumsq"] == 1.0
    assert [one["signal"] for one in found[0].values()] == [True, False]
    # As parquet: a column of lists.
    parquet(
        tmp_path / "3.parquet",
        [{**row, "rewards": list(map(int, row["rewards"]))} for row in lists],
    )
    assert as_dict(read([tmp_path / "3.parquet"]).groups) == found[0]


def test_impossible_counts_are_left_out(tmp_path):
    good = {"prompt": "a", "k": 1, "n": 4}
    bad = [{"k": 5}, {"k": -1}, {"k": 0.5}, {"n": 0, "k": 0}, {"n": None}, {"k": "x"}]
    jsonl(tmp_path / "c.jsonl", [good, *(good | one for one in bad)])
    recording = read([tmp_path / "c.jsonl"])
    assert len(recording.groups) == 1
    assert recording.notes[0] == (
        "6 of 7 rows of c.jsonl do not count k of n successes and were left out."
    )


def test_columns_are_named_by_the_user(tmp_path):
    rows = [{"who": "a", "what": at % 2, "when": 3, "reward": 9, "prompt": "x"} for at in range(4)]
    jsonl(tmp_path / "r.jsonl", rows)
    columns = Columns(prompt="who", reward="what", step="when")
    groups = read([tmp_path / "r.jsonl"], columns).groups
    assert as_dict(groups)[3, "a"]["sum"] == 2.0
    assert groups.text_Q is not None
    assert groups.text_Q == ("x",)
    with pytest.raises(InvalidInputError, match=r"r\.jsonl has no column other; it has who, what"):
        read([tmp_path / "r.jsonl"], Columns(prompt="other"))


def test_a_group_id_tells_groups_of_one_prompt_apart(tmp_path):
    rows = [
        {"step": 1, "uid": uid, "prompt": "a", "reward": reward}
        for uid, reward in [("u", 0), ("v", 1), ("u", 0), ("v", 0)]
    ]
    jsonl(tmp_path / "r.jsonl", rows)
    groups = read([tmp_path / "r.jsonl"]).groups
    assert groups.prompt_G.tolist() == [0, 0]
    assert groups.reward_sum_G.tolist() == [0.0, 1.0]
    jsonl(tmp_path / "r.jsonl", [row | {"prompt": str(at)} for at, row in enumerate(rows)])
    recording = read([tmp_path / "r.jsonl"])
    assert len(recording.groups) == 2
    assert "2 of 2 groups of the record are named by more than one prompt" in recording.notes[0]
    jsonl(tmp_path / "r.jsonl", [{k: v for k, v in row.items() if k != "prompt"} for row in rows])
    assert read([tmp_path / "r.jsonl"]).groups.id_Q.tolist() == ["u", "v"]


def test_prompts_of_every_kind(tmp_path):
    chat = [{"role": "user", "content": "What?", "tool_calls": None}]
    values = ["a", 7, 7.0, "7", "x" * 65, "nul\0", chat, None, "", "\ud800", [], {"q": 1}, 0.5]
    jsonl(tmp_path / "p.jsonl", [{"prompt": one, "step": 1, "reward": 1} for one in values])
    recording = read([tmp_path / "p.jsonl"])
    groups = recording.groups
    assert groups.num_rollouts_G.max() == 3
    assert groups.id_Q.tolist()[:2] == ["a", "7"]
    assert all(len(key) <= 64 and "\0" not in key for key in groups.id_Q.tolist())
    assert "What?" in groups.text_Q
    assert "3 of 13 rows of p.jsonl have no prompt and were left out." in recording.notes
    assert len(groups.prompts) == len(groups.id_Q)


def test_steps_of_every_kind(tmp_path):
    values = [1, "1", 1.0, "1.0", None, 1.5, -1, "x", float("nan"), 1e300, True, [1]]
    jsonl(tmp_path / "s.jsonl", [{"prompt": "a", "step": one, "reward": 1} for one in values])
    recording = read([tmp_path / "s.jsonl"])
    assert recording.groups.num_rollouts_G.tolist() == [5]
    assert recording.notes == ("7 of 12 rows of s.jsonl have no whole step and were left out.",)


def test_rewards_of_every_kind(tmp_path):
    values = [1, True, "1", "true", "False", 0.5, None, "x", float("nan"), float("inf"), 1e200, {}]
    jsonl(tmp_path / "r.jsonl", [{"prompt": "a", "step": 1, "reward": one} for one in values])
    recording = read([tmp_path / "r.jsonl"])
    groups = recording.groups
    assert (groups.num_requested_G[0], groups.num_rollouts_G[0]) == (12, 6)
    assert groups.reward_sum_G[0] == 4.5
    assert recording.notes == (
        "6 of 12 rows of r.jsonl have no finite reward and count as asked for, not as scored.",
    )


def test_float_noise_is_no_signal(tmp_path):
    rows = [{"prompt": "a", "step": 1, "reward": one} for one in (0.1 + 0.2, 0.3)]
    jsonl(tmp_path / "r.jsonl", [*rows, {"prompt": "b", "step": 1, "reward": 0.3}])
    assert not read([tmp_path / "r.jsonl"]).groups.signal_G.any()


def test_files_are_read_in_natural_order_and_a_step_written_twice_counts_once(tmp_path):
    def rows(steps, reward):
        return [
            {"prompt": p, "step": s, "reward": reward}
            for s in steps
            for p in "ab"
            for _ in range(2)
        ]

    jsonl(tmp_path / "2.jsonl", rows([1, 2, 3], 0))
    jsonl(tmp_path / "10.jsonl", rows([3, 4], 1))
    recording = read([tmp_path])
    groups = recording.groups
    assert groups.step_G.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert groups.rate_G.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert recording.notes == (
        "Step 3 stands in more than one file, as after a resume: the later file counts, and 2 "
        "groups of 2.jsonl were left out.",
    )
    reversed_order = read([tmp_path / "10.jsonl", tmp_path / "2.jsonl"]).groups
    assert reversed_order.rate_G.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_files_that_share_a_step_but_no_prompt_are_one_record(tmp_path):
    for rank, prompt in enumerate("ab"):
        rows = [{"prompt": prompt, "step": s, "reward": 1} for s in (1, 2)]
        jsonl(tmp_path / f"rank{rank}.jsonl", rows)
    recording = read([tmp_path])
    assert recording.groups.step_G.tolist() == [1, 1, 2, 2]
    assert not any("resume" in note for note in recording.notes)


def test_mixed_schemas(tmp_path):
    jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "step": 1, "reward": 1}] * 2)
    jsonl(tmp_path / "b.jsonl", [{"question": "b", "global_step": 2, "score": 0}] * 2)
    jsonl(tmp_path / "c.jsonl", [{"prompt": "c", "reward": 0}] * 2)
    (tmp_path / "d.txt").write_text("Nothing to see here.\nAt all.\n")
    (tmp_path / "e.bin").write_bytes(bytes(range(256)) * 9)
    recording = read([tmp_path])
    assert recording.groups.id_Q.tolist() == ["a", "b"]
    assert recording.source == "JSON lines"
    assert recording.notes == (
        "1 file has no step, unlike the others, and was left out (c.jsonl).",
        "2 files hold neither rollouts nor scalars of a run and were left out (d.txt and e.bin).",
    )


def test_steps_that_no_usable_row_has_are_no_steps(tmp_path):
    jsonl(tmp_path / "a.jsonl", [{"prompt": None, "step": 1, "reward": 1}])
    jsonl(tmp_path / "b.jsonl", [{"prompt": "b", "step": None, "reward": 1}] * 2)
    recording = read([tmp_path])
    assert not recording.has_steps
    assert recording.groups.num_rollouts_G.tolist() == [2]


def test_groups_and_curves_come_together(tmp_path):
    jsonl(tmp_path / "1.jsonl", [{"input": "q", "output": "o", "score": 1.0, "step": 1}] * 2)
    jsonl(tmp_path / "metrics.jsonl", [{"step": 1, "data": {"critic/score/mean": 0.5}}])
    recording = read([tmp_path])
    assert recording.source == "verl rollouts"
    assert recording.curves["critic/score/mean"].value_T.tolist() == [0.5]
    assert recording.notes == ()
    alone = read([tmp_path / "metrics.jsonl"])
    assert alone.groups is None
    assert alone.source == "scalar curves"
    both = read([tmp_path / "1.jsonl", tmp_path / "metrics.jsonl"])
    assert both.curves.keys() == recording.curves.keys()
    assert len(both.groups) == 1


def test_curves_of_resumed_logs_are_joined(tmp_path):
    lines = [{"step": s, "data": {"loss": float(s)}} for s in (1, 2, 3)]
    jsonl(tmp_path / "first.jsonl", lines)
    jsonl(tmp_path / "second.jsonl", [{"step": s, "data": {"loss": -1.0}} for s in (3, 4)])
    curve = read([tmp_path / "first.jsonl", tmp_path / "second.jsonl"]).curves["loss"]
    assert curve.step_T.tolist() == [1, 2, 3, 4]
    assert curve.value_T.tolist() == [1.0, 2.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there is nothing in it"),
        (b" \n\n", "there is nothing in it|no table"),
        (b"\x00\x01\x02\x03", "there is no table and no scalar log"),
        (b"just words\n", "there is no table and no scalar log"),
        (b'{"a": 1}\n{"b": 2}\n', "has the columns a, b. Name columns with --prompt-column"),
        (b'{"prompt": "a", "reward": null}\n', "no row can be used.*columns prompt, reward"),
        (b'{"prompt": null, "reward": 1}\n', "no row can be used"),
        (b"prompt,reward\n", "no row can be used"),
        (b"PAR1 and no more", "damaged Parquet"),
    ],
)
def test_nothing_usable_is_said_in_one_error(tmp_path, content, message):
    (tmp_path / "dump").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        read([tmp_path / "dump"])
    with pytest.raises(InvalidInputError, match=message):
        read([tmp_path])


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(InvalidInputError, match="no path"):
        read([])
    with pytest.raises(InvalidInputError, match="does not exist"):
        read([tmp_path / "none"])
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read([tmp_path / "nul\0"])
    with pytest.raises(InvalidInputError, match="nothing in it"):
        read([tmp_path])


def test_a_cycle_of_folders_ends_and_links_count_once(tmp_path):
    (tmp_path / "in").mkdir()
    jsonl(tmp_path / "in" / "r.jsonl", [{"prompt": "a", "step": 1, "reward": 1}] * 3)
    (tmp_path / "in" / "up").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "in")
    (tmp_path / "copy.jsonl").symlink_to(tmp_path / "in" / "r.jsonl")
    (tmp_path / "broken").symlink_to(tmp_path / "gone")
    assert read([tmp_path]).groups.num_rollouts_G.tolist() == [3]


def test_unreadable_files_and_folders_are_named(tmp_path, monkeypatch):
    jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "step": 1, "reward": 1}] * 2)
    jsonl(tmp_path / "b.jsonl", [{"prompt": "b", "step": 1, "reward": 1}] * 2)
    (tmp_path / "locked").mkdir()
    opened, scanned = open, os.scandir

    def no_b(path, *rest, **named):
        if str(path).endswith("b.jsonl"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **named)

    def no_locked(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scanned(path)

    monkeypatch.setattr("builtins.open", no_b)
    monkeypatch.setattr("os.scandir", no_locked)
    recording = read([tmp_path])
    assert recording.groups.id_Q.tolist() == ["a"]
    notes = " ".join(recording.notes)
    assert "b.jsonl cannot be read: Permission denied." in notes
    assert "locked cannot be read and was left out" in notes
    with pytest.raises(InvalidInputError, match="Permission denied"):
        read([tmp_path / "b.jsonl"])


@given(st.binary(max_size=300), st.sampled_from(["x.jsonl", "x.csv", "x.parquet", "x.json", "x"]))
def test_random_bytes_never_raise_anything_else(tmp_path_factory, content, name):
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(content)
    check(path)


HEADS = [
    b"PAR1",
    b"\x1f\x8b\x08\x00",
    b"\x28\xb5\x2f\xfd",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b'{"prompt": "a", "reward": 1}\n',
    b'[{"prompt": "a", "reward": 1}, ',
    b"prompt,reward\na,1\n",
    b'{"columns": ["prompt", "reward"], "data": [["a", 1], ',
]


@given(st.sampled_from(HEADS), st.binary(max_size=200))
def test_a_good_beginning_and_random_bytes(tmp_path_factory, head, rest):
    path = tmp_path_factory.mktemp("bytes") / "x"
    path.write_bytes(head + rest)
    check(path)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_cut_at_any_byte(tmp_path, name):
    rows = rollouts(3, num_steps=2, num_prompts=2)
    WRITERS[name](tmp_path / name, rows)
    whole = (tmp_path / name).read_bytes()
    total = sum(one["requested"] for one in oracle(rows).values())
    for size in range(0, len(whole), max(1, len(whole) // 150)):
        (tmp_path / name).write_bytes(whole[:size])
        recording = check(tmp_path / name)
        if recording is not None and recording.groups is not None:
            assert recording.groups.num_requested_G.sum() <= total


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *("prompt", "reward", "step", "uid", "k", "n", "num_tokens", "truncated", "completion"),
        *("advantage", "input", "output", "score", "prompt_text", "data", "columns"),
    ]
)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=8), min_size=1, max_size=6), st.data())
def test_random_values_in_known_columns(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("values") / "x.jsonl"
    write = data.draw(st.sampled_from([jsonl, json_list]))
    write(path, rows)
    check(path)
    names = sorted({name for row in rows for name in row})
    if names:
        complete = [{name: row.get(name) for name in names} for row in rows]
        separated(",")(path, [{k: str(v) for k, v in row.items()} for row in complete])
        check(path)


def check(path):
    """Read; only the errors that are ours may come out."""
    recording, message = None, ""
    try:
        recording = read([path])
    except InvalidInputError as error:
        message = str(error)
    assert "\n" not in message
    if recording is None:
        return None
    for note in recording.notes:
        assert note[-1] in ".)"
    if recording.groups is not None:
        groups = recording.groups
        assert (groups.num_rollouts_G <= groups.num_requested_G).all()
        assert np.isfinite(groups.reward_sum_G).all()
        assert (np.diff(groups.step_G) >= 0).all()
        for _, part in groups.steps():
            assert len(groups.outcomes(part)) == part.stop - part.start
    return recording
