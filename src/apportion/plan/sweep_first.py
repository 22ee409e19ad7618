"""Which runs to make before the one that counts, and what rollouts cost."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.limits import MOST_ROLLOUTS, Limits
from apportion.plan.recipe import FEWEST_STEPS, WARMUP_STEPS, Anchor

SHARE = 40
"""Each run takes the budget over this, four of them a tenth, where that is enough."""
LEAST_STEPS = 2 * WARMUP_STEPS
_LEAST_SHARE = 10
"""Of the largest n, where there is no room for more."""
_AROUND = ((0.25, 1, 4), (0.0625, 0.25, 1), (0.5, 1, 2), (0.25, 0.5, 1), (1, 2, 4))
"""Sizes over n, the most telling first."""
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
    """Return runs at three sizes, n among them, and one at a smaller n with the rate of a larger.

    At n/4, n and 4n; or n/16, n/4 and n; or as many halves and doubles. Each spends a fortieth of
    the budget and the largest takes twenty steps, twice the warm-up; if no sizes around n fit that,
    twelve; and if none fit that, each spends as much as it takes, up to a tenth of the budget. The
    last run tells n from the learning rate that grows with it.

    Args:
        rollouts_per_prompt: n of the plan.
        prompts_per_step: B_p of the plan, the same for all.
        budget: C of the plan.
        limits: kept to as by the plan.
        anchor: learning rate that was tuned once.
        costing: what rollouts cost.

    Returns:
        Four runs; none where there is no room for three sizes with n among them.

    >>> runs = sweep_first(
    ...     64, 64, 2_000_000, limits=Limits(), anchor=Anchor(), costing=Costing()
    ... )
    >>> [(run.rollouts_per_prompt, run.num_steps) for run in runs]
    [(4, 195), (16, 48), (64, 12), (16, 48)]
    """
    found = _sizes_and_compute(rollouts_per_prompt, prompts_per_step, budget, limits, anchor)
    if found is None:
        return ()
    sizes, compute = found

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

    larger = rollouts_per_prompt if rollouts_per_prompt in sizes[1:] else sizes[-1]
    smaller = sizes[sizes.index(larger) - 1]
    return (
        *(run(n, n, f"n = {n:,}") for n in sizes),
        run(
            smaller,
            larger,
            f"n = {smaller:,} at the learning rate of n = {larger:,}: what the latter gains over "
            "it is due to n, not to its rate",
        ),
    )


def _sizes_and_compute(
    n: int, prompts: int, budget: int, limits: Limits, anchor: Anchor
) -> tuple[list[int], int] | None:
    """Return three sizes with n among them and the rollouts of each run; None without room."""
    most = min(MOST_ROLLOUTS, limits.batch_of(prompts))
    around = [
        [int(n * factor) for factor in factors]
        for factors in _AROUND
        if n * factors[0] >= _LEAST_ROLLOUTS
        and n * factors[-1] <= most
        and all(anchor.reaches(int(n * factor) * prompts) for factor in factors)
    ]
    if limits.steps_of(prompts) < FEWEST_STEPS:
        return None
    for share, least_steps in (
        (SHARE, LEAST_STEPS),
        (SHARE, FEWEST_STEPS),
        (_LEAST_SHARE, FEWEST_STEPS),
    ):
        for sizes in around:
            step = sizes[-1] * prompts
            if budget // share >= least_steps * step:
                wanted = max(budget // SHARE, LEAST_STEPS * step)
                return sizes, min(budget // share, wanted)
    return None
