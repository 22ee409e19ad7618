"""Runs side by side on one machine, a process each; what was killed is begun or continued later."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol, TypeVar

from apportion import validate
from apportion.errors import ApportionError

POLL_SECONDS = 0.5
DIED = "a process died before it ended; the same command goes on with it"


class Work(Protocol):
    """A run to be made."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left of it."""
        ...

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the function that makes it is called with; plain values."""
        ...


W = TypeVar("W", bound=Work)
Polled = Callable[[Sequence[W]], None]


def run_all(
    jobs: Sequence[W],
    make: Callable[..., str],
    *,
    num_processes: int,
    on_poll: Polled[W],
) -> dict[W, str]:
    """Run every job that is not done, `num_processes` at a time.

    Args:
        jobs: the runs; those done are skipped.
        make: makes one from its arguments; returns why it failed, or nothing.
        num_processes: how many at a time; one core each.
        on_poll: called about twice a second with all jobs.

    Returns:
        For each job that failed the reason; the others are not affected.
    """
    num_processes = validate.whole_number("processes", num_processes, at_least=1)
    context = multiprocessing.get_context("spawn")
    failures: dict[W, str] = {}
    waiting = deque(job for job in jobs if not job.is_done)
    running: dict[Future[str], W] = {}
    with ProcessPoolExecutor(
        num_processes, mp_context=context, initializer=start_worker, initargs=(os.getpid(),)
    ) as pool:
        try:
            while waiting or running:
                # One job a process and none ahead: an interrupt then stops all that has begun.
                while waiting and len(running) < num_processes:
                    job = waiting.popleft()
                    running[pool.submit(make, *job.arguments)] = job
                finished, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    job, reason = running.pop(future), future.result()
                    if reason:
                        failures[job] = reason
                on_poll(jobs)
        except BrokenProcessPool:
            for job in (*running.values(), *waiting):
                failures[job] = DIED
    on_poll(jobs)
    return failures


def start_worker(parent: int) -> None:
    """Keep a worker to its core, and let it die with its parent.

    Two processes with two threads each are slower than with one. A worker that outlives a killed
    parent would hold the locks that the resumed runs need.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def reason_of_failure(make: Callable[[], object], output: Path) -> str:
    """Make a run with its output in a file; return why it failed, or nothing."""
    from apportion.training.run import Stopped

    redirect_output(output)
    try:
        make()
    except (ApportionError, Stopped) as error:
        return str(error)
    except Exception:
        traceback.print_exc()
        return f"it crashed; its last words are in {output}"
    return ""


def redirect_output(path: Path) -> None:
    """Append what this process prints to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
