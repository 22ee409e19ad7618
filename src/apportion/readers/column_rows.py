"""A JSON object whose fields are columns, as ``DataFrame.to_dict`` writes it."""

from __future__ import annotations

from typing import Any

from apportion.readers.columns import Columns, guess


def column_rows(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of an object of columns; None if it is a row itself.

    All lists have one length, and one is the prompt's; what is no list stands in every row.

    >>> column_rows({"prompt": ["a", "b"], "reward": [0, 1], "step": 3})
    [{'prompt': 'a', 'reward': 0, 'step': 3}, {'prompt': 'b', 'reward': 1, 'step': 3}]
    >>> column_rows({"prompt": "a", "rewards": [0, 1]}) is None
    True
    """
    columns = {name: values for name, one in document.items() if (values := _column(one))}
    prompt = guess(list(document), Columns()).prompt
    told = list(columns.values()) if prompt is None else [columns.get(prompt, [])]
    if len(columns) < 2 or (prompt is None and len(columns) < len(document)):
        return None
    if len({len(values) for values in columns.values()}) > 1 or any(map(_is_chat, told)):
        return None
    if prompt is not None and prompt not in columns:
        return None
    num_rows = len(next(iter(columns.values())))
    full = {name: columns.get(name) or [one] * num_rows for name, one in document.items()}
    return [dict(zip(full, values, strict=True)) for values in zip(*full.values(), strict=True)]


def _column(value: Any) -> list[Any]:
    """Return a list, or the values of an object by row number, as pandas writes a column."""
    if isinstance(value, dict) and value and all(name.isdecimal() for name in value):
        value = list(value.values())
    return value if isinstance(value, list) and len(value) > 1 else []


def _is_chat(values: list[Any]) -> bool:
    return any(isinstance(one, dict) and "role" in one for one in values)
