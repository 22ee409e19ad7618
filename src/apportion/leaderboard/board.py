"""The leaderboard: every arm in every cell, at a learning rate of its own, paired over seeds."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError, RunFolderError, first_line
from apportion.leaderboard.arms import OTHER_RATE, rule_digest
from apportion.leaderboard.runs import PROMPTS_PER_STEP, Run
from apportion.training.config import VIP_LOWER
from apportion.training.processes import start_worker

TUNING_SEED = 1000
"""Learning rates are chosen on this seed, far from the paired ones."""
RATES = {"constant": (1e-4, 2e-4), "linear": (2e-4, 4e-4)}
"""To choose from; at half the rollouts of a run a linear one has come down to the constant one."""
TUNING_N = 4
"""Rates are chosen at this n; at others they follow the square root of the step's rollouts."""
BASE = "uniform"
SHORTER = (0.4, 0.6, 0.8)
"""Shares of the budget that some arms also run with, each with a schedule of its own."""
SHORTER_ARMS = ("uniform", "progress", "coverage", "oracle_progress")
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
        if self.seeds > TUNING_SEED:
            raise InvalidInputError(f"seeds is {self.seeds}, but must be at most {TUNING_SEED}.")
        for pool in self.pools:
            validate.choice("pool", pool, ("mixed", "hard", "bimodal"))
        for schedule in self.schedules:
            validate.choice("schedule", schedule, tuple(RATES))
        for size in self.group_sizes:
            validate.whole_number("rollouts_per_prompt", size, at_least=2)
        for name in ("pools", "group_sizes", "schedules"):
            object.__setattr__(self, name, tuple(dict.fromkeys(getattr(self, name))))
        object.__setattr__(self, "arms", tuple(dict.fromkeys((BASE, *self.arms))))
        self._check_together()

    def _check_together(self) -> None:
        if not self.cells:
            raise InvalidInputError(
                "There is no cell to compare in: give pools, group sizes and schedules; linear "
                f"decay is run at n = {TUNING_N} alone."
            )
        smallest = min(self.group_sizes)
        if smallest < VIP_LOWER and {"vip", "vip_code"} & set(self.arms):
            raise InvalidInputError(
                f"n is {smallest}, but the vip arms need {VIP_LOWER} rollouts a prompt. Leave them "
                "out, or raise n."
            )
        step = PROMPTS_PER_STEP * int(np.lcm.reduce([TUNING_N, *self.group_sizes]))
        if validate.whole_number("budget", self.budget, at_least=step) % step:
            raise InvalidInputError(
                f"budget is {self.budget}, but must be a multiple of {step}: steps of every n "
                f"then spend it whole. The next ones are {self.budget // step * step} and "
                f"{(self.budget // step + 1) * step}."
            )

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
                digest=rule_digest(arm) if ":" in arm else "",
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
                budget=budget,
                num_gradients=0,
            )
            for seed in range(self.seeds)
            for pool, arm, budget in product(self.pools, SHORTER_ARMS, self.short_budgets)
            if arm in self.arms and "linear" in self.schedules and TUNING_N in self.group_sizes
        ]

    @property
    def short_budgets(self) -> list[int]:
        """Return the smaller budgets, in whole steps."""
        step = PROMPTS_PER_STEP * TUNING_N
        rounded = {max(round(self.budget * share / step), 1) * step for share in SHORTER}
        return sorted(rounded - {self.budget})

    def _run(self, arm: str, pool: str, size: int, schedule: str, seed: int, rate: float) -> Run:
        return Run(
            arm=arm,
            pool=pool,
            rollouts_per_prompt=size,
            schedule=schedule,
            rate=float(f"{rate * (size / TUNING_N) ** 0.5:.3g}"),
            seed=seed,
            budget=self.budget,
            digest=rule_digest(arm) if ":" in arm else "",
            num_gradients=2 if seed < 2 and schedule == "constant" else 0,
        )


def execute_all(runs: Sequence[Run], out: Path, *, num_processes: int, on_done: OnDone) -> None:
    """Execute every run that has no record yet, a process each; kill and start again at will.

    Raises:
        InvalidInputError: a run failed; the message says which. Finished ones keep their records.
    """
    num_processes = validate.whole_number("processes", num_processes, at_least=1)
    missing = [run for run in runs if not run.path(out).exists()]
    done = len(runs) - len(missing)
    on_done(done, len(runs), "")
    if not missing:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        num_processes, mp_context=context, initializer=_start, initargs=(os.getpid(),)
    ) as pool:
        futures = {pool.submit(_execute, run, out): run for run in missing}
        try:
            for future in as_completed(futures):
                _finish(future, futures[future], out)
                done += 1
                on_done(done, len(runs), _name(futures[future]))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _finish(future: Future[None], run: Run, out: Path) -> None:
    """Raise what a run failed with, in one sentence that names it."""
    try:
        future.result()
    except BrokenProcessPool as error:
        raise InvalidInputError(
            "A process died, perhaps for want of memory. The same command goes on from the "
            f"records in {out}; --processes 1 needs least."
        ) from error
    except Exception as error:
        raise InvalidInputError(
            f"{_name(run)}, {run.schedule}, seed {run.seed} failed: {type(error).__name__}: "
            f"{first_line(error)}. Finished runs are kept in {out}."
        ) from error


def _name(run: Run) -> str:
    return f"{run.arm} {run.pool} n={run.rollouts_per_prompt}"


def read(run: Run, out: Path) -> Record:
    """Return the record of a run.

    Raises:
        RunFolderError: it is missing or damaged.
    """
    path = run.path(out)
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"The record {path} cannot be read: {first_line(error)}. Delete it and start again: "
            "only this run is repeated."
        ) from error
    return record


def records(runs: Iterable[Run], out: Path) -> Iterator[tuple[Run, Record]]:
    """Yield the runs that have a record, with it."""
    for run in runs:
        if run.path(out).exists():
            yield run, read(run, out)


def _execute(run: Run, out: Path) -> None:
    from apportion.leaderboard.runs import execute

    execute(run, out)


def _start(parent: int) -> None:
    """Start a worker; what rules print must not mix with the tables on standard output."""
    start_worker(parent)
    os.dup2(2, 1)
