"""verl is not installed here: these lines are written as its loggers write them."""

from __future__ import annotations

import json
import math
import numbers
import pprint
from pathlib import Path

import numpy as np
import pytest
from curve_helpers import check_every_cut, points, read, read_whatever
from hypothesis import given
from hypothesis import strategies as st

from apportion.readers import curves

STEPS = [
    {
        "training/global_step": step,
        "critic/score/mean": np.float64(0.125 * step),
        "critic/rewards/mean": 0.125 * step - 0.01,
        "response_length/mean": 300.5 + step,
        "response_length/clip_ratio": np.float32(0.25),
        "actor/entropy": 0.5,
        "actor/lr": 1e-06,
        "actor/kl_loss": np.float64(1e-05),
        "timing_s/gen": 12.5,
        "timing_s/step": 30.25,
    }
    for step in (1, 2, 3)
]


def console_line(step: int, data: dict[str, object]) -> str:
    """Write a line as verl's console logger does."""
    pairs = [
        f"{name}:{pprint.pformat(value)}"
        for name, value in data.items()
        if isinstance(value, numbers.Number)
    ]
    return " - ".join([f"step:{step}", *pairs]) + "\n"


def file_line(step: int, data: dict[str, object]) -> str:
    """Write a line as verl's file logger does."""
    plain = {
        name: value.item() if hasattr(value, "item") else value for name, value in data.items()
    }
    return json.dumps({"step": step, "data": plain}) + "\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(params=["console.log", "file.jsonl"])
def log(request, tmp_path):
    line = console_line if request.param == "console.log" else file_line
    text = "".join(line(step, data) for step, data in enumerate(STEPS, start=1))
    return write(tmp_path / request.param, text)


def test_both_loggers_give_the_same_curves(log):
    found, notes = read(log)
    assert notes == []
    assert set(found) == set(STEPS[0])
    assert points(found["critic/score/mean"]) == [(1, 0.125), (2, 0.25), (3, 0.375)]
    assert points(found["actor/lr"]) == [(step, 1e-6) for step in (1, 2, 3)]
    known = curves.known(found)
    assert known.reward is found["critic/score/mean"]
    assert known.completion_length is found["response_length/mean"]
    assert known.truncated_share is found["response_length/clip_ratio"]
    assert known.step_seconds is found["timing_s/step"]
    assert known.generation_seconds is found["timing_s/gen"]
    assert known.entropy is found["actor/entropy"]
    assert known.kl is found["actor/kl_loss"]
    assert known.learning_rate is found["actor/lr"]
    assert known.num_tokens is known.share_without_signal is None


def test_every_cut(log):
    check_every_cut(log)


def test_a_resumed_run_counts_its_later_values(tmp_path):
    lines = [file_line(step, {"critic/score/mean": step / 8}) for step in (1, 2, 3)]
    lines += [file_line(step, {"critic/score/mean": step / 4}) for step in (3, 4)]
    found, notes = read(write(tmp_path / "run.jsonl", "".join(lines)))
    assert points(found["critic/score/mean"]) == [(1, 0.125), (2, 0.25), (3, 0.75), (4, 1.0)]
    assert notes == [
        "1 step holds more than one value of a curve, as after a resume; the last one counts."
    ]


def test_a_console_of_a_cluster(tmp_path):
    """Prefixes of Ray, colours, progress bars, other processes in the middle of a line."""
    lines = [
        "\x1b[36m(TaskRunner pid=123)\x1b[0m step:0 - val-core/openai/gsm8k/reward/mean@1:"
        "np.float64(0.25)\n",
        "Training Progress:   1%|          | 1/100 [00:30<50:00, 30.2s/it]\r"
        "\x1b[36m(TaskRunner pid=123)\x1b[0m step:1 - critic/score/mean:0.5 - actor/lr:1e-06"
        "(WorkerDict pid=7, ip=10.0.0.1) compute 12:30:45 x:9\r\n",
        "(WorkerDict pid=7) train/step:9 - other_step:9 - no\n",
        "(TaskRunner pid=123) step:2 - critic/score/mean:nan - actor/grad_norm:inf - actor/lr:-1.5 "
        "[repeated 2x across cluster]\n",
        "step:3 - critic/score/mean:0.75 - gar bage - perf/mfu:1.2.3 - a:b:0.5 - t:tensor(0.5)\n",
    ]
    path = tmp_path / "ray.log"
    path.write_bytes("".join(lines).encode())
    found, notes = read(path)
    assert points(found["val-core/openai/gsm8k/reward/mean@1"]) == [(0, 0.25)]
    np.testing.assert_array_equal(found["critic/score/mean"].value_T, [0.5, np.nan, 0.75])
    assert points(found["actor/lr"]) == [(1, 1e-6), (2, -1.5)]
    assert points(found["a:b"]) == points(found["t"]) == [(3, 0.5)]
    assert set(found) == {
        *("critic/score/mean", "actor/lr", "actor/grad_norm", "a:b", "t"),
        "val-core/openai/gsm8k/reward/mean@1",
    }
    assert notes == [
        "2 pieces of `step:` lines that hold no name and number were left out.",
        "2 values are NaN, infinite or null; the curves hold NaN there.",
    ]


