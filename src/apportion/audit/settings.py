"""What to set: mode, n, bounds and batch, each with its reason, and the lines to paste."""

from __future__ import annotations

import math
from dataclasses import dataclass

from apportion.audit import sizes
from apportion.audit.choice import Choice
from apportion.audit.configuration_lines import (
    VERL,
    frameworks,
    trl_arithmetic,
    trl_lines,
    verl_arithmetic,
    verl_lines,
)
from apportion.audit.limits import FEW_PROMPTS, FEW_VISITS
from apportion.audit.sizes import Bounds
from apportion.errors import InvalidInputError
from apportion.replay import ReplayResult
from apportion.success_distribution import SuccessDistribution
from apportion.words import counted

TOO_SURE = 1.5
"""Mean squared standardised error from which the forecasts claim more than they know."""
_ASSUMED_PROMPTS = 64
_KEPT = (
    "The run chose its prompts, and a record of the chosen ones alone cannot judge how: n, "
    "candidates, objective and bounds stay."
)
_SHADOW = "Shadow mode trains evenly, as now, and logs what the allocator would decide."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What settings need to know of the recorded run.

    Attributes:
        source: in words.
        num_prompts: prompts that occur.
        mean_rollouts: n.
        rollouts_per_step: B; None where steps are unknown.
        mean_visits: how often a prompt came, on average.
        reward_range: lowest and highest reward.
        is_range_seen: whether the range is no more than what was seen.
        is_adaptive: whether groups were of unequal size on purpose.
        choice: how prompts were chosen, or would have been in shadow mode; None where none were.
        has_signal: whether the rewards of any group differ; else they say nothing of n.
    """

    source: str
    num_prompts: int
    mean_rollouts: float
    rollouts_per_step: float | None
    mean_visits: float
    reward_range: tuple[float, float] = (0.0, 1.0)
    is_range_seen: bool = False
    is_adaptive: bool = False
    choice: Choice | None = None
    has_signal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to set, why, and the lines to paste.

    Attributes:
        mode: `adaptive` groups, `shadow` (train evenly, log what would be decided), or `uniform`.
        rollouts_per_prompt: n; the mean where groups differ.
        prompts_per_step: such that a step keeps its number of rollouts, as far as that divides.
        lower: fewest rollouts a prompt.
        upper: most rollouts a prompt.
        nothing_to_move: why no split but the even one is possible; None where others are.
        reasons: a sentence each.
        trl: lines of Python.
        trl_arithmetic: how TRL's batch comes about.
        verl: settings for verl's command line, for the n that suits equal groups.
        verl_arithmetic: how verl's batch comes about, and what verl cannot do.
    """

    mode: str
    rollouts_per_prompt: int
    prompts_per_step: int
    lower: int
    upper: int
    nothing_to_move: str | None
    reasons: tuple[str, ...]
    trl: tuple[str, ...]
    trl_arithmetic: str
    verl: tuple[str, ...]
    verl_arithmetic: str


def recommend(
    distribution: SuccessDistribution | None,
    replayed: ReplayResult | None,
    run: RunFacts,
    *,
    lower: int | None = None,
    upper: int | None = None,
    replayed_bounds: tuple[int, int] | None = None,
) -> Settings:
    """Recommend n and bounds.

    Args:
        distribution: of success; None where rewards are not of two values.
        replayed: what the allocator would have saved; None if it was not replayed.
        run: what was recorded.
        lower: fewest rollouts a prompt, if that is settled.
        upper: most rollouts a prompt, if that is settled.
        replayed_bounds: fewest and most rollouts a prompt of the replay, if known.

    Raises:
        InvalidInputError: bounds below 2, or that cross.
    """
    check_bounds(lower, upper)
    bounds = Bounds(lower=lower, upper=upper)
    if run.choice is not None:
        return _of_a_choice(run.choice, replayed, run, bounds)
    distribution = distribution if run.has_signal else None
    stuck = sizes.nothing_to_move(run.mean_rollouts, bounds)
    has_verl_alone = frameworks(run.source) == (VERL,)
    mode, why_mode = _mode(replayed, run, is_stuck=stuck is not None)
    if mode == "adaptive" and has_verl_alone:
        why_mode = "Unequal groups need TRL, or a loop of your own around RolloutAllocator."
    keeps = mode == "shadow" or run.is_adaptive or not run.has_signal
    keeps = keeps or (stuck is not None and run.mean_rollouts > 2.0)
    even_size, why_even = (
        sizes.kept_size(run.mean_rollouts, bounds, has_signal=run.has_signal)
        if keeps
        else sizes.best_size(distribution, run.mean_rollouts, bounds, even=True)
    )
    size, why_size = even_size, why_even
    if mode == "adaptive" and not has_verl_alone and not keeps:
        size, why_size = sizes.best_size(distribution, run.mean_rollouts, bounds, even=False)
    least, why_lower = _lower(replayed, size, bounds, mode)
    most, why_upper = sizes.best_upper(distribution, size, bounds, least)
    why_bounds = (why_lower, why_upper, *_replayed_with(replayed_bounds, (least, most), run))
    prompts, why_batch = _batch(run, size)
    even_prompts, _ = _batch(run, even_size)
    return _settings(
        run,
        mode,
        (size, prompts),
        (least, most),
        reasons=(
            *((why_mode,) if why_mode else ()),
            why_size,
            *(why_bounds if mode != "uniform" and not has_verl_alone else ()),
            why_batch,
        ),
        even=(even_size, even_prompts),
        nothing_to_move=stuck,
    )


