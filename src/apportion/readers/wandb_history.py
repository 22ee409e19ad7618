"""Reads the history of a W&B run: rows of ``run.history()`` or ``scan_history()``, exported CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from apportion.errors import InvalidInputError
from apportion.readers.scalars import Points
from apportion.readers.step_rows import STEP_NAMES
from apportion.readers.tally import listed
from apportion.readers.text_lines import Row

STEP = "_step"
_TRAINER_STEP = "train/global_step"
_INTERNAL = {STEP, "_wandb"}


def is_row(row: Row) -> bool:
    """Tell whether an object is a row of a history: it has ``_step``."""
    return STEP in row


def read_rows(rows: Iterable[Row], points: Points) -> Points:
    """Read rows of a history; what is null in one was not logged there.

    W&B counts calls in ``_step``. The trainers of transformers and TRL log ``train/global_step``
    beside it; then this is the step, and a row without it belongs to the one before.
    """
    global_step: object = None
    for row in rows:
        values = dict(_flat(row))
        global_step = values.get(_TRAINER_STEP, global_step)
        step = values.get(STEP) if global_step is None else global_step
        points.add_row(step, {name: values[name] for name in values if name not in _INTERNAL})
    if global_step is not None:
        points.note(f"The step is {_TRAINER_STEP}, not W&B's own count of calls.")
    return points


def is_columns(head: str) -> bool:
    """Tell from the beginning of a file whether it is a history by columns."""
    return head.startswith("{") and re.search(rf'"{STEP}"\s*:\s*{{', head) is not None


def read_columns(columns: object, points: Points) -> Points:
    """Read ``run.history().to_json()``: a mapping from row to value for each column."""
    index = columns.get(STEP) if isinstance(columns, dict) else None
    if not isinstance(columns, dict) or not isinstance(index, dict):
        points.note("The history is torn; export it by rows to read what is left.")
        return points
    held = {name: column for name, column in columns.items() if isinstance(column, dict)}
    return read_rows(({name: held[name].get(at) for name in held} for at in index), points)


def is_export(header: list[str]) -> bool:
    """Tell whether a CSV is W&B's: it has ``_step``, or steps beside columns ``run - metric``."""
    return STEP in header or (_axis(header) != "" and any(" - " in name for name in header))


def read_export(header: list[str], rows: Iterable[Row], points: Points, file: str) -> Points:
    """Read an exported CSV; the ``__MIN`` and ``__MAX`` columns of a chart are left out.

    Raises:
        InvalidInputError: the chart shows several runs.
    """
    axis = _axis(header)
    wanted = [
        name
        for name in header
        if name not in ("", axis) and not name.endswith(("__MIN", "__MAX", f" - {STEP}"))
    ]
    runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in wanted if " - " in name))
    if len(runs) > 1:
        count = "two" if len(runs) == 2 else f"{len(runs):,}"
        raise InvalidInputError(f"{file} has curves of {count} runs, {listed(runs)}: export one.")
    plain = {name: name.rpartition(" - ")[2] for name in wanted}
    renamed = (
        {STEP: row.get(axis)} | {plain[name]: row[name] for name in wanted if row.get(name)}
        for row in rows
    )
    return read_rows(renamed, points)


def _axis(header: list[str]) -> str:
    return next((name for name in (STEP, "Step", *STEP_NAMES) if name in header), "")


def _flat(row: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a row, of nested dictionaries as ``outer.inner``, without media."""
    for name, value in row.items():
        if isinstance(value, dict):
            if "_type" not in value and prefix.count(".") < 10:
                yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value
