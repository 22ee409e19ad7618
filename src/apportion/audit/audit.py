"""The audit of a recorded run: what sampling bought, and what to set instead.

Everything that is counted or fitted is gathered here; the words and tables are the command line's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from apportion.audit.already_adaptive import is_already_adaptive
from apportion.audit.choice import Choice, choice_of
from apportion.audit.curve_findings import CurveFindings, curve_findings
from apportion.audit.limits import FEW_VISITS, limits_of_curves, limits_of_groups
from apportion.audit.prediction import Prediction, predicted, success_of
from apportion.audit.prompt_findings import PromptFindings, prompt_findings
from apportion.audit.saved import Saved, saved_of
from apportion.audit.settings import RunFacts, Settings, check_bounds, recommend
from apportion.audit.sizes import Bounds, best_upper, own_size
from apportion.audit.waste import Rates, Waste, ends, is_mostly_single, kinds, tokens_of, waste_of
from apportion.errors import InvalidInputError
from apportion.recording import Curve, GroupTable, Recording
from apportion.replay import ReplayResult
from apportion.success_distribution import NUM_DRAWS
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
        num_tokens: completion tokens; None where not recorded, or in part.
        rollouts_per_prompt: mean n of a group.
        is_mostly_single: whether most groups have one rollout, so that it may not tell groups.
        rollouts_per_step: median over steps; None where steps are unknown.
        visits_per_prompt: mean groups of a prompt.
        has_steps: whether steps are recorded.
        is_adaptive: whether groups were of unequal size on purpose.
        choice: how prompts were chosen, or would have been in shadow mode; None where none were.
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
    is_mostly_single: bool
    rollouts_per_step: float | None
    visits_per_prompt: float
    has_steps: bool
    is_adaptive: bool
    choice: Choice | None
    notes: tuple[str, ...]

    @property
    def was_chosen(self) -> bool:
        """Whether the record holds chosen prompts alone."""
        return self.choice is not None and self.choice.is_followed


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All that an audit found; None where the record does not tell.

    Where most groups have one rollout, only the summary and the prompts are told.

    `replayed_bounds` are the fewest and most rollouts a prompt of the replay. `saved` prices the
    replayed saving, where second visits are enough to judge it and the run was not adaptive yet.
    """

    summary: Summary
    waste: Waste | None
    prediction: Prediction | None
    replayed: ReplayResult | None
    replayed_bounds: tuple[int, int] | None
    saved: Saved | None
    prompts: PromptFindings | None
    settings: Settings | None
    curves: CurveFindings | None
    limits: tuple[str, ...]

    @property
    def has_second_visits(self) -> bool:
        """Whether prompts came often enough to judge forecasts and forgetting."""
        return self.summary.visits_per_prompt >= FEW_VISITS

    @property
    def is_judged(self) -> bool:
        """Whether the replay can be judged: prompts came often enough, and rollouts could move."""
        return (
            self.replayed is not None
            and self.has_second_visits
            and (self.settings is None or self.settings.nothing_to_move is None)
        )


