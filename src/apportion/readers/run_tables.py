"""Tables of learning curves: a CSV with one row an evaluation, of as many runs as there are."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from apportion.errors import InvalidInputError
from apportion.plan.runs import Run
from apportion.readers.found_runs import MEAN, Found, Wanted
from apportion.readers.tally import listed
from apportion.words import counted

NEEDED = ("run", "rollouts_per_prompt", "prompts_per_step", "compute", "reward")
OPTIONAL = ("seed", "problems", "samples", "learning_rate", "allocator", "num_prompts")
_LETTERS = {"n": "rollouts_per_prompt", "b_p": "prompts_per_step", "c": "compute"}
_OF_RUN = ("rollouts_per_prompt", "prompts_per_step", *OPTIONAL)
"""Columns that are the same in all rows of a run, where they are not empty."""
_OTHERS = {";": "semicolons", "\t": "tabs"}
_UNENDED = (".", "e", "E", "-", "+")
"""How a number ends that was cut in the middle."""
_LIKE = 3
"""Columns of `NEEDED` that make a file such a table, if perhaps an incomplete one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    cell_of: dict[str, Any]


def is_table_of_runs(path: Path) -> bool:
    """Return whether the first line of a file names columns of such a table."""
    try:
        with open(path, "rb") as file:
            first = file.readline(2**16).decode("utf-8-sig")
        header = _names(next(csv.reader([first], delimiter=_separator(first)), []))
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return len(set(header) & set(NEEDED)) >= _LIKE


def read_table_of_runs(path: Path, wanted: Wanted) -> list[Found]:
    r"""Read the runs of a table, in any order of rows.

    Args:
        path: CSV with the columns `NEEDED` and perhaps `OPTIONAL`; other columns are passed over.
        wanted: a metric other than ``mean`` is a column of that name.

    Raises:
        InvalidInputError: the file is no such table; names file, line, run and column.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "curves.csv"
    >>> _ = path.write_text("run,n,B_p,C,reward\nmine,8,32,512,0.5\nmine,8,32,256,0.4\n")
    >>> run = read_table_of_runs(path, Wanted())[0].run
    >>> run.rollouts_per_prompt, run.compute_T, run.reward_T
    (8, array([256., 512.]), array([0.4, 0.5]))
    """
    column = "reward" if wanted.metric == MEAN else wanted.metric
    rows_of: dict[str, list[_Row]] = {}
    text, is_torn = _without_torn(_text(path))
    for row in _rows(path, text, column):
        rows_of.setdefault(row.cell_of["run"], []).append(row)
    if not rows_of:
        raise InvalidInputError(f"{path} has a header but no rows.")
    read = [_run(path, name, rows, column) for name, rows in rows_of.items()]
    notes = [f"{path}: the last line is torn and was left out."] if is_torn else []
    num_twice = sum(num for _, num in read)
    if num_twice:
        names = listed([repr(found.run.name) for found, num in read if num])
        notes.append(f"{path}: {counted(num_twice, 'row')} of {names} there twice; once counts.")
    first, *others = (found for found, _ in read)
    return [replace(first, notes=tuple(notes)), *others]


def _without_torn(text: str) -> tuple[str, bool]:
    """Return a table without a last line that stopped in the middle, and whether it had one."""
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    last, header = text[end:], text[:end].partition("\n")[0]
    if not last.strip() or not header.strip():
        return text, False
    try:
        num_columns = len(next(csv.reader([header])))
        cells = next(csv.reader([last], strict=True))
    except (csv.Error, StopIteration):
        return text, False
    is_torn = len(cells) < num_columns or (
        len(cells) == num_columns and (not cells[-1].strip() or cells[-1].endswith(_UNENDED))
    )
    return (text[:end], True) if is_torn else (text, False)


def _separator(header: str) -> str:
    """Return what separates the columns of a header: a comma, or what is there instead."""
    return next((sign for sign in _OTHERS if sign in header), ",") if "," not in header else ","


def _rows(path: Path, text: str, column: str) -> list[_Row]:
    needed = (*NEEDED[:-1], column)
    # read whole: a quoted cell may span lines
    reader = csv.reader(io.StringIO(text), strict=True)
    rows: list[_Row] = []
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(path, cells, needed)
                continue
            if len(cells) != len(header):
                raise InvalidInputError(
                    f"{path}, line {reader.line_num}: there are {len(cells)} values, but the "
                    f"header names {len(header)} columns."
                )
            found = dict(zip(header, cells, strict=True))
            known = {
                name: _value(path, reader.line_num, name, found[name], is_needed=name in needed)
                for name in (*needed, *OPTIONAL)
                if name in found
            }
            rows.append(_Row(line=reader.line_num, cell_of=known))
    except csv.Error as error:
        raise InvalidInputError(
            f"{path}, line {reader.line_num}: not valid CSV ({error})."
        ) from error
    if header is None:
        raise InvalidInputError(f"{path} is empty.")
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{path} is not UTF-8 text (byte {error.start}). Save it as CSV in UTF-8."
        ) from error


