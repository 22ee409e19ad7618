"""``apportion leaderboard``: allocators side by side on the embedded model, and rules of yours."""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion import validate
from apportion.cli.lists import names
from apportion.errors import InvalidInputError, MissingExtraError
from apportion.run_log import lock_folder
from apportion.state_file import replace_file

if TYPE_CHECKING:
    from apportion.leaderboard.board import Board

_POOLS, _SIZES, _SCHEDULES = "mixed,hard,bimodal", "4,8", "constant,linear"


def leaderboard_command(
    arms: Annotated[
        str | None, typer.Option(help="Arms, e.g. uniform,vip,progress; all if left out.")
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="A rule of yours, module:function; may be given more than once."),
    ] = None,
    pools: Annotated[str, typer.Option(help="Embedded problems.")] = _POOLS,
    rollouts_per_prompt: Annotated[str, typer.Option(help="Mean rollouts a prompt.")] = _SIZES,
    schedules: Annotated[
        str, typer.Option(help="Learning rate: constant, linear (decay to 0, at n = 4).")
    ] = _SCHEDULES,
    seeds: Annotated[int, typer.Option(help="Paired seeds, from 0.")] = 5,
    budget: Annotated[int, typer.Option(help="Rollouts of a run.")] = 15_360,
    processes: Annotated[
        int | None, typer.Option(help="Runs at a time; one a core if left out.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the records; what is there is not run again.")
    ] = Path("runs/leaderboard"),
    write: Annotated[
        Path | None, typer.Option(help="File for the tables, in Markdown; shown here if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
) -> None:
    """Compare rules of allocation at equal rollouts, on problems whose success is known exactly.

    All arms: an hour and a half on two idle cores. A run takes some ten seconds, so try a rule with
    --arms progress --rule my_rules:rule --pools bimodal --rollouts-per-prompt 4 --schedules
    constant --seeds 2. It is a function rule(step) that returns the rollouts of each candidate; see
    apportion.embedded.step. Stop it at any time: the same command goes on.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: more threads are slower here
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from rich.console import Console

    try:
        from apportion.cli.board_tables import print_board
        from apportion.leaderboard import page, table
        from apportion.leaderboard.arms import ARMS
        from apportion.leaderboard.board import Board
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from error
    board = Board(
        arms=(*(ARMS if arms is None else names(arms)), *(rule or ())),
        pools=names(pools),
        group_sizes=tuple(_whole(text) for text in names(rollouts_per_prompt)),
        schedules=names(schedules),
        seeds=seeds,
        budget=budget,
        out=out,
    )
    _run(board, (os.cpu_count() or 1) if processes is None else processes)
    if as_json:
        print(json.dumps(table.as_json(board)))
    elif write is None:
        print_board(board, Console())
    else:
        replace_file(write, page.markdown(board, command=_command()).encode())
        typer.echo(f"The tables are in {write}.")


def _run(board: Board, num_processes: int) -> None:
    from apportion.cli.board_progress import board_display
    from apportion.leaderboard.arms import check_arms
    from apportion.leaderboard.board import execute_all
    from apportion.leaderboard.large_pools import write_large_pools
    from apportion.leaderboard.runs import POOLS_FILE

    validate.whole_number("processes", num_processes, at_least=1)
    try:
        # What a rule prints must not mix with the tables on standard output.
        with redirect_stdout(sys.stderr), lock_folder(board.out), board_display() as display:
            check_arms(board.arms)
            write_large_pools(board.out / POOLS_FILE, display.tell)
            for stage, runs_of in (
                ("learning rates", board.tuning),
                ("paired seeds", board.paired),
                ("smaller budgets", board.shorter),
            ):
                execute_all(
                    runs_of(), board.out, num_processes=num_processes, on_done=display.stage(stage)
                )
    except KeyboardInterrupt:
        typer.echo(f"Stopped. The same command goes on from the records in {board.out}.", err=True)
        raise typer.Exit(130) from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidInputError(
            f"--rollouts-per-prompt holds {text!r}, but must be whole numbers, as in {_SIZES}."
        ) from None


def _command() -> str:
    return " ".join(["apportion", *sys.argv[1:]])
