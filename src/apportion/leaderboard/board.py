"""The leaderboard: every arm in every cell, at a learning rate of its own, paired over seeds."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from apportion import validate
from apportion.leaderboard.arms import OTHER_RATE
from apportion.leaderboard.runs import Run

TUNING_SEED = 1000
"""Learning rates are chosen on this seed, far from the paired ones."""
RATES = {"constant": (1e-4, 2e-4), "linear": (2e-4, 4e-4)}
"""To choose from; at half the rollouts of a run a linear one has come down to the constant one."""
TUNING_N = 4
"""Rates are chosen at this n; at others they follow the square root of the step's rollouts."""
BASE = "uniform"
SHORTER = (0.4, 0.6, 0.8)
"""Shares of the budget that some arms also run with, each with a schedule of its own."""
SHORTER_ARMS = ("uniform", "progress", "oracle_progress")
Record = dict[str, Any]
OnDone = Callable[[int, int, str], None]
"""Called with the runs done, all runs and the name of the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What is compared.

    Attributes:
        arms: names, see `apportion.leaderboard.arms.arm_of`; "uniform" is added if missing.
        pools: embedded pools.
        group_sizes: mean rollouts a prompt.
        schedules: of the learning rate.
        seeds: number of paired seeds, from 0.
        budget: rollouts of a run.
        out: folder of the records.
    """

    arms: tuple[str, ...]
    pools: tuple[str, ...] = ("mixed", "hard", "bimodal")
    group_sizes: tuple[int, ...] = (4, 8)
    schedules: tuple[str, ...] = ("constant", "linear")
    seeds: int = 5
    budget: int = 15_360
    out: Path

    def __post_init__(self) -> None:
        """Check the numbers, and put the base among the arms."""
        validate.whole_number("seeds", self.seeds, at_least=1)
        validate.whole_number("budget", self.budget, at_least=1024)
        for pool in self.pools:
            validate.choice("pool", pool, ("mixed", "hard", "bimodal"))
        for schedule in self.schedules:
            validate.choice("schedule", schedule, tuple(RATES))
        for size in self.group_sizes:
            validate.whole_number("rollouts_per_prompt", size, at_least=2)
        arms = dict.fromkeys((BASE, *self.arms))
        object.__setattr__(self, "arms", tuple(arms))

    @property
    def cells(self) -> list[tuple[str, int, str]]:
        """Pool, group size and schedule of each table; decay at the n of the tuning alone."""
        return [
            (pool, size, schedule)
            for pool, size, schedule in product(self.pools, self.group_sizes, self.schedules)
            if schedule == "constant" or size == TUNING_N
        ]

    def tuning(self) -> list[Run]:
        """Return the runs that learning rates are chosen on."""
        return [
            Run(
                arm=arm,
                pool=pool,
                rollouts_per_prompt=TUNING_N,
                schedule=schedule,
                rate=rate,
                seed=TUNING_SEED,
                budget=self.budget,
            )
            for schedule, pool, arm in product(self.schedules, self.pools, self.arms)
            if arm != OTHER_RATE
            for rate in RATES[schedule]
        ]

    def rates(self) -> dict[tuple[str, str], float]:
        """Return the rate of each arm and schedule: the best mean over pools on the tuning seed."""
        ends: dict[tuple[str, str], dict[float, list[float]]] = {}
        for run in self.tuning():
            of_rate = ends.setdefault((run.arm, run.schedule), {})
            of_rate.setdefault(run.rate, []).append(read(run, self.out)["held_out_T"][-1])
        best = {
            key: max(of_rate, key=lambda rate: float(np.mean(of_rate[rate])))
            for key, of_rate in ends.items()
        }
        for schedule in self.schedules:
            slow, fast = RATES[schedule]
            best[OTHER_RATE, schedule] = fast if best[BASE, schedule] == slow else slow
        return best

    def paired(self) -> list[Run]:
        """Return the runs of all tables, seed by seed, so that pairs are complete early."""
        rates = self.rates()
        return [
            self._run(arm, pool, size, schedule, seed, rates[arm, schedule])
            for seed in range(self.seeds)
            for (pool, size, schedule), arm in product(self.cells, self.arms)
        ]

    def shorter(self) -> list[Run]:
        """Return decayed runs of less budget: what a level costs a run that plans for it."""
        rates = self.rates()
        return [
            replace(
                self._run(arm, pool, TUNING_N, "linear", seed, rates[arm, "linear"]),
                budget=_whole_steps(self.budget * share),
                num_gradients=0,
            )
            for seed in range(self.seeds)
            for pool, arm, share in product(self.pools, SHORTER_ARMS, SHORTER)
            if arm in self.arms and "linear" in self.schedules and TUNING_N in self.group_sizes
        ]

    def _run(self, arm: str, pool: str, size: int, schedule: str, seed: int, rate: float) -> Run:
        return Run(
            arm=arm,
            pool=pool,
            rollouts_per_prompt=size,
            schedule=schedule,
            rate=float(f"{rate * (size / TUNING_N) ** 0.5:.3g}"),
            seed=seed,
            budget=self.budget,
            num_gradients=2 if seed < 2 and schedule == "constant" else 0,
        )


def execute_all(runs: Sequence[Run], out: Path, *, num_processes: int, on_done: OnDone) -> None:
    """Execute every run that has no record yet, a process each; kill and start again at will."""
    missing = [run for run in runs if not run.path(out).exists()]
    done = len(runs) - len(missing)
    on_done(done, len(runs), "")
    if not missing:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context, initializer=_one_thread) as pool:
        futures = {pool.submit(_execute, run, out): run for run in missing}
        try:
            for future in as_completed(futures):
                future.result()
                done += 1
                run = futures[future]
                on_done(done, len(runs), f"{run.arm} {run.pool} n={run.rollouts_per_prompt}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def read(run: Run, out: Path) -> Record:
    """Return the record of a run."""
    record: Record = json.loads(run.path(out).read_text(encoding="utf-8"))
    return record


def records(runs: Iterable[Run], out: Path) -> Iterator[tuple[Run, Record]]:
    """Yield the runs that have a record, with it."""
    for run in runs:
        if run.path(out).exists():
            yield run, read(run, out)


def _whole_steps(budget: float) -> int:
    step = 64 * TUNING_N
    return round(budget / step) * step


def _execute(run: Run, out: Path) -> None:
    from apportion.leaderboard.runs import execute

    execute(run, out)


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
