"""The runs of a sweep on Ray: on this machine, or on a cluster that shares the sweep's folder."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from apportion.errors import InvalidInputError, MissingExtraError, first_line
from apportion.sweep.make import make
from apportion.sweep.sweep import Job
from apportion.training.processes import DIED, POLL_SECONDS

_ANSWER_SECONDS = 10.0


def run_on_ray(
    jobs: Sequence[Job],
    *,
    address: str | None,
    num_processes: int,
    gpus_per_run: float,
    on_poll: Callable[[Sequence[Job]], None],
) -> dict[Job, str]:
    """Run every job that is not done, each as a Ray task of one core.

    A task whose node died is begun again by Ray, and goes on from what the run saved.

    Args:
        jobs: the runs; those done are skipped.
        address: of a running cluster, ``auto`` to find it; None starts Ray on this machine.
        num_processes: runs at a time on this machine; a cluster has as many as it has cores.
        gpus_per_run: GPUs that each run asks for.
        on_poll: called about twice a second with all jobs.

    Returns:
        For each job that failed the reason; the others are not affected.

    Raises:
        MissingExtraError: Ray is not installed.
        InvalidInputError: no cluster answers, or it has no room for a run.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, address, num_processes)
    try:
        _check_room(ray, gpus_per_run)
        return _run(ray, [job for job in jobs if not job.is_done], jobs, gpus_per_run, on_poll)
    finally:
        if is_ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None, num_processes: int) -> None:
    _check_answers(address)
    local = {"num_cpus": num_processes, "include_dashboard": False}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="error",
            **({} if address else local),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InvalidInputError(
            f"Ray cannot be reached at {address or 'this machine'}: {first_line(error)}. Give "
            "the --address of a running cluster, or leave it out."
        ) from error


def _check_answers(address: str | None) -> None:
    """Raise if nobody listens at ``host:port``: Ray itself would go on trying for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InvalidInputError(
            f"No Ray cluster answers at {address}: {first_line(error)}. Give the --address of a "
            "running one, or leave it out."
        ) from error


def _check_room(ray: Any, gpus_per_run: float) -> None:
    """Raise where a task would wait for ever."""
    there = ray.cluster_resources()
    if there.get("GPU", 0.0) < gpus_per_run:
        raise InvalidInputError(
            f"--gpus-per-run is {gpus_per_run:g}, but Ray has {there.get('GPU', 0.0):g} GPUs."
        )


def _run(
    ray: Any,
    missing: Sequence[Job],
    jobs: Sequence[Job],
    gpus_per_run: float,
    on_poll: Callable[[Sequence[Job]], None],
) -> dict[Job, str]:
    # One process a task: what a run leaves in its process must not reach the next one.
    task = ray.remote(num_cpus=1, num_gpus=gpus_per_run, max_calls=1)(make)
    job_of = {task.remote(*job.arguments): job for job in missing}
    failures: dict[Job, str] = {}
    waiting = list(job_of)
    try:
        while waiting:
            done, waiting = ray.wait(waiting, timeout=POLL_SECONDS)
            for reference in done:
                if reason := _reason(ray, reference):
                    failures[job_of[reference]] = reason
            on_poll(jobs)
    except BaseException:
        for reference in waiting:
            ray.cancel(reference, force=True)
        raise
    on_poll(jobs)
    return failures


def _reason(ray: Any, reference: Any) -> str:
    try:
        return str(ray.get(reference))
    except ray.exceptions.WorkerCrashedError:
        return DIED
    except ray.exceptions.RayError as error:
        return f"Ray gave up on it: {first_line(error)}."
