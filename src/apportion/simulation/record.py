"""What is kept of simulated runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.simulation.evaluation import Scores, exact_scores, measured_scores
from apportion.simulation.learners import Learners
from apportion.simulation.training import Plan, Training
from apportion.validate import FloatArray, IntArray

EVALUATION_STREAM = 2
"""Of the random numbers of a run."""
_FIRST_EVALUATION = 1e-3
"""Share of the compute at the first evaluation, if the steps are that short."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurement:
    """What evaluations of finite size showed.

    Attributes:
        problems: held-out problems, the first ones, the same at each evaluation and in each run.
        samples: of each problem, fresh at each evaluation.
        success_T: mean reward.
        best_T: best@4; NaN with fewer than four samples.
        worst_T: worst@4; likewise.
    """

    problems: int
    samples: int
    success_T: FloatArray
    best_T: FloatArray
    worst_T: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRun:
    """One run, evaluated now and then.

    Attributes:
        training: its settings.
        seed: of the order of prompts and of all draws.
        compute_T: rollouts spent at each evaluation.
        success_T: exact mean success of the held-out problems.
        best_T: exact best@4 of them: the chance that one of four samples or more is correct.
        worst_T: exact worst@4: the chance that all four are.
        train_T: mean reward of the training steps since the evaluation before.
        measured: what evaluations of finite size showed, if any were asked for.
        problems_at_P: rollouts spent when the success of each problem was taken.
        train_success_PQ: exact success of each training problem there.
    """

    training: Training
    seed: int
    compute_T: IntArray
    success_T: FloatArray
    best_T: FloatArray
    worst_T: FloatArray
    train_T: FloatArray
    measured: Measurement | None
    problems_at_P: IntArray
    train_success_PQ: FloatArray


class Recorder:
    """Evaluates runs as they go.

    Args:
        learners: the runs.
        plan: of their steps.
        seeds: of each run.
        num_evaluations: at most so many.
        evaluation: problems and samples of finite evaluations, if any.
        problems_at: amounts of compute at which the success of every problem is kept.

    Raises:
        InvalidInputError: a value is out of its range.
    """

    def __init__(
        self,
        learners: Learners,
        plan: Plan,
        seeds: Sequence[int],
        *,
        num_evaluations: int,
        evaluation: tuple[int, int] | None,
        problems_at: Sequence[float],
    ) -> None:
        self._learners, self._plan, self._seeds = learners, plan, seeds
        self._step_T = _evaluation_steps(plan, num_evaluations)
        self._evaluated = set(self._step_T.tolist())
        self._step_P = _steps_at(plan, problems_at)
        self._kept = set(self._step_P.tolist())
        self._size = _checked_size(evaluation, len(learners.problems.held_out))
        self._rngs = [np.random.default_rng([seed, EVALUATION_STREAM]) for seed in seeds]
        self._reward_MR = np.empty((len(plan), len(seeds)))
        self._exact: list[Scores] = []
        self._measured: list[list[Scores]] = [[] for _ in seeds]
        self._success_of_step = {0: learners.train_success()} if 0 in self._kept else {}

    def after(self, num_steps: int, reward_R: FloatArray) -> None:
        """Evaluate, if it is time, after so many steps, of which the last gave these rewards."""
        self._reward_MR[num_steps - 1] = reward_R
        if num_steps in self._kept:
            self._success_of_step[num_steps] = self._learners.train_success()
        if num_steps not in self._evaluated:
            return
        success_RV = self._learners.held_out_success()
        self._exact.append(exact_scores(success_RV))
        if self._size is not None:
            problems, samples = self._size
            for scores, success_V, rng in zip(self._measured, success_RV, self._rngs, strict=True):
                scores.append(measured_scores(success_V[:problems], samples, rng))

    def runs(self) -> list[SimulatedRun]:
        """Return what was found."""
        start_T = np.concatenate([[0], self._step_T[:-1]])
        train_TR = np.add.reduceat(self._reward_MR, start_T, axis=0)
        train_TR /= np.diff(self._step_T, prepend=0)[:, None]
        compute = np.concatenate([[0], self._plan.compute_M])
        train = self._learners.problems.train
        return [
            SimulatedRun(
                training=self._learners.training,
                seed=seed,
                compute_T=compute[self._step_T],
                success_T=np.array([scores.mean[run] for scores in self._exact]),
                best_T=np.array([scores.best[run] for scores in self._exact]),
                worst_T=np.array([scores.worst[run] for scores in self._exact]),
                train_T=train_TR[:, run].copy(),
                measured=self._measurement(self._measured[run]),
                problems_at_P=compute[self._step_P],
                train_success_PQ=np.array(
                    [self._success_of_step[step][run] for step in self._step_P.tolist()]
                ).reshape(-1, len(train)),
            )
            for run, seed in enumerate(self._seeds)
        ]

    def _measurement(self, scores: list[Scores]) -> Measurement | None:
        if self._size is None:
            return None
        return Measurement(
            problems=self._size[0],
            samples=self._size[1],
            success_T=np.array([one.mean for one in scores]),
            best_T=np.array([one.best for one in scores]),
            worst_T=np.array([one.worst for one in scores]),
        )


def _evaluation_steps(plan: Plan, num_evaluations: int) -> IntArray:
    """Return after which steps to evaluate, evenly over the logarithm of compute."""
    num = validate.whole_number("num_evaluations", num_evaluations, at_least=1)
    last = float(plan.compute_M[-1])
    first = max(_FIRST_EVALUATION * last, float(plan.compute_M[0]))
    wanted_T = np.geomspace(first, last, num) if num > 1 else np.array([last])
    step_T = np.searchsorted(plan.compute_M, wanted_T * (1.0 - 1e-9)) + 1
    step_T[-1] = len(plan)
    return np.unique(step_T)


def _steps_at(plan: Plan, problems_at: Sequence[float]) -> IntArray:
    """Return how many steps each amount of compute pays for."""
    compute_P = validate.vector("problems_at", problems_at)
    for at, compute in enumerate(compute_P.tolist()):
        if not 0.0 <= compute <= plan.budget:
            raise InvalidInputError(
                f"problems_at[{at}] is {compute:g}, but must lie in [0, {plan.budget:g}], the "
                "budget."
            )
    return np.searchsorted(plan.compute_M, compute_P, side="right")


def _checked_size(evaluation: tuple[int, int] | None, num_held_out: int) -> tuple[int, int] | None:
    if evaluation is None:
        return None
    if len(evaluation) != 2:
        raise InvalidInputError("evaluation must be two numbers, problems and samples of each.")
    problems = validate.whole_number("evaluation problems", evaluation[0], at_least=1)
    samples = validate.whole_number("evaluation samples", evaluation[1], at_least=1)
    if problems > num_held_out:
        raise InvalidInputError(
            f"evaluation takes {problems} problems, but the population has {num_held_out} held-out "
            "ones. Take fewer or raise num_held_out."
        )
    return problems, samples
