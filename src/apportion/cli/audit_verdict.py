"""The three lines that an audit comes down to."""

from __future__ import annotations

import math

from apportion.audit import Audit
from apportion.audit.choice import Choice
from apportion.audit.configuration_lines import VERL, frameworks
from apportion.audit.curve_findings import CurveFindings
from apportion.audit.limits import FEW_PROMPTS
from apportion.audit.saved import Saved
from apportion.audit.settings import TOO_SURE, Settings
from apportion.audit.waste import Shares, Waste
from apportion.replay import ReplayResult
from apportion.success_distribution import Estimate
from apportion.words import counted, times

SINGLE = (
    "Unknown: most groups of this record have one rollout. If several rollouts share a prompt and "
    "a step, name the columns that say so: --group-column, or --prompt-column and --step-column."
)
HINDSIGHT = "the same rule told the other visits, later ones too"
_SKILL = 0.05
_TOO_CAREFUL = 1.0 / TOO_SURE
_LITTLE = 0.05
"""Saving with hindsight below which there was little to move."""


def verdict(found: Audit) -> dict[str, str]:
    """Return a sentence or more each on the waste, on the saving, and on what to set."""
    if found.summary.is_mostly_single:
        return {
            "waste": SINGLE,
            "saving": "Nothing was replayed.",
            "set": "Unknown as well: the n of the run is not known.",
        }
    if found.waste is None or found.settings is None:
        return {
            "waste": _curve_waste(found.curves),
            "saving": "Cannot be said without rollouts.",
            "set": "Log rollouts and audit again.",
        }
    return {"waste": _waste(found), "saving": _saving(found), "set": _set(found)}


def trust(replayed: ReplayResult) -> str:
    """Say how far the forecasts can be trusted.

    Skill is ``1 - (squared error) / (squared error of the running global mean)``; doubt is honest
    if the mean squared standardised error is near 1.
    """
    skill = _skill(replayed)
    if not skill > _SKILL:
        return "The forecasts know no more than the mean success of all prompts."
    share = f"{skill:.0%} less squared error than the mean success of all prompts"
    if math.isfinite(replayed.coverage):
        share += f"; their stated 90% intervals hold {replayed.coverage:.1%}"
    square = replayed.standardised_sq
    if square > TOO_SURE:
        return f"The forecasts help, but are too sure of themselves: {share}."
    if square < _TOO_CAREFUL:
        return f"The forecasts help, and are surer than they say: {share}."
    if math.isnan(square):
        return f"The forecasts help: {share}."
    return f"The forecasts can be trusted: {share}."


def helps_with_hindsight(replayed: ReplayResult) -> bool:
    """Return whether hindsight saves more than the forecasts: it is an estimate, and may not."""
    return replayed.oracle_saving > max(replayed.saving, 0.0)


def has_intervals(found: Audit) -> bool:
    """Return whether prompts are enough to be taken as a sample."""
    return found.summary.num_prompts >= FEW_PROMPTS


def percent(value: Estimate, *, is_sample: bool = True) -> str:
    """Return a share with its interval.

    >>> percent(Estimate(value=0.5, low=0.25, high=0.75))
    '50.0% [25.0, 75.0]'
    """
    return interval(value.value, value.low, value.high, is_sample=is_sample)


def interval(value: float, low: float, high: float, *, is_sample: bool = True) -> str:
    """Return a share with its interval; alone where the ends agree or prompts are no sample.

    >>> interval(-1e-9, -1e-9, -1e-9)
    '0.0%'
    """
    if not is_sample or not low < high:
        return f"{_hundredth(value)}%"
    return f"{_hundredth(value)}% [{_hundredth(low)}, {_hundredth(high)}]"


def kinds_of_waste(shares: Shares) -> str:
    """Return what groups without signal were, in shares of all groups.

    >>> kinds_of_waste(Shares(num_groups=4, with_signal=0.5, all_wrong=0.25, all_right=0.25,
    ...                       in_between=0.0, not_scored=0.0))
    '25.0% all wrong, 25.0% all right'
    """
    named = [(shares.all_wrong, "all wrong"), (shares.all_right, "all right")]
    if shares.in_between > 0.0:
        named.append((shares.in_between, "equal in between"))
    return ", ".join(f"{share:.1%} {name}" for share, name in named)


