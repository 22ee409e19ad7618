"""How many rollouts each prompt of a simulated step gets: all the same, or as an allocator says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from apportion.errors import InvalidInputError
from apportion.simulation.gradient import Groups
from apportion.simulation.problems import ProblemSet
from apportion.simulation.training import Training
from apportion.types import Allocation, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray


class Allocator(Protocol):
    """What decides the sizes, such as `apportion.RolloutAllocator`."""

    def allocate(self, prompts: Prompts, budget: int, /) -> Allocation:
        """Split the budget of a step over its prompts."""

    def observe(self, outcomes: Outcomes, /) -> None:
        """Learn from what came back."""


class EqualSizes:
    """The same for all prompts of a step."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._groups: Groups | None = None

    def groups(self, num: int, row_RB: IntArray) -> Groups:
        """Return groups of `num` rollouts."""
        if self._groups is None or self._groups.num_RB[0, 0] != num:
            num_RB = np.full((1, 1), num, dtype=np.int64)
            training = self._training
            self._groups = Groups.of(num_RB, training.prompts_per_step, training.estimator)
        return self._groups

    def observe(self, row_RB: IntArray, groups: Groups, reward_RB: FloatArray) -> None:
        """Learn nothing."""


class AllocatedSizes:
    """As the allocator of each run says, which sees its own run alone.

    Args:
        make: makes the allocator of one run.
        problems: those trained on.
        training: settings of the runs.
        num_runs: R.
    """

    def __init__(
        self, make: Callable[[], Allocator], problems: ProblemSet, training: Training, num_runs: int
    ) -> None:
        self._allocators: Sequence[Allocator] = [make() for _ in range(num_runs)]
        self._prompts, self._training = problems.prompts(), training
        self._step = 0

    def groups(self, num: int, row_RB: IntArray) -> Groups:
        """Return groups of `num` rollouts in the mean."""
        num_RB = np.empty(row_RB.shape, dtype=np.int64)
        budget = num * self._training.prompts_per_step
        for run, allocator in enumerate(self._allocators):
            found = allocator.allocate(self._prompts.take(row_RB[run]), budget)
            num_RB[run] = found.num_rollouts_B
            if num_RB[run].sum() != budget or num_RB[run].min() < 0:
                raise InvalidInputError(
                    f"The allocator gave {num_RB[run].sum()} rollouts, but a step has {budget}. "
                    "Let num_rollouts_B sum to the budget."
                )
        return Groups.of(num_RB, self._training.prompts_per_step, self._training.estimator)

    def observe(self, row_RB: IntArray, groups: Groups, reward_RB: FloatArray) -> None:
        """Show each allocator what its run drew."""
        nothing_B = np.zeros(row_RB.shape[1], dtype=np.int64)
        for run, allocator in enumerate(self._allocators):
            num_B = groups.num_RB[run]
            correct_B = np.rint(reward_RB[run] * num_B)
            allocator.observe(
                Outcomes(
                    prompt_B=self._prompts.id_B[row_RB[run]],
                    num_requested_B=num_B,
                    num_rollouts_B=num_B,
                    reward_sum_B=correct_B,
                    reward_sumsq_B=correct_B,
                    num_tokens_B=nothing_B,
                    num_truncated_B=nothing_B,
                    step=self._step,
                    policy_step_B=np.full(row_RB.shape[1], self._step, dtype=np.int64),
                )
            )
        self._step += 1