def audit(
    recording: Recording,
    replayed: ReplayResult | None = None,
    *,
    curves: Mapping[str, Curve] | None = None,
    rates: Rates | None = None,
    lower: int | None = None,
    upper: int | None = None,
    replayed_bounds: tuple[int, int] | None = None,
    name: str | None = None,
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
        replayed_bounds: fewest and most rollouts a prompt that `replayed` was made with.
        name: how an error calls the record; its source if None.
        num_listed: most prompts of a list.
        num_draws: resampled runs behind the intervals.

    Raises:
        InvalidInputError: nothing usable in the recording, or bounds that leave no room.
    """
    check_bounds(lower, upper)
    rates = rates or Rates()
    groups = recording.groups
    if groups is None or not len(groups):
        return _audit_of_curves(recording, curves or {}, rates, name or recording.source)
    reward_ends, num_success_G = success_counts(groups, recording.reward_range)
    summary = _summary(recording, groups)
    waste, distribution, prediction, settings = None, None, None, None
    if summary.is_mostly_single:
        replayed = replayed_bounds = None
    else:
        waste = waste_of(groups, reward_ends, rates)
        if num_success_G is not None:
            bounds = Bounds(lower=lower, upper=upper)
            distribution, prediction = predicted(groups, num_success_G, bounds, num_draws)
        settings = recommend(
            distribution,
            replayed,
            _facts(summary, groups, reward_ends, is_binary=num_success_G is not None),
            lower=lower,
            upper=upper,
            replayed_bounds=replayed_bounds,
        )
    filtering = prediction.filtering if prediction is not None else None
    found = Audit(
        summary=summary,
        waste=waste,
        prediction=prediction,
        replayed=replayed,
        replayed_bounds=replayed_bounds,
        saved=None,
        prompts=prompt_findings(
            groups, kinds(groups, reward_ends), num_success_G, num_listed=num_listed
        ),
        settings=settings,
        curves=None,
        limits=limits_of_groups(
            recording,
            groups,
            rates,
            is_binary=num_success_G is not None,
            filtering=filtering,
            was_chosen=summary.was_chosen,
        ),
    )
    if replayed is None or waste is None or summary.is_adaptive or not found.is_judged:
        return found
    return replace(found, saved=saved_of(replayed, waste, rates))


def bounds_to_replay(
    recording: Recording, *, lower: int | None = None, upper: int | None = None
) -> tuple[int, int]:
    """Return the bounds to replay with: those that `audit` recommends if n stays the run's.

    Args:
        recording: what was read, with groups.
        lower: fewest rollouts a prompt, if that is settled.
        upper: most rollouts a prompt, if that is settled.

    Raises:
        InvalidInputError: bounds below 2, or that cross.
    """
    check_bounds(lower, upper)
    choice, groups = choice_of(recording), recording.groups
    assert groups is not None
    if choice is not None:
        size = own_size(choice.rollouts_per_prompt, Bounds(lower=lower, upper=upper))
        return choice.bounds_at(size, lower=lower, upper=upper)
    bounds = Bounds(lower=lower, upper=upper)
    _, num_success_G = success_counts(groups, recording.reward_range)
    distribution = None
    if num_success_G is not None and groups.signal_G.any():
        distribution = success_of(groups, num_success_G, num_draws=0)
    size = own_size(float(groups.num_requested_G.mean()), bounds)
    return bounds.least, best_upper(distribution, size, bounds, bounds.least)[0]


def success_counts(
    groups: GroupTable, reward_range: tuple[float, float]
) -> tuple[tuple[float, float], IntArray | None]:
    """Return what wrong and right are worth, and the successes of each group.

    Rewards take two values a < b where ``sum (r - a)(r - b) = 0`` in every group, and where groups
    with signal are those with successes and failures; tried are 0 and 1, -1 and 1, and the range.
    Where they take more, the range comes back, and None.
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
        mixed_G = (whole_G > 0) & (whole_G < num_G)
        fits_G = (np.abs(off_G) <= slack_G * width**2) & (np.abs(success_G - whole_G) <= slack_G)
        if (fits_G & (mixed_G == groups.signal_G)).all():
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
        num_tokens=tokens_of(groups),
        rollouts_per_prompt=float(groups.num_requested_G.mean()),
        is_mostly_single=is_mostly_single(groups),
        rollouts_per_step=float(np.median(per_step_T)) if recording.has_steps else None,
        visits_per_prompt=len(groups) / num_prompts,
        has_steps=recording.has_steps,
        is_adaptive=is_already_adaptive(recording, groups),
        choice=choice_of(recording),
        notes=recording.notes,
    )


def _facts(
    summary: Summary, groups: GroupTable, reward_ends: tuple[float, float], *, is_binary: bool
) -> RunFacts:
    return RunFacts(
        source=summary.source,
        num_prompts=summary.num_prompts,
        mean_rollouts=summary.rollouts_per_prompt,
        rollouts_per_step=summary.rollouts_per_step,
        mean_visits=summary.visits_per_prompt,
        reward_range=reward_ends,
        is_range_seen=not is_binary,
        is_adaptive=summary.is_adaptive,
        choice=summary.choice,
        has_signal=bool(groups.signal_G.any()),
    )


def _audit_of_curves(
    recording: Recording, curves: Mapping[str, Curve], rates: Rates, name: str
) -> Audit:
    found = curve_findings(curves, rates)
    if found is None:
        raise InvalidInputError(
            f"{name} holds neither groups of rollouts nor a curve of the reward or of "
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
        is_mostly_single=False,
        rollouts_per_step=None,
        visits_per_prompt=0.0,
        has_steps=recording.has_steps,
        is_adaptive=False,
        choice=None,
        notes=recording.notes,
    )
    return Audit(
        summary=summary,
        waste=None,
        prediction=None,
        replayed=None,
        replayed_bounds=None,
        saved=None,
        prompts=None,
        settings=None,
        curves=found,
        limits=limits_of_curves(rates),
    )
