"""What a plan must keep to, and the n and prompts per step that it leaves.

n first, the power of two next to the median of its draws; then B_p, at its least if need be. As the
largest batch gets smaller, B_p falls to 32, then n to 8, then B_p to 8, then n to 2, the smallest
group, and at last B_p to 1.

Axes: D draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.prior import LEAST_ROLLOUTS
from apportion.plan.recipe import least_prompts
from apportion.validate import FloatArray
from apportion.words import counted

LEVEL = 0.9
LEAST_STEPS = 100
"""n is lowered, down to 8, until so many steps remain; see `published.STEPS_TO_LEAD`."""
LEAST_GROUP = 2
MOST_BUDGET = 10**15
MOST_ROLLOUTS = 2048
"""Largest n that was tried."""
_LEAST_PROMPTS = 8
"""Fewest prompts of a step that were tried at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a plan must keep to; None where there is no limit.

    Attributes:
        max_batch: most rollouts of a step.
        prompts_per_step: B_p, if it is not to be chosen.
        num_prompts: prompts to train on.
        epochs: most passes over them.

    Raises:
        InvalidInputError: they leave no batch: two rollouts of every prompt of a step.
    """

    max_batch: int | None = None
    prompts_per_step: int | None = None
    num_prompts: int | None = None
    epochs: float | None = None

    def __post_init__(self) -> None:
        """Check each, and that they go together."""
        for name, least in (("max_batch", 2), ("prompts_per_step", 1), ("num_prompts", 1)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, validate.whole_number(name, value, at_least=least))
        prompts, known = self.prompts_per_step, self.num_prompts
        if prompts is not None and known is not None and prompts > known:
            raise InvalidInputError(
                f"prompts_per_step is {prompts:,}, but there "
                f"{'is' if known == 1 else 'are'} {counted(known, 'prompt')} to train on."
            )
        if prompts is not None and self.max_batch is not None and 2 * prompts > self.max_batch:
            raise InvalidInputError(
                f"prompts_per_step is {prompts:,}, but a group needs {LEAST_GROUP} rollouts and "
                f"max_batch is {self.max_batch:,}. Give at most {self.max_batch // 2:,}."
            )
        if self.epochs is not None:
            if validate.number("epochs", self.epochs) <= 0.0:
                raise InvalidInputError(f"epochs is {self.epochs:g}, but must be above 0.")
            if known is None:
                raise InvalidInputError("epochs is a limit only with the number of prompts.")

    def batch_of(self, num_prompts: int) -> float:
        """Return the largest n for so many prompts a step."""
        return np.inf if self.max_batch is None else self.max_batch // num_prompts

    def steps_of(self, num_prompts: int) -> float:
        """Return the most steps of so many prompts."""
        if self.epochs is None or self.num_prompts is None:
            return np.inf
        return float(np.floor(self.epochs * self.num_prompts / num_prompts + 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where n may lie, limits aside.

    Attributes:
        low: lower end.
        median: half of the draws lie below.
        high: upper end.
        level: share of the draws between the ends.
    """

    low: float
    median: float
    high: float
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rollouts of a step.

    Attributes:
        rollouts_per_prompt: n.
        prompts_per_step: B_p.
        wanted: n before limits.
    """

    rollouts_per_prompt: int
    prompts_per_step: int
    wanted: int

    @property
    def size(self) -> int:
        """B, all of them."""
        return self.rollouts_per_prompt * self.prompts_per_step


def interval_of(log2_rollouts_D: FloatArray) -> Interval:
    """Return median and 90% interval of n.

    Raises:
        InvalidInputError: there are no draws.
    """
    if not len(log2_rollouts_D):
        raise InvalidInputError("log2_rollouts_D is empty. Give at least one draw.")
    levels = [(1.0 - LEVEL) / 2.0, 0.5, (1.0 + LEVEL) / 2.0]
    low, median, high = (float(2.0**at) for at in np.quantile(log2_rollouts_D, levels))
    return Interval(low=low, median=median, high=high, level=LEVEL)


def batch_within(limits: Limits, interval: Interval, budget: int, difficulty: str) -> Batch:
    """Choose n and B_p.

    Args:
        limits: kept to.
        interval: of n.
        budget: C, rollouts.
        difficulty: easy, hard or mixed.

    Raises:
        InvalidInputError: there is no room for a step of two rollouts a prompt.

    >>> interval = interval_of(np.log2([64.0]))
    >>> batch_within(Limits(max_batch=1024), interval, 10**6, "easy")
    Batch(rollouts_per_prompt=32, prompts_per_step=32, wanted=64)
    """
    check_budget(budget)
    wanted = _wanted(interval, budget, limits)
    prompts = _prompts(difficulty, limits, wanted)
    if budget < LEAST_GROUP * prompts:
        raise InvalidInputError(
            f"budget is {budget:,}, but one step takes at least {LEAST_GROUP * prompts:,} "
            f"rollouts: {LEAST_GROUP} of each of {counted(prompts, 'prompt')}. Give as many, "
            "or fewer prompts per step."
        )
    if limits.steps_of(prompts) < 1:
        raise InvalidInputError(
            f"epochs is {limits.epochs:g}, but a step takes {prompts:,} of "
            f"{counted(limits.num_prompts or 1, 'prompt')}. Give at least "
            f"{prompts / (limits.num_prompts or 1):.2g}."
        )
    steps = int(min(LEAST_STEPS, limits.steps_of(prompts)))
    for_steps = max(budget // (steps * prompts), LEAST_ROLLOUTS)
    room = power_of_two(min(limits.batch_of(prompts), for_steps, budget // prompts))
    return Batch(rollouts_per_prompt=min(wanted, room), prompts_per_step=prompts, wanted=wanted)


def check_budget(budget: float) -> None:
    """Raise if a budget is more than anyone could spend.

    Raises:
        InvalidInputError: it is.
    """
    if budget > MOST_BUDGET:
        raise InvalidInputError(
            f"budget is {budget:.4g}, but {MOST_BUDGET:.0e} rollouts are the most. Give what the "
            "run may spend."
        )


def power_of_two(most: float) -> int:
    """Return the largest power of two that is not above a number from 1.

    >>> power_of_two(100.5), power_of_two(64)
    (64, 64)
    """
    return 1 << (int(most).bit_length() - 1)


def _prompts(difficulty: str, limits: Limits, wanted: int) -> int:
    """Return B_p: as given, or a moderate number, lowered as far as the largest batch asks for.

    To 32 for the n that is wanted; below, to 8, for an n of 8; below that, for an n of 2.
    """
    if limits.prompts_per_step is not None:
        return limits.prompts_per_step
    known = np.inf if limits.num_prompts is None else limits.num_prompts
    prompts = int(min(least_prompts(difficulty), known))
    if limits.max_batch is None:
        return prompts
    for n, least in (
        (wanted, least_prompts("easy")),
        (LEAST_ROLLOUTS, _LEAST_PROMPTS),
        (LEAST_GROUP, 1),
    ):
        room = power_of_two(max(limits.max_batch // min(n, wanted), 1))
        prompts = min(prompts, max(room, least))
    return prompts


def _wanted(interval: Interval, budget: int, limits: Limits) -> int:
    """Return n before limits: the power of two next to the median, within what was tried.

    If so many passes would not spend the budget, n rises as far as the interval goes.
    """
    wanted = 1 << int(np.floor(np.log2(interval.median) + 0.5))
    if limits.epochs is not None and limits.num_prompts is not None:
        to_spend = budget / (limits.epochs * limits.num_prompts)
        if to_spend > wanted:
            enough = 1 << int(np.ceil(np.log2(to_spend)))
            wanted = max(wanted, min(enough, power_of_two(interval.high + 1e-9)))
    return min(max(wanted, LEAST_GROUP), MOST_ROLLOUTS)
