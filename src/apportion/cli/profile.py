"""``apportion profile``: how hard are my prompts for my model, before a run?"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli.audit_layout import Page
from apportion.cli.task_options import (
    DEFAULTS,
    AnswerColumnFlag,
    DatasetFlag,
    MaxTokensFlag,
    ModelFlag,
    PoolFlag,
    PromptColumnFlag,
    RewardFlag,
    RewardHighFlag,
    RewardLowFlag,
)
from apportion.difficulty import BANDS, DRAWS, GROUP_SIZES
from apportion.training.config import OWN_MAX_TOKENS
from apportion.words import counted

if TYPE_CHECKING:
    from rich.console import Console

    from apportion.training.profile import ProfileConfig

_OWN_BATCH, _EMBEDDED_BATCH = 4, 64
_SAMPLES = 16
_BAR_WIDTH = 40
_MOST_BARS = 33
_SIZE, _RUN = "Samples", "Profile"


def profile_command(
    model: ModelFlag = None,
    dataset: DatasetFlag = None,
    reward: RewardFlag = DEFAULTS.reward,
    reward_low: RewardLowFlag = DEFAULTS.reward_low,
    reward_high: RewardHighFlag = DEFAULTS.reward_high,
    prompt_column: PromptColumnFlag = DEFAULTS.prompt_column,
    answer_column: AnswerColumnFlag = DEFAULTS.answer_column,
    pool: PoolFlag = DEFAULTS.pool,
    samples: Annotated[
        int, typer.Option(help="Completions of every prompt.", rich_help_panel=_SIZE)
    ] = _SAMPLES,
    limit: Annotated[
        int | None,
        typer.Option(
            help="So many prompts, drawn at random, for a quick look; all if left out.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    max_tokens: MaxTokensFlag = None,
    prompts_per_batch: Annotated[
        int | None,
        typer.Option(
            help="Prompts sampled at a time, each with all its completions (memory); "
            f"{_EMBEDDED_BATCH} for the embedded model, else {_OWN_BATCH}.",
            rich_help_panel=_SIZE,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Seed of the order of prompts and of sampling.", rich_help_panel=_RUN),
    ] = DEFAULTS.seed,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder; the same command goes on there. profiles/DATE-TIME if left out.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the profile as JSON.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Sample every prompt equally often under the base model, and say how hard the data is.

    Without any option the embedded language model is sampled on its problems (seconds).

    What is found goes to profile.json, and to prior.parquet for `apportion train --prior`.
    """
    # Before torch is first imported: more than one thread is slower for a model this small.
    os.environ.setdefault("OMP_NUM_THREADS", "1" if model is None else str(os.cpu_count() or 1))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from apportion.training.profile import ProfileConfig, run_profile
    from apportion.training.profile_files import has_samples

    is_own = model is not None or dataset is not None
    own_tokens = OWN_MAX_TOKENS if is_own else DEFAULTS.max_tokens
    own_batch = _OWN_BATCH if is_own else _EMBEDDED_BATCH
    config = ProfileConfig(
        model=model,
        dataset=dataset,
        pool=pool,
        reward=reward,
        reward_low=reward_low,
        reward_high=reward_high,
        prompt_column=prompt_column,
        answer_column=answer_column,
        num_samples=samples,
        limit=limit,
        max_tokens=own_tokens if max_tokens is None else max_tokens,
        prompts_per_batch=own_batch if prompts_per_batch is None else prompts_per_batch,
        seed=seed,
    )
    folder = out or Path("profiles") / datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        # What a reward function prints must not mix with the profile on standard output.
        with _display(config, folder, quiet=as_json) as on_batch, redirect_stdout(sys.stderr):
            described = run_profile(config, folder, on_batch=on_batch)
    except KeyboardInterrupt:
        if has_samples(folder):
            typer.echo(f"What was sampled is kept. Give --out {folder} to go on.", err=True)
        raise
    if as_json:
        print(json.dumps(described))
    else:
        _print_profile(described, folder)


