"""``apportion sweep``: many short runs at several n, to plan a long one from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion import validate
from apportion.cli.lists import names
from apportion.cli.sweep_parts import (
    AHEAD,
    EMBEDDED,
    OWN,
    PROMPTS,
    QUICK_BUDGET,
    QUICK_SIZES,
    SHARE,
    SIZES,
    engine_of,
    goal_of,
    grid_of,
    rates_of,
)
from apportion.cli.task_options import (
    DEFAULTS,
    AnswerColumnFlag,
    DatasetFlag,
    HeldOutFlag,
    LimitFlag,
    MaxTokensFlag,
    ModelFlag,
    PoolFlag,
    PriorFlag,
    PromptColumnFlag,
    RewardFlag,
    RewardHighFlag,
    RewardLowFlag,
)
from apportion.cli.train_plan import use_terms
from apportion.errors import InvalidInputError
from apportion.run_log import lock_folder
from apportion.sweep.command_parts import KINDS
from apportion.sweep.settings import ALLOCATORS
from apportion.training.config import ESTIMATORS, TrainConfig

if TYPE_CHECKING:
    from apportion.sweep.adaptive import Goal
    from apportion.sweep.sweep import Job, Sweep

_GRID, _ADAPTIVE, _LEARNING = "Grid", "Adaptive sweep", "Learning"
_ENGINE, _SWEEP = "Engine", "Sweep"


def sweep_command(
    model: ModelFlag = None,
    dataset: DatasetFlag = None,
    reward: RewardFlag = DEFAULTS.reward,
    reward_low: RewardLowFlag = DEFAULTS.reward_low,
    reward_high: RewardHighFlag = DEFAULTS.reward_high,
    prompt_column: PromptColumnFlag = DEFAULTS.prompt_column,
    answer_column: AnswerColumnFlag = DEFAULTS.answer_column,
    prior: PriorFlag = None,
    held_out: HeldOutFlag = DEFAULTS.held_out,
    pool: PoolFlag = DEFAULTS.pool,
    limit: LimitFlag = None,
    max_tokens: MaxTokensFlag = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Rollouts of each run at most, e.g. 1e5.", rich_help_panel=_GRID),
    ] = None,
    rollouts_per_prompt: Annotated[
        str, typer.Option(help="Sizes n.", rich_help_panel=_GRID)
    ] = SIZES,
    prompts_per_step: Annotated[
        str, typer.Option(help="Sizes B_p.", rich_help_panel=_GRID)
    ] = PROMPTS,
    learning_rate: Annotated[
        str | None,
        typer.Option(
            help=f"Rates at --tuned-at rollouts a step; {EMBEDDED.learning_rate:g} for the "
            f"embedded model, else {OWN.learning_rate:g}.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    tuned_at: Annotated[
        int | None,
        typer.Option(
            help=f"Rollouts of a step that those rates are for; {EMBEDDED.tuned_at} for the "
            f"embedded model, else {OWN.tuned_at:,}.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    rate_rule: Annotated[
        str,
        typer.Option(
            help="How the rate grows with the rollouts of a step: constant, sqrt, linear.",
            rich_help_panel=_GRID,
        ),
    ] = "sqrt",
    allocator: Annotated[
        str, typer.Option(help=f"{', '.join(ALLOCATORS)}.", rich_help_panel=_GRID)
    ] = "uniform",
    seeds: Annotated[
        int, typer.Option(help="Seeds of each setting, counted from --seed.", rich_help_panel=_GRID)
    ] = 2,
    seed: Annotated[int, typer.Option(help="First seed.", rich_help_panel=_GRID)] = DEFAULTS.seed,
    runs: Annotated[
        Path | None,
        typer.Option(
            "--list",
            help="Instead of a grid: a CSV with rollouts_per_prompt and prompts_per_step, perhaps "
            "learning_rate, allocator, seed, num_steps; or a plan, whose runs to make first are "
            "made, with its loss terms.",
            callback=use_terms,
            is_eager=True,
            rich_help_panel=_GRID,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"n = {QUICK_SIZES}, {QUICK_BUDGET:,} rollouts each: two minutes on two cores "
            "with the embedded model.",
            rich_help_panel=_GRID,
        ),
    ] = False,
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            help="Do not take every run to its end: lengthen those on which the plan hangs, and "
            "stop when it is clear.",
            rich_help_panel=_ADAPTIVE,
        ),
    ] = False,
    target: Annotated[
        float | None,
        typer.Option(
            help=f"With --adaptive: rollouts of the run to plan; {AHEAD} times --budget.",
            rich_help_panel=_ADAPTIVE,
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="With --adaptive: of the rollouts of all runs, what may be spent; "
            f"{SHARE:g} if left out.",
            rich_help_panel=_ADAPTIVE,
        ),
    ] = None,
    estimator: Annotated[
        str, typer.Option(help=f"Advantage: {', '.join(ESTIMATORS)}.", rich_help_panel=_LEARNING)
    ] = DEFAULTS.estimator,
    kl: Annotated[
        float,
        typer.Option(help="Weight of the KL term to the start.", rich_help_panel=_LEARNING),
    ] = DEFAULTS.kl,
    entropy: Annotated[
        float, typer.Option(help="Weight of the entropy bonus.", rich_help_panel=_LEARNING)
    ] = DEFAULTS.entropy,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            help="Completions in one backward pass at most (memory); all for the embedded model, "
            f"else {OWN.micro_batch}.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            help="Of each run after the first, two for each doubling of compute; "
            f"{EMBEDDED.evaluations} for the embedded model, else {OWN.evaluations}.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Runs at a time; one a core for the embedded model, else 1.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    on_ray: Annotated[
        bool,
        typer.Option(
            "--ray", help="Run on Ray, by default on this machine.", rich_help_panel=_ENGINE
        ),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="With --ray: of a running cluster that sees --out, or auto.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    gpus_per_run: Annotated[
        float,
        typer.Option(help="With --ray: GPUs that each run asks for.", rich_help_panel=_ENGINE),
    ] = 0.0,
    for_scheduler: Annotated[
        str | None,
        typer.Option(
            "--print",
            metavar="KIND",
            help=f"Make no run: print the command of each, a line a run, for a scheduler of yours. "
            f"{', '.join(KINDS)}.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder; the same command goes on there, other runs are added.",
            rich_help_panel=_SWEEP,
        ),
    ] = Path("runs/sweep"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the sweep as JSON.", rich_help_panel=_SWEEP)
    ] = False,
) -> None:
    """Make the runs that a plan rests on: several n side by side, up to a budget each.

    With --quick and nothing else the embedded model is swept in two minutes; `apportion plan
    runs/sweep --budget C` and `apportion fit runs/sweep` read the runs.

    Stop it or kill it at any time: the same command goes on, nothing that is done is done again.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: runs share the cores
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from apportion.sweep.sweep import Sweep, check_task, start

    is_own = model is not None or dataset is not None
    usual = OWN if is_own else EMBEDDED
    base = TrainConfig(
        arm="uniform",
        model=model,
        dataset=dataset,
        pool=pool,
        reward=reward,
        reward_low=reward_low,
        reward_high=reward_high,
        prompt_column=prompt_column,
        answer_column=answer_column,
        prior=prior,
        held_out=held_out,
        limit=limit,
        estimator=estimator,
        kl=kl,
        entropy=entropy,
        max_tokens=usual.max_tokens if max_tokens is None else max_tokens,
        num_evaluations=usual.evaluations if evaluations is None else evaluations,
        evaluation_spacing="doubling",
    )
    rates = rates_of(
        learning_rate, usual.tuned_at if tuned_at is None else tuned_at, rate_rule, usual
    )
    first_to_last = range(seed, seed + validate.whole_number("--seeds", seeds, at_least=1))
    whole = None if budget is None else int(validate.number("--budget", budget))
    if runs is None:
        settings = grid_of(
            QUICK_SIZES if quick else rollouts_per_prompt,
            prompts_per_step,
            rates,
            allocator,
            first_to_last,
            QUICK_BUDGET if quick and whole is None else whole,
        )
    else:
        from apportion.sweep.listed import read_list

        settings = read_list(
            runs, rates=rates, allocators=names(allocator), seeds=first_to_last, budget=whole
        )
    sweep = Sweep(
        base=base,
        settings=tuple(settings),
        folder=out,
        micro_batch=usual.micro_batch if micro_batch is None else micro_batch,
    )
    if for_scheduler is not None:
        if adaptive:
            raise InvalidInputError(
                "--adaptive decides by the runs that were made, so its commands cannot be printed "
                "beforehand. Leave out one of --adaptive and --print."
            )
        _print_commands(sweep, for_scheduler, as_json=as_json)
        return
    workers = usual.processes if processes is None else processes
    engine = engine_of(workers, on_ray=on_ray, address=address, gpus_per_run=gpus_per_run)
    goal = goal_of(target, share, settings, is_adaptive=adaptive, workers=workers)
    check_task(sweep)
    _sweep(start(sweep), goal, engine, as_json=as_json)


