"""``apportion simulate``: what would n rollouts a prompt buy on problems like these?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from apportion import validate
from apportion.cli.lists import wholes
from apportion.cli.simulate_files import check_out, curves_csv, profile_at
from apportion.errors import InvalidInputError
from apportion.state_file import replace_file

if TYPE_CHECKING:
    from apportion.simulation import Problems, SimulatedRun, Training

CAVEAT = (
    "A simulation of problems that share features, not of your model. It has no language, no "
    "lengths and no collapse: where a learning rate is too large for a language model, it merely "
    "overshoots. Compare group sizes by it; never take a learning rate from it."
)
_RATE_POWER = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}
_NUM_HELD_OUT = 1000
_UPPER_TIMES = 4
"""Most rollouts of a prompt over the mean, as in the trainers."""
_TIE = 0.001
_QUIET_SECONDS = 2.0


def simulate_command(
    difficulty: Annotated[
        str,
        typer.Option(
            help="easy (5 to 9 of 16 correct under the base model), hard (at most 1 of 16), or "
            "counts of yours: a folder of `apportion profile`, or a CSV with num_success and "
            "num_rollouts."
        ),
    ] = "easy",
    budget: Annotated[float, typer.Option(help="Rollouts of a run.")] = 1e6,
    rollouts_per_prompt: Annotated[
        str, typer.Option(help="Group sizes n to compare, e.g. 8,32,128.")
    ] = "8,32,128,512",
    prompts_per_step: Annotated[int, typer.Option(help="Prompts of a step.")] = 32,
    learning_rate: Annotated[
        float, typer.Option(help="Rate at 1,024 rollouts a step; means nothing outside.")
    ] = 0.02,
    rate_rule: Annotated[
        str, typer.Option(help="How the rate grows with the batch: constant, sqrt, linear.")
    ] = "sqrt",
    problems: Annotated[int, typer.Option(help="Problems to train on.")] = 6000,
    signal: Annotated[
        float,
        typer.Option(
            help="How far a problem can be learned from others, 0: not at all. Published levels: "
            "1.69 on easy, some 0.5 on hard problems."
        ),
    ] = 1.69,
    memory: Annotated[
        float,
        typer.Option(
            help="How strongly a problem is remembered by itself; 0: never, above 45: known once "
            "it was solved, which comes closest to published runs."
        ),
    ] = 100.0,
    schedule: Annotated[
        str, typer.Option(help="Learning rate over the budget: constant, linear, cosine.")
    ] = "constant",
    optimizer: Annotated[str, typer.Option(help="adam or sgd.")] = "adam",
    estimator: Annotated[str, typer.Option(help="dr_grpo, rloo or grpo.")] = "dr_grpo",
    allocator: Annotated[
        str,
        typer.Option(
            help="Sizes within a step: uniform, or adaptive by the forecasts of the default "
            "predictor (some 4 milliseconds a step)."
        ),
    ] = "uniform",
    seeds: Annotated[int, typer.Option(help="Runs of each n, from seed 0.")] = 3,
    evaluation: Annotated[
        str | None,
        typer.Option(
            help="Size of a noisy evaluation for --out, problems x samples, e.g. 300x4; exact if "
            "left out."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV for the learning curves, one row an evaluation.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Ask a simulation how the reward grows with compute for each n.

    Problems share features and learn by group policy gradient; success on
    held-out ones is exact.

    It is not your model: it has no language, no lengths and no collapse. Where
    a learning rate is too large for a language model, it merely overshoots, so
    it must not be used to choose one.
    """
    from apportion.simulation import Population, Training

    sizes = list(wholes("--rollouts-per-prompt", rollouts_per_prompt, "8,32,128"))
    size = None if evaluation is None else _evaluation(evaluation)
    num_seeds = validate.whole_number("seeds", seeds, at_least=1)
    validate.choice("allocator", allocator, ["uniform", "adaptive"])
    rate_power = _RATE_POWER[validate.choice("rate_rule", rate_rule, list(_RATE_POWER))]
    trainings = [
        Training(
            rollouts_per_prompt=n,
            prompts_per_step=prompts_per_step,
            learning_rate=learning_rate,
            rate_power=rate_power,
            schedule=schedule,  # type: ignore[arg-type]
            optimizer=optimizer,  # type: ignore[arg-type]
            estimator=estimator,  # type: ignore[arg-type]
            memory=memory,
        )
        for n in sizes
    ]
    if out is not None:
        check_out(out)
    known = difficulty in ("easy", "hard")
    drawn = Population(
        difficulty=difficulty if known else profile_at(Path(difficulty)),  # type: ignore[arg-type]
        num_train=problems,
        signal=signal,
        num_held_out=max(_NUM_HELD_OUT, 0 if size is None else size[0]),
    ).problems()
    runs_of = _run(drawn, trainings, budget, num_seeds, size, adaptive=allocator == "adaptive")
    if out is not None:
        replace_file(
            out,
            curves_csv(runs_of, allocator=allocator, num_prompts=len(drawn.train)).encode(),
        )
    rows = [_summary(runs, problems) for runs in runs_of]
    start = float(drawn.held_out.base_success_Q.mean())
    if as_json:
        content = {"caveat": CAVEAT, "budget": budget, "seeds": num_seeds, "start": start}
        print(json.dumps({**content, "sizes": rows}))
    else:
        what = f"{difficulty} problems" if known else f"problems as in {difficulty}"
        _print_table(rows, f"{problems:,} {what}", budget, num_seeds, start)
        if out is not None:
            typer.echo(f"The curves are in {out}.")


