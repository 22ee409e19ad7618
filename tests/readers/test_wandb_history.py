"""Histories that wandb wrote (offline), and what users export of them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from curve_helpers import check_every_cut, points, read, read_whatever
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError, MissingExtraError
from apportion.readers import curves, wandb_binary

NUM_STEPS = 2000


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A real offline run, long enough for several blocks of its log."""
    import wandb

    folder = tmp_path_factory.mktemp("wandb-run")
    settings = wandb.Settings(
        console="off",
        silent=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        disable_git=True,
        disable_code=True,
    )
    before = dict(os.environ)
    run = wandb.init(mode="offline", project="p", dir=str(folder), settings=settings)
    for i in range(NUM_STEPS):
        row = {"reward": i / 7, "nested": {"loss": 1.0 / (i + 1)}, "text": "x", "flag": True}
        run.log(row | ({"reward": float("nan")} if i == 3 else {}))
    run.log({"eval/long": 0.5, "padding": "y" * 70_000})
    run.finish()
    wandb.teardown()
    os.environ.clear()
    os.environ.update(before)
    (path,) = folder.glob("wandb/offline-run-*")
    return path


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_binary_log(run_folder):
    found, notes = read(run_folder)
    reward = np.arange(NUM_STEPS) / 7
    reward[3] = np.nan
    np.testing.assert_array_equal(found["reward"].step_T, np.arange(NUM_STEPS))
    np.testing.assert_array_equal(found["reward"].value_T, reward)
    np.testing.assert_allclose(found["nested.loss"].value_T, 1.0 / np.arange(1, NUM_STEPS + 1))
    assert points(found["eval/long"]) == [(NUM_STEPS, 0.5)]
    assert set(found) == {"reward", "nested.loss", "flag", "eval/long", "_timestamp", "_runtime"}
    assert notes == [
        "1 value is NaN, infinite or null; the curves hold NaN there.",
        f"{NUM_STEPS} values are true or false, counted as 1 and 0.",
    ]