def spent(waste: Waste) -> str:
    """Return what the groups without signal cost, in every unit that is known."""
    parts = [f"{waste.num_rollouts:,} of {waste.total_rollouts:,} rollouts"]
    if waste.num_tokens is not None and waste.total_tokens is not None:
        parts.append(f"{waste.num_tokens:,} of {waste.total_tokens:,} tokens")
    if waste.gpu_hours is not None:
        parts.append(f"{waste.gpu_hours:,.1f} GPU-hours")
    if waste.cost is not None:
        parts.append(f"at your price {waste.cost:,.2f}")
    return ", ".join(parts)


def _waste(found: Audit) -> str:
    waste = found.waste
    if waste is None:
        return ""
    prediction = found.prediction
    if prediction is not None and prediction.filtering.found:
        return (
            f"Unknown: groups without signal were thrown away before they were recorded, about "
            f"{prediction.filtering.share_before:.0%} of those sampled."
        )
    line = "None: no group was without signal."
    if waste.num_rollouts:
        line = (
            f"{waste.shares.without_signal:.1%} of groups bought no gradient "
            f"({kinds_of_waste(waste.shares)}): {spent(waste)}."
        )
    if waste.shares.not_scored > 0.0:
        line += f" {waste.shares.not_scored:.1%} of groups have no score, and are not in this."
    if found.summary.was_chosen:
        line += " The prompts were chosen: this speaks of them, not of all of the data."
    return line


def _saving(found: Audit) -> str:
    choice = found.summary.choice
    if choice is not None and choice.is_followed:
        return _bought_by_a_choice(found, choice)
    said = _saving_of_a_split(found)
    if choice is None:
        return said
    expected = _expected(choice, "would have expected")
    return f"{said} This is of splitting a batch alone, not of choosing prompts.{expected}"


def _bought_by_a_choice(found: Audit, choice: Choice) -> str:
    """Say what a record of chosen prompts tells of what the choice bought: hardly anything."""
    line = "Cannot be said: the run chose its prompts, and those it left out are not recorded."
    line += _expected(choice, "expected")
    if found.replayed is None or not found.is_judged:
        return line
    judged = trust(found.replayed)
    return f"{line} On the chosen prompts, {judged[0].lower()}{judged[1:]}"


def _expected(choice: Choice, verb: str) -> str:
    """Return what the run's own forecasts promised, if it was logged."""
    if choice.expected_gain is None:
        return ""
    return (
        f" Its own forecasts {verb} {choice.expected_gain:.2f} times the {choice.objective} of an "
        f"even step (median of the {counted(choice.num_decided, 'step')} in which they decided): "
        "a promise, not a measurement."
    )


def _saving_of_a_split(found: Audit) -> str:
    replayed, use = found.replayed, found.settings
    if use is not None and use.nothing_to_move is not None:
        return use.nothing_to_move
    if replayed is None:
        return "Nothing was replayed."
    if not found.is_judged:
        return (
            f"Cannot be judged: prompts came {times(found.summary.visits_per_prompt)} on "
            "average, and a forecast needs an earlier visit."
        )
    is_sample = has_intervals(found)
    shown = interval(replayed.saving, *replayed.saving_interval, is_sample=is_sample)
    if replayed.saving <= 0.0:
        return f"None: {shown} of the rollouts. {_unused(replayed)}"
    hindsight = ""
    if helps_with_hindsight(replayed):
        hindsight = f" (with hindsight, {HINDSIGHT}: {replayed.oracle_saving:.1%})"
    chance = ", which may be chance" if is_sample and replayed.saving_interval[0] <= 0.0 else ""
    if found.summary.is_adaptive:
        line = (
            "This run was adaptive already, so its saving is in what it spent: by the replay "
            f"{shown} fewer rollouts than equal groups of the same gradient "
            f"variance{chance}{hindsight}."
        )
    else:
        line = (
            "Adaptive allocation would have had the gradient variance of equal groups with "
            f"{shown} fewer rollouts{chance}{hindsight}."
        )
    return " ".join(filter(None, [line, _priced(found.saved), trust(replayed), _rest(found)]))


