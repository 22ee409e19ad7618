"""What the runs of a sweep differ in: n, B_p, learning rate, allocator and seed; grids of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.plan.recipe import FEWEST_STEPS, WARMUP_STEPS

ALLOCATORS = ("uniform", "adaptive")
RULES = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Power of the batch that the learning rate grows with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run of a sweep.

    Attributes:
        rollouts_per_prompt: n.
        prompts_per_step: B_p.
        learning_rate: after warm-up, constant.
        allocator: arm of the run.
        seed: of prompts, sampling and weights.
        num_steps: M, of the whole run.
    """

    rollouts_per_prompt: int
    prompts_per_step: int
    learning_rate: float
    allocator: str
    seed: int
    num_steps: int

    @property
    def batch(self) -> int:
        """B, rollouts of a step."""
        return self.rollouts_per_prompt * self.prompts_per_step

    @property
    def budget(self) -> int:
        """C, rollouts of the whole run."""
        return self.batch * self.num_steps

    @property
    def name(self) -> str:
        """Name of the run and of its folder.

        >>> Setting(rollouts_per_prompt=16, prompts_per_step=32, learning_rate=2e-4,
        ...         allocator="uniform", seed=0, num_steps=20).name
        'n16-prompts32-rate0.0002-uniform-seed0'
        """
        return (
            f"n{self.rollouts_per_prompt}-prompts{self.prompts_per_step}"
            f"-rate{self.learning_rate:g}-{self.allocator}-seed{self.seed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRule:
    """Learning rate as a function of the rollouts of a step: ``eta0 (B / B0)^power``.

    Attributes:
        learning_rate: eta0.
        tuned_at: B0, rollouts of a step that it was tuned at.
        rule: constant, sqrt or linear.

    >>> RateRule(learning_rate=1e-6, tuned_at=1024, rule="sqrt").rate_at(4096)
    2e-06
    """

    learning_rate: float
    tuned_at: int
    rule: str

    def rate_at(self, batch: int) -> float:
        """Return the rate of a step of so many rollouts, to three digits."""
        power = RULES[validate.choice("rate_rule", self.rule, tuple(RULES))]
        return float(f"{self.learning_rate * (batch / self.tuned_at) ** power:.3g}")


def grid(
    *,
    rollouts_per_prompt: Sequence[int],
    prompts_per_step: Sequence[int],
    rates: Sequence[RateRule],
    allocators: Sequence[str],
    seeds: Sequence[int],
    budget: int,
) -> list[Setting]:
    """Return every combination, seed by seed so that a whole grid of one seed is there early.

    Args:
        rollouts_per_prompt: sizes n.
        prompts_per_step: sizes B_p.
        rates: learning rates with their rules; equal ones count once.
        allocators: arms.
        seeds: of each.
        budget: C, rollouts of each run at most; whole steps are made of it.

    Raises:
        InvalidInputError: a value is out of range, or the budget leaves a run too few steps.

    >>> rule = RateRule(learning_rate=1e-4, tuned_at=64, rule="sqrt")
    >>> found = grid(rollouts_per_prompt=[4, 16], prompts_per_step=[16], rates=[rule],
    ...              allocators=["uniform"], seeds=[0], budget=10_000)
    >>> [(one.rollouts_per_prompt, one.learning_rate, one.num_steps) for one in found]
    [(4, 0.0001, 156), (16, 0.0002, 39)]
    """
    validate.whole_number("budget", budget, at_least=1)
    found: dict[Setting, None] = {}
    for seed, allocator, prompts, n, rate in product(
        seeds, allocators, prompts_per_step, rollouts_per_prompt, rates
    ):
        validate.whole_number("rollouts_per_prompt", n, at_least=2)
        validate.whole_number("prompts_per_step", prompts, at_least=1)
        batch = n * prompts
        setting = Setting(
            rollouts_per_prompt=n,
            prompts_per_step=prompts,
            learning_rate=rate.rate_at(batch),
            allocator=allocator,
            seed=seed,
            num_steps=budget // batch,
        )
        found[setting] = None
    if not found:
        raise InvalidInputError("The sweep has no runs: give sizes, rates, allocators and seeds.")
    return checked(list(found))


def checked(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings if each has enough steps and a name of its own.

    Raises:
        InvalidInputError: one has not.
    """
    for one in settings:
        if one.num_steps < FEWEST_STEPS:
            raise InvalidInputError(
                f"A run with n = {one.rollouts_per_prompt} and {one.prompts_per_step} prompts a "
                f"step would make {one.num_steps} steps, but a rate that warms up for "
                f"{WARMUP_STEPS} needs {FEWEST_STEPS}: {FEWEST_STEPS * one.batch:,} rollouts. "
                "Raise the budget, or leave out the largest sizes."
            )
    seen: dict[str, Setting] = {}
    for one in settings:
        if seen.setdefault(one.name, one) != one:
            raise InvalidInputError(
                f"Two runs would be called {one.name} but differ in their steps: "
                f"{seen[one.name].num_steps} and {one.num_steps}. Give them seeds of their own."
            )
    return list(seen.values())
