"""Summaries as tables for people."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from apportion.training.config import CHOOSING_ARMS, K, TrainConfig
from apportion.words import counted

_SPLIT_NAMES = {"pool": "pool", "held_out": "held-out"}


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """Print what one run bought."""
    console = Console()
    if summary["success"]:
        table = Table(title="success", title_justify="left")
        for column in ("", "problems", "before", "after", f"pass@{K}", f"worst@{K}"):
            table.add_column(column, justify="left" if not column else "right")
        for split, found in summary["success"].items():
            before, after = found["before"], found["after"]
            table.add_row(
                _SPLIT_NAMES.get(split, split),
                f"{after['num_problems']:,}",
                f"{before['avg']:.4f}",
                f"{after['avg']:.4f}",
                *(f"{before[name]:.3f} -> {after[name]:.3f}" for name in _at_k(after)),
            )
        console.print(table)
    for line in (*_lines(summary), *summary["notes"]):
        console.print(line, highlight=False)
    console.print(f"run folder  {folder}", highlight=False)
    if summary["success"]:
        console.print(
            f"pass@{K}, worst@{K}: expected best and worst reward of {K} rollouts", highlight=False
        )


def print_comparison(result: dict[str, Any], folder: Path) -> None:
    """Print arms side by side, with paired differences to uniform."""
    console = Console()
    config, num_seeds = result["config"], len(result["seeds"])
    splits = list(next(iter(result["arms"].values()))["success"])
    for split in splits:
        name = _SPLIT_NAMES.get(split, split)
        first = next(iter(result["arms"].values()))["success"][split]
        table = Table(
            title=f"mean success on the {name} problems (before: {first['before']:.4f}), "
            f"seeds: {num_seeds}, {result['budget']:,} rollouts each",
            title_justify="left",
        )
        for column in ("arm", "after", "minus uniform, paired [95%]", "rollouts to uniform's end"):
            table.add_column(column, justify="left" if column == "arm" else "right")
        for arm, entry in result["arms"].items():
            found = entry["success"][split]
            table.add_row(
                arm,
                f"{found['after']:.4f}",
                "" if arm == "uniform" else interval(found["difference"], "+.4f"),
                interval(found["share_of_rollouts"], ".2f"),
            )
        console.print(table)
    _print_mechanism(console, result)
    for note in result["notes"]:
        console.print(note, highlight=False)
    data = config["dataset"] or f"pool {config['pool']}"
    console.print(
        f"{data}, n = {config['rollouts_per_prompt']}, "
        f"{config['prompts_per_step']} prompts a step{_choice(result)}, "
        f"learning rate {config['learning_rate']:g}, "
        f"seeds {', '.join(map(str, result['seeds']))}; all runs in {folder}",
        highlight=False,
    )


def _print_mechanism(console: Console, result: dict[str, Any]) -> None:
    bought = ("groups with signal", "gain / uniform", "variance / uniform")
    table = table_of_arms("what the rollouts bought", *bought, "prompts a step", "pool sampled")
    cost = table_of_arms("the allocator", "forecast error", "allocation time", "even steps")
    for arm, entry in result["arms"].items():
        variance = entry.get("gradient_variance")
        table.add_row(
            arm,
            f"{entry['share_with_signal']:.1%}",
            number(entry["gain"], ".2f"),
            f"{variance['against_uniform']:.3f}" if variance else "",
            number(entry["prompts_per_step"], ".0f"),
            number(entry["share_touched"], ".0%"),
        )
        cost.add_row(
            arm,
            number(entry["forecast_error"]["forecast"]),
            f"{entry['allocation_share']:.2%}",
            f"{entry['num_uniform_steps']:.0f}",
        )
    console.print(table)
    console.print(
        f"gain: expected {_measure(result)} of all steps over even ones', variance: of the "
        "gradient; both by the exact success",
        highlight=False,
    )
    console.print(cost)
    error = next(iter(result["arms"].values()))["forecast_error"]
    console.print(
        f"forecast error of a moving average {number(error['moving_average'])}, of ridge "
        f"regression {number(error['ridge'])} (mean absolute, {_judged_by(result)})",
        highlight=False,
    )


def table_of_arms(title: str, *columns: str) -> Table:
    """Return an empty table of a row an arm, numbers to the right."""
    table = Table(title=title, title_justify="left")
    table.add_column("arm", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _lines(summary: dict[str, Any]) -> list[str]:
    error, seconds = summary["forecast_error"], summary["seconds"]
    lines = [
        f"rollouts    {summary['num_rollouts']:,} of {summary['budget']:,} budgeted, "
        f"in {summary['num_steps']} steps",
        f"no signal   {1.0 - summary['share_with_signal']:.1%} of groups had equal rewards",
    ]
    is_even = summary["config"]["arm"] == "uniform"
    config = TrainConfig.from_dict(summary["config"])
    if config.chooses:
        lines += _choice_lines(config, summary)
    expected, variance = summary["expected_variance"], summary["gradient_variance"]
    if expected is not None:
        whose = "adaptive rollouts would have had" if is_even else "the forecasts expected"
        lines.append(f"variance    {whose} {expected:.2f} of an even split's")
    if variance:
        ours = "" if is_even else f"{variance['against_uniform']:.2f} by the exact success, "
        lines.append(f"            {ours}an oracle {variance['oracle_against_uniform']:.2f}")
    is_known = variance or summary["gain"]
    against = "the exact success" if is_known else "the observed means, noise included"
    if error["forecast"] is not None:
        lines.append(
            f"forecast    mean error {error['forecast']:.3f} against {against} "
            f"(moving average {error['moving_average']:.3f}, ridge {error['ridge']:.3f})"
        )
    lines.append(
        f"time        {seconds['steps']:.0f} s in steps, {seconds['allocation_share']:.2%} of it "
        "in allocation"
    )
    even = summary["num_uniform_steps"]
    if even:
        split = "would have been" if is_even else "was"
        lines.append(
            f"even split  {split} made in {even} of {summary['num_steps']} steps, where the "
            "forecast did not decide"
        )
    return lines


def _choice_lines(config: TrainConfig, summary: dict[str, Any]) -> list[str]:
    """Say which prompts were chosen, and what that promised and was worth."""
    touched = summary["share_touched"]
    of_pool = "" if touched is None else f"; {touched:.0%} of the pool was sampled at least once"
    lines = [
        f"prompts     {summary['prompts_per_step']:.1f} a step, chosen for {config.goal} among "
        f"{_among(config, summary['num_candidates'])}{of_pool}"
    ]
    parts = []
    if summary["expected_gain"] is not None:
        parts.append(f"the forecasts expected {summary['expected_gain']:.2f} times an even split's")
    if summary["gain"] is not None and summary["gain"]["median"] is not None:
        parts.append(f"it was {summary['gain']['median']:.2f} by the exact success")
    if not parts:
        return lines
    decided = counted(summary["num_steps"] - summary["num_uniform_steps"], "step")
    measure = f"expected {config.goal}, median of the {decided} in which the forecast decided"
    return [*lines, f"gain        {measure}: {', '.join(parts)}"]


def _among(config: TrainConfig, num_candidates: float | None) -> str:
    """Say how many candidates a step had: what was asked for, or all where there are fewer."""
    if num_candidates is None or num_candidates == config.num_candidates:
        return f"{config.candidates} x {config.prompts_per_step}"
    return f"all {num_candidates:,.0f} prompts"


def _measure(result: dict[str, Any]) -> str:
    return "coverage" if result["config"]["objective"] == "coverage" else "progress"


def _judged_by(result: dict[str, Any]) -> str:
    entries = result["arms"].values()
    known = all("gradient_variance" in entry or entry["gain"] is not None for entry in entries)
    return "against the exact success" if known else "against the observed means, noise included"


def number(value: float | None, form: str = ".3f") -> str:
    """Return a number; nothing where it is unknown, and "never" where it is infinite."""
    if value is None:
        return ""
    return "never" if math.isinf(value) else f"{value:{form}}"


def _choice(result: dict[str, Any]) -> str:
    config = TrainConfig.from_dict(result["config"])
    arms = [arm for arm in result["arms"] if arm in CHOOSING_ARMS]
    if config.objective == "variance" or not arms:
        return ""
    num = result["arms"][arms[0]].get("num_candidates")
    verb = "choose" if len(arms) > 1 else "chooses"
    among = _among(replace(config, arm=arms[0]), num)
    return f" ({' and '.join(arms)} {verb} for {config.objective} among {among})"


def _at_k(values: dict[str, Any]) -> list[str]:
    return [name for name in values if "@" in name]


def interval(value: dict[str, Any], form: str) -> str:
    """Return a mean with its interval, which one seed does not have; None and infinity are never.

    >>> interval({"num_seeds": 2, "mean": 0.5, "low": 0.25, "high": None}, ".2f")
    '0.50 [0.25, never]'
    """
    mean, low, high = (
        number(math.inf if value[name] is None else value[name], form)
        for name in ("mean", "low", "high")
    )
    # In square brackets a word would be markup; where the lower end is never, all three are.
    return mean if value["num_seeds"] == 1 or low == "never" else f"{mean} [{low}, {high}]"
