"""``apportion fit``: runs of a sweep in; curves, crossovers and the law of the best n out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion import validate
from apportion.cli.spinner import late_spinner
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.plan.runs import Run


def fit_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Runs at several n: CSV files with run, rollouts_per_prompt, prompts_per_step, "
            "compute and reward; run folders, or folders that hold some; output folders of TRL; "
            "logs of verl.",
        ),
    ],
    *,
    metric: Annotated[
        str,
        typer.Option(help="mean, best@k or worst@k as recorded; or a name in the table or log."),
    ] = "mean",
    split: Annotated[
        str, typer.Option(help="Problems of the evaluation, in run folders.")
    ] = "held_out",
    prompts_per_step: Annotated[
        int | None,
        typer.Option(help="Only runs with so many; also that of logs that do not tell it."),
    ] = None,
    rollouts_per_prompt: Annotated[
        int | None, typer.Option(help="n of logs that do not tell it.")
    ] = None,
    training_reward: Annotated[
        bool,
        typer.Option(
            "--training-reward", help="Take the training reward where there is no other; misleads."
        ),
    ] = False,
    draws: Annotated[int, typer.Option(help="Resampled sets of runs, for the intervals.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say which n was best at which compute, by curves fitted to a sweep.

    Compute is rollouts spent. Intervals are 90%, from refits to resampled runs.
    """
    from rich.console import Console

    from apportion.cli.fit_content import fitted
    from apportion.cli.fit_tables import print_fit
    from apportion.readers.runs import read_runs

    num_draws = validate.whole_number("draws", draws, at_least=1)
    with late_spinner() as say:
        say("reading")
        read, notes = read_runs(
            runs,
            metric=metric,
            split=split,
            rollouts_per_prompt=rollouts_per_prompt,
            prompts_per_step=prompts_per_step,
            training_reward=training_reward,
        )
        kept = begun(of_batch(read, prompts_per_step), notes)
        say(f"fitting {len(kept)} runs")
        content = fitted(kept, notes, num_draws=num_draws)
    if as_json:
        print(json.dumps(content, allow_nan=False))
    else:
        print_fit(content, Console(), num_draws=num_draws)


def of_batch(runs: Sequence[Run], prompts_per_step: int | None) -> list[Run]:
    """Return the runs with so many prompts a step, all of them for None.

    Raises:
        InvalidInputError: there is none.
    """
    kept = [run for run in runs if prompts_per_step in (None, run.prompts_per_step)]
    if not kept:
        there = sorted({run.prompts_per_step for run in runs})
        raise InvalidInputError(
            f"--prompts-per-step is {prompts_per_step:,}, but the runs have "
            f"{', '.join(map(str, there))}."
        )
    return kept


def begun(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Return the runs that were judged after their first rollout.

    Raises:
        InvalidInputError: there is none.
    """
    kept = [run for run in runs if run.compute_T[-1] > 0.0]
    for run in runs:
        if run.compute_T[-1] == 0.0:
            notes.append(f"Left out: {run.name} was not evaluated after its first rollout.")
    if not kept:
        raise InvalidInputError(
            f"{notes[-1].removeprefix('Left out: ')} Give runs with evaluations along the way."
        )
    return kept
