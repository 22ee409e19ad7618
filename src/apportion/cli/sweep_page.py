"""What ``apportion sweep`` shows: its runs as they go, and what they have reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from apportion.cli.progress import progress_bars
from apportion.plan.adaptive_sweep import Decision
from apportion.sweep.sweep import Job, Sweep
from apportion.words import counted


class SweepDisplay:
    """Shows the runs that are under way, those that end, and what is decided between."""

    def __init__(self, sweep: Sweep, console: Console, bars: Progress) -> None:
        self._console, self._bars = console, bars
        self._budget = sweep.budget
        self._total = bars.add_task("all rollouts", total=None)
        self._bar: dict[Job, TaskID] = {}
        self._done = {job for job in sweep.jobs if job.is_done}
        if self._done:
            self._print(f"{counted(len(self._done), 'run')} done before.")

    def poll(self, jobs: Sequence[Job]) -> None:
        """Show how far the runs of an engine are."""
        spent = 0
        for job in jobs:
            num = job.until if job in self._done else min(job.num_steps, job.until)
            spent += num * job.setting.batch
            if job in self._done:
                continue
            if job.is_done:
                self._done.add(job)
                self._print(f"finished {job.name}, {job.until:,} steps")
                if job in self._bar:
                    self._bars.remove_task(self._bar.pop(job))
            elif num:
                if job not in self._bar:
                    self._bar[job] = self._bars.add_task(job.name, total=job.until)
                self._bars.update(self._bar[job], completed=num)
        whole = sum(job.until * job.setting.batch for job in jobs)
        self._bars.update(self._total, completed=spent, total=whole)

    def decide(self, decision: Decision) -> None:
        """Say what an adaptive sweep runs next, and why."""
        share = f"{decision.spent / self._budget:.0%} of the grid spent"
        for one in decision.extensions:
            label = f"n = {one.candidate.rollouts_per_prompt}, seed {one.candidate.seed}"
            self._print(f"{share}: {label} to {one.until:,} rollouts: {one.why}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


@contextmanager
def sweep_display(sweep: Sweep, *, quiet: bool) -> Iterator[SweepDisplay]:
    """Show a sweep on standard error."""
    console = Console(stderr=True, quiet=quiet)
    most = max(setting.budget for setting in sweep.settings)
    console.print(
        f"{counted(len(sweep.settings), 'run')} of up to {most:,} rollouts, {sweep.budget:,} in "
        f"all -> {sweep.folder}",
        highlight=False,
        soft_wrap=True,
    )
    with progress_bars(console) as bars:
        yield SweepDisplay(sweep, console, bars)


def print_sweep(content: Mapping[str, Any], console: Console) -> None:
    """Print what every setting has reached, and what to do with it."""
    if not content["rollouts"]:
        console.print("No run has made a step.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("n", "B_p", "rate", "allocator", "seeds", "rollouts each", "held-out reward"):
        table.add_column(name, justify="left" if name == "allocator" else "right")
    for setting, runs in _by_setting(content["runs"]).items():
        n, prompts, rate, allocator = setting
        reward_S = np.array([run["reward"] for run in runs if run["reward"] is not None])
        spent_S = [run["rollouts"] for run in runs if run["rollouts"]]
        if not spent_S:
            continue
        table.add_row(
            str(n),
            str(prompts),
            f"{rate:g}",
            allocator,
            str(len(spent_S)),
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
    _print_outlook(content["adaptive"], console)
    folder = content["folder"]
    console.print(
        f"Curves, frontier and law: apportion fit {folder}", highlight=False, soft_wrap=True
    )
    ahead = f"{10 * max(run['rollouts'] for run in content['runs']):.2g}".replace("e+0", "e")
    console.print(
        f"A plan, for example ten times as far: apportion plan {folder} --budget {ahead}",
        highlight=False,
        soft_wrap=True,
    )


def _print_outlook(adaptive: Mapping[str, Any] | None, console: Console) -> None:
    """Print what an adaptive sweep saved, and what it risks."""
    if adaptive is None:
        return
    said = [f"{adaptive['share_of_grid']:.0%} of the grid's rollouts were spent.", adaptive["stop"]]
    console.print(" ".join(said), highlight=False, soft_wrap=True)


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
