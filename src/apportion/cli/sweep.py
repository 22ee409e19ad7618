"""``apportion sweep``: many short runs at several n, to plan a long one from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion import validate
from apportion.cli.lists import names, numbers, wholes
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
from apportion.errors import InvalidInputError
from apportion.run_log import lock_folder
from apportion.training.config import (
    EMBEDDED_LEARNING_RATE,
    ESTIMATORS,
    OWN_LEARNING_RATE,
    OWN_MAX_TOKENS,
    TrainConfig,
)

if TYPE_CHECKING:
    from apportion.sweep.settings import RateRule, Setting
    from apportion.sweep.sweep import Job, Sweep

_GRID, _LEARNING, _ENGINE, _SWEEP = "Grid", "Learning", "Engine", "Sweep"
_SIZES, _PROMPTS = "4,16,64", "16"
_QUICK_SIZES, _QUICK_BUDGET = "4,8,16,32,64", 20_480
_ALLOCATORS = ("uniform", "adaptive")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usual:
    """What is taken where a flag is left out."""

    learning_rate: float
    tuned_at: int
    evaluations: int
    max_tokens: int
    micro_batch: int | None
    processes: int


_EMBEDDED = _Usual(
    learning_rate=EMBEDDED_LEARNING_RATE,
    tuned_at=256,
    evaluations=13,
    max_tokens=DEFAULTS.max_tokens,
    micro_batch=None,
    processes=os.cpu_count() or 1,
)
_OWN = _Usual(
    learning_rate=OWN_LEARNING_RATE,
    tuned_at=1024,
    evaluations=9,
    max_tokens=OWN_MAX_TOKENS,
    micro_batch=8,
    processes=1,
)


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
    ] = _SIZES,
    prompts_per_step: Annotated[
        str, typer.Option(help="Sizes B_p.", rich_help_panel=_GRID)
    ] = _PROMPTS,
    learning_rate: Annotated[
        str | None,
        typer.Option(
            help=f"Rates at --tuned-at rollouts a step; {_EMBEDDED.learning_rate:g} for the "
            f"embedded model, else {_OWN.learning_rate:g}.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    tuned_at: Annotated[
        int | None,
        typer.Option(
            help=f"Rollouts of a step that those rates are for; {_EMBEDDED.tuned_at} for the "
            f"embedded model, else {_OWN.tuned_at:,}.",
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
        str, typer.Option(help=f"{', '.join(_ALLOCATORS)}.", rich_help_panel=_GRID)
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
            "made.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"n = {_QUICK_SIZES}, {_QUICK_BUDGET:,} rollouts each: two minutes on two cores "
            "with the embedded model.",
            rich_help_panel=_GRID,
        ),
    ] = False,
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
            f"else {_OWN.micro_batch}.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            help="Of each run after the first, two for each doubling of compute; "
            f"{_EMBEDDED.evaluations} for the embedded model, else {_OWN.evaluations}.",
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

    Stop it or kill it at any time: the same command goes on, and nothing that is done is done
    again.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: runs share the cores
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from apportion.sweep.sweep import Sweep, check_task, start

    is_own = model is not None or dataset is not None
    usual = _OWN if is_own else _EMBEDDED
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
    rates = _rates(
        learning_rate, usual.tuned_at if tuned_at is None else tuned_at, rate_rule, usual
    )
    first_to_last = range(seed, seed + validate.whole_number("--seeds", seeds, at_least=1))
    whole = None if budget is None else int(validate.number("--budget", budget))
    if runs is None:
        settings = _grid(
            _QUICK_SIZES if quick else rollouts_per_prompt,
            prompts_per_step,
            rates,
            allocator,
            first_to_last,
            _QUICK_BUDGET if quick and whole is None else whole,
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
    workers = usual.processes if processes is None else processes
    engine = _engine(workers, on_ray=on_ray, address=address, gpus_per_run=gpus_per_run)
    check_task(sweep)
    _sweep(start(sweep), engine, as_json=as_json)


def _rates(text: str | None, tuned_at: int, rules: str, usual: _Usual) -> list[RateRule]:
    from apportion.sweep.settings import RateRule

    batch = validate.whole_number("--tuned-at", tuned_at, at_least=1)
    rates = (
        (usual.learning_rate,) if text is None else numbers("--learning-rate", text, "1e-6,2e-6")
    )
    return [
        RateRule(learning_rate=rate, tuned_at=batch, rule=rule)
        for rate, rule in product(rates, names(rules))
    ]


def _grid(
    sizes: str,
    prompts: str,
    rates: Sequence[RateRule],
    allocators: str,
    seeds: Sequence[int],
    budget: int | None,
) -> list[Setting]:
    from apportion.sweep.settings import grid

    if budget is None:
        raise InvalidInputError(
            "How far should each run go? Give --budget, the rollouts of each, e.g. --budget 1e5; "
            "or --quick for a first look at the embedded model."
        )
    for arm in names(allocators):
        validate.choice("--allocator", arm, _ALLOCATORS)
    return grid(
        rollouts_per_prompt=wholes("--rollouts-per-prompt", sizes, _SIZES),
        prompts_per_step=wholes("--prompts-per-step", prompts, _PROMPTS),
        rates=rates,
        allocators=names(allocators),
        seeds=seeds,
        budget=budget,
    )


def _engine(
    workers: int, *, on_ray: bool, address: str | None, gpus_per_run: float
) -> Callable[..., dict[Job, str]]:
    """Return what makes the runs of a list: processes here, or Ray."""
    from apportion.sweep.make import make
    from apportion.training.processes import run_all

    validate.whole_number("--processes", workers, at_least=1)
    if not on_ray:
        if address is not None or gpus_per_run:
            raise InvalidInputError("--address and --gpus-per-run are read with --ray alone.")
        return partial(run_all, make=make, num_processes=workers)
    from apportion.sweep.on_ray import run_on_ray

    return partial(run_on_ray, address=address, num_processes=workers, gpus_per_run=gpus_per_run)


def _sweep(sweep: Sweep, engine: Callable[..., dict[Job, str]], *, as_json: bool) -> None:
    """Make the runs that are missing, and show what all have reached."""
    from rich.console import Console

    from apportion.cli.sweep_page import print_sweep, sweep_display
    from apportion.sweep.result import described

    try:
        with lock_folder(sweep.folder), sweep_display(sweep, quiet=as_json) as on_poll:
            failures = engine(sweep.jobs, on_poll=on_poll)
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on.", err=True)
        raise typer.Exit(130) from None
    for job, reason in failures.items():
        typer.echo(f"apportion: {job.name} failed: {reason}", err=True)
    content = described(sweep, failures)
    if as_json:
        print(json.dumps(content))
    else:
        print_sweep(content, Console())
    if failures:
        raise typer.Exit(1)
