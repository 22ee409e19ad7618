"""Streams the lines and the JSON objects of a text file, whatever state the file is in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from apportion.readers.scalars import Points, counted

Row = dict[str, object]

_HEAD = 2**16
_CHUNK = 2**20
_LONGEST = 2**24
"""A line or an object beyond this many characters is no row of scalars."""
_SEPARATOR = re.compile(r"[\s,]*")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def head_bytes(path: Path, size: int = _HEAD) -> bytes:
    """Return the first bytes of a file."""
    with open(path, "rb") as file:
        return file.read(size)


def is_text(path: Path) -> bool:
    """Tell text from binary by its first bytes: no NUL, unless a mark says UTF-16."""
    head = head_bytes(path, 4096)
    return head.startswith(_UTF16) or b"\0" not in head


def head_text(path: Path) -> str:
    """Return the beginning of a text file without the white space before it."""
    with _open(path) as file:
        return file.read(_HEAD).lstrip()


def ends_whole(path: Path) -> bool:
    """Tell whether a file ends with a line end or a closing quote, so that nothing can be torn."""
    with open(path, "rb") as file:
        file.seek(-min(2, path.stat().st_size), 2)
        return not set(b'\n\r"').isdisjoint(file.read())


def lines(path: Path, points: Points) -> Iterator[str]:
    """Yield each line with its end; every kind of line end is one newline here.

    Bytes that are no text are replaced, and counted in a note once the file has been read.
    """
    num_bad = 0
    with _open(path) as file:
        while line := file.readline(_LONGEST):
            num_bad += "\ufffd" in line
            yield line
    if num_bad:
        count = counted(num_bad, "line holds", "lines hold")
        points.note(f"{count} bytes that are not {file.encoding} text; they were replaced.")


def json_lines(path: Path, points: Points) -> Iterator[Row]:
    """Yield the objects of a JSONL file; other lines are counted in a note."""
    num_bad, line = 0, "\n"
    torn = False
    for line in lines(path, points):
        row = json_value(line)
        if isinstance(row, dict):
            yield row
        elif line.strip("\0 \t\n"):
            torn = not line.endswith("\n")
            num_bad += not torn
    if torn:
        points.note("The last line is torn and was left out.")
    if num_bad:
        count = counted(
            num_bad, "line is no JSON object and was", "lines are no JSON objects and were"
        )
        points.note(f"{count} left out.")


def json_array(path: Path, points: Points, before: str = "") -> Iterator[Row]:
    r"""Yield the objects of a JSON array without holding the array.

    Args:
        path: the file; what follows the array is not read.
        points: takes a note if the array breaks off.
        before: a pattern of what stands before its bracket, e.g. ``r'"log_history"\s*:\s*'``.
    """
    decoder = json.JSONDecoder()
    num_rows = 0
    with _open(path) as file:
        buffer = file.read(_CHUNK)
        opening = re.search(before + r"\[", buffer)
        if opening is None:
            return
        at = opening.end()
        while True:
            at = _between(buffer, at)
            if buffer[at : at + 1] == "]":
                return
            try:
                value, at = decoder.raw_decode(buffer, at)
            except (ValueError, RecursionError):
                more = file.read(_CHUNK)
                if not more or len(buffer) - at > _LONGEST:
                    break
                buffer, at = buffer[at:] + more, 0
                continue
            if isinstance(value, dict):
                num_rows += 1
                yield value
    rows = counted(num_rows, "entry", "entries")
    points.note(f"The file is torn after {rows}; what follows was left out.")


def whole_json(path: Path) -> object:
    """Return what a JSON file says; None if it is torn or none."""
    with _open(path) as file:
        return json_value(file.read())


def json_value(text: str) -> object:
    """Return what a JSON text says; None if it is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _between(buffer: str, at: int) -> int:
    """Return where the separator that stands at a position ends."""
    match = _SEPARATOR.match(buffer, at)
    return at if match is None else match.end()


def _open(path: Path) -> TextIO:
    encoding = "utf-16" if head_bytes(path, 2) in _UTF16 else "utf-8-sig"
    return open(path, encoding=encoding, errors="replace", newline=None)
