"""The loop over the steps of simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.prompt_stream import prompt_stream
from apportion.simulation.group_sizes import AllocatedSizes, Allocator, EqualSizes
from apportion.simulation.learners import Learners
from apportion.simulation.population import Population
from apportion.simulation.problems import Problems
from apportion.simulation.record import Recorder, SimulatedRun
from apportion.simulation.training import Training

_ROLLOUT_STREAM = 1
"""Of the random numbers of a run; the order of its prompts has the seed alone."""


def simulate(
    population: Population | Problems,
    training: Training,
    *,
    budget: float,
    seeds: Sequence[int] = (0,),
    num_evaluations: int = 48,
    evaluation: tuple[int, int] | None = None,
    allocator: Callable[[], Allocator] | None = None,
    group_size_of: Callable[[float], int] | None = None,
    problems_at: Sequence[float] = (),
    on_step: Callable[[int, int], None] | None = None,
) -> list[SimulatedRun]:
    """Train on a simulated population, one run a seed, side by side.

    The policy of problem q is the softmax of ``base_q + phi_q W + memory_q`` over its answer modes.
    A step draws B_p problems, a multinomial count of n rollouts over the modes of each, and follows
    the group policy gradient in W and in the memory. Held-out problems share W alone. A run comes
    out the same bit for bit whether others stand beside it or not.

    What it is not: a language model that is pushed too hard collapses, this one merely overshoots.
    Compare settings by it, never take a learning rate from it.

    Args:
        population: what to draw the problems from, or problems.
        training: settings of all runs.
        budget: rollouts of a run; it takes as many steps as this pays for.
        seeds: one run each.
        num_evaluations: at most so many, evenly over the logarithm of compute, the last at the end.
        evaluation: held-out problems and samples of each for `SimulatedRun.measured`.
        allocator: makes for each run what decides the group sizes of its steps, which then have
            `rollouts_per_prompt` in the mean. It may know the problems ahead by
            ``allocator.add(problems.train.prompts())``.
        group_size_of: n as a function of the compute spent, instead of `rollouts_per_prompt`.
        problems_at: amounts of compute at which the success of every training problem is kept; 0
            is before the first step.
        on_step: called with the steps done and all steps.

    Returns:
        The runs, in the order of the seeds.

    Raises:
        InvalidInputError: a value is out of its range, the budget does not pay for one step, or
            there are fewer problems than a step or an evaluation takes.

    >>> population = Population(num_train=256, num_held_out=100)
    >>> runs = simulate(population, Training(rollouts_per_prompt=16), budget=20_000, seeds=[0, 1])
    >>> [(run.seed, int(run.compute_T[-1])) for run in runs]
    [(0, 19968), (1, 19968)]
    """
    problems = population.problems() if isinstance(population, Population) else population
    seeds = [validate.whole_number("seeds", seed, at_least=0) for seed in seeds]
    if not seeds:
        raise InvalidInputError("seeds is empty. Give one or more.")
    plan = training.plan(budget, group_size_of)
    learners = Learners(problems, training, len(seeds))
    recorder = Recorder(
        learners,
        plan,
        seeds,
        num_evaluations=num_evaluations,
        evaluation=evaluation,
        problems_at=problems_at,
    )
    sizes = (
        EqualSizes(training)
        if allocator is None
        else AllocatedSizes(allocator, problems.train, training, len(seeds))
    )
    streams = [
        prompt_stream(len(problems.train), training.prompts_per_step, seed=seed) for seed in seeds
    ]
    rngs = [np.random.default_rng([seed, _ROLLOUT_STREAM]) for seed in seeds]
    row_RB = np.empty((len(seeds), training.prompts_per_step), dtype=np.int64)
    count_RBK = np.empty((*row_RB.shape, problems.num_modes), dtype=np.int64)
    for step, num in enumerate(plan.rollouts_per_prompt_M.tolist()):
        for run, stream in enumerate(streams):
            row_RB[run] = next(stream)
        groups = sizes.groups(num, row_RB)
        probability_RBK = learners.act(row_RB)
        num_RB = np.broadcast_to(groups.num_RB, row_RB.shape)
        for run, rng in enumerate(rngs):
            count_RBK[run] = rng.multinomial(num_RB[run], probability_RBK[run])
        reward_RB = learners.learn(count_RBK, groups, float(plan.learning_rate_M[step]))
        sizes.observe(row_RB, groups, reward_RB)
        recorder.after(step + 1, reward_RB.sum(axis=1) / groups.num_sampled_R1[:, 0])
        if on_step is not None:
            on_step(step + 1, len(plan))
    return recorder.runs()
