"""The audit of a recorded run: what sampling bought, and what to set instead.

Everything that is counted or fitted is gathered here; the words and tables are the command line's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from apportion.audit.curve_findings import CurveFindings, curve_findings
from apportion.audit.filtering import Filtering, find_filtering
from apportion.audit.limits import limits_of_curves, limits_of_groups
from apportion.audit.neyman import largest_cut
from apportion.audit.prompt_findings import PromptFindings, prompt_findings
from apportion.audit.settings import SIZES, Settings, check_bounds, recommend
from apportion.audit.waste import Rates, Waste, ends, kinds, waste_of
from apportion.errors import InvalidInputError
from apportion.recording import Curve, GroupTable, Recording
from apportion.replay import ReplayResult
from apportion.success_distribution import (
    NUM_DRAWS,
    Estimate,
    SuccessDistribution,
    fit_success,
    share_without_signal,
)
from apportion.validate import IntArray

_NOISE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was read; counts are 0 where only curves were.

    Attributes:
        source: in words.
        num_prompts, num_steps, num_groups: of the record.
        num_rollouts: rollouts sampled.
        num_scored: of these, with a reward.
        num_tokens: completion tokens; None where not recorded.
        rollouts_per_prompt: mean n of a group.
        rollouts_per_step: median over steps; None where steps are unknown.
        visits_per_prompt: mean groups of a prompt.
        has_steps: whether steps are recorded.
        notes: what the reader left out or assumed.
    """

    source: str
    num_prompts: int
    num_steps: int
    num_groups: int
    num_rollouts: int
    num_scored: int
    num_tokens: int | None
    rollouts_per_prompt: float
    rollouts_per_step: float | None
    visits_per_prompt: float
    has_steps: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeShare:
    """Share of groups without signal at another n."""

    rollouts_per_prompt: int
    without_signal: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the fitted distribution of success says.

    Attributes:
        sizes: share of groups without signal at other n.
        observed: share that the record shows, groups of two scored rollouts or more.
        fitted: the same by the fit; the two agree unless counts are no mixture of binomials.
        largest_cut: share of RLOO's variance that the best allocation of the same rollouts would
            cut if success were known.
        filtering: whether groups without signal are missing from the record.
    """

    sizes: tuple[SizeShare, ...]
    observed: float
    fitted: float
    largest_cut: Estimate
    filtering: Filtering


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All that an audit found; None where the record does not tell."""

    summary: Summary
    waste: Waste | None
    prediction: Prediction | None
    replayed: ReplayResult | None
    prompts: PromptFindings | None
    settings: Settings | None
    curves: CurveFindings | None
    limits: tuple[str, ...]


def audit(
    recording: Recording,
    replayed: ReplayResult | None = None,
    *,
    curves: Mapping[str, Curve] | None = None,
    rates: Rates | None = None,
    lower: int | None = None,
    upper: int | None = None,
    num_listed: int = 10,
    num_draws: int = NUM_DRAWS,
) -> Audit:
    """Audit a recorded run.

    Args:
        recording: what was read.
        replayed: an allocator run against it, if it was.
        curves: scalar curves by meaning, as fields of `readers.curves.KnownCurves`; used where
            there are no groups.
        rates: what sampling costs.
        lower: fewest rollouts a prompt, if that is settled.
        upper: most rollouts a prompt, if that is settled.
        num_listed: most prompts of a list.
        num_draws: resampled runs behind the intervals.

    Raises:
        InvalidInputError: nothing usable in the recording, or bounds that leave no room.
    """
    check_bounds(lower, upper)
    rates = rates or Rates()
    groups = recording.groups
    if groups is None or not len(groups):
        return _audit_of_curves(recording, curves or {}, rates)
    reward_ends, num_success_G = success_counts(groups, recording.reward_range)
    waste = waste_of(groups, reward_ends, rates)
    distribution, prediction = None, None
    if num_success_G is not None:
        distribution, prediction = _predicted(groups, num_success_G, upper, num_draws)
    summary = _summary(recording, groups)
    filtering = prediction.filtering if prediction is not None else None
    return Audit(
        summary=summary,
        waste=waste,
        prediction=prediction,
        replayed=replayed,
        prompts=prompt_findings(
            groups, kinds(groups, reward_ends), num_success_G, num_listed=num_listed
        ),
        settings=recommend(
            distribution,
            replayed,
            mean_rollouts=summary.rollouts_per_prompt,
            rollouts_per_step=summary.rollouts_per_step,
            mean_visits=summary.visits_per_prompt,
            reward_range=reward_ends,
            lower=lower,
            upper=upper,
        ),
        curves=None,
        limits=limits_of_groups(
            recording, groups, is_binary=num_success_G is not None, filtering=filtering
        ),
    )