def test_two_lines_in_one(tmp_path):
    text = console_line(1, {"a": 1.0}).strip() + "(X pid=1) " + console_line(2, {"a": 2.0})
    assert points(read(write(tmp_path / "log", text))[0]["a"]) == [(1, 1.0), (2, 2.0)]


def test_old_names(tmp_path):
    """Three decimals, and names of early 2025."""
    text = (
        "step:1 - critic/kl:0.001 - actor/entropy_loss:0.420 - critic/rewards/mean:0.500 - "
        "actor/lr(1e-4):0.010 - timing/gen:10.000 - timing/step:20.000\n"
    )
    found, notes = read(write(tmp_path / "log", text))
    known = curves.known(found)
    assert notes == []
    assert known.kl is found["critic/kl"]
    assert known.entropy is found["actor/entropy_loss"]
    assert known.reward is found["critic/rewards/mean"]
    assert known.generation_seconds is found["timing/gen"]
    assert known.step_seconds is found["timing/step"]
    assert points(found["actor/lr(1e-4)"]) == [(1, 0.01)]


def test_a_line_without_end_may_be_torn(tmp_path):
    path = write(tmp_path / "log", "step:1 - a:0.5 - b:0.25\nstep:2 - a:0.75 - b:0.1")
    found, notes = read(path)
    assert points(found["a"]) == [(1, 0.5), (2, 0.75)]
    assert points(found["b"]) == [(1, 0.25)]
    assert notes == ["The last line has no end and may be torn; its last number was left out."]


def test_torn_and_odd_lines_of_the_file_logger(tmp_path):
    text = (
        "\ufeff"
        + file_line(1, {"a": 0.5})
        + "\n\n[1, 2]\n{broken\n"
        + '{"step": null, "data": {"a": 1}}\n{"step": 2, "data": null}\n'
        + '{"step": 3, "elapsed_seconds": 2.5, "data": {"a": NaN, "b": "x"}}\n'
        + '{"step": 4, "da'
    )
    found, notes = read(write(tmp_path / "run.jsonl", text))
    np.testing.assert_array_equal(found["a"].value_T, [0.5, math.nan])
    assert notes == [
        "The last line is torn and was left out.",
        "2 lines are no JSON objects and were left out.",
        "1 value is NaN, infinite or null; the curves hold NaN there.",
        "1 row has no whole step number and count for nothing.",
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1"])
def test_encodings(tmp_path, encoding):
    path = tmp_path / "run.log"
    path.write_text("Modèle prêt\r\n" + console_line(1, {"a": 0.5}), encoding=encoding)
    found, notes = read(path)
    assert points(found["a"]) == [(1, 0.5)]
    assert len(notes) == (encoding == "latin-1")


NAMES = st.text(
    st.characters(codec="ascii", categories=["L", "N"], include_characters="/_@"), min_size=1
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.dictionaries(st.integers(0, 10**9), st.dictionaries(NAMES, NUMBERS, min_size=1), min_size=1)
)
def test_what_is_written_is_read(tmp_path_factory, logged):
    path = tmp_path_factory.mktemp("verl") / "log"
    for line in (console_line, file_line):
        write(path, "".join(line(step, data) for step, data in logged.items()))
        found, notes = read(path)
        assert notes == []
        told = {(n, *point) for n, curve in found.items() for point in points(curve)}
        assert told == {(n, step, data[n]) for step, data in logged.items() for n in data}


@given(st.text(max_size=100), st.text(max_size=100))
def test_any_text_around_a_line(tmp_path_factory, before, behind):
    path = tmp_path_factory.mktemp("text") / "log"
    read_whatever(path, f"{before}step:1 - a:0.5 - {behind}".encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    read_whatever(folder / "run.log", b"step:1 - a:0.5\n" + content)
    read_whatever(folder / "run.jsonl", b'{"step": 1, "data": {"a": 0.5}}\n' + content)
