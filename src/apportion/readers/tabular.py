"""Tables of any common form, as chunks of columns: Parquet, JSON lines, JSON, CSV and TSV.

The form is told by the content, not by the name. Only the columns that are asked for are kept, so
that memory does not grow with the completions of a dump.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from apportion.errors import InvalidInputError
from apportion.readers.column_rows import column_rows
from apportion.readers.columns import Columns, guess
from apportion.readers.dump_text import head, is_text, text_blocks, text_lines
from apportion.readers.tally import Tally
from apportion.readers.wandb_table import WANDB_TABLE, is_wandb_table, wandb_rows

Chunk = dict[str, list[Any]]
Row = dict[str, Any]

_CHUNK_ROWS = 2**14
_PARQUET_ROWS = 2**16
_PEEKED_LINES = 200
_LONGEST_FIELD = 2**27
_LONGEST_ITEM = 2**27
_BETWEEN = " \t\r\n,"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table in a file, not yet read.

    Attributes:
        path: the file.
        form: what it is, in words.
        names: its columns, as far as the first rows tell.
        chunks: yields the columns asked for, all of one length, chunk by chunk; a value that a
            row lacks is None. It alone counts the rows of the file in the tally, each once.
    """

    path: Path
    form: str
    names: tuple[str, ...]
    chunks: Callable[[Sequence[str], Tally], Iterator[Chunk]]


def open_table(path: Path) -> Table | None:
    """Return the table that a file holds; None if it holds none.

    Raises:
        InvalidInputError: it cannot be opened.
    """
    start = head(path)
    if start.startswith(b"PAR1"):
        return _parquet_table(path)
    if not start.strip() or not is_text(start):
        return None
    lines = list(islice(filter(str.strip, text_lines(path, Tally())), _PEEKED_LINES))
    if not lines:
        return None
    rows = [row for row in map(_json_row, lines) if row is not None]
    is_columns = len(lines) == 1 and bool(rows) and column_rows(rows[0]) is not None
    if 2 * len(rows) >= len(lines) and not is_wandb_table(rows[0]) and not is_columns:
        return _rows_table(path, "JSON lines", _json_lines)
    if _begins(lines[0], "["):
        return _rows_table(path, "JSON", _json_items)
    if _begins(lines[0], "{"):
        is_wandb = is_wandb_table(rows[0] if rows else _document(path))
        return _rows_table(path, WANDB_TABLE if is_wandb else "JSON", _document_rows)
    return _csv_table(path, lines[0])


def _begins(line: str, mark: str) -> bool:
    return line.lstrip("\ufeff \t").startswith(mark)


def _rows_table(
    path: Path, form: str, rows: Callable[[Path, Tally], Iterator[Row]]
) -> Table | None:
    names = _names(rows(path, Tally()))
    if not names:
        return None

    def chunks(wanted: Sequence[str], tally: Tally) -> Iterator[Chunk]:
        source = (tuple(map(row.get, wanted)) for row in rows(path, tally))
        while part := list(islice(source, _CHUNK_ROWS)):
            if form != WANDB_TABLE:  # there the rows left out are counted with the others
                tally.seen("rows", path.name, len(part))
            yield dict(zip(wanted, map(list, zip(*part, strict=True)), strict=True))

    return Table(path=path, form=form, names=names, chunks=chunks)


def _names(rows: Iterator[Row]) -> tuple[str, ...]:
    """Return the columns of the first rows, and of more rows where those have no step."""
    names = dict.fromkeys(name for row in islice(rows, _PEEKED_LINES) for name in row)
    if guess(list(names), Columns()).step is None:
        names |= dict.fromkeys(name for row in islice(rows, _CHUNK_ROWS) for name in row)
    return tuple(names)


def _json_row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _json_lines(path: Path, tally: Tally) -> Iterator[Row]:
    num_lines = num_bad = 0
    for line in text_lines(path, tally):
        if line.isspace():
            continue
        num_lines += 1
        row = _json_row(line)
        if row is None:
            num_bad += 1
        else:
            yield row
    tally.seen("lines", path.name, num_lines)
    tally.add("lines", "are not JSON and were left out", path.name, num_bad)


