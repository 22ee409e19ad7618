"""A sweep that is killed again and again leaves what one leaves that was never stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from sweep_helpers import left_by

FLAGS = ["--rollouts-per-prompt", "2,4,8", "--prompts-per-step", "4", "--budget", "1600"]
FLAGS += ["--seeds", "1", "--evaluations", "5", "--limit", "60", "--allocator", "uniform"]
FLAGS += ["--processes", "2"]
LONGEST = 600.0
"""Seconds after which a sweep is taken to hang."""


def begin(folder, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "apportion", "sweep", *FLAGS, *more, "--out", str(folder), "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(folder, *more):
    """Run to the end; return how many seconds it took."""
    began = time.monotonic()
    process = begin(folder, *more)
    _, error = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, error.decode()
    return time.monotonic() - began


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    return finish(folder), left_by(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("more", "num_kills"), [((), 20), (("--ray",), 5)])
def test_killed_at_any_moment(tmp_path, uninterrupted, more, num_kills):
    seconds, whole = uninterrupted
    assert len(whole) == 3
    moments = random.Random(7)
    for kill in range(num_kills):
        folder = tmp_path / f"sweep{kill}"
        process = begin(folder, *more)
        time.sleep(moments.uniform(0.0, seconds))
        # By turns the sweep alone, whose workers must follow it, and all of its processes.
        os.kill(process.pid, signal.SIGKILL) if kill % 2 else os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        finish(folder, *more)
        assert left_by(folder) == whole, f"killed for the {kill + 1}th time"
