"""The three lines that an audit comes down to."""

from __future__ import annotations

import math

from apportion.audit import Audit
from apportion.audit.curve_findings import CurveFindings
from apportion.audit.settings import TOO_SURE
from apportion.audit.waste import Shares, Waste
from apportion.replay import ReplayResult
from apportion.success_distribution import Estimate

_SKILL = 0.05
_TOO_CAREFUL = 1.0 / TOO_SURE


def verdict(found: Audit) -> dict[str, str]:
    """Return a sentence or two each on the waste, on the saving, and on what to set."""
    if found.waste is None or found.settings is None:
        return {
            "waste": _curve_waste(found.curves),
            "saving": "Cannot be said without rollouts.",
            "set": "Log rollouts and audit again.",
        }
    use = found.settings
    bounds = f"between {use.lower} and {use.upper} rollouts a prompt"
    choice = {
        "adaptive": f"n = {use.rollouts_per_prompt} on average, {bounds}, adaptive.",
        "shadow": f"n = {use.rollouts_per_prompt} on average, {bounds}; in shadow mode first.",
        "uniform": f"n = {use.rollouts_per_prompt} for every prompt.",
    }
    return {
        "waste": _waste(found),
        "saving": _saving(found),
        "set": f"{choice[use.mode]} The lines to paste are at the end.",
    }


def trust(replayed: ReplayResult) -> str:
    """Say how far the forecasts can be trusted.

    Skill is ``1 - (squared error) / (squared error of the running global mean)``; doubt is honest
    if the mean squared standardised error is near 1.
    """
    skill = 1.0 - replayed.error / replayed.baseline_error if replayed.baseline_error > 0 else 0.0
    if not skill > _SKILL:
        return "The forecasts know no more than the mean success of all prompts."
    share = f"{skill:.0%} less squared error than the mean success of all prompts"
    square = replayed.standardised_sq
    if square > TOO_SURE:
        return f"The forecasts help, but are too sure of themselves: {share}."
    if square < _TOO_CAREFUL:
        return f"The forecasts help, and are surer than they say: {share}."
    if math.isnan(square):
        return f"The forecasts help: {share}."
    return f"The forecasts can be trusted: {share}, honest about their doubt."


def percent(value: Estimate) -> str:
    """Return a share with its interval.

    >>> percent(Estimate(value=0.5, low=0.25, high=0.75))
    '50.0% [25.0, 75.0]'
    """
    return interval(value.value, value.low, value.high)


def interval(value: float, low: float, high: float) -> str:
    """Return a share with the ends of its interval; the share alone where these agree."""
    if not low < high:
        return f"{value:.1%}"
    return f"{value:.1%} [{100.0 * low:.1f}, {100.0 * high:.1f}]"


def kinds_of_waste(shares: Shares) -> str:
    """Return what groups without signal were, in shares of all groups.

    >>> kinds_of_waste(Shares(num_groups=4, with_signal=0.5, all_wrong=0.25, all_right=0.25,
    ...                       in_between=0.0, not_scored=0.0))
    '25.0% all wrong, 25.0% all right'
    """
    named = [
        (shares.all_wrong, "all wrong"),
        (shares.all_right, "all right"),
        (shares.in_between, "equal in between"),
        (shares.not_scored, "not scored"),
    ]
    kept = named[:2] + [entry for entry in named[2:] if entry[0] > 0.0]
    return ", ".join(f"{share:.1%} {name}" for share, name in kept)


def spent(waste: Waste) -> str:
    """Return what the groups without signal cost, in every unit that is known."""
    parts = [f"{waste.num_rollouts:,} of {waste.total_rollouts:,} rollouts"]
    if waste.num_tokens is not None and waste.total_tokens is not None:
        parts.append(f"{waste.num_tokens:,} of {waste.total_tokens:,} tokens")
    if waste.gpu_hours is not None:
        parts.append(f"{waste.gpu_hours:,.1f} GPU-hours")
    if waste.cost is not None:
        parts.append(f"{waste.cost:,.2f} in the currency of the price")
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
    return (
        f"{waste.shares.without_signal:.1%} of groups bought no gradient "
        f"({kinds_of_waste(waste.shares)}): {spent(waste)}."
    )


def _saving(found: Audit) -> str:
    replayed = found.replayed
    if replayed is None:
        return "Nothing was replayed."
    if found.summary.visits_per_prompt < 2.0:
        return (
            f"Cannot be judged: prompts came {found.summary.visits_per_prompt:.2g} times on "
            "average, and a forecast needs an earlier visit."
        )
    shown = interval(replayed.saving, *replayed.saving_interval)
    if replayed.saving <= 0.0:
        amount = f"None: {shown} of the rollouts."
    else:
        amount = (
            f"Adaptive allocation would have had the gradient noise of equal groups with {shown} "
            "fewer rollouts"
        )
        rest = f" (an oracle: {replayed.oracle_saving:.1%})."
        amount += rest if math.isfinite(replayed.oracle_saving) else "."
    return f"{amount} {trust(replayed)}"


def _curve_waste(curves: CurveFindings | None) -> str:
    if curves is None or curves.without_signal is None:
        return "Unknown: the share of groups without signal was not logged."
    cost = "" if curves.gpu_hours is None else f", some {curves.gpu_hours:,.1f} GPU-hours"
    cost += "" if curves.cost is None else f", {curves.cost:,.2f} in the currency of the price"
    return f"{curves.without_signal:.1%} of groups bought no gradient, by the logged curve{cost}."