def _names(cells: Sequence[str]) -> list[str]:
    """Return the columns of a header, letters by their names."""
    names = [cell.strip() for cell in cells]
    known = {name.lower(): name for name in (*NEEDED, *OPTIONAL)} | _LETTERS
    return [known.get(name.lower(), name) for name in names]


def _header(path: Path, cells: Sequence[str], needed: Sequence[str]) -> list[str]:
    separator = _separator(",".join(cells))
    if separator != ",":
        raise InvalidInputError(
            f"{path} is separated by {_OTHERS[separator]}. Save it with commas between columns and "
            "points in numbers."
        )
    header = _names(cells)
    missing = [name for name in needed if name not in header]
    if missing:
        raise InvalidInputError(
            f"{path} lacks {', '.join(missing)}: its columns are {', '.join(header)[:200]}. Needed "
            f"are {', '.join(needed)}, or n, B_p and C for the middle three."
        )
    twice = [name for name in (*needed, *OPTIONAL) if header.count(name) > 1]
    if twice:
        raise InvalidInputError(f"{path} has the column {twice[0]} twice. Keep one.")
    return header


def _value(path: Path, line: int, name: str, text: str, *, is_needed: bool) -> Any:
    """Return the value of a cell; None if it is empty and may be."""
    text = text.strip()
    if not text and not is_needed:
        return None
    read, must = _KINDS.get(name, _REWARD)
    try:
        return read(text)
    except ValueError:
        raise InvalidInputError(
            f"{path}, line {line}: {name} is {text[:40]!r}, but must be {must}."
        ) from None


def _run(path: Path, name: str, rows: Sequence[_Row], column: str) -> tuple[Found, int]:
    """Return a run, and how many of its rows stand there twice."""
    same = {one: _same(path, name, rows, one) for one in _OF_RUN}
    problems, samples = same["problems"], same["samples"]
    if (problems is None) != (samples is None):
        raise InvalidInputError(
            f"{path}, line {rows[0].line}: run {name!r} has one of problems and samples. Give both "
            "(an evaluation of so many problems, so many samples of each) or neither."
        )
    found, num_twice = _curve(path, name, rows, column)
    run = Run(
        name=name,
        rollouts_per_prompt=same["rollouts_per_prompt"],
        prompts_per_step=same["prompts_per_step"],
        compute_T=np.array(list(found)),
        reward_T=np.array(list(found.values())),
        seed=same["seed"] or 0,
        learning_rate=same["learning_rate"],
        num_prompts=same["num_prompts"],
        evaluation=None if problems is None else (problems, samples),
        allocator=same["allocator"] or "uniform",
    )
    return Found(run=run, place=path), num_twice


def _same(path: Path, name: str, rows: Sequence[_Row], column: str) -> Any:
    """Return the one value that a run has in a column; None if all its cells are empty."""
    line_of: dict[Any, int] = {}
    for row in rows:
        value = row.cell_of.get(column)
        if value is not None:
            line_of.setdefault(value, row.line)
    if len(line_of) > 1:
        (first, at), (other, line) = list(line_of.items())[:2]
        raise InvalidInputError(
            f"{path}, line {line}: {column} of run {name!r} is {other}, but {first} on line {at}. "
            "Give runs of different settings different names."
        )
    return next(iter(line_of), None)


def _curve(
    path: Path, name: str, rows: Sequence[_Row], column: str
) -> tuple[dict[float, float], int]:
    """Return the rewards of a run in order of compute, and how many rows stand there twice."""
    row_of: dict[float, _Row] = {}
    num_twice = 0
    for row in rows:
        compute = row.cell_of["compute"]
        first = row_of.setdefault(compute, row)
        if first is row:
            continue
        if first.cell_of[column] != row.cell_of[column]:
            raise InvalidInputError(
                f"{path}, line {row.line}: run {name!r} has another {column} at compute "
                f"{compute:g} on line {first.line}. Keep one, or give seeds names of their own."
            )
        num_twice += 1
    return {compute: row_of[compute].cell_of[column] for compute in sorted(row_of)}, num_twice


def _text_cell(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError
    return value


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _number(text)
        if value != int(value) or not least <= value <= 2**53:
            raise ValueError
        return int(value)

    return read


def _compute(text: str) -> float:
    value = _number(text)
    if value < 0.0:
        raise ValueError
    return value


def _reward(text: str) -> float:
    value = _number(text)
    if not 0.0 <= value <= 1.0:
        raise ValueError
    return value


def _rate(text: str) -> float:
    value = _number(text)
    if value <= 0.0:
        raise ValueError
    return value


_REWARD = (_reward, "a number in [0, 1]; divide percentages by 100")
_COUNT = (_at_least(1), "a whole number of at least 1")
_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "run": (_text_cell, "the name of the run"),
    "rollouts_per_prompt": _COUNT,
    "prompts_per_step": _COUNT,
    "compute": (_compute, "rollouts spent so far, 0 or more"),
    "reward": _REWARD,
    "seed": (_at_least(0), "a whole number of at least 0"),
    "problems": _COUNT,
    "samples": _COUNT,
    "learning_rate": (_rate, "a number above 0"),
    "allocator": (_text_cell, "a name"),
    "num_prompts": _COUNT,
}