def _of_a_choice(
    choice: Choice, replayed: ReplayResult | None, run: RunFacts, bounds: Bounds
) -> Settings:
    """Keep what a run was set to that chose prompts: a replay of splitting cannot judge that."""
    own = choice.rollouts_per_prompt
    size = sizes.own_size(own, bounds)
    prompts = max(round(own * choice.prompts_per_step / size), 1)
    least, most = choice.bounds_at(size, lower=bounds.lower, upper=bounds.upper)
    mode, why_mode = "adaptive", _KEPT
    if not choice.is_followed:
        mode, why_replay = _mode(replayed, run, is_stuck=False)
        mode = "shadow" if mode == "uniform" else mode
        why_mode = (
            f"{why_replay} The replay splits the rollouts of a batch; what choosing prompts would "
            "bring it does not tell, so candidates and objective stay."
        )
    kept = (least, most) == (choice.lower, choice.upper)
    return _settings(
        run,
        mode,
        (size, prompts),
        (least, most),
        reasons=(
            why_mode,
            f"lower = {least} and upper = {most}{', as now' if kept else ': your bounds'}.",
            f"{counted(prompts, 'prompt')} x {size} = {prompts * size:,} rollouts an even step"
            f"{', as now' if size == own else f'; the run had n = {own}'}.",
        ),
        even=(size, prompts),
    )


def _settings(
    run: RunFacts,
    mode: str,
    batch: tuple[int, int],
    bounds: tuple[int, int],
    *,
    reasons: tuple[str, ...],
    even: tuple[int, int],
    nothing_to_move: str | None = None,
) -> Settings:
    """Put the lines to paste beside the numbers: n and prompts a step, the same if all are even."""
    is_kept = even[0] == round(run.mean_rollouts)
    return Settings(
        mode=mode,
        rollouts_per_prompt=batch[0],
        prompts_per_step=batch[1],
        lower=bounds[0],
        upper=bounds[1],
        nothing_to_move=nothing_to_move,
        reasons=reasons,
        trl=trl_lines(
            mode,
            *batch,
            bounds=bounds,
            reward_range=run.reward_range,
            is_range_seen=run.is_range_seen,
            choice=run.choice,
        ),
        trl_arithmetic=trl_arithmetic(*batch),
        verl=verl_lines(*even, is_kept=is_kept),
        verl_arithmetic=verl_arithmetic(*even, is_kept=is_kept),
    )


def check_bounds(lower: int | None, upper: int | None) -> None:
    """Raise unless the bounds, where given, leave room.

    Raises:
        InvalidInputError: `lower` below 2, or `upper` below `lower`.
    """
    if lower is not None and lower < 2:
        raise InvalidInputError(
            f"lower is {lower}, but a group of fewer than 2 rollouts has no advantage. "
            "Set lower to 2 or more."
        )
    if upper is not None and upper < (lower or 2):
        raise InvalidInputError(
            f"upper is {upper}, below lower = {lower or 2}. Raise the one or lower the other."
        )


def _mode(replayed: ReplayResult | None, run: RunFacts, *, is_stuck: bool) -> tuple[str, str]:
    """Return the mode, and its reason where the verdict does not tell it."""
    if is_stuck:
        return "uniform", ""
    is_judged = replayed is not None and run.mean_visits >= FEW_VISITS
    if run.is_adaptive and (not is_judged or replayed is None or replayed.saving > 0.0):
        return "adaptive", "The run was adaptive already, and nothing here speaks against it."
    if not is_judged or replayed is None:
        return "shadow", _SHADOW
    low, high = replayed.saving_interval
    if replayed.saving <= 0.0:
        return "uniform", "The replay saves nothing: equal groups do as well."
    if run.num_prompts < FEW_PROMPTS:
        return "shadow", f"So few prompts do not tell the saving from chance. {_SHADOW}"
    if 0.0 < low < high:
        return "adaptive", "The replay saves rollouts beyond chance: let the allocator decide."
    return "shadow", f"The replayed saving may be chance. {_SHADOW}"


def _lower(replayed: ReplayResult | None, size: int, bounds: Bounds, mode: str) -> tuple[int, str]:
    if bounds.lower is not None:
        return bounds.lower, f"lower = {bounds.lower} is yours."
    sure = mode == "adaptive" and replayed is not None and replayed.standardised_sq > TOO_SURE
    careful = int(min(max(2, size // 4), bounds.most))
    if sure and careful > 2:
        return careful, f"lower = {careful}, a quarter of n: the forecasts are too sure."
    return 2, "lower = 2 is the smallest group that has an advantage."


def _replayed_with(
    replayed_bounds: tuple[int, int] | None, bounds: tuple[int, int], run: RunFacts
) -> tuple[str, ...]:
    if replayed_bounds in (None, bounds):
        return ()
    assert replayed_bounds is not None
    return (
        f"The replay had {replayed_bounds[0]} to {replayed_bounds[1]} rollouts a prompt at the "
        f"run's n = {run.mean_rollouts:.3g}; its saving speaks of these.",
    )


def _batch(run: RunFacts, size: int) -> tuple[int, str]:
    """Keep the rollouts of a step, and at least half of its prompts."""
    if run.rollouts_per_step is None:
        return _ASSUMED_PROMPTS, (
            f"{_ASSUMED_PROMPTS} prompts a step are assumed, for the record does not tell: put "
            "your own number."
        )
    half = math.ceil(run.rollouts_per_step / run.mean_rollouts / 2.0 - 1e-9)
    prompts = max(round(run.rollouts_per_step / size), half, 1)
    had = f"{run.rollouts_per_step:,.0f}"
    same = ", as now" if had == f"{prompts * size:,}" else f"; the run had {had}"
    why = f"{counted(prompts, 'prompt')} x {size} = {prompts * size:,} rollouts a step{same}."
    if prompts == 1:
        why += " With one prompt a step there is nothing to allocate: take more."
    return prompts, why
