"""Tables that W&B keeps of a run: JSON with `columns` and `data`, one file a logged table."""

from __future__ import annotations

import re
from typing import Any

from apportion.readers.tally import Tally

WANDB_TABLE = "W&B tables"
_STEP = re.compile(r"_(\d+)_[0-9a-f]{8,}\.table\.json(\.gz)?$")


def is_wandb_table(document: dict[str, Any]) -> bool:
    """Return whether a JSON document is what `wandb.Table` writes."""
    columns, data = document.get("columns"), document.get("data")
    return isinstance(columns, list) and isinstance(data, list)


def wandb_rows(document: dict[str, Any], name: str, tally: Tally) -> list[dict[str, Any]]:
    """Return the rows of a table by column; a row of another width is left out.

    >>> wandb_rows({"columns": ["prompt", "reward"], "data": [["a", 1]]}, "t", Tally())
    [{'prompt': 'a', 'reward': 1}]
    """
    columns = [str(column) for column in document["columns"]]
    data = [row for row in document["data"] if isinstance(row, list) and len(row) == len(columns)]
    tally.seen("rows", name, len(document["data"]))
    what = "have another number of values than the table has columns and were left out"
    tally.add("rows", what, name, len(document["data"]) - len(data))
    return [dict(zip(columns, row, strict=True)) for row in data]


def wandb_step(name: str) -> int | None:
    """Return the step in the name that W&B gives to a logged table, ``KEY_STEP_HASH.table.json``.

    >>> wandb_step("completions_12_0f3a9c11aa55ee77.table.json")
    12
    """
    found = _STEP.search(name)
    return int(found[1]) if found else None
