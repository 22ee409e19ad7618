"""What ``apportion sweep`` shows: its runs as they go, and what they have reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import TaskID
from rich.table import Table

from apportion.cli.progress import progress_bars
from apportion.sweep.sweep import Job, Sweep
from apportion.words import counted


@contextmanager
def sweep_display(sweep: Sweep, *, quiet: bool) -> Iterator[Callable[[Sequence[Job]], None]]:
    """Show the runs of a sweep; yields what an engine calls now and then."""
    console = Console(stderr=True, quiet=quiet)
    most = max(setting.budget for setting in sweep.settings)
    console.print(
        f"{counted(len(sweep.settings), 'run')} of up to {most:,} rollouts, {sweep.budget:,} in "
        f"all -> {sweep.folder}",
        highlight=False,
        soft_wrap=True,
    )
    with progress_bars(console) as progress:
        total = progress.add_task("all rollouts", total=None)
        bar: dict[Job, TaskID] = {}
        done = {job for job in sweep.jobs if job.is_done}
        if done:
            console.print(f"{counted(len(done), 'run')} done before.", highlight=False)

        def on_poll(jobs: Sequence[Job]) -> None:
            spent = 0
            for job in jobs:
                num = job.until if job in done else job.num_steps
                spent += min(num, job.until) * job.setting.batch
                if job in done:
                    continue
                if job.is_done:
                    done.add(job)
                    console.print(f"finished {job.name}, {job.until:,} steps", highlight=False)
                    if job in bar:
                        progress.remove_task(bar.pop(job))
                elif num:
                    if job not in bar:
                        bar[job] = progress.add_task(job.name, total=job.until)
                    progress.update(bar[job], completed=num)
            whole = sum(job.until * job.setting.batch for job in jobs)
            progress.update(total, completed=spent, total=whole)

        yield on_poll


def print_sweep(content: Mapping[str, Any], console: Console) -> None:
    """Print what every setting has reached, and what to do with it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("n", "B_p", "rate", "allocator", "seeds", "rollouts each", "held-out reward"):
        table.add_column(name, justify="left" if name == "allocator" else "right")
    for setting, runs in _by_setting(content["runs"]).items():
        n, prompts, rate, allocator = setting
        reward_S = np.array([run["reward"] for run in runs if run["reward"] is not None])
        spent_S = [run["rollouts"] for run in runs]
        table.add_row(
            str(n),
            str(prompts),
            f"{rate:g}",
            allocator,
            str(len(runs)),
            f"{min(spent_S):,}" + ("" if min(spent_S) == max(spent_S) else f" to {max(spent_S):,}"),
            _shown(reward_S),
        )
    console.print(table)
    console.print(
        f"{content['rollouts']:,} rollouts in all. Mean and standard deviation over seeds, each at "
        "its last evaluation.",
        highlight=False,
        soft_wrap=True,
    )
    folder = content["folder"]
    console.print(
        f"Curves, frontier and law: apportion fit {folder}", highlight=False, soft_wrap=True
    )
    most = max(run["rollouts"] for run in content["runs"])
    console.print(
        f"A plan, for example ten times as far: apportion plan {folder} --budget {10 * most:.2g}",
        highlight=False,
        soft_wrap=True,
    )


def _by_setting(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Any]]:
    found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for run in runs:
        names = ("rollouts_per_prompt", "prompts_per_step", "learning_rate", "allocator")
        found[tuple(run[name] for name in names)].append(run)
    return dict(sorted(found.items()))


def _shown(reward_S: np.ndarray) -> str:
    if not len(reward_S):
        return "-"
    spread = f" +- {reward_S.std(ddof=1):.3f}" if len(reward_S) > 1 else ""
    return f"{reward_S.mean():.3f}{spread}"