def _run(
    problems: Problems,
    trainings: Sequence[Training],
    budget: float,
    num_seeds: int,
    evaluation: tuple[int, int] | None,
    *,
    adaptive: bool,
) -> list[list[SimulatedRun]]:
    from apportion.simulation import simulate

    total = sum(len(training.plan(budget)) for training in trainings)
    found: list[list[SimulatedRun]] = []
    done = 0
    with _late_bar(total) as show:
        for training in trainings:

            def on_step(step: int, _: int, before: int = done) -> None:
                show(before + step)

            found.append(
                simulate(
                    problems,
                    training,
                    budget=budget,
                    seeds=range(num_seeds),
                    evaluation=evaluation,
                    allocator=_allocator_of(problems, training) if adaptive else None,
                    on_step=on_step,
                )
            )
            done += len(training.plan(budget))
    return found


def _allocator_of(problems: Problems, training: Training) -> Callable[[], Any]:
    from apportion.allocator import RolloutAllocator
    from apportion.gradient_variance import law_for
    from apportion.predictor import FilterBank

    def make() -> RolloutAllocator:
        allocator = RolloutAllocator(
            FilterBank(),
            variance=law_for(training.estimator),
            upper=_UPPER_TIMES * training.rollouts_per_prompt,
        )
        allocator.add(problems.train.prompts())
        return allocator

    return make


def _summary(runs: Sequence[SimulatedRun], num_problems: int) -> dict[str, Any]:
    """Return what the runs of one n reached, as means over seeds with standard errors."""
    training, compute = runs[0].training, int(runs[0].compute_T[-1])
    n, batch = training.rollouts_per_prompt, training.prompts_per_step
    found: dict[str, Any] = {
        "rollouts_per_prompt": n,
        "prompts_per_step": batch,
        "num_steps": compute // (batch * n),
        "passes": compute / (n * num_problems),
        "learning_rate": training.rate_at(batch * n),
        "compute": compute,
    }
    for name, curves in (
        ("success", [run.success_T for run in runs]),
        ("best_at_4", [run.best_T for run in runs]),
        ("worst_at_4", [run.worst_T for run in runs]),
    ):
        found[name] = {
            "final": _mean([float(curve[-1]) for curve in curves]),
            "highest": _mean([float(curve.max()) for curve in curves]),
        }
    return found


def _mean(values: Sequence[float]) -> dict[str, float | None]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "standard_error": error}


def _print_table(
    rows: Sequence[Mapping[str, Any]], problems: str, budget: float, num_seeds: int, start: float
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{problems}; {budget:,.0f} rollouts a run, {num_seeds} "
        f"{'seeds' if num_seeds > 1 else 'seed'}; held-out success at the start {start:.3f}",
        title_justify="left",
        caption=CAVEAT,
        caption_justify="left",
    )
    for column in ("n", "passes", "final", "highest", "best@4", "worst@4"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['rollouts_per_prompt']:,}",
            f"{row['passes']:.2g}" if row["passes"] < 10 else f"{row['passes']:,.0f}",
            _shown(row["success"]["final"]),
            _shown(row["success"]["highest"]),
            _shown(row["best_at_4"]["highest"]),
            _shown(row["worst_at_4"]["highest"]),
        )
    console = Console()
    console.print(table)
    console.print(_verdict(rows), highlight=False)


def _shown(value: Mapping[str, float | None]) -> str:
    error = value["standard_error"]
    return f"{value['mean']:.3f}" + ("" if error is None else f" ±{error:.4f}".replace("±0", "±"))


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the n that reached most, and the smallest that is as good."""
    mean = {row["rollouts_per_prompt"]: row["success"]["highest"]["mean"] for row in rows}
    best = max(mean, key=lambda n: mean[n])
    enough = min(n for n in mean if mean[n] > mean[best] - _TIE)
    also = "" if enough == best else f"; n = {enough} is within {_TIE:g} of it"
    return f"n = {best} reached most, {mean[best]:.3f}{also}. best@4, worst@4: highest of the run."


def _evaluation(text: str) -> tuple[int, int]:
    problems, _, samples = text.partition("x")
    try:
        return int(problems), int(samples)
    except ValueError:
        raise InvalidInputError(
            f"--evaluation is {text!r}, but must be problems x samples, as in 300x4."
        ) from None


@contextmanager
def _late_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal if it takes longer than two seconds; yields what moves it."""
    from rich.console import Console

    from apportion.cli.progress import progress_bars

    console = Console(stderr=True)
    bars = progress_bars(console)
    task = bars.add_task("steps", total=total)
    began, is_shown = time.monotonic(), False

    def show(done: int) -> None:
        nonlocal is_shown
        if not is_shown and console.is_terminal and time.monotonic() - began > _QUIET_SECONDS:
            is_shown = True
            bars.start()
        if is_shown:
            bars.update(task, completed=done)

    try:
        yield show
    finally:
        bars.stop()
