"""An audit as lines and tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from apportion.audit import Audit, Prediction, Summary
from apportion.audit.curve_findings import CurveFindings
from apportion.audit.prompt_findings import Extreme, Forgotten, PromptFindings, PromptRow
from apportion.audit.settings import Settings
from apportion.audit.waste import Waste
from apportion.cli.audit_verdict import (
    interval,
    kinds_of_waste,
    percent,
    spent,
    trust,
    verdict,
)
from apportion.replay import ReplayResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LABELS = {"waste": "wasted", "saving": "saving", "set": "set"}


def print_audit(found: Audit, console: Console) -> None:
    """Print the verdict, what the record cannot support, and every section that it can."""
    _say(console, _read_line(found.summary), style="dim")
    _verdict(console, verdict(found))
    if found.limits:
        _head(console, "What this record cannot support")
        _bullets(console, found.limits)
    if found.summary.notes:
        _head(console, "Notes of the reader")
        _bullets(console, found.summary.notes)
    if found.curves is not None:
        _curves(console, found.curves)
    if found.waste is not None:
        _waste(console, found.waste, found.summary)
    if found.prediction is not None:
        _prediction(console, found.prediction, found.summary)
    if found.replayed is not None:
        _replay(console, found.replayed, found.summary)
    if found.prompts is not None:
        _prompts(console, found.prompts)
    if found.settings is not None:
        _settings(console, found.settings)


def _read_line(summary: Summary) -> str:
    if not summary.num_groups:
        return f"{summary.source}: {summary.num_steps:,} steps, no single rollouts"
    steps = f"{summary.num_steps:,} {'steps' if summary.has_steps else 'visits'}"
    tokens = "" if summary.num_tokens is None else f", {summary.num_tokens:,} tokens"
    return (
        f"{summary.source}: {summary.num_prompts:,} prompts, {steps}, {summary.num_groups:,} "
        f"groups, {summary.num_rollouts:,} rollouts{tokens}, "
        f"mean n = {summary.rollouts_per_prompt:.3g}"
    )


def _verdict(console: Console, lines: dict[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, line in lines.items():
        table.add_row(_LABELS[name], Text(line))
    console.print()
    console.print(table)


def _curves(console: Console, curves: CurveFindings) -> None:
    _head(console, "Over time")
    if curves.parts:
        table = _table("steps", "without signal")
        for first, last, share in curves.parts:
            table.add_row(_span(first, last), f"{share:.1%}")
        console.print(table)
    if curves.first_reward is not None and curves.last_reward is not None:
        _say(
            console,
            f"Mean reward: {curves.first_reward:.3g} in the first fifth, "
            f"{curves.last_reward:.3g} in the last.",
        )


def _waste(console: Console, waste: Waste, summary: Summary) -> None:
    _head(console, "Groups without signal")
    low, high = waste.interval
    shares = waste.shares
    _say(
        console,
        f"{interval(shares.without_signal, low, high)} of groups: {kinds_of_waste(shares)}.",
    )
    _say(console, f"Spent on them: {spent(waste)}.")
    between = any(part.shares.in_between > 0.0 for part in waste.parts)
    unscored = any(part.shares.not_scored > 0.0 for part in waste.parts)
    columns = ["steps" if summary.has_steps else "visits", "groups", "without signal"]
    columns += ["all wrong", "all right"]
    columns += ["in between"] * between + ["not scored"] * unscored
    table = _table(*columns)
    for part in waste.parts:
        row = part.shares
        cells = [row.without_signal, row.all_wrong, row.all_right]
        cells += [row.in_between] * between + [row.not_scored] * unscored
        table.add_row(
            _span(part.first_step, part.last_step),
            f"{row.num_groups:,}",
            *(f"{cell:.1%}" for cell in cells),
        )
    console.print(table)
    _say(
        console,
        f"{waste.num_prompts_without_signal:,} of {waste.num_prompts:,} prompts never gave a "
        f"signal. The worst tenth of prompts holds {waste.worst_tenth_share:.0%} of the waste.",
    )
    if waste.hidden_share:
        _say(
            console,
            f"In {waste.hidden_share:.1%} of the groups without signal the components of the "
            "reward differ and cancel in their sum: other weights would give a signal.",
        )


def _prediction(console: Console, prediction: Prediction, summary: Summary) -> None:
    _head(console, "Share without signal at other n (equal groups)")
    table = _table("n", "without signal [95%]")
    for size in prediction.sizes:
        own = size.rollouts_per_prompt == round(summary.rollouts_per_prompt)
        table.add_row(
            f"{size.rollouts_per_prompt}",
            percent(size.without_signal),
            style="bold" if own else None,
        )
    console.print(table)
    _say(
        console,
        f"Check at the run's own n: {prediction.fitted:.1%} by the fit, {prediction.observed:.1%} "
        "observed.",
    )
    _say(
        console,
        "The most that any allocation could cut of RLOO's gradient variance at the run's n, if "
        f"success were known: {percent(prediction.largest_cut)}.",
    )


def _replay(console: Console, replayed: ReplayResult, summary: Summary) -> None:
    _head(console, "Replay of the allocator")
    low, high = replayed.saving_interval
    num = round(replayed.saving * summary.num_rollouts)
    _say(
        console,
        f"Saving: {interval(replayed.saving, low, high)} of the rollouts, {num:,} of "
        f"{summary.num_rollouts:,}. Smoothed oracle: {replayed.oracle_saving:.1%}.",
    )
    if replayed.uniform_variance > 0.0:
        even = replayed.uniform_variance
        _say(
            console,
            f"Gradient variance over an even split's: {replayed.variance / even:.3f} "
            f"(oracle {replayed.oracle_variance / even:.3f}). "
            f"Even split chosen in {replayed.num_uniform_steps:,} of {replayed.num_steps:,} steps.",
        )
    _say(console, "Less gradient noise for the same sampling is no promise of faster training.")
    _say(
        console,
        f"{trust(replayed)} Squared error {replayed.error:.4f} (global mean "
        f"{replayed.baseline_error:.4f}), noise included; {replayed.coverage:.1%} of group means "
        "in the stated 90% interval; mean squared standardised error "
        f"{replayed.standardised_sq:.2f} (1 is honest).",
    )
    table = _table("forecast", "mean forecast", "observed", "rollouts")
    for at in range(len(replayed.forecast_M)):
        if replayed.num_rollouts_M[at] > 0:
            table.add_row(
                f"{replayed.edge_M[at]:.1f} to {replayed.edge_M[at + 1]:.1f}",
                f"{replayed.forecast_M[at]:.3f}",
                f"{replayed.observed_M[at]:.3f}",
                f"{replayed.num_rollouts_M[at]:,.0f}",
            )
    if table.row_count:
        console.print(table)
    _bullets(console, replayed.notes)


def _prompts(console: Console, prompts: PromptFindings) -> None:
    _head(console, "Prompts")
    _extreme(console, prompts.always_right, "right")
    _extreme(console, prompts.always_wrong, "wrong")
    if prompts.forgotten is not None:
        _forgotten(console, prompts.forgotten)


def _extreme(console: Console, extreme: Extreme, name: str) -> None:
    plural = "" if extreme.num_prompts == 1 else "s"
    line = f"Always {name}: {extreme.num_prompts:,} prompt{plural}"
    if extreme.num_prompts:
        line += (
            f", {extreme.num_revisited:,} seen more than once, median {extreme.median_visits:g} "
            f"visits, {extreme.num_rollouts:,} rollouts"
        )
    _say(console, f"{line}.")
    if extreme.listed:
        table = _table("visits", "rollouts", "prompt")
        for row in extreme.listed:
            table.add_row(f"{row.num_visits:,}", f"{row.num_rollouts:,}", _name(row))
        console.print(table)


def _forgotten(console: Console, forgotten: Forgotten) -> None:
    if not forgotten.num_revisited:
        _say(console, "Forgotten: no prompt was seen twice.")
        return
    _say(
        console,
        f"Forgotten: {forgotten.num_prompts:,} of {forgotten.num_tested:,} prompts tested got "
        "worse from the first to the last third of their visits (Fisher's exact test; of those "
        f"named, some 5% by chance). Observed falls above 0.1, chance included: "
        f"{forgotten.num_lost_tenth:,} of {forgotten.num_revisited:,}.",
    )
    if forgotten.listed:
        table = _table("early", "late", "p-value", "visits", "prompt")
        for row in forgotten.listed:
            table.add_row(
                f"{row.early:.2f}",
                f"{row.late:.2f}",
                f"{row.p_value:.1e}",
                f"{row.num_visits:,}",
                _name(row),
            )
        console.print(table)


def _settings(console: Console, settings: Settings) -> None:
    _head(console, "Settings")
    _bullets(console, settings.reasons)
    for title, lines, arithmetic in (
        ("TRL", settings.trl, settings.trl_arithmetic),
        ("verl", settings.verl, settings.verl_arithmetic),
    ):
        _head(console, title)
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print()
        _say(console, arithmetic)


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="", expand="prompt" in columns)
    for name in columns:
        if name == "prompt":  # takes what the numbers leave
            table.add_column(name, overflow="ellipsis", no_wrap=True, ratio=1)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    return table


def _name(row: PromptRow) -> str:
    from rich.markup import escape

    return escape(" ".join((row.text or row.prompt).split()))


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _head(console: Console, title: str) -> None:
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)


def _say(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, style=style, markup=False, highlight=False)


def _bullets(console: Console, lines: Sequence[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row("-", Text(line))
    if lines:
        console.print(table)
