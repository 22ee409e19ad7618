"""An allocator run against a recorded run: what it would have decided, and what that is worth.

Observed
    what a decision is scored on: the rewards of the very group that it was made for, which it did
    not know (`apportion.realised`), so the score is without bias.
Smoothed
    the oracle: the same rule of allocation, told what all other visits of a prompt say, later ones
    included (`apportion.smoothing`). It is not the truth; the truth would allow a little more.
Simulated
    what an allocator sees where it would have asked for fewer rollouts than were recorded: a random
    part of the group. Where it would have asked for more, it sees no more than the record holds.

``saving = 1 - budget at which the allocator reaches uniform's variance / uniform's budget``. It is
a share of the rollouts, not of the time to a result: less noise may or may not be faster learning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from apportion import calibration, controls
from apportion.allocation import allocate
from apportion.allocator import RolloutAllocator
from apportion.embedding import TextEmbedding
from apportion.errors import InvalidInputError
from apportion.predictor import FilterBank
from apportion.realised import sample_variance, saving_interval, saving_of, unit_variance
from apportion.recording import GroupTable
from apportion.smoothing import leave_one_out
from apportion.types import Allocation, Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray

SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)
"""Shares of uniform's budget that the allocator is replayed with."""
_LEAST_VISITS = 2.0
_NO_TEXT = (
    "The record tells prompts apart but not what they say, so forecasts rest on a prompt's own "
    "past alone. In a trainer the texts are known, and first visits are forecast better."
)

Progress = Callable[[int, int], None]
"""Called with groups done and groups in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What an allocator would have decided on a recorded run, and what that is worth.

    Attributes:
        num_groups: groups that were replayed and could be scored (two rewards at least).
        num_steps: steps replayed.
        num_uniform_steps: steps in which the allocator fell back to an even split.
        rollouts_per_prompt: mean group size of uniform's budget.
        variance: realised gradient variance of the allocator, summed over the groups.
        uniform_variance: the same for an even split of the same budget.
        oracle_variance: the same for the smoothed oracle.
        saving: share of uniform's rollouts that could be left out at equal realised variance.
        saving_interval: its 95% interval (resampled over prompts).
        oracle_saving: the saving of the smoothed oracle.
        error: mean squared error of the forecasts against the groups' mean rewards (scaled to
            [0, 1]), noise included.
        baseline_error: the same of the running mean of all rewards.
        standardised_sq: mean of ``(k/n - m)^2 / stated variance``; 1 if the doubt is honest.
        coverage: share of group means within the stated 90% interval.
        edge_M, forecast_M, observed_M, num_rollouts_M: reliability by bins of the forecast.
        notes: what the record cannot support.
    """

    num_groups: int
    num_steps: int
    num_uniform_steps: int
    rollouts_per_prompt: float
    variance: float
    uniform_variance: float
    oracle_variance: float
    saving: float
    saving_interval: tuple[float, float]
    oracle_saving: float
    error: float
    baseline_error: float
    standardised_sq: float
    coverage: float
    edge_M: FloatArray
    forecast_M: FloatArray
    observed_M: FloatArray
    num_rollouts_M: IntArray
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """One step of a walk.

    Attributes:
        step: training step.
        part: where its groups stand in the record.
        budget: rollouts that were split.
        allocation: the decision; its forecast rests on earlier steps alone.
    """

    step: int
    part: slice
    budget: int
    allocation: Allocation


def walk(
    groups: GroupTable,
    allocator: RolloutAllocator,
    *,
    rollouts_per_prompt: float | None = None,
    seed: int = 0,
) -> Iterator[ReplayStep]:
    """Yield the decisions of an allocator on a recorded run, each from the past only.

    The allocator is changed: it learns from each step after it has decided it. Of a group it sees
    as many rewards as it asked for, a random part of those recorded.

    Args:
        groups: the record.
        allocator: decides and learns.
        rollouts_per_prompt: mean group size to decide with; that of each recorded step if None.
        seed: of the random parts.
    """
    random = np.random.default_rng(seed)
    for step, part in groups.steps():
        outcomes = groups.outcomes(part)
        budget = _budget(outcomes, rollouts_per_prompt, allocator)
        batch = Prompts(id_B=outcomes.prompt_B)
        decided = allocator.allocate(batch, budget, step=int(outcomes.policy_step_B.min()))
        yield ReplayStep(step=step, part=part, budget=budget, allocation=decided)
        allocator.observe(_seen(outcomes, decided.num_rollouts_B, allocator.reward_range, random))


