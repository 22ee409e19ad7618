"""What the records say, as numbers: rows for each cell and a ranking over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apportion.comparison import (
    Interval,
    compute_to_level,
    paired_difference,
    share_of_compute,
)
from apportion.leaderboard.board import BASE, Board, Record, records
from apportion.leaderboard.runs import K
from apportion.validate import FloatArray

Cell = tuple[str, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm in one cell, over the seeds that every arm has finished there.

    Attributes:
        arm: its name.
        rate: learning rate.
        end: mean held-out success at the end.
        difference: end minus that of even rollouts, paired by seed.
        share: rollouts to the final held-out success of even rollouts, as a share of theirs.
        best: mean over problems of the chance that one of K answers is right.
        worst: that all K are.
        cosine: of the estimated with the exact gradient of the pool, None if not taken.
        curriculum: of the exact gradient of the prompts taken with that of the pool.
        pool: success on the pool at the end.
        touched: share of the pool that was sampled.
        prompts: trained on in an update.
        updates: made.
        drawn: share of the budget that was drawn; what is left pays for no further step.
        seconds: of the run.
    """

    arm: str
    rate: float
    end: float
    difference: Interval
    share: Interval
    best: float
    worst: float
    cosine: float | None
    curriculum: float | None
    pool: float
    touched: float
    prompts: float
    updates: float
    drawn: float
    seconds: float


def rows_of(board: Board) -> dict[Cell, list[Row]]:
    """Return the rows of each cell that has a seed which all arms have finished."""
    found: dict[Cell, dict[int, dict[str, Record]]] = {}
    for run, record in records(board.paired(), board.out):
        cell = (run.pool, run.rollouts_per_prompt, run.schedule)
        found.setdefault(cell, {}).setdefault(run.seed, {})[run.arm] = record
    tables: dict[Cell, list[Row]] = {}
    for cell, by_seed in found.items():
        whole = [arms for arms in by_seed.values() if len(arms) == len(board.arms)]
        if whole:
            tables[cell] = [_row(arm, whole, board) for arm in board.arms]
    return tables


def _row(arm: str, by_seed: Sequence[dict[str, Record]], board: Board) -> Row:
    ours = [found[arm] for found in by_seed]
    compute_T = np.linspace(0.0, board.budget, len(by_seed[0][BASE]["compute_T"]))
    curve_ST = _curves(ours, compute_T)
    base_ST = _curves([found[BASE] for found in by_seed], compute_T)

    def mean(name: str) -> float:
        return float(np.mean([record[name] for record in ours]))

    return Row(
        arm=arm,
        rate=float(ours[0]["run"]["rate"]),
        end=float(curve_ST[:, -1].mean()),
        difference=paired_difference(curve_ST[:, -1], base_ST[:, -1]),
        share=share_of_compute(compute_T, curve_ST, base_ST),
        best=mean(f"best@{K}"),
        worst=mean(f"worst@{K}"),
        cosine=_mean_of_all(ours, "gradient_cosine"),
        curriculum=_mean_of_all(ours, "curriculum_cosine"),
        pool=mean("pool_end"),
        touched=mean("touched"),
        prompts=mean("prompts_per_update"),
        updates=mean("num_updates"),
        drawn=mean("num_rollouts") / board.budget,
        seconds=mean("seconds"),
    )


def over_cells(board: Board) -> list[tuple[str, Interval]]:
    """Return each arm's difference to even rollouts, averaged over cells and paired by seed.

    Over the seeds that are finished in every cell; arms in falling order.
    """
    end: dict[tuple[str, int], list[float]] = {}
    for run, record in records(board.paired(), board.out):
        end.setdefault((run.arm, run.seed), []).append(record["held_out_T"][-1])
    whole = [
        seed
        for seed in range(board.seeds)
        if all(len(end.get((arm, seed), [])) == len(board.cells) for arm in board.arms)
    ]
    if not whole:
        return []
    mean = {arm: [float(np.mean(end[arm, seed])) for seed in whole] for arm in board.arms}
    found = [(arm, paired_difference(mean[arm], mean[BASE])) for arm in board.arms]
    return sorted(found, key=lambda pair: -pair[1].mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shorter:
    """What the level of even rollouts costs runs that decay within their own, smaller budget.

    Attributes:
        pool: name.
        arm: name.
        end_K: mean held-out end at each share of the budget, the whole budget last.
        share: where that curve reaches the end of even rollouts; infinity if it does not.
        num_seeds: seeds behind it.
    """

    pool: str
    arm: str
    end_K: FloatArray
    share: float
    num_seeds: int


def shorter_of(board: Board) -> list[Shorter]:
    """Return the comparison by runs of smaller budgets, for the arms and pools that have it."""
    shorter = board.shorter()
    runs = [run for run in board.paired() if run.schedule == "linear"] + shorter
    end: dict[tuple[str, str, int, int], float] = {}
    for run, record in records(runs, board.out):
        end[run.pool, run.arm, run.budget, run.seed] = record["held_out_T"][-1]
    budgets = sorted({run.budget for run in shorter} | {board.budget})
    share_K = np.array(budgets) / board.budget
    rows = []
    for pool in board.pools:
        arms = dict.fromkeys(run.arm for run in shorter if run.pool == pool)
        seeds = [
            seed
            for seed in range(board.seeds)
            if all((pool, arm, budget, seed) in end for arm in arms for budget in budgets)
        ]
        for arm in arms if seeds else ():
            end_K = np.array(
                [np.mean([end[pool, arm, budget, seed] for seed in seeds]) for budget in budgets]
            )
            level = float(np.mean([end[pool, BASE, board.budget, seed] for seed in seeds]))
            rows.append(
                Shorter(
                    pool=pool,
                    arm=arm,
                    end_K=end_K,
                    share=compute_to_level(share_K, end_K, level),
                    num_seeds=len(seeds),
                )
            )
    return rows


def _curves(found: Sequence[Record], compute_T: FloatArray) -> FloatArray:
    """Put curves on one grid; steps of random cost are evaluated where they end."""
    return np.stack(
        [np.interp(compute_T, record["compute_T"], record["held_out_T"]) for record in found]
    )


def _mean_of_all(found: Sequence[Record], name: str) -> float | None:
    values = [value for record in found for value in record[name]]
    return float(np.mean(values)) if values else None


def as_json(board: Board) -> dict[str, Any]:
    """Return the tables for machines; NaN and infinity are None."""

    def plain(value: Any) -> Any:
        if isinstance(value, Interval):
            parts = ("mean", "low", "high", "num_seeds")
            return {name: plain(getattr(value, name)) for name in parts}
        if isinstance(value, float) and not np.isfinite(value):
            return None
        return value

    cells = []
    for (pool, size, schedule), rows in rows_of(board).items():
        listed = [{name: plain(getattr(row, name)) for name in Row.__slots__} for row in rows]
        cell = {"pool": pool, "rollouts_per_prompt": size, "schedule": schedule, "arms": listed}
        cells.append(cell)
    ranking = [{"arm": arm, "difference": plain(value)} for arm, value in over_cells(board)]
    return {"budget": board.budget, "ranking": ranking, "cells": cells}
