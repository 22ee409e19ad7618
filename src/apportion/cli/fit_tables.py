"""What the runs of a sweep say, as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from apportion.cli.audit_layout import Page
from apportion.words import counted

if TYPE_CHECKING:
    from rich.console import Console

_LAW = "log2 n*(C) = L / (1 + exp(-k (log10 C - log10 C0))) + b"
_SYMBOL = {"log10_C0": "log10 C0"}
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_ONE_PASS, _NO_ERROR = "one_pass", "too few points"
_SURE = 0.5
"""Share of the refits below which a crossover is in doubt."""


def print_fit(content: Mapping[str, Any], console: Console, *, num_draws: int) -> None:
    """Print curves, crossovers, the law and its rivals, and what stands against them.

    Args:
        content: of `apportion.cli.fit.fitted`.
        console: a terminal, where sentences are wrapped, or a file, where they are not.
        num_draws: resampled sets of runs behind the intervals.
    """
    page = Page(console)
    curves = content["curves"]
    num_runs = sum(len(curve["runs"]) for curve in curves)
    page.say(
        f"{counted(num_runs, 'run')} of {counted(len(curves), 'setting')}; intervals are 90%, from "
        f"{counted(num_draws, 'refit')} to resampled runs.",
        style="dim",
    )
    _curves(page, curves)
    if content["frontier"] is not None:
        page.head("Which n is best")
        page.say(content["no_best"] or best_by_compute(content))
    if content["crossovers"]:
        _crossovers(page, content["crossovers"], curves)
    if content["law"] is not None:
        _law(page, content["law"])
        _rivals(page, content["rivals"])
    if content["warnings"]:
        page.head("What these runs cannot tell")
        page.bullets(content["warnings"])


def best_by_compute(content: Mapping[str, Any]) -> str:
    """Say which setting is best up to which compute; of those that pass in doubt, all."""
    curves, frontier = content["curves"], content["frontier"]
    name_of = _names(curves)
    number_of = {_key(curve): number for number, curve in enumerate(curves)}
    sure = {
        (number_of[_key(one["leaving"])], number_of[_key(one["entering"])]): one["compute"]["value"]
        for one in content["crossovers"]
        if one["share_of_draws"] >= _SURE
    }
    order = [number for number, _ in groupby(frontier["curve"])]
    best = [order[0]]
    parts = []
    for leaving, entering in pairwise(order):
        if (leaving, entering) in sure:
            parts.append((best, sure[leaving, entering]))
            best = []
        best.append(entering)
    said = [f"{_either(best, curves, name_of)} up to {amount(end)}" for best, end in parts]
    end = amount(frontier["compute"][-1])
    said.append(f"{_either(best, curves, name_of)} up to {end}, where the runs end")
    return f"By rollouts spent: {', '.join(said)} (reward {frontier['reward'][-1]:.3f})."


def _either(
    numbers: Sequence[int],
    curves: Sequence[Mapping[str, Any]],
    name_of: Callable[[Mapping[str, Any]], str],
) -> str:
    return " or ".join(name_of(curves[number]) for number in dict.fromkeys(numbers))


def amount(rollouts: float) -> str:
    """Return a number of rollouts in three digits.

    >>> amount(264_549), amount(2.668e6), amount(512), amount(999_900)
    ('265k', '2.67M', '512', '1.00M')
    """
    for unit, letter in _UNITS:
        share = rollouts / unit
        if share >= 0.9995:
            return f"{share:.{max(2 - len(str(int(share * 1.0005))) + 1, 0)}f}{letter}"
    return f"{rollouts:.0f}"


def _curves(page: Page, curves: Sequence[Mapping[str, Any]]) -> None:
    page.head("Learning curves")
    has_rates = any(curve["learning_rate"] is not None for curve in curves)
    is_numbered = _needs_numbers(curves)
    notes: dict[str, int] = {}
    rows = []
    for number, curve in enumerate(curves, start=1):
        advice = curve["advice"]
        rows.append(
            [
                *([f"#{number}"] if is_numbered else []),
                f"{curve['rollouts_per_prompt']:,}",
                f"{curve['prompts_per_step']:,}",
                *([_rate(curve["learning_rate"])] if has_rates else []),
                str(len(curve["runs"])),
                curve["form"],
                f"{curve['last_reward']:.3f}",
                "" if curve["ceiling"] is None else _interval(curve["ceiling"], "{:.3f}".format),
                str(notes.setdefault(advice, len(notes) + 1)) if advice else "-",
            ]
        )
    titles = [*(["#"] if is_numbered else []), "n", "B_p", *(["rate"] if has_rates else [])]
    page.table([*titles, "runs", "form", "last", "ceiling", "note"], rows)
    for advice, note in notes.items():
        page.say(f"{note}: {advice}")
    if is_numbered:
        shown = [f"#{at} {curve['allocator']}" for at, curve in enumerate(curves, start=1)]
        page.say(f"Allocators: {', '.join(shown)}.")
    elif curves[0]["allocator"] != "uniform":
        page.say(f"Allocator: {curves[0]['allocator']}.")


def _crossovers(
    page: Page, crossovers: Sequence[Mapping[str, Any]], curves: Sequence[Mapping[str, Any]]
) -> None:
    page.head("Crossovers")
    name_of = _names(curves)
    has_passes = any(one["passes"] is not None for one in crossovers)
    rows = [
        [
            f"{name_of(one['leaving'])} -> {name_of(one['entering'])}",
            _interval(one["compute"], amount),
            f"{one['reward']:.3f}",
            f"{one['share_of_draws']:.0%}{'' if one['share_of_draws'] >= _SURE else ' ?'}",
            *(["" if one["passes"] is None else f"{one['passes']:.2g}"] if has_passes else []),
        ]
        for one in crossovers
    ]
    title = "n x B_p" if _has_several(curves, "prompts_per_step") else "n"
    columns = [title, "rollouts", "reward", "of draws", *(["passes"] if has_passes else [])]
    page.table(columns, rows)
    if any(one["share_of_draws"] < _SURE for one in crossovers):
        page.say("?: in less than half of the refits, so it may be noise.")
    if has_passes:
        page.say("passes: over the training prompts at the larger n, C / (n D).")


def _law(page: Page, law: Mapping[str, Any]) -> None:
    page.head("Law of the best n")
    page.say(f"{_LAW}, C in rollouts")
    rows = []
    for name, one in law["parameters"].items():
        interval = "" if one["low"] is None else f"[{one['low']:.2f}, {one['high']:.2f}]"
        told = "yes" if one["is_identified"] else "not identified"
        rows.append([_SYMBOL.get(name, name), f"{one['value']:.2f}", interval, told])
    page.table(["parameter", "value", "interval", "identified"], rows)
    value = {name: one["value"] for name, one in law["parameters"].items()}
    low, high = 2.0 ** value["b"], 2.0 ** (value["b"] + value["L"])
    page.say(
        f"n* goes from {low:.3g} to {high:.3g}, half-way (in doublings) at "
        f"{amount(10.0 ** value['log10_C0'])} rollouts; typical miss {law['rmse']:.2f} doublings."
    )
    if law["advice"]:
        page.say(law["advice"])


def _rivals(page: Page, rivals: Mapping[str, float | None]) -> None:
    page.head("Laws by their error on larger compute than they were fitted to")
    rows = [
        [name.replace("_", " "), _NO_ERROR if error is None else f"{error:.2f}"]
        for name, error in rivals.items()
    ]
    page.table(["law", "doublings of n"], rows)
    if next(iter(rivals), None) != "sigmoid":
        page.say("Another law predicts better than the sigmoid above: do not extrapolate by that.")


def _names(curves: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], str]:
    """Return what names a setting: n, times B_p if there are several, and its number if need be."""
    has_several, is_numbered = _has_several(curves, "prompts_per_step"), _needs_numbers(curves)
    number_of = {_key(curve): number for number, curve in enumerate(curves, start=1)}

    def name(setting: Mapping[str, Any]) -> str:
        prompts = f" x {setting['prompts_per_step']}" if has_several else ""
        number = f" #{number_of[_key(setting)]}" if is_numbered else ""
        return f"{setting['rollouts_per_prompt']}{prompts}{number}"

    return name


def _needs_numbers(curves: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether n and B_p do not tell settings apart, or allocators differ."""
    sizes = {(curve["rollouts_per_prompt"], curve["prompts_per_step"]) for curve in curves}
    return len(sizes) < len(curves) or _has_several(curves, "allocator")


def _has_several(curves: Sequence[Mapping[str, Any]], name: str) -> bool:
    return len({curve[name] for curve in curves}) > 1


def _key(setting: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("rollouts_per_prompt", "prompts_per_step", "learning_rate", "allocator")
    return tuple(setting[name] for name in names)


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def _interval(spread: Mapping[str, float], show: Callable[[float], str]) -> str:
    if spread["low"] is None:
        return show(spread["value"])
    return f"{show(spread['value'])} [{show(spread['low'])}, {show(spread['high'])}]"
