"""Reads what verl's ``file`` and ``console`` loggers write."""

from __future__ import annotations

import re
from collections.abc import Iterable

from apportion.readers.scalars import Points
from apportion.readers.text_lines import Row

_LINE = re.compile(r"(?<![\w/])step:(\d{1,18}) - ")
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_PAIR = re.compile(
    rf"(?P<name>\S.{{0,200}}?):(?:[\w.]+\()?(?P<number>{_NUMBER})(?:, [^)]*)?\)?(?:[\s(\[].*)?"
)


def is_row(row: Row) -> bool:
    """Tell whether an object is a line of the file logger: ``{"step": 3, "data": {...}}``."""
    return "step" in row and isinstance(row.get("data"), dict)


def read_rows(rows: Iterable[Row], points: Points) -> Points:
    """Read the lines of the file logger."""
    for row in rows:
        data = row.get("data")
        points.add_row(row.get("step"), data if isinstance(data, dict) else {})
    return points


def add_line(line: str, points: Points) -> int:
    """Add the pairs of a console line, ``step:12 - critic/score/mean:0.45 - ...``.

    Anything may stand before and behind. Numbers may be NumPy's (``np.float64(0.4)``).

    Args:
        line: without colour codes; if it has no line end, its last number may be torn and is not
            taken.
        points: where to add them.

    Returns:
        How many pieces between ``-`` were no pair of a name and a number.
    """
    found = list(_LINE.finditer(line))
    num_bad = 0
    ends = [match.start() for match in found[1:]] + [len(line)]
    for match, end in zip(found, ends, strict=False):
        pieces = line[match.end() : end].split(" - ")
        if end == len(line) and not line.endswith("\n"):
            pieces.pop()
        for piece in pieces:
            pair = _PAIR.fullmatch(piece.strip())
            if pair is None:
                num_bad += 1
            else:
                points.add(pair["name"], int(match[1]), float(pair["number"]))
    return num_bad
