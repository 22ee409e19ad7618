"""How a simulated run learns, and what that means step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray, IntArray

Schedule = Literal["constant", "linear", "cosine"]
Optimizer = Literal["adam", "sgd"]
Estimator = Literal["dr_grpo", "rloo", "grpo"]

REFERENCE_BATCH = 1024
"""Rollouts of a step at which the learning rate is the one given."""
_LARGEST = {"learning_rate": 1e6, "rate_power": 2.0, "memory": 1e6, "kl": 1e6}
"""So that logits stay within floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The settings of a simulated run.

    Attributes:
        rollouts_per_prompt: n, rollouts of each prompt of a step; the mean, with an allocator.
        prompts_per_step: B_p, prompts of a step, drawn without replacement within a pass.
        learning_rate: eta0, the rate at 1,024 rollouts a step.
        rate_power: a of ``eta = eta0 (B_p n / 1024)^a``: 0 constant, 0.5 square root, 1 linear.
        schedule: of the rate over the budget, "constant", or to 0 by "linear" or "cosine".
        optimizer: "adam" or "sgd".
        beta2: of Adam's second moment.
        estimator: of the policy gradient, "dr_grpo", "rloo" or "grpo".
        memory: length of one feature that each problem has to itself, where the shared ones
            together have length 1: a problem learns for itself memory^2 times as fast as from
            others, and never forgets. 0 for none; any value above about 45 is one limit, in which a
            problem is known once it was solved.
        kl: weight of the divergence from the base policy in the loss.
        warmup: steps over which the rate rises to its value.
        shared: whether the shared weights learn; if not, nothing carries over to other problems.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> Training(rollouts_per_prompt=128).rate_at(32 * 128)
    0.04
    """

    rollouts_per_prompt: int
    prompts_per_step: int = 32
    learning_rate: float = 0.02
    rate_power: float = 0.5
    schedule: Schedule = "constant"
    optimizer: Optimizer = "adam"
    beta2: float = 0.999
    estimator: Estimator = "dr_grpo"
    memory: float = 0.0
    kl: float = 0.0
    warmup: int = 10
    shared: bool = True

    def __post_init__(self) -> None:
        """Check ranges."""
        validate.whole_number("rollouts_per_prompt", self.rollouts_per_prompt, at_least=2)
        validate.whole_number("prompts_per_step", self.prompts_per_step, at_least=1)
        validate.whole_number("warmup", self.warmup, at_least=0)
        validate.choice("schedule", self.schedule, ["constant", "linear", "cosine"])
        validate.choice("optimizer", self.optimizer, ["adam", "sgd"])
        validate.choice("estimator", self.estimator, ["dr_grpo", "rloo", "grpo"])
        for name, most in _LARGEST.items():
            value = validate.number(name, getattr(self, name))
            if not 0.0 <= value <= most:
                raise InvalidInputError(f"{name} is {value:g}, but must lie in [0, {most:g}].")
        if not 0.0 < validate.number("beta2", self.beta2) < 1.0:
            raise InvalidInputError(f"beta2 is {self.beta2:g}, but must lie between 0 and 1.")

    def rate_at(self, batch: float) -> float:
        """Return the learning rate for steps of so many rollouts, before warm-up and schedule."""
        return float(self.learning_rate * (batch / REFERENCE_BATCH) ** self.rate_power)

    def plan(self, budget: float, group_size_of: Callable[[float], int] | None = None) -> Plan:
        """Lay out the steps that a budget pays for.

        Args:
            budget: rollouts, in all; never exceeded.
            group_size_of: n by the compute spent before a step; `rollouts_per_prompt` if None.

        Raises:
            InvalidInputError: the budget does not pay for one step.
        """
        budget = validate.number("budget", budget)
        num_M = self._group_sizes(budget, group_size_of)
        if not len(num_M):
            least = self.prompts_per_step * self.rollouts_per_prompt
            raise InvalidInputError(
                f"budget is {budget:g} rollouts, but the first step takes {least:,} "
                "(prompts_per_step x rollouts_per_prompt). Raise it or take smaller steps."
            )
        batch_M = self.prompts_per_step * num_M
        compute_M = np.cumsum(batch_M)
        done_M = (compute_M - batch_M) / compute_M[-1]
        rate_M = self.learning_rate * (batch_M / REFERENCE_BATCH) ** self.rate_power
        rate_M *= np.minimum(1.0, np.arange(1, len(num_M) + 1) / max(self.warmup, 1))
        if self.schedule == "linear":
            rate_M *= 1.0 - done_M
        elif self.schedule == "cosine":
            rate_M *= 0.5 * (1.0 + np.cos(np.pi * done_M))
        return Plan(
            budget=budget,
            rollouts_per_prompt_M=num_M,
            learning_rate_M=rate_M,
            compute_M=compute_M,
        )

    def _group_sizes(self, budget: float, group_size_of: Callable[[float], int] | None) -> IntArray:
        if group_size_of is None:
            num_steps = int(budget // (self.prompts_per_step * self.rollouts_per_prompt))
            return np.full(max(num_steps, 0), self.rollouts_per_prompt, dtype=np.int64)
        sizes: list[int] = []
        spent = 0
        while True:
            num = validate.whole_number("group_size_of(compute)", group_size_of(spent), at_least=2)
            spent += self.prompts_per_step * num
            if spent > budget:
                return np.array(sizes, dtype=np.int64)
            sizes.append(num)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A run step by step.

    Attributes:
        budget: rollouts that there are.
        rollouts_per_prompt_M: n of each step.
        learning_rate_M: rate of each step.
        compute_M: rollouts spent after each step.
    """

    budget: float
    rollouts_per_prompt_M: IntArray
    learning_rate_M: FloatArray
    compute_M: IntArray

    def __len__(self) -> int:
        """Return M, the number of steps."""
        return len(self.compute_M)