def _json_items(path: Path, tally: Tally) -> Iterator[Row]:
    """Yield the objects of one JSON list, without ever holding the list."""
    decoder, blocks = json.JSONDecoder(), text_blocks(path, tally)
    text, num_odd = next(blocks, "").lstrip("\ufeff \t\r\n").removeprefix("["), 0
    while True:
        text = text.lstrip(_BETWEEN)
        item, end = _decoded(decoder, text)
        if text.startswith("]"):
            break
        if end in (-1, len(text)) and len(text) < _LONGEST_ITEM:
            # Read as much again as is at hand, so that a long item is not parsed over and over.
            more = list(_at_least(blocks, len(text)))
            if more:
                text = "".join([text, *more])
                continue
        if end == -1:
            tally.add("files", "are not whole JSON and were read up to there", path.name)
            break
        # Many items stand in one block: step through it without cutting it each time.
        if isinstance(item, dict):
            yield item
        else:
            num_odd += 1
        end = yield from _items_within(decoder, text, end)
        text = text[end:]
    tally.add("items", "are no JSON objects and were left out", path.name, num_odd)


def _items_within(decoder: json.JSONDecoder, text: str, end: int) -> Generator[Row, None, int]:
    """Yield the objects that follow one another in a text; return where they end."""
    while True:
        start = end
        while start < len(text) and text[start] in _BETWEEN:
            start += 1
        if text[start : start + 1] != "{":
            return end
        try:
            item, after = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return end
        yield item
        end = after


def _decoded(decoder: json.JSONDecoder, text: str) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None, -1


def _at_least(blocks: Iterator[str], size: int) -> Iterator[str]:
    total = 0
    while total <= size and (block := next(blocks, "")):
        total += len(block)
        yield block


def _document(path: Path) -> Row:
    try:
        document = json.loads("".join(text_blocks(path, Tally())).lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _document_rows(path: Path, tally: Tally) -> Iterator[Row]:
    document = _document(path)
    if is_wandb_table(document):
        yield from wandb_rows(document, path.name, tally)
    else:
        yield from column_rows(document) or filter(None, [document])


def _csv_table(path: Path, header_line: str) -> Table | None:
    delimiter = max("\t,;", key=header_line.count)
    if delimiter not in header_line:
        return None
    try:
        header = next(csv.reader([header_line], delimiter=delimiter))
    except (csv.Error, StopIteration):
        return None
    header = [name.strip().lstrip("\ufeff") for name in header]

    def chunks(wanted: Sequence[str], tally: Tally) -> Iterator[Chunk]:
        places = [header.index(name) for name in wanted]
        rows = _csv_rows(path, delimiter, len(header), tally)
        source = ([row[at] or None for at in places] for row in rows)
        while part := list(islice(source, _CHUNK_ROWS)):
            yield dict(zip(wanted, map(list, zip(*part, strict=True)), strict=True))

    form = "TSV" if delimiter == "\t" else "CSV"
    return Table(path=path, form=form, names=tuple(dict.fromkeys(header)), chunks=chunks)


def _csv_rows(path: Path, delimiter: str, width: int, tally: Tally) -> Iterator[list[str]]:
    reader = csv.reader(text_lines(path, tally), delimiter=delimiter)
    num_rows, num_bad = -1, 0  # the header is none
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        while True:
            try:
                row = next(reader, None)
            except csv.Error:
                row = [""]
            if row is None:
                break
            if not any(map(str.strip, row)) and len(row) <= 1 < width and row != [""]:
                continue
            num_rows += 1
            if num_rows and len(row) == width:
                yield row
            elif num_rows:
                num_bad += 1
    finally:
        csv.field_size_limit(limit)
    tally.seen("rows", path.name, num_rows)
    what = "have another number of fields than the header and were left out"
    tally.add("rows", what, path.name, num_bad)


def _parquet_table(path: Path) -> Table:
    import polars as pl

    broken = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
    try:
        frame = pl.scan_parquet(path, glob=False)
        names = tuple(frame.collect_schema().names())
    except broken as error:
        raise InvalidInputError(f"{path.name} is damaged Parquet and was left out.") from error

    def chunks(wanted: Sequence[str], tally: Tally) -> Iterator[Chunk]:
        start = 0
        while True:
            try:
                part = frame.select(wanted).slice(start, _PARQUET_ROWS).collect()
            except broken:
                tally.add("files", "are damaged Parquet and were read up to there", path.name)
                return
            if not len(part):
                return
            tally.seen("rows", path.name, len(part))
            yield {name: part[name].to_list() for name in wanted}
            start += len(part)

    return Table(path=path, form="Parquet", names=names, chunks=chunks)
