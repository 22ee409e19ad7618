"""What the runs of a sweep say, as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from apportion.cli.audit_layout import Page
from apportion.plan.published import SATURATION, STILL_RISING
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
        content: of `apportion.cli.fit_content.fitted`.
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
        page.say(content["no_best"] or f"By rollouts spent: {best_of(content, curves)}.")
    if content["crossovers"]:
        _crossovers(page, content["crossovers"], curves)
    if content["law"] is not None:
        _law(page, content["law"])
        _rivals(page, content["rivals"])
    if content["backtest"] is not None:
        _backtest(page, content["backtest"], curves)
    if content["groups"]:
        page.head("Which n is best for each B_p and allocator")
        page.bullets(
            [_part(one, f"B_p = {one['prompts_per_step']}", curves) for one in content["groups"]]
        )
    if content["fixed_batch"]:
        page.head("Rollouts or prompts: n x B_p at a fixed batch, by steps")
        page.bullets(
            [
                _part(one, f"{one['batch']:,} rollouts a step", curves)
                for one in content["fixed_batch"]
            ]
        )
    if content["warnings"]:
        page.head("What these runs cannot tell")
        page.bullets(content["warnings"])


def best_of(part: Mapping[str, Any], curves: Sequence[Mapping[str, Any]]) -> str:
    """Say which setting is best up to where; of those that pass in doubt, all.

    Args:
        part: ``frontier`` and ``crossovers``, over ``compute`` or over ``steps``.
        curves: that its settings are among.
    """
    frontier = part["frontier"]
    axis, show = ("steps", "{:,.0f}".format) if "steps" in frontier else ("compute", amount)
    name_of = _names(curves)
    number_of = {_key(curve): number for number, curve in enumerate(curves)}
    # Of curves that cross to and fro, the last time counts.
    last_of = {
        (number_of[_key(one["leaving"])], number_of[_key(one["entering"])]): one
        for one in part["crossovers"]
    }
    order = [number for number, _ in groupby(frontier["curve"])]
    best = [order[0]]
    said = []
    for at, (leaving, entering) in enumerate(pairwise(order), start=1):
        one = last_of.get((leaving, entering))
        if one is not None and one["share_of_draws"] >= _SURE and leaving not in order[at:]:
            said.append(f"{_either(best, curves, name_of)} up to {show(one[axis]['value'])}")
            best = []
        best.append(entering)
    end = show(frontier[axis][-1])
    said.append(f"{_either(best, curves, name_of)} up to {end}, where the runs end")
    return f"{', '.join(said)} (reward {frontier['reward'][-1]:.3f})"


def _part(part: Mapping[str, Any], label: str, curves: Sequence[Mapping[str, Any]]) -> str:
    """Say which setting is best among those that share what the label says."""
    if _has_several(curves, "allocator"):
        label += f", {part['allocator']}"
    return f"{label}: {part['no_best'] or best_of(part, curves) + '.'}{_summary(part['law'])}"


def _summary(law: Mapping[str, Any] | None) -> str:
    return "" if law is None else f" {_levels_off(law)}"


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
    page.say(f"{_levels_off(law)} Published: {_published()}.")
    if law["advice"]:
        page.say(law["advice"])


def _levels_off(law: Mapping[str, Any]) -> str:
    """Say which n a law goes to."""
    top = law["saturation"]
    if top["high"] is None:
        return f"Where n* levels off is open: {top['low']:,.0f} or more."
    return f"n* levels off at {top['value']:,.0f} [{top['low']:,.0f}, {top['high']:,.0f}]."


def _published() -> str:
    """Return where n levelled off in other people's runs, by difficulty."""
    said = []
    for difficulty in ("easy", "hard"):
        found = [
            f"{n} or more" if key in STILL_RISING else str(n)
            for key, n in SATURATION.items()
            if key[1] == difficulty
        ]
        said.append(f"{', '.join(found)} on {difficulty} problems")
    return " and ".join(said)


def _rivals(page: Page, rivals: Mapping[str, float | None]) -> None:
    page.head("Laws by their error on larger compute than they were fitted to")
    rows = [
        [name.replace("_", " "), _NO_ERROR if error is None else f"{error:.2f}"]
        for name, error in rivals.items()
    ]
    page.table(["law", "doublings of n"], rows)
    if next(iter(rivals), None) != "sigmoid":
        page.say("Another law predicts better than the sigmoid above: do not extrapolate by that.")


def _backtest(page: Page, found: Mapping[str, Any], curves: Sequence[Mapping[str, Any]]) -> None:
    page.head("Put to the test: choices from the first part of these runs")
    name_of = _names(curves)
    choices = {
        "plan": found["planner"],
        "what led then": found["stay"],
        **{f"{name.replace('_', ' ')} law": one for name, one in found["laws"].items()},
    }
    has_more = any(one["regret"] != one["regret_of_n"] for one in choices.values())
    names = ["regret", "regret_of_n"] if has_more else ["regret"]
    rows = [
        [label, name_of(one), *(f"{one[name]:.4f}" for name in names)]
        for label, one in choices.items()
    ]
    page.table(["chosen by", "n", "reward lost", "that n at best"][: 2 + len(names)], rows)
    error = "" if found["error"] is None else f"; a difference errs by {found['error']:.4f}"
    plan = found["planner"]
    page.say(
        f"Known up to {amount(found['known_to'])} rollouts, judged at {amount(found['compute'])}, "
        f"where {name_of(found['best'])} was best with {found['best']['reward']:.3f}{error}. The "
        f"plan foretold {plan['low']:.3f} to {plan['high']:.3f} and reached "
        f"{found['best']['reward'] - plan['regret']:.3f}."
    )


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
