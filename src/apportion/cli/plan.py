"""``apportion plan``: a budget in; n, prompts per step, steps and settings out, with reasons."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion.cli.train_plan import FORMAT
from apportion.errors import InvalidInputError
from apportion.state_file import replace_file

if TYPE_CHECKING:
    from apportion.difficulty import Verdict
    from apportion.plan.limits import Limits
    from apportion.plan.planning import Plan
    from apportion.plan.recipe import Anchor
    from apportion.plan.sweep_first import Costing

VERSION = 1
_TASK, _LIMITS, _RATE, _COST = "Budget and problems", "Limits", "Learning rate", "Cost"


def plan_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Runs of a sweep to plan from, as `apportion fit` reads them; published laws if "
            "left out.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Rollouts of the run, e.g. 2e6.", rich_help_panel=_TASK)
    ] = None,
    gpu_hours: Annotated[
        float | None,
        typer.Option(
            help="Instead of --budget, with --rollouts-per-gpu-hour.", rich_help_panel=_TASK
        ),
    ] = None,
    difficulty: Annotated[
        str | None,
        typer.Option(
            help="easy (base model solves 0.3 to 0.6), hard (at most 1 of 16) or mixed.",
            rich_help_panel=_TASK,
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --difficulty: a folder of `apportion profile`, which also has the "
            "number of prompts.",
            rich_help_panel=_TASK,
        ),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Prompts to train on, in all.", rich_help_panel=_TASK)
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="What the run is judged by: mean, best@4, worst@4.", rich_help_panel=_TASK
        ),
    ] = "mean",
    max_batch: Annotated[
        int | None, typer.Option(help="Most rollouts of a step.", rich_help_panel=_LIMITS)
    ] = None,
    prompts_per_step: Annotated[
        int | None,
        typer.Option(help="Prompts of a step; chosen if left out.", rich_help_panel=_LIMITS),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Most passes over the prompts.", rich_help_panel=_LIMITS)
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="A rate that you tuned; 1e-6 at 1,024 if left out.", rich_help_panel=_RATE
        ),
    ] = None,
    tuned_at: Annotated[
        int | None,
        typer.Option(help="Rollouts of a step that it was tuned at.", rich_help_panel=_RATE),
    ] = None,
    tokens_per_rollout: Annotated[
        float | None, typer.Option(help="Mean length of a completion.", rich_help_panel=_COST)
    ] = None,
    rollouts_per_gpu_hour: Annotated[
        float | None,
        typer.Option(help="Of a whole run, training included.", rich_help_panel=_COST),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(help="In any currency.", rich_help_panel=_COST)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the plan, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Plan a run for a budget of rollouts: n, prompts a step, steps, learning rate, loss terms.

    From runs of yours, the setting that should reach most at the budget is chosen.
    Without, n comes from published runs of other models on other data, with how far
    they differ, and with the short runs to make first.
    """
    from apportion.plan.limits import Limits
    from apportion.plan.planning import plan_from_published
    from apportion.plan.recipe import Reason
    from apportion.plan.sweep_first import Costing

    if out is not None:
        check_out(out)
    costing = Costing(
        tokens_per_rollout=tokens_per_rollout,
        rollouts_per_gpu_hour=rollouts_per_gpu_hour,
        price_per_gpu_hour=price_per_gpu_hour,
    )
    if (budget is None) == (gpu_hours is None):
        raise InvalidInputError("Give either --budget, or --gpu-hours.")
    if gpu_hours is not None:
        budget = costing.rollouts_in(gpu_hours)
    known, num_prompts = difficulty, prompts
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()
    if profile is not None:
        if difficulty is not None:
            raise InvalidInputError("Give either --difficulty, or --profile, which measures it.")
        verdict, found = _profiled(profile)
        known, num_prompts = verdict.name, found if prompts is None else prompts
        text = f"{verdict.name}: {verdict.reason.rstrip('.')}"
        reasons = (Reason(about="difficulty", text=text, source=str(profile)),)
        if num_prompts is None:
            warnings = (
                "The profile drew its prompts at random, so it does not tell how many there are: "
                "give --prompts.",
            )
    limits = Limits(
        max_batch=max_batch,
        prompts_per_step=prompts_per_step,
        num_prompts=num_prompts,
        epochs=epochs,
    )
    anchor = _anchor(learning_rate, tuned_at)
    if runs:
        plan, notes = _from_runs(runs, budget or 0.0, known, metric, limits, anchor, costing)
        warnings = (*warnings, *notes)
    else:
        plan = plan_from_published(
            budget or 0.0,
            difficulty=known,
            metric=metric,
            limits=limits,
            anchor=anchor,
            costing=costing,
        )
    plan = replace(plan, reasons=(*reasons, *plan.reasons), warnings=(*warnings, *plan.warnings))
    content = {"format": FORMAT, "version": VERSION, "metric": metric, **asdict(plan)}
    if out is not None:
        replace_file(out, f"{json.dumps(content, indent=2, allow_nan=False)}\n".encode())
    if as_json:
        print(json.dumps(content, allow_nan=False))
    else:
        from rich.console import Console

        from apportion.cli.plan_page import print_plan

        print_plan(plan, Console())
        if out is not None:
            typer.echo(f"The plan is in {out}.")


