"""An audit as lines and tables for people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from apportion.audit import Audit, Prediction, Summary
from apportion.audit.configuration_lines import NO_VERL_ADAPTER, TRL, VERL, frameworks
from apportion.audit.curve_findings import CurveFindings
from apportion.audit.prompt_findings import Extreme, Forgotten, PromptFindings, PromptRow
from apportion.audit.settings import Settings
from apportion.audit.waste import Waste
from apportion.cli.audit_layout import Page
from apportion.cli.audit_verdict import (
    HINDSIGHT,
    SINGLE,
    has_intervals,
    helps_with_hindsight,
    percent,
    verdict,
)
from apportion.replay import ReplayResult
from apportion.words import counted

if TYPE_CHECKING:
    from rich.console import Console

_LABELS = {"waste": "wasted", "saving": "saving", "set": "set"}
_KEY = re.compile(r"[0-9a-f]{16}")


def print_audit(found: Audit, console: Console, *, full: bool = False) -> None:
    """Print the verdict, what the record cannot support, and what can be set.

    Args:
        found: of `audit`.
        console: a terminal, where sentences are wrapped, or a file, where they are not.
        full: whether to print calibration, prompts and forgetting as well.
    """
    page = Page(console)
    page.say(_read_line(found.summary), style="dim")
    page.line()
    page.labelled({_LABELS[name]: sentence for name, sentence in verdict(found).items()})
    for title, sentences in (
        ("What this record cannot support", found.limits),
        ("Notes of the reader", found.summary.notes),
    ):
        if sentences:
            page.head(title)
            page.bullets(sentences)
    if found.curves is not None:
        _curves(page, found.curves)
    if found.summary.is_mostly_single:
        page.head("Groups without signal")
        page.say(SINGLE)
    if found.waste is not None:
        _waste(page, found.waste, found.summary, is_sample=has_intervals(found))
    if found.prediction is not None:
        _prediction(page, found, found.prediction, full=full)
    if found.replayed is not None:
        _replay(page, found, found.replayed, full=full)
    if found.prompts is not None:
        _prompts(page, found, found.prompts, full=full)
    if found.settings is not None:
        _settings(page, found.settings, found.summary.source)


def _read_line(summary: Summary) -> str:
    if not summary.num_groups:
        return f"{summary.source}: {counted(summary.num_steps, 'step')}, no single rollouts"
    parts = [
        counted(summary.num_prompts, "prompt"),
        counted(summary.num_steps, "step" if summary.has_steps else "visit"),
        counted(summary.num_groups, "group"),
        counted(summary.num_rollouts, "rollout"),
    ]
    if summary.num_tokens is not None:
        parts.append(counted(summary.num_tokens, "token"))
    return f"{summary.source}: {', '.join(parts)}, mean n = {summary.rollouts_per_prompt:.3g}"


def _curves(page: Page, curves: CurveFindings) -> None:
    page.head("Over time")
    if curves.parts:
        rows = [(_span(first, last), f"{share:.1%}") for first, last, share in curves.parts]
        page.table(("steps", "without signal"), rows)
    if curves.first_reward is not None and curves.last_reward is not None:
        page.say(
            f"Mean reward: {curves.first_reward:.3g} in the first fifth, "
            f"{curves.last_reward:.3g} in the last."
        )


def _waste(page: Page, waste: Waste, summary: Summary, *, is_sample: bool) -> None:
    page.head("Groups without signal")
    between = any(part.shares.in_between > 0.0 for part in waste.parts)
    unscored = any(part.shares.not_scored > 0.0 for part in waste.parts)
    columns = ["steps" if summary.has_steps else "visits", "groups", "without signal"]
    columns += ["all wrong", "all right"]
    columns += ["in between"] * between + ["not scored"] * unscored
    rows = []
    for part in waste.parts:
        row = part.shares
        cells = [row.without_signal, row.all_wrong, row.all_right]
        cells += [row.in_between] * between + [row.not_scored] * unscored
        span = _span(part.first_step, part.last_step)
        rows.append((span, f"{row.num_groups:,}", *(f"{cell:.1%}" for cell in cells)))
    page.table(columns, rows)
    low, high = waste.interval
    if is_sample and low < high:
        page.say(f"95% interval of the whole run's share: {low:.1%} to {high:.1%}.")
    if waste.num_rollouts:
        page.say(
            f"{waste.num_prompts_without_signal:,} of {counted(waste.num_prompts, 'prompt')} never "
            f"gave a signal. The worst tenth of prompts holds {waste.worst_tenth_share:.0%} of the "
            "waste."
        )
    if waste.hidden_share:
        page.say(
            f"In {waste.hidden_share:.1%} of the groups without signal the components of the "
            "reward differ and cancel in their sum: other weights would give a signal."
        )


def _prediction(page: Page, found: Audit, prediction: Prediction, *, full: bool) -> None:
    is_sample = has_intervals(found)
    page.head("Share without signal at other n (equal groups)")
    own = round(found.summary.rollouts_per_prompt)
    sizes = [size.rollouts_per_prompt for size in prediction.sizes]
    page.table(
        ("n", "without signal [95%]" if is_sample else "without signal"),
        [
            (str(size.rollouts_per_prompt), percent(size.without_signal, is_sample=is_sample))
            for size in prediction.sizes
        ],
        bold=sizes.index(own) if own in sizes else None,
    )
    if full:
        page.say(
            f"Check at the run's own n: {prediction.fitted:.1%} by the fit, "
            f"{prediction.observed:.1%} observed."
        )
    page.say(
        "The most that any allocation could cut of RLOO's gradient variance at the run's n, if "
        f"success were known: {percent(prediction.largest_cut, is_sample=is_sample)}."
    )


def _replay(page: Page, found: Audit, replayed: ReplayResult, *, full: bool) -> None:
    if found.settings is not None and found.settings.nothing_to_move is not None:
        return
    page.head("Replay of the allocator")
    if not found.is_judged:
        page.say("Too few second visits to judge: --json has the replay.")
        return
    parts = [*_replayed(found, replayed), *replayed.notes]
    parts.append("Less gradient variance for the same sampling is no promise of faster training.")
    page.say(" ".join(parts))
    if full:
        _calibration(page, replayed)


def _replayed(found: Audit, replayed: ReplayResult) -> list[str]:
    bounds = found.replayed_bounds
    within = "" if bounds is None else f" with {bounds[0]} to {bounds[1]} rollouts a prompt"
    begin = f"Replayed{' on the chosen prompts' if found.summary.was_chosen else ''}{within}"
    amount = ""
    if found.saved is not None:
        amount = f" The saving is {found.saved.num_rollouts:,} of "
        amount += f"{counted(found.summary.num_rollouts, 'rollout')}."
    even = f"Even split chosen in {replayed.num_uniform_steps:,} of "
    even += f"{counted(replayed.num_steps, 'step')}."
    if not replayed.uniform_variance > 0.0:
        return [f"{begin}.", even]
    level = replayed.uniform_variance
    line = f"{begin}: {replayed.variance / level:.3f} of the gradient variance of an even split"
    if helps_with_hindsight(replayed):
        meaning = f", {HINDSIGHT}" if replayed.saving <= 0.0 else ""
        line += f" ({replayed.oracle_variance / level:.3f} with hindsight{meaning})"
    return [f"{line}.{amount}", even]


def _calibration(page: Page, replayed: ReplayResult) -> None:
    rows = [
        (
            f"{replayed.edge_M[at]:.1f} to {replayed.edge_M[at + 1]:.1f}",
            f"{replayed.forecast_M[at]:.3f}",
            f"{replayed.observed_M[at]:.3f}",
            f"{replayed.num_rollouts_M[at]:,.0f}",
        )
        for at in range(len(replayed.forecast_M))
        if replayed.num_rollouts_M[at] > 0
    ]
    if rows:
        page.table(("forecast", "mean forecast", "observed", "rollouts"), rows)
    page.say(
        f"Squared error of the forecasts {replayed.error:.4f}, of the global mean "
        f"{replayed.baseline_error:.4f}, noise included. Mean squared error over stated variance: "
        f"{replayed.standardised_sq:.2f} (1 is honest doubt)."
    )


def _prompts(page: Page, found: Audit, prompts: PromptFindings, *, full: bool) -> None:
    page.head("Prompts")
    _extreme(page, prompts.always_right, "right", full=full)
    _extreme(page, prompts.always_wrong, "wrong", full=full)
    if prompts.forgotten is not None:
        _forgotten(page, prompts.forgotten, is_judged=found.has_second_visits, full=full)
    if not full:
        page.say("Lists of prompts, calibration and more: --full.")


def _extreme(page: Page, extreme: Extreme, name: str, *, full: bool) -> None:
    line = f"Always {name}: {counted(extreme.num_prompts, 'prompt')}"
    if extreme.num_prompts:
        visits = f"{extreme.median_visits:g} visit{'' if extreme.median_visits == 1.0 else 's'}"
        line += (
            f", {extreme.num_revisited:,} seen more than once, median {visits}, "
            f"{counted(extreme.num_rollouts, 'rollout')}"
        )
    page.say(f"{line}.")
    named = [row for row in extreme.listed if _has_words(row)]
    if full and named:
        page.table(
            ("visits", "rollouts", "prompt"),
            [(f"{row.num_visits:,}", f"{row.num_rollouts:,}", _name(row)) for row in named],
        )


def _forgotten(page: Page, forgotten: Forgotten, *, is_judged: bool, full: bool) -> None:
    if not is_judged:
        page.say("Forgotten: too few second visits to judge.")
        return
    if not forgotten.num_tested:
        page.say("Forgotten: no prompt came often enough to show it.")
        return
    amount = f"{forgotten.num_prompts:,}" if forgotten.num_prompts else "none"
    page.say(f"Forgotten: {amount} of {forgotten.num_tested:,} that could show it.")
    if not full:
        return
    page.say(
        "That is, worse in the last third of their visits than in the first (Fisher's exact test; "
        "of those named, some 5% by chance). Observed falls above 0.1, chance included: "
        f"{forgotten.num_lost_tenth:,} of {forgotten.num_revisited:,}."
    )
    named = [row for row in forgotten.listed if _has_words(row)]
    if named:
        page.table(
            ("early", "late", "p-value", "visits", "prompt"),
            [
                (
                    f"{row.early:.2f}",
                    f"{row.late:.2f}",
                    f"{row.p_value:.1e}",
                    f"{row.num_visits:,}",
                    _name(row),
                )
                for row in named
            ],
        )


def _settings(page: Page, settings: Settings, source: str) -> None:
    page.head("Settings")
    page.bullets(settings.reasons)
    lines_of = {
        TRL: (settings.trl, settings.trl_arithmetic),
        VERL: (settings.verl, settings.verl_arithmetic),
    }
    named = frameworks(source)
    for name in named:
        lines, arithmetic = lines_of[name]
        page.head(name)
        for line in lines:
            page.line(line)
        page.line()
        # The verdict says it where verl stands alone.
        page.say(arithmetic if len(named) > 1 else arithmetic.removesuffix(NO_VERL_ADAPTER))


def _has_words(row: PromptRow) -> bool:
    """Return whether a prompt is known by more than a key."""
    return _KEY.fullmatch(row.text or row.prompt) is None


def _name(row: PromptRow) -> str:
    return " ".join((row.text or row.prompt).split())


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"