def _rest(found: Audit) -> str:
    """Say why most of the waste is no saving, where it is not."""
    waste, prediction, replayed = found.waste, found.prediction, found.replayed
    if waste is None or prediction is None or replayed is None or prediction.filtering.found:
        return ""
    if replayed.saving > 0.5 * waste.num_rollouts / max(waste.total_rollouts, 1):
        return ""
    least = 2 if found.replayed_bounds is None else found.replayed_bounds[0]
    return (
        f"Most of the waste cannot be saved: every prompt keeps at least {least} rollouts, and who "
        "will be all right or all wrong is not known beforehand; even knowing success, "
        f"{prediction.largest_cut.value:.1%} of the variance is the most."
    )


def _unused(replayed: ReplayResult) -> str:
    """Say of forecasts that saved nothing whether they or the prompts were the reason."""
    skill = _skill(replayed)
    if not skill > _SKILL:
        return trust(replayed)
    error = f"{skill:.0%} less squared error"
    if replayed.oracle_saving < _LITTLE:
        return f"The forecasts are good ({error}), but there was little to move."
    return f"The forecasts have {error} than the mean success of all prompts: not enough to save."


def _priced(saved: Saved | None) -> str:
    if saved is None or (saved.gpu_hours is None and saved.cost is None):
        return ""
    cost = "" if saved.cost is None else f"{saved.cost:,.2f} at your price"
    if saved.gpu_hours is None:
        return f"Adaptive would have saved some {cost}."
    hours = f"{saved.gpu_hours:,.1f} GPU-hours"
    return f"Adaptive would have saved some {hours}{f' ({cost})' if cost else ''}."


def _set(found: Audit) -> str:
    use, summary = found.settings, found.summary
    assert use is not None
    n = f"n = {use.rollouts_per_prompt}"
    if summary.choice is not None:
        return _set_of_a_choice(use, summary.choice)
    is_kept = use.rollouts_per_prompt == round(summary.rollouts_per_prompt)
    was = ", as now" if is_kept else f" (the run: {summary.rollouts_per_prompt:.3g})"
    if use.mode == "uniform":
        return f"{n}{was}, for every prompt."
    bounds = f"between {use.lower} and {use.upper} rollouts a prompt"
    if frameworks(summary.source) == (VERL,):
        how = "adaptive" if use.mode == "adaptive" else "in shadow mode first"
        return (
            f"{n}{was}: in verl every prompt gets the same n, for apportion has no verl adapter; "
            f"in TRL it would be {use.lower} to {use.upper}, {how}."
        )
    if use.mode == "shadow":
        return f"{n}{was}, in shadow mode first; the allocator would choose {bounds}."
    if summary.is_adaptive:
        return f"Keep it adaptive: {n} on average, {bounds}."
    return f"{n} on average{'' if is_kept else was}, {bounds}, adaptive."


def _set_of_a_choice(use: Settings, choice: Choice) -> str:
    how = (
        f"n = {use.rollouts_per_prompt}, {counted(use.prompts_per_step, 'prompt')} an even step, "
        f"candidates = {choice.candidates}, objective {choice.objective}, between {use.lower} and "
        f"{use.upper} rollouts a chosen prompt"
    )
    if choice.is_followed:
        return f"Keep it: {how}."
    return f"{how}, {'adaptive' if use.mode == 'adaptive' else 'in shadow mode still'}."


def _skill(replayed: ReplayResult) -> float:
    return 1.0 - replayed.error / replayed.baseline_error if replayed.baseline_error > 0 else 0.0


def _hundredth(share: float) -> str:
    """Return a share in percent, and never a negative zero."""
    return f"{round(100.0 * share, 1) + 0.0:.1f}"


def _curve_waste(curves: CurveFindings | None) -> str:
    if curves is None or curves.without_signal is None:
        return "Unknown: the share of groups without signal was not logged."
    cost = "" if curves.gpu_hours is None else f", some {curves.gpu_hours:,.1f} GPU-hours"
    cost += "" if curves.cost is None else f", at your price {curves.cost:,.2f}"
    return f"{curves.without_signal:.1%} of groups bought no gradient, by the logged curve{cost}."
