"""Reads rows of scalars from JSON lines or a table of any form, whichever logger wrote them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from apportion.readers import step_rows, verl_log, wandb_history
from apportion.readers.scalars import Points, counted
from apportion.readers.tabular import Chunk, open_table
from apportion.readers.tally import Tally
from apportion.readers.text_lines import Row, ends_whole, json_value, lines

SEPARATED = ("CSV", "TSV")
PACKED = (*SEPARATED, "Parquet", "JSON lines")
"""Forms of tables to look for scalars in: of a text file, and of one that is packed."""
_NUM_PEEKED = 20


def read(rows: Iterator[Row], points: Points) -> Points | None:
    """Read the objects of a file; None if they are no scalars over steps.

    The first object with a step tells whose they are: verl's, W&B's, or plain.
    """
    first = list(islice(rows, _NUM_PEEKED))
    rows = chain(first, rows)
    if any(verl_log.is_row(row) for row in first):
        return verl_log.read_rows(rows, points)
    if any(wandb_history.is_row(row) for row in first):
        return wandb_history.read_rows(rows, points)
    if any(step_rows.step_name(row) for row in first):
        return step_rows.read_rows(rows, points)
    return None


def is_jsonl(head: str) -> bool:
    """Tell from the beginning of a file whether most of its lines are JSON objects."""
    found = [line for line in head.split("\n") if line.strip()]
    if len(found) > 1:
        found.pop()  # may be cut
    num_objects = sum(isinstance(json_value(line), dict) for line in found[:_NUM_PEEKED])
    return 2 * num_objects > len(found[:_NUM_PEEKED])


def read_csv(path: Path) -> Points | None:
    """Read a CSV of scalars, W&B's export or plain; None if it has no steps or is of rollouts."""
    points = Points()
    table = _csv_rows(path, points)
    header = [name.strip() for name in next(table, [])]
    return _by_header(header, _dictionaries(header, table, points), points, path)


def read_table(path: Path, forms: Sequence[str] = PACKED) -> Points | None:
    """Read scalars from a table of these forms; None if it has no steps or is of rollouts."""
    table, points, tally = open_table(path), Points(), Tally()
    if table is None or table.form not in forms or step_rows.is_of_rollouts_by(table.names):
        return None
    chunks = table.chunks(table.names, tally)
    found = _by_header(list(table.names), _table_rows(chunks), points, path)
    for sentence in tally.sentences() if found is not None else ():
        points.note(sentence)
    return found


def _table_rows(chunks: Iterator[Chunk]) -> Iterator[Row]:
    for chunk in chunks:
        for values in zip(*chunk.values(), strict=True):
            cells = zip(chunk, values, strict=True)
            yield {name: cell for name, cell in cells if cell is not None and str(cell).strip()}


def _by_header(header: list[str], rows: Iterator[Row], points: Points, path: Path) -> Points | None:
    if wandb_history.is_export(header):
        return wandb_history.read_export(header, rows, points, path.name)
    if any(name in header for name in step_rows.STEP_NAMES):
        return step_rows.read_rows(rows, points)
    return None


def _csv_rows(path: Path, points: Points) -> Iterator[list[str]]:
    before: list[str] | None = None
    torn = not ends_whole(path)
    try:
        for row in csv.reader(lines(path, points)):
            if before is not None:
                yield before
            before = row
    except csv.Error:
        torn = False
        points.note("A cell of the CSV is not readable; what follows was left out.")
    if before is not None:
        if torn:
            points.note("The last line has no end and may be torn; its last cell was left out.")
            before = before[:-1]
        yield before


def _dictionaries(header: list[str], table: Iterator[list[str]], points: Points) -> Iterator[Row]:
    """Yield the cells that are not empty by their column."""
    num_ragged = 0
    for row in table:
        num_ragged += len(row) > len(header)
        yield {name: cell for name, cell in zip(header, row, strict=False) if cell.strip()}
    if num_ragged:
        count = counted(num_ragged, "row has", "rows have")
        points.note(f"{count} more cells than the CSV has columns; these cells were left out.")