def test_places_of_the_binary_log(run_folder, tmp_path):
    (file,) = run_folder.glob("*.wandb")
    expected = set(read(run_folder)[0])
    assert set(read(file)[0]) == expected
    assert set(read(run_folder.parent)[0]) == expected  # the folder wandb/
    assert set(read(run_folder.parent.parent)[0]) == expected
    for name in ("run-1-a", "offline-run-2-b"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
        shutil.copy(file, tmp_path / "wandb" / name)
    with pytest.raises(InvalidInputError, match=r"2 W&B runs.*run-"):
        curves.read(tmp_path)


def test_the_binary_log_cut(run_folder, tmp_path):
    content = next(run_folder.glob("*.wandb")).read_bytes()
    path = tmp_path / "run-x.wandb"
    path.write_bytes(content[:2000])
    check_every_cut(path, step=3)
    path.write_bytes(content[:-10])
    check_every_cut(path, step=90_001)
    torn = []
    for size in range(40_001, 40_009):  # one of them may end where a record ends
        path.write_bytes(content[:size])
        torn.append("1 torn or damaged piece of the log left out." in read(path)[1])
    assert sum(torn) >= len(torn) - 1


def test_damage_costs_its_block_alone(run_folder, tmp_path):
    content = bytearray(next(run_folder.glob("*.wandb")).read_bytes())
    content[2**15 + 100] ^= 1
    path = tmp_path / "run-x.wandb"
    path.write_bytes(content)
    found, notes = read(path)
    whole = set(points(read(run_folder)[0]["nested.loss"]))
    assert set(points(found["nested.loss"])) < whole
    assert found["nested.loss"].step_T[-1] == NUM_STEPS - 1
    assert any("damaged" in note for note in notes)


def as_log(records: list[bytes]) -> bytes:
    """Write records as the log does: no piece across a block, no head of one either."""
    log = b":W&B\xe1\xbe\0"
    for record in records:
        at, begun = 0, False
        while at < len(record) or not begun:
            room = 2**15 - len(log) % 2**15
            if room < 7:
                log += bytes(room)
                continue
            data = record[at : at + room - 7]
            ends = at + len(data) == len(record)
            kind = bytes([(4 if begun else 1) if ends else (3 if begun else 2)])
            log += zlib.crc32(kind + data).to_bytes(4, "little")
            log += len(data).to_bytes(2, "little") + kind + data
            at, begun = at + len(data), True
    return log


def history(step: int, **values: str) -> bytes:
    from wandb.proto import wandb_internal_pb2 as proto

    record = proto.Record()
    record.history.step.num = step
    for name, text in values.items():
        record.history.item.add(key=name, value_json=text)
    return record.SerializeToString()


@pytest.mark.parametrize("room", range(24))
def test_records_around_the_end_of_a_block(tmp_path, room):
    """A block's last bytes may hold a whole piece, an empty one (7 bytes), or nothing."""
    first = history(1, a="0.25", text=json.dumps("x" * 32_000))
    filler = 32_000 + 2**15 - room - len(as_log([first]))
    first = history(1, a="0.25", text=json.dumps("x" * filler))
    third = history(3, a="0.75", text=json.dumps("y" * 70_000))
    log = as_log([first, history(2, a="0.5"), third])
    assert len(as_log([first])) == 2**15 - room
    path = tmp_path / "run-x.wandb"
    path.write_bytes(log)
    found, notes = read(path)
    assert points(found["a"]) == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert notes == []


@given(st.binary(max_size=100), st.integers(0, 3000))
def test_any_bytes_in_the_binary_log(run_folder, tmp_path_factory, content, at):
    good = next(run_folder.glob("*.wandb")).read_bytes()[:3000]
    path = tmp_path_factory.mktemp("bytes") / "run-x.wandb"
    read_whatever(path, good[:at] + content + good[at + len(content) :])
    read_whatever(path, good[:7] + content)


def test_without_wandb(run_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb.proto", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'apportion\[wandb\]'"):
        curves.read(run_folder)


# Rows of run.history() and scan_history().

ROWS = [
    {"_step": 0, "_timestamp": 1.5e9, "reward": 0.25, "loss": None},
    {"_step": 1, "_timestamp": 1.6e9, "reward": None, "eval/reward": 0.5},
    {"_step": 4, "_timestamp": 1.7e9, "reward": "NaN", "media": {"_type": "table-file"}},
]


def as_lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("history.json", json.dumps(ROWS)),
        ("history.json", json.dumps(ROWS, indent=2)),
        ("wandb-history.jsonl", as_lines(ROWS)),
        (
            "columns.json",
            json.dumps(
                {n: {str(i): r.get(n) for i, r in enumerate(ROWS)} for n in ROWS[1] | ROWS[0]}
            ),
        ),
    ],
)
def test_rows(tmp_path, name, text):
    found, notes = read(write(tmp_path / name, text))
    np.testing.assert_array_equal(found["reward"].step_T, [0, 4])
    np.testing.assert_array_equal(found["reward"].value_T, [0.25, np.nan])
    assert points(found["eval/reward"]) == [(1, 0.5)]
    assert set(found) == {"reward", "eval/reward", "_timestamp"}
    assert notes == ["1 value is NaN, infinite or null; the curves hold NaN there."]


def test_torn_columns(tmp_path):
    text = '{"_step": {"0": 0, "1": 1}, "reward": {"0": 0.5'
    found, notes = read(write(tmp_path / "columns.json", text))
    assert found == {}
    assert notes[0] == "The history is torn; export it by rows to read what is left."


def test_rows_in_a_run_folder(tmp_path):
    (tmp_path / "files").mkdir()
    write(tmp_path / "files" / "wandb-history.jsonl", as_lines(ROWS))
    write(tmp_path / "files" / "wandb-summary.json", json.dumps({"_step": 4, "reward": 0.5}))
    assert "reward" in read(tmp_path)[0]
    assert curves.read(tmp_path / "files" / "wandb-summary.json") is None


def test_the_step_of_the_trainer_goes_first(tmp_path):
    """Transformers logs training and evaluation in calls of their own; TRL's timers too."""
    rows = [
        {"_step": 0, "train/reward": 0.25, "train/global_step": 10},
        {"_step": 1, "profiling/generate": 1.5},
        {"_step": 2, "eval/reward": 0.5, "train/global_step": 10},
        {"_step": 3, "train/reward": 0.75, "train/global_step": 20},
    ]
    found, notes = read(write(tmp_path / "history.jsonl", as_lines(rows)))
    assert points(found["train/reward"]) == [(10, 0.25), (20, 0.75)]
    assert points(found["eval/reward"]) == [(10, 0.5)]
    assert points(found["profiling/generate"]) == [(10, 1.5)]
    assert notes == ["The step is train/global_step, not W&B's own count of calls."]
    assert curves.known(found).reward is found["train/reward"]


