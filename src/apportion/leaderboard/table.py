"""What the records say: a table for each cell and one over all of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
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


def markdown(board: Board, *, command: str) -> str:
    """Return everything as one page.

    Args:
        board: the leaderboard; its tuning runs must be done.
        command: what reproduces it.
    """
    tables = rows_of(board)
    runs = (*board.tuning(), *board.paired(), *board.shorter())
    commits = dict.fromkeys(str(record.get("commit")) for _, record in records(runs, board.out))
    lines = [
        "# Leaderboard of allocators",
        "",
        f"Written by `{command}`; the runs are of commit {', '.join(commits)} "
        f"(apportion {version('apportion')}, "
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}).",
        "",
        *_NOTES.format(budget=board.budget).splitlines(),
        "",
        *_summary(board, tables),
        *_shorter_lines(board),
    ]
    for cell, rows in tables.items():
        lines += _cell_lines(cell, rows)
    return "\n".join(lines) + "\n"


_NOTES = f"""\
Every arm spends {{budget:,}} rollouts a run: pilots, rounds and discarded groups are charged. Plain
loop on the embedded model, RLOO, AdamW, gradients clipped to norm 1 (so that a choice of prompts
with larger gradients is no larger step), 64 prompts of n rollouts in an even step. Pools of up to
16,000 problems, so that they are not memorised; held-out success is exact, over 1,000 problems. The
learning rate is each arm's better one of two, by the mean over pools on another seed at n = 4
(constant 1e-4 or 2e-4, linear decay to 0 from 2e-4 or 4e-4); at n = 8 it is 1.41 times that.

*Rollouts to uniform's end*: where an arm's mean curve first reaches the final held-out success of
even rollouts, as a share of their rollouts, with a bootstrap interval over seeds; inf is never.
Even rollouts may touch their own end before they get there, by noise: their own row says when. A
faster rate reaches a level sooner and may settle lower: *uniform_other_rate* says how much of a
share is that.
*best@{K}*, *worst@{K}*: chance that one, that each of {K} answers is right. *Gradient*: cosine of
the estimated gradient with the exact one of the pool at a third and two thirds of the run, seeds 0
and 1 at most; in brackets the exact gradient of the prompts that were taken, so how far the choice
alone turns the objective, a curriculum, away from the pool's mean success.

In these pools a prompt comes up once in four runs of even rollouts. Rules that know a prompt by its
own past alone (knapsack, reinforce_ada, mopps, pilot_commit's evictions) have nothing to go by
before its second visit, and are then even or chance; those that pilot within the step are not
concerned. The forecasts of *variance*, *coverage*, *progress*, *equal_n* and *proportional* come
from the default predictor, which also reads the text. The oracles know the exact success."""


def _summary(board: Board, tables: dict[Cell, list[Row]]) -> list[str]:
    ranking = over_cells(board)
    if not ranking:
        return []
    seeds = ranking[0][1].num_seeds
    heads = [f"{pool} n={size} {schedule}" for pool, size, schedule in tables]
    lines = [
        "## Over all cells",
        "",
        "Held-out success at the end minus that of even rollouts, mean over cells, "
        f"{seeds} seeds; then rollouts to uniform's end, cell by cell.",
        "",
        f"| arm | minus uniform [95%] | {' | '.join(heads)} |",
        "|---" * (len(heads) + 2) + "|",
    ]
    share = {(cell, row.arm): row.share.mean for cell, rows in tables.items() for row in rows}
    for arm, difference in ranking:
        cells = " | ".join(f"{share[cell, arm]:.2f}" for cell in tables)
        lines.append(f"| {arm} | {_shown(difference, '+.4f')} | {cells} |")
    return [*lines, ""]


def _shorter_lines(board: Board) -> list[str]:
    rows = shorter_of(board)
    if not rows:
        return []
    shares = [budget / board.budget for budget in (*board.short_budgets, board.budget)]
    heads = " | ".join(f"{share:.2g}" for share in shares)
    lines = [
        "## Decay within a smaller budget",
        "",
        "A run that decays over all its rollouts has not settled half-way. So here each run has "
        "its own schedule: held-out end by share of the budget "
        f"(n = 4, {rows[0].num_seeds} seeds), and the share at which uniform's end at the whole "
        "budget is reached.",
        "",
        f"| pool | arm | {heads} | share |",
        "|---" * (len(shares) + 3) + "|",
    ]
    for row in rows:
        ends = " | ".join(f"{end:.4f}" for end in row.end_K)
        lines.append(f"| {row.pool} | {row.arm} | {ends} | {row.share:.2f} |")
    return [*lines, ""]


def _cell_lines(cell: Cell, rows: Sequence[Row]) -> list[str]:
    pool, size, schedule = cell
    rate = "constant rate" if schedule == "constant" else "linear decay"
    lines = [
        f"## {pool}, n = {size}, {rate}",
        "",
        f"{rows[0].difference.num_seeds} seeds.",
        "",
        "| arm | rate | held-out end | minus uniform [95%] | rollouts to uniform's end [95%] | "
        f"best@{K} | worst@{K} | pool end | gradient | touched | prompts | updates | seconds |",
        "|---" * 13 + "|",
    ]
    for row in rows:
        gradient = "" if row.cosine is None else f"{row.cosine:.2f} [{row.curriculum:.2f}]"
        lines.append(
            f"| {row.arm} | {row.rate:g} | {row.end:.4f} | {_shown(row.difference, '+.4f')} | "
            f"{_shown(row.share, '.2f')} | {row.best:.4f} | {row.worst:.4f} | {row.pool:.4f} | "
            f"{gradient} | {row.touched:.2f} | {row.prompts:.0f} | {row.updates:.0f} | "
            f"{row.seconds:.0f} |"
        )
    short = [f"{row.arm} ({row.drawn:.0%})" for row in rows if row.drawn < 0.99]
    if short:
        lines += ["", f"Drew less than the budget at the end: {', '.join(short)}."]
    return [*lines, ""]


def _curves(found: Sequence[Record], compute_T: FloatArray) -> FloatArray:
    """Put curves on one grid; steps of random cost are evaluated where they end."""
    return np.stack(
        [np.interp(compute_T, record["compute_T"], record["held_out_T"]) for record in found]
    )


def _mean_of_all(found: Sequence[Record], name: str) -> float | None:
    values = [value for record in found for value in record[name]]
    return float(np.mean(values)) if values else None


def _shown(interval: Interval, form: str) -> str:
    if np.isnan(interval.low):
        return f"{interval.mean:{form}}"
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


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