@contextmanager
def _display(
    config: ProfileConfig, folder: Path, *, quiet: bool
) -> Iterator[Callable[[int, int, float], None]]:
    """Show what is sampled batch by batch; yields what the profile calls after each."""
    from rich.console import Console
    from rich.progress import TextColumn

    from apportion.cli.progress import progress_bars

    console = Console(stderr=True, quiet=quiet)
    data = f"pool {config.pool}" if config.is_embedded else config.dataset
    told_of = f"{data}: {config.num_samples} samples of every prompt -> {folder}"
    console.print(told_of, highlight=False, markup=False, soft_wrap=not console.is_terminal)
    with progress_bars(console, TextColumn("{task.fields[note]}")) as progress:
        bar = progress.add_task("loading", total=None, note="")
        told = -1

        def on_batch(done: int, total: int, mean: float) -> None:
            nonlocal told
            note = f"mean success {mean:.3f}" if done else ""
            progress.update(bar, description="prompts", completed=done, total=total, note=note)
            sixth = 6 * done // total
            if not console.is_terminal and done and sixth > told:
                console.print(f"prompts {done:,}/{total:,}  {note}", highlight=False)
            told = sixth

        yield on_batch


def _print_profile(described: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    console, summary = Console(), described["summary"]
    page = Page(console)
    if described["histogram"] is not None:
        _print_histogram(console, described["histogram"])
        _print_bands(page, summary)
    _print_draws(page, summary)
    num, k = summary["num_prompts"], summary["num_samples"]
    verdict = "none" if summary["verdict"] is None else summary["verdict"]
    lines = [
        f"mean success  {_interval(summary['mean'])} over {counted(num, 'prompt')}, {k} samples "
        f"each at temperature {described['temperature']:g}",
        f"verdict       {verdict}: {summary['reason']}",
        *described["notes"],
        f"profile       {folder}; train with: --prior {folder / 'prior.parquet'}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _print_histogram(console: Console, histogram: list[int]) -> None:
    """Print a bar for each number of successes, or for a few of them where there are many."""
    step = -(-len(histogram) // _MOST_BARS)
    starts = range(0, len(histogram), step)
    counts = [sum(histogram[start : start + step]) for start in starts]
    block = "#" if console.options.ascii_only else "\u2588"
    title = f"prompts by successes of {len(histogram) - 1} samples"
    console.print(title, style="italic", highlight=False)
    for start, count in zip(starts, counts, strict=True):
        last = min(start + step, len(histogram)) - 1
        label = f"{start}" if last == start else f"{start}-{last}"
        bar = block * -(-_BAR_WIDTH * count // max(counts))
        console.print(f"{label:>7}  {bar:<{_BAR_WIDTH}} {count:,}", highlight=False)


def _print_bands(page: Page, summary: dict[str, Any]) -> None:
    page.head("Share of the prompts by their success")
    rows = []
    for name, success in BANDS.items():
        share = summary["bands"][name]
        rows.append([name, success, f"{share['counted']:.1%}", _interval(share, ".1%")])
    page.table(["band", "success", "counted", "estimated [95%]"], rows)
    page.say("counted: by the rate of the samples; estimated: without the noise of so few samples")


def _print_draws(page: Page, summary: dict[str, Any]) -> None:
    best = "pass@k" if "pass_at_k" in summary else "best@k"
    page.head("Of k completions [95%]")
    rows = []
    for k in map(str, DRAWS):
        if k not in summary["best_at_k"]:
            continue
        dead = summary["no_signal_at_n"].get(k) if int(k) in GROUP_SIZES else None
        best_at, worst_at = summary["best_at_k"][k], summary["worst_at_k"][k]
        no_signal = "-" if dead is None else _interval(dead, ".1%")
        rows.append([k, _interval(best_at), _interval(worst_at), no_signal])
    page.table(["k", best, "worst@k", "no signal"], rows)
    page.say("no signal: share of groups of k that are all wrong or all right")


def _interval(found: dict[str, float], form: str = ".3f") -> str:
    return f"{found['value']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"
