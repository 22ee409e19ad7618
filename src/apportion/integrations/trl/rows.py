"""From the rows of a TRL batch to `Prompts`, and back to rows for groups of unequal size."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from apportion.errors import InvalidInputError
from apportion.prompt_key import prompt_key, prompt_text
from apportion.types import Prompts

Row = dict[str, Any]

GROUP_COLUMN = "group_index"
"""Name under which rows, and so reward functions, learn their group's position in adaptive mode."""


def prompts_of_rows(
    rows: Sequence[Row],
    *,
    key_column: str | None = None,
    prior_mean_column: str | None = None,
    prior_count_column: str | None = None,
) -> Prompts:
    """Read key, text and prior of each prompt; one row a prompt.

    Args:
        rows: one row of the data set for each group.
        key_column: column with a stable key; None hashes the prompt.
        prior_mean_column: column with a success rate measured before the run.
        prior_count_column: column with the number of rollouts behind it; 0 or None is no prior.

    Raises:
        InvalidInputError: a column is missing.
    """
    key_B = np.array([row_key(row, key_column) for row in rows], dtype=np.str_)
    text_B = tuple(prompt_text(row.get("prompt", "")) for row in rows)
    if prior_mean_column is None or prior_count_column is None:
        return Prompts(id_B=key_B, text_B=text_B)
    mean_B = [_cell(row, prior_mean_column) for row in rows]
    count_B = [_cell(row, prior_count_column) for row in rows]
    known_B = [
        mean is not None and bool(count) for mean, count in zip(mean_B, count_B, strict=True)
    ]
    return Prompts(
        id_B=key_B,
        text_B=text_B,
        prior_mean_B=np.array([m if k else 0.5 for m, k in zip(mean_B, known_B, strict=True)]),
        prior_count_B=np.array([c if k else 0.0 for c, k in zip(count_B, known_B, strict=True)]),
    )


def row_key(row: Row, column: str | None = None) -> str:
    """Return the stable key of a row: its column's value, or a hash of its prompt.

    >>> row_key({"prompt": "1+1="}) == row_key({"prompt": "1+1=", "answer": 2})
    True
    >>> row_key({"prompt": "1+1=", "problem": 17}, "problem")
    '17'
    """
    if column is not None:
        return str(_cell(row, column))
    # An environment may own the prompts; what then tells rows apart is the rest of the row.
    content = row["prompt"] if "prompt" in row else _without_group(row)
    if not isinstance(content, str):
        # Images are told by their type alone: their text form holds a memory address.
        content = json.loads(json.dumps(content, default=lambda value: type(value).__name__))
    return prompt_key(content)


def group_heads(rows: Sequence[Row], first: int, num_generations: int) -> list[Row]:
    """Return the first row of each group that starts within these rows.

    Args:
        rows: this process's rows, each prompt repeated `num_generations` times in a row.
        first: position of the first of them among the rows of all processes.
        num_generations: rollouts a prompt has in the stock layout.

    Raises:
        InvalidInputError: two rows of what should be one group hold different prompts.
    """
    heads = []
    for i, row in enumerate(rows):
        if (first + i) % num_generations == 0:
            heads.append(row)
        elif i and row.get("prompt") != rows[i - 1].get("prompt"):
            raise InvalidInputError(
                f"Rows {first + i - 1} and {first + i} of the batch hold different prompts, but "
                f"each prompt must stand {num_generations} times in a row. Use TRL's own sampler."
            )
    return heads


def expand(heads: Sequence[Row], group: Sequence[int]) -> list[Row]:
    """Return one row a rollout, each a copy of its own that carries its group's position.

    Deep copies, because environments and reward functions may change the rows they are given.

    Raises:
        InvalidInputError: a row has a column of that name already.
    """
    for head in heads:
        check_group_column(head)
    return [{**copy.deepcopy(heads[index]), GROUP_COLUMN: int(index)} for index in group]


def check_group_column(columns: Iterable[str]) -> None:
    """Raise if a column of the data set would be overwritten.

    Raises:
        InvalidInputError: names it and the way out.
    """
    if GROUP_COLUMN in columns:
        raise InvalidInputError(
            f"The data set has a column {GROUP_COLUMN!r}, in which adaptive rollouts give each row "
            "the position of its group. Rename the column."
        )


def _cell(row: Row, column: str) -> Any:
    if column not in row:
        raise InvalidInputError(
            f"The data set has no column {column!r}; it has {', '.join(sorted(row))}."
        )
    return row[column]


def _without_group(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != GROUP_COLUMN}
