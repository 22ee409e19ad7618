"""Event files that torch's SummaryWriter wrote."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from curve_helpers import check_every_cut, points, read, read_whatever
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

from apportion.errors import MissingExtraError
from apportion.readers import curves, tensorboard


def write(folder: Path, values: dict[int, float], name="train/reward", start=1e9, **kwargs) -> None:
    """Write a curve; wall times count from `start`."""
    with SummaryWriter(str(folder)) as writer:
        for at, (step, value) in enumerate(values.items()):
            writer.add_scalar(name, value, step, walltime=start + at, **kwargs)


def only_file(folder: Path) -> Path:
    (path,) = tensorboard.find(folder)
    return path


@pytest.fixture(params=[False, True], ids=["simple_value", "tensor"])
def folder(request, tmp_path):
    write(tmp_path, {1: 0.25, 2: 0.5, 3: float("nan")}, new_style=request.param)
    return tmp_path


def test_scalars_of_both_styles(folder):
    found, notes = read(folder)
    np.testing.assert_array_equal(found["train/reward"].step_T, [1, 2, 3])
    np.testing.assert_array_equal(found["train/reward"].value_T, [0.25, 0.5, np.nan])
    assert notes == ["1 value is NaN, infinite or null; the curves hold NaN there."]
    assert curves.known(found).reward is found["train/reward"]
    alone, _ = read(only_file(folder))
    np.testing.assert_array_equal(alone["train/reward"].value_T, [0.25, 0.5, np.nan])


def test_a_file_is_known_by_its_content(tmp_path):
    write(tmp_path, {1: 0.25})
    renamed = only_file(tmp_path).rename(tmp_path / "log.bin")
    assert points(read(renamed)[0]["train/reward"]) == [(1, 0.25)]


def test_pictures_texts_and_histograms_are_no_curves(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_text("args", "{}", 0)
        writer.add_image("image", np.zeros((3, 400, 400), dtype=np.uint8), 0)
        writer.add_histogram("histogram", np.arange(10), 0)
        writer.add_scalar("train/loss", 0.5, 1)
    found, notes = read(tmp_path)
    assert set(found) == {"train/loss"}
    assert notes == []


def test_tensors_that_are_no_scalars(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    tensors = {
        "vector": np.zeros(2, dtype=np.float32),
        "whole": np.array(3, dtype=np.int64),
        "text": np.array(b"hello", dtype=object),
        "foreign": np.array(0.5, dtype=np.float32),
    }
    for step in (1, 2):
        for name, array in tensors.items():
            value = summary_pb2.Summary.Value(tag=name, tensor=tensor_util.make_tensor_proto(array))
            if name == "foreign" and step == 1:
                value.metadata.plugin_data.plugin_name = "pr_curves"
            event = event_pb2.Event(step=step, summary=summary_pb2.Summary(value=[value]))
            writer.add_event(event)
    writer.close()
    found, _ = read(tmp_path)
    assert set(found) == {"whole"}
    assert points(found["whole"]) == [(1, 3.0), (2, 3.0)]


def test_files_of_one_folder_follow_each_other(tmp_path):
    """The second file by time counts for a step that both hold, whatever the files are called."""
    write(tmp_path / "later", {2: 0.75, 3: 1.0}, start=2e9)
    write(tmp_path / "run", {1: 0.25, 2: 0.5}, start=1e9)
    set_file_time(tmp_path / "later", 2e9)
    set_file_time(tmp_path / "run", 1e9)
    later = only_file(tmp_path / "later")
    later.rename(tmp_path / "run" / "events.out.tfevents.0000000001.a")
    found, notes = read(tmp_path / "run")
    assert points(found["train/reward"]) == [(1, 0.25), (2, 0.75), (3, 1.0)]
    assert len(notes) == 1


def test_folders_of_a_resumed_run_are_joined(tmp_path):
    write(tmp_path / "runs" / "b-first", {1: 0.25, 2: 0.5}, start=1e9)
    set_file_time(tmp_path / "runs" / "b-first", 1e9)
    write(tmp_path / "runs" / "a-then", {2: 0.75, 3: 1.0}, start=2e9)
    set_file_time(tmp_path / "runs" / "a-then", 2e9)
    found, notes = read(tmp_path)
    assert points(found["train/reward"]) == [(1, 0.25), (2, 0.75), (3, 1.0)]
    assert "joined" in notes[0]


@pytest.mark.parametrize("start", [1e9, 2e9], ids=["side by side", "one after the other"])
def test_folders_of_different_runs_are_kept_apart(tmp_path, start):
    write(tmp_path / "a", {1: 0.25, 2: 0.5}, start=1e9)
    set_file_time(tmp_path / "a", 1e9)
    write(tmp_path / "b", {1: 0.5, 2: 1.0}, start=start)
    set_file_time(tmp_path / "b", start)
    found, notes = read(tmp_path)
    assert set(found) == {"a/train/reward", "b/train/reward"}
    assert "carries its folder" in notes[0]


def test_folders_with_different_names_need_no_prefix(tmp_path):
    write(tmp_path, {1: 0.25}, name="train/reward")
    write(tmp_path / "extra", {1: 0.5}, name="hparam/metric")
    found, notes = read(tmp_path)
    assert set(found) == {"train/reward", "hparam/metric"}
    assert notes == []


def set_file_time(folder: Path, start: float) -> None:
    """Write the time of a file's first event, which the writer takes from the clock."""
    path = only_file(folder)
    events = list(tensorboard._events(path, tensorboard.Points(), event_pb2))
    events[0].wall_time = start
    path.unlink()
    writer = EventFileWriter(str(folder))
    written = only_file(folder)
    for event in events:
        writer.add_event(event)
    writer.close()
    content = written.read_bytes()
    first = 16 + int.from_bytes(content[:8], "little")  # the writer's own first event
    written.write_bytes(content[first:])


def test_cut_at_every_byte(tmp_path):
    write(tmp_path, {1: 0.25, 2: 0.5, 3: 0.75})
    path = only_file(tmp_path)
    check_every_cut(path)
    path.write_bytes(path.read_bytes()[:-1])
    found, notes = read(path)
    assert points(found["train/reward"]) == [(1, 0.25), (2, 0.5)]
    assert notes == [f"{path.name} is torn or damaged; what follows was left out."]


def test_every_damaged_byte_is_found(tmp_path):
    write(tmp_path, {1: 0.25, 2: 0.5})
    path = only_file(tmp_path)
    content = path.read_bytes()
    first = 16 + int.from_bytes(content[:8], "little")
    for at in range(first, len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        found, notes = read(path)
        assert set(found) <= {"train/reward"}
        for curve in found.values():
            assert set(points(curve)) < {(1, 0.25), (2, 0.5)}
        assert notes


@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    read_whatever(folder / "events.out.tfevents.1.a", content)
    read_whatever(folder / "brain", b"\x18\0\0\0\0\0\0\0\xa3\x7fK\x22\tbrain.Event:2" + content)


def test_without_tensorboard(tmp_path, monkeypatch):
    write(tmp_path, {1: 0.25})
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'apportion\[tensorboard\]'"):
        curves.read(tmp_path)
    os.remove(only_file(tmp_path))
    assert curves.read(tmp_path) is None