def _print_commands(sweep: Sweep, kind: str, *, as_json: bool) -> None:
    """Print a shell line a run, and to standard error what to know about them."""
    from apportion.sweep.commands import commands, guide
    from apportion.sweep.sweep import check_task

    validate.choice("--print", kind, KINDS)
    lines = commands(sweep, kind)
    if kind == "apportion":
        check_task(sweep)
    if as_json:
        pairs = zip(sweep.settings, lines, strict=True)
        print(json.dumps([{"run": one.name, "command": line} for one, line in pairs]))
        return
    for sentence in guide(sweep, kind):
        typer.echo(f"# {sentence}", err=True)
    for line in lines:
        typer.echo(line)


def _sweep(
    sweep: Sweep, goal: Goal | None, engine: Callable[..., dict[Job, str]], *, as_json: bool
) -> None:
    """Make the runs that are missing, and show what all have reached."""
    from rich.console import Console

    from apportion.cli.sweep_page import print_sweep, sweep_display
    from apportion.sweep.adaptive import sweep_adaptively
    from apportion.sweep.result import described

    try:
        with lock_folder(sweep.folder), sweep_display(sweep, quiet=as_json) as display:
            if goal is None:
                last, failures = None, engine(sweep.jobs, on_poll=display.poll)
            else:
                last, failures = sweep_adaptively(
                    sweep, goal, engine, on_poll=display.poll, on_decision=display.decide
                )
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on.", err=True)
        raise typer.Exit(130) from None
    for job, reason in failures.items():
        typer.echo(f"apportion: {job.name} failed: {reason}", err=True)
    content = described(sweep, failures, last)
    if as_json:
        print(json.dumps(content))
    else:
        print_sweep(content, Console())
    if failures:
        raise typer.Exit(1)