# Exported CSV.


def export(path: Path, header: list[str], rows: list[list[object]], newline: str = "\n") -> Path:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=newline)
    writer.writerows([header, *rows])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("axis", ["Step", "train/global_step"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_export_of_a_chart(tmp_path, axis, newline):
    metrics = ["my - run - train/reward", "my - run - _step"]
    header = [axis, *(m + end for m in metrics for end in ("", "__MIN", "__MAX"))]
    rows = [[1, 0.25, 0, 1, 1, 1, 1], [2, 0.5, 0, 1, 2, 2, 2], [3, "", "", "", 3, 3, 3]]
    found, notes = read(export(tmp_path / "wandb_export.csv", header, rows, newline))
    assert {name: points(curve) for name, curve in found.items()} == {
        "train/reward": [(1, 0.25), (2, 0.5)]
    }
    assert notes == []


def test_export_of_several_runs(tmp_path):
    header = ["Step", "a - reward", "a - reward__MIN", "b - reward"]
    path = export(tmp_path / "chart.csv", header, [[1, 0.25, 0.25, 0.5]])
    with pytest.raises(InvalidInputError, match=r"chart\.csv has curves of two runs, a and b: exp"):
        read(path)


def test_a_history_written_by_a_data_frame(tmp_path):
    path = tmp_path / "history.csv"
    rows = [{"": i, "_step": float(i), "reward": i / 4, "note": "x"} for i in range(3)]
    pl.DataFrame(rows).write_csv(path)
    found, notes = read(path)
    assert points(found["reward"]) == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert set(found) == {"reward"}
    assert notes == []


def test_a_csv_cut_at_every_byte(tmp_path):
    path = tmp_path / "history.csv"
    write(path, "_step,reward,loss\n0,0.25,1.5\n1,0.125,2.5\n12,0.5,12.25\n")
    # A header that is cut names another column.
    content, start = path.read_bytes(), len("_step,reward,loss\n")
    whole = {name: set(points(curve)) for name, curve in read(path)[0].items()}
    for size in range(start, len(content)):
        path.write_bytes(content[:size])
        for name, curve in read(path)[0].items():
            assert set(points(curve)) <= whole[name]
    path.write_bytes(content[:-1])
    assert read(path)[1] == [
        "The last line has no end and may be torn; its last cell was left out."
    ]


def test_odd_cells(tmp_path):
    text = '_step,reward\n1,nan\n2,oops\n3,0.5,9,9\n,1.0\n4\n5," 0.75 "\n'
    found, notes = read(write(tmp_path / "history.csv", text))
    np.testing.assert_array_equal(found["reward"].step_T, [1, 3, 5])
    np.testing.assert_array_equal(found["reward"].value_T, [np.nan, 0.5, 0.75])
    assert notes == [
        "1 row has more cells than the CSV has columns; these cells were left out.",
        "1 value is NaN, infinite or null; the curves hold NaN there.",
        "1 text in the place of numbers left out, the first 'oops' for 'reward' at step 2.",
        "1 row has no whole step number and count for nothing.",
    ]


def test_a_cell_without_end(tmp_path):
    text = '_step,reward\n1,0.5\n2,"' + "x" * 200_000
    found, notes = read(write(tmp_path / "history.csv", text))
    assert points(found["reward"]) == [(1, 0.5)]
    assert "A cell of the CSV is not readable; what follows was left out." in notes


CELLS = st.text(max_size=8) | st.floats().map(str) | st.integers().map(str)


@given(st.lists(st.lists(CELLS, max_size=4), max_size=5), st.binary(max_size=50))
def test_any_cells(tmp_path_factory, rows, content):
    path = export(tmp_path_factory.mktemp("csv") / "a.csv", ["Step", "a - b", "a - c"], rows)
    read_whatever(path, path.read_bytes() + content)
    read_whatever(path, b"_step,reward\n1,0.5\n" + content)
    read_whatever(path, content)


def test_find_takes_the_rows_before_the_binary(tmp_path):
    (tmp_path / "run-x.wandb").write_bytes(b":W&B")
    assert wandb_binary.find(tmp_path) == tmp_path / "run-x.wandb"
    write(tmp_path / "wandb-history.jsonl", as_lines(ROWS))
    assert wandb_binary.find(tmp_path) == tmp_path / "wandb-history.jsonl"
