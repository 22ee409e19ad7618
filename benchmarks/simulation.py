"""Time of a simulated step, alone and with seeds side by side.

    python benchmarks/simulation.py

6,000 problems of 8 modes and 64 features, 32 prompts a step. Processor time of one core, best of
three, so that a busy machine matters little. Ratios say how many times longer than the first row.
"""

from __future__ import annotations

import os
import platform
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from apportion import RolloutAllocator
from apportion.predictor import FilterBank
from apportion.simulation import Population, Problems, Training, simulate

NUM_STEPS = 1000
PROMPTS_PER_STEP = 32


def main() -> None:
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}"
    )
    problems = Population().problems()
    print("\n  n        memory   seeds   microseconds a step and seed   ratio   10^5 steps")
    first = None
    for num_seeds in (1, 4, 16):
        for n in (8, 128, 1024, 100_000):
            for memory in (0.0, 100.0):
                training = Training(
                    rollouts_per_prompt=n, prompts_per_step=PROMPTS_PER_STEP, memory=memory
                )
                seconds = best(problems, training, num_seeds)
                first = first or seconds
                print(
                    f"  {n:7}  {memory:6.0f}   {num_seeds:5}   {1e6 * seconds:28.1f}"
                    f"   {seconds / first:5.2f}   {1e5 * seconds:8.1f} s"
                )
    with_allocator(problems)


def with_allocator(problems: Problems) -> None:
    def make() -> RolloutAllocator:
        allocator = RolloutAllocator(FilterBank())
        allocator.add(problems.train.prompts())
        return allocator

    started = time.process_time()
    training = Training(rollouts_per_prompt=8, prompts_per_step=PROMPTS_PER_STEP)
    simulate(problems, training, budget=100 * PROMPTS_PER_STEP * 8, allocator=make)
    milliseconds = 1e3 * (time.process_time() - started) / 100
    print(f"\nWith the default allocator: {milliseconds:.1f} milliseconds a step")


def best(problems: Problems, training: Training, num_seeds: int) -> float:
    """Return processor seconds a step and seed."""
    num_steps = NUM_STEPS // num_seeds
    budget = num_steps * training.prompts_per_step * training.rollouts_per_prompt
    times = []
    for _ in range(3):
        started = time.process_time()
        simulate(problems, training, budget=budget, seeds=range(num_seeds), num_evaluations=1)
        times.append(time.process_time() - started)
    return min(times) / num_steps / num_seeds


if __name__ == "__main__":
    main()
