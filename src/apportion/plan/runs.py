"""Runs of a sweep, as the planner sees them: a learning curve each, with the settings behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One training run, evaluated now and then.

    Attributes:
        name: of the run, for messages.
        rollouts_per_prompt: n.
        prompts_per_step: B_p.
        compute_T: rollouts spent at each evaluation, rising.
        reward_T: held-out reward there, in [0, 1].
        seed: of the run.
        learning_rate: of its steps, after warm-up; None if unknown.
        num_prompts: D, prompts that it trains on; None if unknown.
        evaluation: held-out problems and samples of each; None if exact or unknown.
        allocator: who decides the group sizes.
        is_filtered: whether the reward leaves out groups without signal, which makes it a figure of
            the prompts that were kept.

    Raises:
        InvalidInputError: lengths differ, no evaluation, compute that does not rise, rewards
            outside [0, 1], numbers below 1.
    """

    name: str
    rollouts_per_prompt: int
    prompts_per_step: int
    compute_T: FloatArray
    reward_T: FloatArray
    seed: int = 0
    learning_rate: float | None = None
    num_prompts: int | None = None
    evaluation: tuple[int, int] | None = None
    allocator: str = "uniform"
    is_filtered: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("rollouts_per_prompt", "prompts_per_step"):
            validate.whole_number(f"{name} of {self.name}", getattr(self, name), at_least=1)
        compute = validate.vector(f"compute of {self.name}", self.compute_T)
        reward = validate.probability(f"reward of {self.name}", self.reward_T, size=len(compute))
        if not len(compute) or compute[0] < 0.0 or (np.diff(compute) <= 0.0).any():
            raise InvalidInputError(
                f"compute of {self.name} must be rollouts spent so far: 0 or more, and rising."
            )
        object.__setattr__(self, "compute_T", compute)
        object.__setattr__(self, "reward_T", reward)

    @property
    def num_steps(self) -> float:
        """M, steps that the run took."""
        return float(self.compute_T[-1]) / (self.prompts_per_step * self.rollouts_per_prompt)

    @property
    def setting(self) -> tuple[int, int, float | None, str]:
        """What tells it from others, its seed aside."""
        return self.rollouts_per_prompt, self.prompts_per_step, self.learning_rate, self.allocator

    def sampling_variance(self) -> FloatArray:
        """Return the most that sampling can add to the variance of each reward, 0 if unknown.

        ``R (1 - R) / (problems samples)``: less if success differs between problems.
        """
        if self.evaluation is None:
            return np.zeros_like(self.reward_T)
        problems, samples = self.evaluation
        variance: FloatArray = self.reward_T * (1.0 - self.reward_T) / (problems * samples)
        return variance

    def until(self, compute: float) -> Run | None:
        """Return the run as it was when it had spent so many rollouts; None if not yet judged."""
        is_past_T = self.compute_T <= compute * (1.0 + 1e-9)
        if not is_past_T.any():
            return None
        values = {name: getattr(self, name) for name in self.__slots__}
        values["compute_T"], values["reward_T"] = (
            self.compute_T[is_past_T],
            self.reward_T[is_past_T],
        )
        return Run(**values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """Runs of one setting, which differ by seed.

    Attributes:
        runs: at least one.
    """

    runs: tuple[Run, ...]

    @property
    def rollouts_per_prompt(self) -> int:
        """N of its runs."""
        return self.runs[0].rollouts_per_prompt

    @property
    def prompts_per_step(self) -> int:
        """B_p of its runs."""
        return self.runs[0].prompts_per_step

    @property
    def learning_rate(self) -> float | None:
        """Learning rate of its runs."""
        return self.runs[0].learning_rate

    @property
    def allocator(self) -> str:
        """Who decides the group sizes."""
        return self.runs[0].allocator

    @property
    def label(self) -> str:
        """Say which setting it is."""
        parts = [f"n = {self.rollouts_per_prompt}", f"B_p = {self.prompts_per_step}"]
        if self.learning_rate is not None:
            parts.append(f"learning rate {self.learning_rate:g}")
        if self.allocator != "uniform":
            parts.append(self.allocator)
        return ", ".join(parts)

    @property
    def batch(self) -> int:
        """B, rollouts of a step."""
        return self.rollouts_per_prompt * self.prompts_per_step

    @property
    def num_levels(self) -> int:
        """Rollouts above 0, each counted once, at which its runs were judged."""
        compute, _ = self.points()
        return len(np.unique(compute[compute > 0.0]))

    def points(self) -> tuple[FloatArray, FloatArray]:
        """Return compute and reward of all its evaluations together."""
        return (
            np.concatenate([run.compute_T for run in self.runs]),
            np.concatenate([run.reward_T for run in self.runs]),
        )


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """Put runs of one setting together, in order of n, B_p and learning rate.

    Raises:
        InvalidInputError: there is no run, or two of one setting share a seed and a name.

    >>> runs = [
    ...     Run(name=f"r{s}", rollouts_per_prompt=8, prompts_per_step=32, seed=s,
    ...         compute_T=np.array([256.0]), reward_T=np.array([0.5]))
    ...     for s in range(2)
    ... ]
    >>> [cell.label for cell in cells_of(runs)]
    ['n = 8, B_p = 32']
    """
    if not runs:
        raise InvalidInputError("There are no runs to plan from. Give a file or folders of runs.")
    grouped: dict[tuple[int, int, float, str], list[Run]] = {}
    for run in runs:
        n, prompts, rate, allocator = run.setting
        key = (n, prompts, -1.0 if rate is None else rate, allocator)
        same = grouped.setdefault(key, [])
        if any((run.name, run.seed) == (other.name, other.seed) for other in same):
            raise InvalidInputError(
                f"Two runs are called {run.name} and have seed {run.seed} and equal settings. Give "
                "each a name or a seed of its own, or leave one out."
            )
        same.append(run)
    return [Cell(runs=tuple(grouped[key])) for key in sorted(grouped)]
