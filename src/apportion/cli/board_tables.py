"""The leaderboard as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from apportion.cli.tables import interval, number, table_of_arms
from apportion.leaderboard.board import BASE, Board
from apportion.leaderboard.runs import K
from apportion.leaderboard.table import Cell, Row, over_cells, rows_of, shorter_of
from apportion.words import counted

if TYPE_CHECKING:
    from rich.console import Console

_LEGEND = (
    "rollouts to uniform's end: share of the even rollouts at which an arm's mean curve reaches "
    "their final held-out success; never: not within the budget",
    f"best@{K}, worst@{K}: chance that one, that each of {K} answers is right; touched: share of "
    "the pool that was sampled; prompts: of a step; rate: of learning",
    "gradient: cosine of the estimated with the pool's exact gradient, in brackets of the exact "
    "one of the prompts that were taken",
)


def print_board(board: Board, console: Console) -> None:
    """Print two tables a cell, what smaller budgets buy, and last the mean over all cells.

    Args:
        board: the leaderboard; its tuning runs must be done.
        console: a terminal or a file.
    """
    tables = rows_of(board)
    for cell, rows in tables.items():
        _print_cell(console, board, cell, rows)
    _print_shorter(console, board)
    if len(tables) > 1:
        _print_ranking(console, board)
    for line in (*_LEGEND, f"records in {board.out}; all columns: --write FILE, --json"):
        console.print(line, highlight=False, markup=False)


def _print_cell(console: Console, board: Board, cell: Cell, rows: Sequence[Row]) -> None:
    pool, size, schedule = cell
    rate = "constant rate" if schedule == "constant" else "linear decay"
    table = table_of_arms(
        f"{pool}, n = {size}, {rate}: held-out success, "
        f"{counted(rows[0].difference.num_seeds, 'seed')}, {board.budget:,} rollouts each",
        *("end", "minus uniform, paired [95%]", "rollouts to uniform's end [95%]"),
    )
    bought = table_of_arms(
        "what the rollouts bought",
        *(f"best@{K}", f"worst@{K}", "gradient", "touched", "prompts", "rate"),
    )
    for row in rows:
        is_base = row.arm == BASE
        table.add_row(
            row.arm,
            f"{row.end:.4f}",
            "" if is_base else interval(asdict(row.difference), "+.4f"),
            interval(asdict(row.share), ".2f"),
        )
        bought.add_row(
            row.arm,
            f"{row.best:.4f}",
            f"{row.worst:.4f}",
            "" if row.cosine is None else f"{row.cosine:.2f} [{row.curriculum:.2f}]",
            f"{row.touched:.0%}",
            f"{row.prompts:.0f}",
            f"{row.rate:g}",
        )
    console.print(table)
    console.print(bought)
    short = [f"{row.arm} ({row.drawn:.0%})" for row in rows if row.drawn < 0.99]
    if short:
        console.print(f"Drew less than the budget: {', '.join(short)}.", highlight=False)


def _print_shorter(console: Console, board: Board) -> None:
    rows = shorter_of(board)
    if not rows:
        return
    shares = [budget / board.budget for budget in (*board.short_budgets, board.budget)]
    table = table_of_arms(
        f"decay within a smaller budget: end by its share, {counted(rows[0].num_seeds, 'seed')}",
        *("pool", *(f"{share:.2g}" for share in shares), "share to uniform's end"),
    )
    for row in rows:
        ends = [f"{end:.4f}" for end in row.end_K]
        table.add_row(row.arm, row.pool, *ends, number(row.share, ".2f"))
    console.print(table)


def _print_ranking(console: Console, board: Board) -> None:
    ranking = over_cells(board)
    if not ranking:
        return
    seeds = counted(ranking[0][1].num_seeds, "seed")
    table = table_of_arms(
        f"mean over {counted(len(board.cells), 'cell')}: held-out end, {seeds}",
        "minus uniform, paired [95%]",
    )
    for arm, difference in ranking:
        table.add_row(arm, "" if arm == BASE else interval(asdict(difference), "+.4f"))
    console.print(table)