def _from_runs(
    paths: list[Path],
    budget: float,
    difficulty: str | None,
    metric: str,
    limits: Limits,
    anchor: Anchor,
    costing: Costing,
) -> tuple[Plan, list[str]]:
    """Plan from recorded runs; D is theirs where it is not given."""
    from apportion.cli.fit import begun
    from apportion.cli.spinner import late_spinner
    from apportion.plan.from_runs import plan_from_runs
    from apportion.readers.runs import read_runs

    with late_spinner() as say:
        say("reading")
        read, notes = read_runs(paths, metric=metric)
        kept = begun(read, notes)
        if not anchor.is_published and all(run.learning_rate is not None for run in kept):
            notes.append("--learning-rate is not used: the rate is that of the runs.")
        known = {run.num_prompts for run in kept} - {None}
        if limits.num_prompts is None and len(known) == 1:
            limits = replace(limits, num_prompts=known.pop())
        say(f"planning from {len(kept)} runs")
        plan = plan_from_runs(
            kept,
            budget,
            difficulty=difficulty or "mixed",
            limits=limits,
            anchor=anchor,
            costing=costing,
        )
    if difficulty is None:
        notes.append("The difficulty is not given: loss terms are those of mixed problems.")
    return plan, notes


def _profiled(path: Path) -> tuple[Verdict, int | None]:
    """Return what a profile calls its prompts, and their number if it has all of them."""
    from apportion.training.profile import read_profile
    from apportion.training.profile_files import PROFILE_FILE, read_described

    found = read_profile(path)
    config = read_described(path / PROFILE_FILE if path.is_dir() else path)["config"]
    is_whole = config.get("limit") is None
    return found.verdict, len(found.num_success_Q) if is_whole else None


def _anchor(learning_rate: float | None, tuned_at: int | None) -> Anchor:
    from apportion.plan.recipe import Anchor

    if (learning_rate is None) != (tuned_at is None):
        raise InvalidInputError(
            "--learning-rate and --tuned-at go together: a rate, and the rollouts of a step that "
            "it was tuned at."
        )
    if learning_rate is None or tuned_at is None:
        return Anchor()
    return Anchor(learning_rate=learning_rate, batch=tuned_at)


def check_out(out: Path) -> None:
    """Raise unless what would be written over is an earlier plan."""
    if out.is_dir():
        raise InvalidInputError(f"--out {out} is a folder. Name a file in it.")
    if not out.exists():
        return
    try:
        content = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidInputError(
            f"--out {out} would overwrite a file that is no plan. Name another."
        )