def replay(
    groups: GroupTable,
    allocator: RolloutAllocator,
    *,
    rollouts_per_prompt: float | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> ReplayResult:
    """Replay an allocator on a record and say what its decisions are worth.

    Args:
        groups: the record; groups with fewer than two rewards are decided on but not scored.
        allocator: left as it is: every replay starts from a copy. Its law must be `rloo` or
            `dr_grpo`. Prompts that it does not know yet come without features.
        rollouts_per_prompt: mean group size of uniform's budget; the recorded one if None.
        progress: called as the replays go on.
        seed: of what the allocator sees of a group, and of the resampling.

    Raises:
        InvalidInputError: no group has two rewards, or the law is another one.

    >>> from apportion.predictor import Beta
    >>> from apportion.recording import table_of_counts
    >>> visit, solved = np.repeat(np.arange(40), 2), np.tile([8, 4], 40)
    >>> groups = table_of_counts(np.tile(["easy", "even"], 40), visit, solved, 8)
    >>> result = replay(groups, RolloutAllocator(Beta(), upper=16))
    >>> bool(0.2 < result.saving <= result.oracle_saving)
    True
    """
    unit = unit_variance(allocator.variance)
    variance_G = sample_variance(groups)
    scored_G = ~np.isnan(variance_G)
    if not scored_G.any():
        raise InvalidInputError(
            "No group of the record has two rewards, so no decision can be scored. Record groups "
            "of at least two rollouts."
        )
    variance_G = np.where(scored_G, variance_G, 0.0)
    recorded = float(groups.num_rollouts_G.sum()) / len(groups)
    mean_size = recorded if rollouts_per_prompt is None else rollouts_per_prompt
    shares = [s for s in SHARES if s == 1.0 or s * mean_size >= allocator.lower + 0.1]
    count = _Counter(progress, len(groups) * len(shares))
    walks = []
    for share in shares:
        size = None if share == 1.0 and rollouts_per_prompt is None else share * mean_size
        steps = walk(groups, copy.deepcopy(allocator), rollouts_per_prompt=size, seed=seed)
        walks.append([count.passed(step) for step in steps])
    walks, shares = _distinct(walks)
    truth, _ = leave_one_out(groups, allocator.reward_range)
    ours_SG = np.array([unit(_decided(steps)) for steps in walks]) * variance_G
    even_G = unit(_even(walks[0], allocator)) * variance_G
    best_SG = np.array([unit(_told(steps, truth, allocator)) for steps in walks]) * variance_G
    level = float(even_G.sum())
    return ReplayResult(
        num_groups=int(scored_G.sum()),
        num_steps=len(walks[0]),
        num_uniform_steps=sum(bool(step.allocation.reason) for step in walks[0]),
        rollouts_per_prompt=mean_size,
        variance=float(ours_SG[0].sum()),
        uniform_variance=level,
        oracle_variance=float(best_SG[0].sum()),
        saving=saving_of(shares, ours_SG.sum(axis=1), level),
        saving_interval=saving_interval(shares, ours_SG, even_G, groups.prompt_G, seed=seed),
        oracle_saving=saving_of(shares, best_SG.sum(axis=1), level),
        **_trust(groups, _forecast(walks[0]), allocator.reward_range)._asdict(),
        notes=_notes(groups, walks[0]),
    )


def replay_of(
    groups: GroupTable,
    *,
    reward_range: tuple[float, float] = (0.0, 1.0),
    lower: int = 2,
    upper: int | None = None,
    variance: str = "rloo",
    progress: Progress | None = None,
) -> ReplayResult:
    """Replay the default allocator, with the recorded features of prompts or those of their texts.

    Args:
        groups: the record.
        reward_range: lowest and highest reward.
        lower: fewest rollouts of a prompt.
        upper: most rollouts of a prompt; four times the recorded mean if None.
        variance: law of gradient variance, `rloo` or `dr_grpo`.
        progress: called as the replays go on.
    """
    mean_size = float(groups.num_rollouts_G.sum()) / max(len(groups), 1)
    upper = max(round(4.0 * mean_size), lower + 1) if upper is None else upper
    allocator = RolloutAllocator(
        FilterBank(), variance=variance, lower=lower, upper=upper, reward_range=reward_range
    )
    feature_BD = groups.feature_QD
    if feature_BD is None and groups.text_Q is not None:
        feature_BD = TextEmbedding().fit(groups.text_Q).transform(groups.text_Q)
    allocator.add(Prompts(id_B=groups.id_Q, feature_BD=feature_BD))
    found = replay(groups, allocator, progress=progress)
    return found if feature_BD is not None else replace(found, notes=(_NO_TEXT, *found.notes))


def _budget(
    outcomes: Outcomes, rollouts_per_prompt: float | None, allocator: RolloutAllocator
) -> int:
    size = len(outcomes)
    wanted = (
        int(outcomes.num_rollouts_B.sum())
        if rollouts_per_prompt is None
        else round(size * rollouts_per_prompt)
    )
    most = wanted if allocator.upper is None else size * allocator.upper
    return int(np.clip(wanted, size * allocator.lower, max(most, size * allocator.lower)))


def _seen(
    outcomes: Outcomes,
    num_asked_B: IntArray,
    reward_range: tuple[float, float],
    random: np.random.Generator,
) -> Outcomes:
    """Return what the allocator sees: as many rewards as it asked for, if the record has them."""
    num_B = outcomes.num_rollouts_B
    part_B = np.minimum(num_asked_B, num_B)
    low, high = reward_range
    success_B = np.rint((outcomes.reward_sum_B - low * num_B) / (high - low)).astype(np.int64)
    back_B = low * num_B + (high - low) * success_B
    square_B = low**2 * (num_B - success_B) + high**2 * success_B
    slack_B = 1e-9 * (1.0 + np.abs(back_B) + np.abs(square_B))
    counted_B = np.abs(back_B - outcomes.reward_sum_B) <= slack_B
    counted_B &= np.abs(square_B - outcomes.reward_sumsq_B) <= slack_B
    success_B = np.clip(success_B, 0, num_B)
    drawn_B = random.hypergeometric(success_B, num_B - success_B, part_B)
    # Single real-valued rewards are not recorded: a part of a group has its mean and spread.
    share_B = part_B / np.maximum(num_B, 1)
    return replace(
        outcomes,
        num_requested_B=num_asked_B,
        num_rollouts_B=part_B,
        reward_sum_B=np.where(
            counted_B, low * part_B + (high - low) * drawn_B, share_B * outcomes.reward_sum_B
        ),
        reward_sumsq_B=np.where(
            counted_B,
            low**2 * (part_B - drawn_B) + high**2 * drawn_B,
            share_B * outcomes.reward_sumsq_B,
        ),
    )


def _distinct(walks: list[list[ReplayStep]]) -> tuple[list[list[ReplayStep]], list[float]]:
    """Return the walks whose budgets differ, bounds considered, and their shares of the first."""
    kept, shares = walks[:1], [1.0]
    full = sum(step.budget for step in walks[0])
    for steps in walks[1:]:
        share = sum(step.budget for step in steps) / full
        if share < shares[-1]:
            kept.append(steps)
            shares.append(share)
    return kept, shares


def _decided(steps: list[ReplayStep]) -> IntArray:
    return np.concatenate([step.allocation.num_rollouts_B for step in steps])


def _even(steps: list[ReplayStep], allocator: RolloutAllocator) -> IntArray:
    parts = []
    for step in steps:
        size = len(step.allocation.num_rollouts_B)
        same = Forecast.of_success(np.full(size, 0.5))
        parts.append(
            controls.uniform(same, step.budget, lower=allocator.lower, upper=allocator.upper)
        )
    return np.concatenate(parts)


def _told(steps: list[ReplayStep], truth: Forecast, allocator: RolloutAllocator) -> IntArray:
    """Return what the same rule gives where it is told the smoothed truth."""
    parts = []
    for step in steps:
        told = truth.take(np.arange(step.part.start, step.part.stop))
        found = allocate(
            told,
            step.budget,
            variance=allocator.variance,
            lower=allocator.lower,
            upper=allocator.upper,
        )
        parts.append(found.num_rollouts_B)
    return np.concatenate(parts)


def _forecast(steps: list[ReplayStep]) -> Forecast:
    forecasts = [step.allocation.forecast for step in steps]
    return Forecast(
        mean_B=np.concatenate([f.mean_B for f in forecasts if f is not None]),
        var_B=np.concatenate([f.var_B for f in forecasts if f is not None]),
        reward_var_B=np.concatenate([f.reward_var_B for f in forecasts if f is not None]),
    )


def _trust(groups: GroupTable, forecast: Forecast, reward_range: tuple[float, float]) -> _Trust:
    """Return how far the forecasts were right, over the groups with rewards."""
    low, high = reward_range
    at = np.flatnonzero(groups.num_rollouts_G > 0)
    num_B = groups.num_rollouts_G[at]
    sum_B = np.clip((groups.reward_sum_G[at] - low * num_B) / (high - low), 0.0, num_B)
    believed = forecast.take(at)
    step_B = groups.step_G[at]
    before_B = np.searchsorted(step_B, step_B, side="left")
    total_B, count_B = np.cumsum(sum_B), np.cumsum(num_B)
    past_sum_B = np.where(before_B > 0, total_B[before_B - 1], 0.0)
    past_num_B = np.where(before_B > 0, count_B[before_B - 1], 0.0)
    running_B = (past_sum_B + 0.5) / (past_num_B + 1.0)
    bins = calibration.reliability(believed, num_B, sum_B)
    return _Trust(
        error=float(((sum_B / num_B - believed.mean_B) ** 2).mean()),
        baseline_error=float(((sum_B / num_B - running_B) ** 2).mean()),
        standardised_sq=float((calibration.standardised_error(believed, num_B, sum_B) ** 2).mean()),
        coverage=calibration.coverage(believed, num_B, sum_B, level=0.9),
        edge_M=bins.edge_M,
        forecast_M=bins.forecast_M,
        observed_M=bins.observed_M,
        num_rollouts_M=bins.num_rollouts_M,
    )


def _notes(groups: GroupTable, steps: list[ReplayStep]) -> tuple[str, ...]:
    notes = []
    visits = len(groups) / max(len(np.unique(groups.prompt_G)), 1)
    if visits < _LEAST_VISITS:
        notes.append(
            f"A prompt was visited {visits:.1f} times on average, so the forecasts rest on other "
            "prompts more than on its own past. A longer run would save more."
        )
    more = float((_decided(steps) > groups.num_rollouts_G).mean())
    if more > 0.0:
        notes.append(
            f"In {more:.0%} of the groups the allocator asked for more rollouts than were "
            "recorded. It was shown those recorded, so it knew less than it would have."
        )
    return tuple(notes)


class _Trust(NamedTuple):
    error: float
    baseline_error: float
    standardised_sq: float
    coverage: float
    edge_M: FloatArray
    forecast_M: FloatArray
    observed_M: FloatArray
    num_rollouts_M: IntArray


class _Counter:
    """Tells how many groups of all replays are done."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def passed(self, step: ReplayStep) -> ReplayStep:
        self._done += len(step.allocation.num_rollouts_B)
        if self._progress is not None:
            self._progress(self._done, self._total)
        return step
