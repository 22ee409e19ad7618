"""``apportion train``: one run, or arms side by side, on the embedded model or your own."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from apportion.allocator import OBJECTIVES
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
from apportion.cli.train_plan import use_plan
from apportion.errors import InvalidInputError, RunFolderError, StateError
from apportion.training import compare as comparing
from apportion.training.config import (
    ARMS,
    CHOOSING_ARMS,
    EMBEDDED_LEARNING_RATE,
    ESTIMATORS,
    OWN_EVALUATIONS,
    OWN_LEARNING_RATE,
    OWN_MAX_TOKENS,
    K,
    TrainConfig,
    fitting_micro_batch,
)

_OWN_MICRO_BATCH = 8
_SIZE, _LEARNING, _RUN = "Rollouts", "Learning", "Run"


def train_command(
    model: ModelFlag = None,
    dataset: DatasetFlag = None,
    reward: RewardFlag = DEFAULTS.reward,
    reward_low: RewardLowFlag = DEFAULTS.reward_low,
    reward_high: RewardHighFlag = DEFAULTS.reward_high,
    prompt_column: PromptColumnFlag = DEFAULTS.prompt_column,
    answer_column: AnswerColumnFlag = DEFAULTS.answer_column,
    prior: PriorFlag = None,
    held_out: HeldOutFlag = DEFAULTS.held_out,
    limit: LimitFlag = None,
    pool: PoolFlag = DEFAULTS.pool,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="File of `apportion plan --out`: n, prompts a step, steps, learning rate and loss "
            "terms, unless given here.",
            callback=use_plan,
            is_eager=True,
            rich_help_panel=_SIZE,
        ),
    ] = None,
    prompts_per_step: Annotated[
        int, typer.Option(help="Prompts of one step.", rich_help_panel=_SIZE)
    ] = DEFAULTS.prompts_per_step,
    rollouts_per_prompt: Annotated[
        int,
        typer.Option(
            help="Mean rollouts a prompt; a step spends this times the prompts, exactly.",
            rich_help_panel=_SIZE,
        ),
    ] = DEFAULTS.rollouts_per_prompt,
    objective: Annotated[
        str | None,
        typer.Option(
            help=f"Of the arms adaptive and oracle: {', '.join(OBJECTIVES)}. variance splits the "
            "rollouts among the prompts of the step, the others choose prompts; "
            f"{DEFAULTS.objective} if left out.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(
            help="Prompts to choose from, times the prompts of a step; "
            f"{DEFAULTS.candidates}x where prompts are chosen.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    lower: Annotated[
        int,
        typer.Option(help="Least rollouts a prompt that gets any.", rich_help_panel=_SIZE),
    ] = DEFAULTS.lower,
    upper: Annotated[
        int | None,
        typer.Option(help="Most rollouts a prompt; 4 times the mean.", rich_help_panel=_SIZE),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Update steps.", rich_help_panel=_SIZE)
    ] = DEFAULTS.steps,
    max_tokens: MaxTokensFlag = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            help="Completions in one backward pass (memory); all for the embedded model, else "
            f"{_OWN_MICRO_BATCH}.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    estimator: Annotated[
        str,
        typer.Option(help=f"Advantage: {', '.join(ESTIMATORS)}.", rich_help_panel=_LEARNING),
    ] = DEFAULTS.estimator,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Of AdamW, constant after 10 steps of warm-up; "
            f"{EMBEDDED_LEARNING_RATE:g} for the embedded model, else {OWN_LEARNING_RATE:g}.",
            rich_help_panel=_LEARNING,
        ),
    ] = None,
    kl: Annotated[
        float,
        typer.Option(help="Weight of the KL term to the start.", rich_help_panel=_LEARNING),
    ] = DEFAULTS.kl,
    entropy: Annotated[
        float, typer.Option(help="Weight of the entropy bonus.", rich_help_panel=_LEARNING)
    ] = DEFAULTS.entropy,
    arm: Annotated[
        str, typer.Option(help=f"Who decides: {', '.join(ARMS)}.", rich_help_panel=_RUN)
    ] = DEFAULTS.arm,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Arms to run side by side, e.g. uniform,adaptive,vip,oracle.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(help="Seeds of a comparison, counted from --seed.", rich_help_panel=_RUN),
    ] = 3,
    seed: Annotated[
        int, typer.Option(help="Seed of prompts, sampling and weights.", rich_help_panel=_RUN)
    ] = DEFAULTS.seed,
    evaluations: Annotated[
        int | None,
        typer.Option(
            help=f"Evaluations after the first; {DEFAULTS.num_evaluations} for the embedded "
            f"model, else {OWN_EVALUATIONS}: each samples {K} rollouts of every held-out prompt.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    evaluation_spacing: Annotated[
        str,
        typer.Option(help="even, or doubling: two for each of compute.", rich_help_panel=_RUN),
    ] = DEFAULTS.evaluation_spacing,
    save_every: Annotated[
        int, typer.Option(help="Steps between checkpoints.", rich_help_panel=_RUN)
    ] = DEFAULTS.save_every,
    processes: Annotated[
        int | None,
        typer.Option(help="Runs of a comparison at a time; one a core.", rich_help_panel=_RUN),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; runs/DATE-TIME if left out.", rich_help_panel=_RUN),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, as it was started; other options are not read.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Train with adaptive rollouts, exactly on budget, and show what they bought.

    Without any option the embedded language model learns reasoning-gym problems (a minute).

    With --compare several arms run on the same prompts, budget and seeds.
    """
    # Before torch is first imported: more than one thread is slower for a model this small.
    os.environ.setdefault("OMP_NUM_THREADS", "1" if model is None else str(os.cpu_count() or 1))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if resume:
        folder = _folder_to_resume(out)
        if (folder / "comparison.json").exists():
            config, arms, all_seeds = comparing.load(folder)
            _compare(config, arms, all_seeds, folder, processes, as_json)
        else:
            _train(None, folder, as_json)
        return
    is_own = model is not None or dataset is not None
    rate = OWN_LEARNING_RATE if is_own else EMBEDDED_LEARNING_RATE
    often = OWN_EVALUATIONS if is_own else DEFAULTS.num_evaluations
    own_tokens = OWN_MAX_TOKENS if is_own else DEFAULTS.max_tokens
    goal = DEFAULTS.objective if objective is None else objective
    config = TrainConfig(
        arm=arm,
        model=model,
        dataset=dataset,
        pool=pool,
        reward=reward,
        reward_low=reward_low,
        reward_high=reward_high,
        prompt_column=prompt_column,
        answer_column=answer_column,
        prior=prior,
        estimator=estimator,
        prompts_per_step=prompts_per_step,
        rollouts_per_prompt=rollouts_per_prompt,
        objective=goal,
        candidates=_times(candidates, goal),
        lower=lower,
        upper=upper,
        steps=steps,
        learning_rate=rate if learning_rate is None else learning_rate,
        kl=kl,
        entropy=entropy,
        max_tokens=own_tokens if max_tokens is None else max_tokens,
        num_evaluations=often if evaluations is None else evaluations,
        evaluation_spacing=evaluation_spacing,
        held_out=held_out,
        limit=limit,
        save_every=save_every,
        seed=seed,
    )
    if micro_batch is None and is_own:
        micro_batch = fitting_micro_batch(_OWN_MICRO_BATCH, config.budget_per_step)
    config = replace(config, micro_batch=micro_batch)
    folder = out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    names = (arm if compare is None else compare).split(",")
    arms = [name.strip() for name in names if name.strip()]
    if candidates is not None or objective is not None:
        _check_that_one_chooses(arms)
    if compare is None:
        _train(config, folder, as_json)
        return
    all_seeds = list(range(seed, seed + seeds))
    comparing.start(config, arms, all_seeds, folder)
    _compare(config, arms, all_seeds, folder, processes, as_json)


