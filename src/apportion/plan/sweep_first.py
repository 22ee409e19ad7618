"""Which runs to make before the one that counts, and what rollouts cost."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.limits import MOST_ROLLOUTS, Limits, power_of_two
from apportion.plan.recipe import WARMUP_STEPS, Anchor

SHARE = 40
"""Each run takes the budget over this: four of them a tenth."""
LEAST_STEPS = 2 * WARMUP_STEPS
_FACTOR = 4
_LEAST_ROLLOUTS = 4
"""Smallest n that was ever tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What rollouts cost; None where the rate is unknown.

    Attributes:
        rollouts: their number.
        tokens: generated.
        gpu_hours: of all that a run does.
        price: in the currency of the price given.
    """

    rollouts: int
    tokens: float | None
    gpu_hours: float | None
    price: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costing:
    """What a rollout costs.

    Attributes:
        tokens_per_rollout: mean length.
        rollouts_per_gpu_hour: of a run, training included.
        price_per_gpu_hour: in any currency.

    Raises:
        InvalidInputError: a rate is not above 0, or there is a price but no rollouts per GPU-hour.

    >>> Costing(rollouts_per_gpu_hour=1000, price_per_gpu_hour=2).of(50_000).price
    100.0
    """

    tokens_per_rollout: float | None = None
    rollouts_per_gpu_hour: float | None = None
    price_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        """Check each."""
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and validate.number(name, value) <= 0.0:
                raise InvalidInputError(f"{name} is {value:g}, but must be above 0.")
        if self.price_per_gpu_hour is not None and self.rollouts_per_gpu_hour is None:
            raise InvalidInputError("price_per_gpu_hour needs rollouts_per_gpu_hour.")

    def of(self, rollouts: int) -> Cost:
        """Return the cost of so many rollouts."""
        tokens, per_hour = self.tokens_per_rollout, self.rollouts_per_gpu_hour
        hours = None if per_hour is None else rollouts / per_hour
        price = self.price_per_gpu_hour
        return Cost(
            rollouts=rollouts,
            tokens=None if tokens is None else rollouts * tokens,
            gpu_hours=hours,
            price=None if hours is None or price is None else hours * price,
        )

    def rollouts_in(self, gpu_hours: float) -> int:
        """Return the rollouts of so many GPU-hours.

        Raises:
            InvalidInputError: how many an hour makes is unknown.
        """
        if self.rollouts_per_gpu_hour is None:
            raise InvalidInputError("gpu_hours needs rollouts_per_gpu_hour.")
        return int(validate.number("gpu_hours", gpu_hours) * self.rollouts_per_gpu_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """A short run.

    Attributes:
        rollouts_per_prompt: n.
        prompts_per_step: B_p.
        num_steps: M.
        learning_rate: after warm-up, constant.
        tells: what it is for.
        cost: of the run.
    """

    rollouts_per_prompt: int
    prompts_per_step: int
    num_steps: int
    learning_rate: float
    tells: str
    cost: Cost


def sweep_first(
    rollouts_per_prompt: int,
    prompts_per_step: int,
    budget: int,
    *,
    limits: Limits,
    anchor: Anchor,
    costing: Costing,
) -> tuple[SweepRun, ...]:
    """Return runs at n/4, n and 4n, and one at n/4 with the learning rate of n.

    Each spends a fortieth of the budget. Sizes go down by factors of two until the largest takes
    twenty steps, twice the warm-up. The last run tells n from the learning rate that grows with it.

    Args:
        rollouts_per_prompt: n of the plan.
        prompts_per_step: B_p of the plan, the same for all.
        budget: C of the plan.
        limits: kept to as by the plan.
        anchor: learning rate that was tuned once.
        costing: what rollouts cost.

    Returns:
        Three or four runs; none where a fortieth of the budget is too little to compare sizes.
    """
    compute = budget // SHARE
    room = min(
        _FACTOR * rollouts_per_prompt,
        MOST_ROLLOUTS,
        limits.batch_of(prompts_per_step),
        compute // (LEAST_STEPS * prompts_per_step),
    )
    if room < _FACTOR * _LEAST_ROLLOUTS:
        return ()
    top = power_of_two(room)
    sizes = [n for n in (top // _FACTOR**2, top // _FACTOR, top) if n >= _LEAST_ROLLOUTS]

    def run(n: int, batch: int, tells: str) -> SweepRun:
        steps = int(min(compute // (n * prompts_per_step), limits.steps_of(prompts_per_step)))
        return SweepRun(
            rollouts_per_prompt=n,
            prompts_per_step=prompts_per_step,
            num_steps=steps,
            learning_rate=anchor.rate_at(batch * prompts_per_step),
            tells=tells,
            cost=costing.of(n * prompts_per_step * steps),
        )

    of_rate = rollouts_per_prompt if rollouts_per_prompt in sizes[1:] else top
    return (
        *(run(n, n, f"n = {n:,}") for n in sizes),
        run(
            of_rate // _FACTOR,
            of_rate,
            f"n = {of_rate // _FACTOR:,} at the learning rate of n = {of_rate:,}: what the latter "
            "gains over it is due to n, not to its rate",
        ),
    )
