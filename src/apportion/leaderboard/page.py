"""The leaderboard as one page of Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from apportion.comparison import Interval
from apportion.leaderboard.board import Board, records
from apportion.leaderboard.runs import K
from apportion.leaderboard.table import Cell, Row, over_cells, rows_of, shorter_of
from apportion.words import counted


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
        f"{counted(seeds, 'seed')}; then rollouts to uniform's end, cell by cell.",
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
        f"(n = 4, {counted(rows[0].num_seeds, 'seed')}), and the share at which uniform's end at "
        "the whole budget is reached.",
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
        f"{counted(rows[0].difference.num_seeds, 'seed')}.",
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


def _shown(interval: Interval, form: str) -> str:
    if np.isnan(interval.low):
        return f"{interval.mean:{form}}"
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"