def _train(config: TrainConfig | None, folder: Path, as_json: bool) -> None:
    from apportion.cli.progress import run_display
    from apportion.cli.tables import print_summary
    from apportion.training.run import last_checkpoint, run, start_of

    resume = config is None
    begun = start_of(folder) if config is None else config
    try:
        # What a reward function prints must not mix with the summary on standard output.
        with run_display(begun, folder, quiet=as_json) as on_step, redirect_stdout(sys.stderr):
            summary = run(begun, folder, resume=resume, on_step=on_step)
    except (Exception, KeyboardInterrupt) as error:
        is_resumable = not isinstance(error, RunFolderError | StateError)
        if is_resumable and last_checkpoint(folder) is not None:
            typer.echo(f"The finished steps are kept. {_how_to_go_on(folder)}", err=True)
        raise
    if as_json:
        print(json.dumps(summary))
    else:
        print_summary(summary, folder)


def _compare(
    config: TrainConfig,
    arms: list[str],
    seeds: list[int],
    folder: Path,
    processes: int | None,
    as_json: bool,
) -> None:
    from apportion.cli.progress import comparison_display
    from apportion.cli.tables import print_comparison

    jobs = comparing.jobs_of(config, arms, seeds, folder)
    workers = (os.cpu_count() or 1) if processes is None else processes
    try:
        with comparison_display(jobs, quiet=as_json) as on_poll:
            failures = comparing.run_all(jobs, num_processes=workers, on_poll=on_poll)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {_how_to_go_on(folder)}", err=True)
        raise typer.Exit(130) from None
    for job, reason in failures.items():
        typer.echo(f"apportion: {job.name} failed: {reason}", err=True)
    result = comparing.compare(jobs)
    if as_json:
        print(json.dumps(result))
    else:
        print_comparison(result, folder)
    if failures:
        raise typer.Exit(1)


def _times(text: str | None, objective: str) -> int:
    """Return how many times the prompts of a step are looked at, from ``3x`` or ``3``."""
    if text is None:
        return 1 if objective == "variance" else DEFAULTS.candidates
    if not (found := re.fullmatch(r"([0-9]{1,6})x?", text.strip())):
        raise InvalidInputError(
            f"candidates is {text!r}, but must be a whole number of times the prompts of a step, "
            "such as 3x."
        )
    times = int(found[1])
    if objective == "variance" and times > 1:
        raise InvalidInputError(
            f"candidates is {text}, but --objective variance chooses no prompts. Leave "
            "--candidates out, or take --objective coverage."
        )
    return times


def _check_that_one_chooses(arms: list[str]) -> None:
    """Raise if options about the choice of prompts would say nothing to any of the arms."""
    if set(arms) <= set(ARMS) - set(CHOOSING_ARMS):
        raise InvalidInputError(
            f"--candidates and --objective are read by the arms {' and '.join(CHOOSING_ARMS)}, but "
            f"you asked for {', '.join(arms)}. Leave them out, or take one of those arms."
        )


def _how_to_go_on(folder: Path) -> str:
    return f"Go on with: apportion train --resume --out {folder}"


def _folder_to_resume(out: Path | None) -> Path:
    if out is None:
        raise InvalidInputError("--resume needs --out, the folder of the run to go on with.")
    if not (out / "run.json").exists() and not (out / "comparison.json").exists():
        raise RunFolderError(f"{out} holds no run to resume.")
    return out
