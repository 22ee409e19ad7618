"""What a sweep has come to: the runs with what each has reached, and what failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from apportion.plan.adaptive_sweep import Decision
from apportion.run_log import read_lines
from apportion.sweep.adaptive import outlook
from apportion.sweep.sweep import HELD_OUT, Job, Sweep


def described(
    sweep: Sweep, failures: Mapping[Job, str], last: Decision | None = None
) -> dict[str, Any]:
    """Return the sweep as plain values.

    - ``folder``: of the sweep
    - ``rollouts``: spent by all runs together; ``grid_rollouts``: of all runs at their ends
    - ``runs``: of each its setting, ``steps`` and ``rollouts`` so far, held-out ``reward`` at its
      last evaluation (null before the first) and ``is_done``
    - ``failures``: reason by name of the run
    - ``adaptive``: null for a grid; else ``stop`` (why it ended), ``share_of_grid`` (spent),
      ``expected_regret`` and ``evaluation_error`` (in reward; null before a forecast), and
      ``chance_to_be_best`` of each setting
    """
    runs = [_run(job) for job in sweep.jobs]
    return {
        "folder": str(sweep.folder),
        "rollouts": sum(run["rollouts"] for run in runs),
        "grid_rollouts": sweep.budget,
        "runs": runs,
        "failures": {job.name: reason for job, reason in failures.items()},
        "adaptive": None if last is None else outlook(last, sweep),
    }


def _run(job: Job) -> dict[str, Any]:
    rows = [
        row
        for row in read_lines(job.folder / "evaluations.jsonl")
        if row.get("split") == HELD_OUT and isinstance(row.get("avg"), float)
    ]
    steps = job.num_steps
    return {
        "name": job.name,
        **asdict(job.setting),
        "steps": steps,
        "rollouts": steps * job.setting.batch,
        "reward": rows[-1]["avg"] if rows else None,
        "is_done": job.is_done,
    }