def success_counts(
    groups: GroupTable, reward_range: tuple[float, float]
) -> tuple[tuple[float, float], IntArray | None]:
    """Return what wrong and right are worth, and the successes of each group.

    Rewards take two values a < b where ``sum (r - a)(r - b) = 0`` in every group; tried are 0 and
    1, -1 and 1, and the range. Where they take more, the range comes back, and None.
    """
    num_G = groups.num_rollouts_G
    for low, high in ((0.0, 1.0), (-1.0, 1.0), ends(reward_range)):
        if reward_range[0] < low - _NOISE or reward_range[1] > high + _NOISE:
            continue
        width = high - low
        off_G = groups.reward_sumsq_G - (low + high) * groups.reward_sum_G + num_G * low * high
        success_G = (groups.reward_sum_G - num_G * low) / width
        whole_G = np.rint(success_G)
        slack_G = _NOISE * np.maximum(num_G, 1)
        if ((np.abs(off_G) <= slack_G * width**2) & (np.abs(success_G - whole_G) <= slack_G)).all():
            return (low, high), np.clip(whole_G, 0, num_G).astype(np.int64)
    return ends(reward_range), None


def _summary(recording: Recording, groups: GroupTable) -> Summary:
    num_prompts = len(groups.id_Q)
    step_T, row_G = np.unique(groups.step_G, return_inverse=True)
    per_step_T = np.bincount(row_G, weights=groups.num_requested_G)
    return Summary(
        source=recording.source,
        num_prompts=num_prompts,
        num_steps=len(step_T),
        num_groups=len(groups),
        num_rollouts=int(groups.num_requested_G.sum()),
        num_scored=int(groups.num_rollouts_G.sum()),
        num_tokens=int(groups.num_tokens_G.sum()) or None,
        rollouts_per_prompt=float(groups.num_requested_G.mean()),
        rollouts_per_step=float(np.median(per_step_T)) if recording.has_steps else None,
        visits_per_prompt=len(groups) / num_prompts,
        has_steps=recording.has_steps,
        notes=recording.notes,
    )


def _predicted(
    groups: GroupTable, num_success_G: IntArray, upper: int | None, num_draws: int
) -> tuple[SuccessDistribution | None, Prediction | None]:
    usable_G = groups.num_rollouts_G > 1
    if not usable_G.any():
        return None, None
    success_G, num_G = num_success_G[usable_G], groups.num_rollouts_G[usable_G]
    found = fit_success(success_G, num_G, groups.prompt_G[usable_G], num_draws=num_draws)
    filtering = find_filtering(
        success_G, num_G, all_wrong=found.all_wrong, all_right=found.all_right
    )
    return found, Prediction(
        sizes=tuple(
            SizeShare(rollouts_per_prompt=size, without_signal=share_without_signal(found, size))
            for size in SIZES
        ),
        observed=float(((success_G == 0) | (success_G == num_G)).mean()),
        fitted=found.all_wrong + found.all_right,
        largest_cut=largest_cut(
            found, float(num_G.mean()), upper=np.inf if upper is None else float(upper)
        ),
        filtering=filtering,
    )


def _audit_of_curves(recording: Recording, curves: Mapping[str, Curve], rates: Rates) -> Audit:
    found = curve_findings(curves, rates)
    if found is None:
        raise InvalidInputError(
            f"{recording.source} holds neither groups of rollouts nor a curve of the reward or of "
            "the share of groups without signal, so there is nothing to audit. Point at a dump of "
            "rollouts: TRL log_completions=True, verl trainer.rollout_data_dir=DIR."
        )
    summary = Summary(
        source=recording.source,
        num_prompts=0,
        num_steps=found.num_steps,
        num_groups=0,
        num_rollouts=0,
        num_scored=0,
        num_tokens=None,
        rollouts_per_prompt=0.0,
        rollouts_per_step=None,
        visits_per_prompt=0.0,
        has_steps=recording.has_steps,
        notes=recording.notes,
    )
    return Audit(
        summary=summary,
        waste=None,
        prediction=None,
        replayed=None,
        prompts=None,
        settings=None,
        curves=found,
        limits=limits_of_curves(),
    )
