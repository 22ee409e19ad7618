"""``apportion audit``: what a recorded run's sampling bought, and what to set instead."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import numpy as np
import typer

from apportion import validate
from apportion.audit import Audit, audit, bounds_to_replay, success_counts
from apportion.audit.settings import check_bounds
from apportion.audit.sizes import Bounds, nothing_to_move
from apportion.audit.waste import Rates, is_mostly_single
from apportion.cli.audit_out import FORMAT, check_out
from apportion.cli.audit_verdict import verdict
from apportion.recording import GroupTable
from apportion.state_file import replace_file

VERSION = 1
_COLUMNS, _COST, _OUTPUT = "Columns of a table", "What sampling costs", "Output"

OnStage = Callable[[str, int, int | None], None]


def audit_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Dump or log of one run: files or folders of TRL, verl and others, a run folder "
            "of this package, or a table.",
        ),
    ],
    *,
    prompt_column: Annotated[
        str | None,
        typer.Option(help="Column of the prompt or its key.", rich_help_panel=_COLUMNS),
    ] = None,
    reward_column: Annotated[
        str | None,
        typer.Option(help="Column of the reward, one a rollout.", rich_help_panel=_COLUMNS),
    ] = None,
    step_column: Annotated[
        str | None, typer.Option(help="Column of the training step.", rich_help_panel=_COLUMNS)
    ] = None,
    group_column: Annotated[
        str | None, typer.Option(help="Column of the group's key.", rich_help_panel=_COLUMNS)
    ] = None,
    num_success_column: Annotated[
        str | None,
        typer.Option(help="Column of successes, one a group.", rich_help_panel=_COLUMNS),
    ] = None,
    num_rollouts_column: Annotated[
        str | None,
        typer.Option(help="Column of scored rollouts, one a group.", rich_help_panel=_COLUMNS),
    ] = None,
    tokens_column: Annotated[
        str | None,
        typer.Option(help="Column of completion tokens.", rich_help_panel=_COLUMNS),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(
            help="Column of what the prompt says, where the prompt column holds keys.",
            rich_help_panel=_COLUMNS,
        ),
    ] = None,
    lower: Annotated[
        int | None,
        typer.Option(help="Fewest rollouts a prompt, replayed and recommended; 2 if left out."),
    ] = None,
    upper: Annotated[
        int | None,
        typer.Option(help="Most rollouts a prompt, replayed and recommended; chosen if left out."),
    ] = None,
    gpu_hours: Annotated[
        float | None,
        typer.Option(help="GPU-hours of all sampling of the run.", rich_help_panel=_COST),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(help="Price of a GPU-hour, any currency.", rich_help_panel=_COST),
    ] = None,
    price_per_million_tokens: Annotated[
        float | None,
        typer.Option(
            help="Price of a million completion tokens, any currency.", rich_help_panel=_COST
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Print calibration, lists of prompts and forgetting as well.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    top: Annotated[
        int,
        typer.Option(
            help="Most prompts of each list, with --full and in JSON.", rich_help_panel=_OUTPUT
        ),
    ] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead.", rich_help_panel=_OUTPUT)
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the JSON as well: a new one, or that of an earlier audit.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
) -> None:
    """Say what a run's sampling bought, what adaptive rollouts would have saved, and what to set.

    Shares are of groups (one prompt's rollouts of one step). Intervals are 95%, over prompts. \
Nothing is trained and nothing leaves the machine.
    """
    # Readers and replay load much; help and mistakes in the options need not wait for them.
    from rich.console import Console

    from apportion.cli.audit_tables import print_audit
    from apportion.readers import Columns, read
    from apportion.readers.curves import known
    from apportion.readers.tally import listed
    from apportion.replay import replay_of

    check_bounds(lower, upper)
    rates = Rates(
        gpu_hours=gpu_hours,
        price_per_gpu_hour=price_per_gpu_hour,
        price_per_million_tokens=price_per_million_tokens,
    )
    top = validate.whole_number("top", top, at_least=0)
    if out is not None:
        check_out(out, paths)
    columns = Columns(
        prompt=prompt_column,
        reward=reward_column,
        step=step_column,
        group=group_column,
        num_success=num_success_column,
        num_rollouts=num_rollouts_column,
        tokens=tokens_column,
        text=text_column,
    )
    with _stages(quiet=as_json) as on_stage:
        on_stage("reading", 0, None)
        recording = read(paths, columns)
        replayed, bounds = None, None
        if _can_replay(recording.groups, lower, upper):
            on_stage("replaying", 0, None)
            bounds = bounds_to_replay(recording, lower=lower, upper=upper)
            replayed = replay_of(
                recording.groups,
                reward_range=success_counts(recording.groups, recording.reward_range)[0],
                lower=bounds[0],
                upper=bounds[1],
                progress=lambda done, total: on_stage("replaying", done, total),
            )
        on_stage("fitting", 0, None)
        curves = known(recording.curves)
        found = audit(
            recording,
            replayed,
            curves={
                name: curve
                for name in ("reward", "share_without_signal")
                if (curve := getattr(curves, name)) is not None
            },
            rates=rates,
            lower=lower,
            upper=upper,
            replayed_bounds=bounds,
            name=listed([str(path) for path in paths]),
            num_listed=top,
        )
    text = json.dumps(audit_as_json(found), indent=2, allow_nan=False)
    if as_json:
        print(text)
    else:
        print_audit(found, Console(), full=full)
    if out is not None:  # last: an unwritable path loses nothing that was computed
        replace_file(out, text.encode() + b"\n")


def _can_replay(
    groups: GroupTable | None, lower: int | None, upper: int | None
) -> TypeGuard[GroupTable]:
    """Return whether a decision can be scored, which groups of one cannot, and could differ."""
    if groups is None or not (groups.num_rollouts_G > 1).any() or is_mostly_single(groups):
        return False
    mean = float(groups.num_requested_G.mean())
    return nothing_to_move(mean, Bounds(lower=lower, upper=upper)) is None


def audit_as_json(found: Audit) -> dict[str, Any]:
    """Return an audit as plain values; what is unknown is null, and NaN never occurs.

    Keys are the fields of `Audit` and of what it holds, without axis letters:

    - ``format``, ``version``: of this document
    - ``verdict``: ``waste``, ``saving``, ``set``, a sentence or two each
    - ``summary``: what was read, with ``notes``
    - ``waste``: ``shares`` (of groups), ``interval``, ``parts`` (fifths of the run),
      ``num_rollouts``, ``num_tokens``, ``gpu_hours``, ``cost`` and totals, by prompt; null, as
      are ``prediction``, ``replayed`` and ``settings``, where most groups have one rollout
    - ``prediction``: ``sizes`` (share without signal at other n: ``value``, ``low``, ``high``),
      ``observed`` and ``fitted`` at the run's n, ``largest_cut``, ``filtering``
    - ``replayed``: ``saving``, ``saving_interval``, variances, calibration, ``notes``;
      ``oracle_saving`` and ``oracle_variance`` are with hindsight
    - ``replayed_bounds``: fewest and most rollouts a prompt of the replay
    - ``saved``: ``num_rollouts``, ``gpu_hours``, ``cost`` of the saving, where it can be judged
    - ``prompts``: ``always_right``, ``always_wrong``, ``forgotten``, each with ``listed``
    - ``settings``: ``rollouts_per_prompt``, ``lower``, ``upper``, ``mode``, ``reasons``, lines
    - ``curves``: where there are scalar curves alone
    - ``limits``: sentences on what the record cannot support
    """
    plain: dict[str, Any] = _plain(found)
    return {"format": FORMAT, "version": VERSION, "verdict": verdict(found), **plain}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name.removesuffix("_M"): _plain(getattr(value, name)) for name in names}
    if isinstance(value, np.ndarray | tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value + 0.0 if np.isfinite(value) else None  # -0.0 + 0.0 is 0.0
    return value


@contextmanager
def _stages(*, quiet: bool) -> Iterator[OnStage]:
    """Show on a terminal what is being done; yields what is called with stage, done and total."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        SpinnerColumn("line"),
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as progress:
        task = progress.add_task("reading", total=None)

        def on_stage(stage: str, done: int, total: int | None) -> None:
            progress.update(task, description=stage, completed=done, total=total)

        yield on_stage
