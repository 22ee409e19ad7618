"""Live progress of a run or of a comparison, on a terminal; plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from apportion.training.compare import Job
from apportion.training.config import TrainConfig

OnStep = Callable[[int, dict[str, Any]], None]
OnPoll = Callable[[Sequence[Job]], None]


@contextmanager
def run_display(config: TrainConfig, folder: Path, *, quiet: bool) -> Iterator[OnStep]:
    """Show one run step by step; yields what the run calls after each step."""
    console = Console(stderr=True, quiet=quiet)
    console.print(
        f"{config.arm}: {config.steps} steps of {config.prompts_per_step} prompts x "
        f"{config.rollouts_per_prompt} rollouts = {config.budget:,} rollouts{_choice(config)} "
        f"-> {folder}"
    )
    with progress_bars(console, TextColumn("{task.fields[note]}")) as progress:
        task = progress.add_task("loading", total=config.steps, note="")

        def on_step(done: int, values: dict[str, Any]) -> None:
            progress.update(task, description="training", completed=done, note=_note(values))
            if not console.is_terminal and done % max(config.steps // 6, 1) == 0:
                console.print(f"step {done}/{config.steps}  {_note(values)}")

        yield on_step


@contextmanager
def comparison_display(jobs: Sequence[Job], *, quiet: bool) -> Iterator[OnPoll]:
    """Show the runs of a comparison; yields what the comparison calls now and then."""
    console = Console(stderr=True, quiet=quiet)
    config = jobs[0].config
    console.print(
        f"{len(jobs)} runs of {config.steps} steps x {config.prompts_per_step} prompts x "
        f"{config.rollouts_per_prompt} rollouts = {config.budget:,} rollouts each{_choices(jobs)}"
    )
    with progress_bars(console) as progress:
        total = progress.add_task("all runs", total=len(jobs) * config.steps)
        bar: dict[Job, TaskID] = {}
        done = {job for job in jobs if job.is_done}

        def on_poll(jobs: Sequence[Job]) -> None:
            steps = 0
            for job in jobs:
                num = config.steps if job in done else job.num_steps
                steps += num
                if job.is_done and job not in done:
                    done.add(job)
                    console.print(f"finished {job.name}")
                    if job in bar:
                        progress.remove_task(bar.pop(job))
                elif num and job not in done:
                    if job not in bar:
                        bar[job] = progress.add_task(job.name, total=config.steps)
                    progress.update(bar[job], completed=num)
            progress.update(total, completed=steps)

        yield on_poll


@contextmanager
def stage_display() -> Iterator[Callable[[str, int, int, float], None]]:
    """Show a build stage by stage; yields what it calls with stage, step, steps and loss."""
    console = Console(stderr=True)
    with progress_bars(console, TextColumn("{task.fields[note]}")) as progress:
        bar = progress.add_task("drawing problems", total=None, note="")

        def on_step(stage: str, step: int, steps: int, loss: float) -> None:
            note = f"loss {loss:.3f}"
            progress.update(bar, description=stage, completed=step, total=steps, note=note)
            if not console.is_terminal and step % max(steps // 10, 1) == 0:
                console.print(f"{stage} {step}/{steps}  {note}")

        yield on_step


def progress_bars(console: Console, *columns: TextColumn) -> Progress:
    """Return bars with what is done, the time taken and the time left."""
    return Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *columns,
        console=console,
        transient=True,
    )


def _choice(config: TrainConfig) -> str:
    """Say what prompts are chosen for, and from how many; nothing where none are."""
    if not config.chooses:
        return ""
    # How many prompts there are is not known before the data is read.
    among = f"up to {config.candidates} x {config.prompts_per_step}"
    return f", chosen for {config.goal} among {among} prompts"


def _choices(jobs: Sequence[Job]) -> str:
    """Say which arms choose prompts."""
    choosing = {job.config.arm: job.config for job in jobs if job.config.chooses}
    if not choosing:
        return ""
    return f"; {' and '.join(choosing)}{_choice(next(iter(choosing.values())))}"


def _note(values: dict[str, Any]) -> str:
    parts = []
    for label, name in (
        ("reward", "reward_prompt_mean"),
        ("no signal", "frac_groups_without_signal"),
    ):
        if values.get(name) is not None:
            parts.append(f"{label} {values[name]:.3f}")
    if values.get("gain_ratio") is not None and values.get("num_prompts"):
        parts.append(f"prompts {values['num_prompts']:.0f}")
    if values.get("fallback"):
        parts.append("(even)")
    return "  ".join(parts)
