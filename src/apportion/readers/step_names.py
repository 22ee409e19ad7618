"""Steps as they are spelled in a column: numbers, or one name with a number, like step_10."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from apportion.readers.rollouts import Chunk, whole_steps

_SPELLED = re.compile(r"([^\W\d][^\d]*?)(\d{1,15})")
_LONGEST_SHOWN = 40


def numbered(values: Sequence[Any]) -> list[Any] | None:
    """Return the trailing numbers if all values are one name and a number; else None.

    >>> numbered(["global_step_10", None, "global_step_20"])
    [10, None, 20]
    >>> numbered(["step_1", "epoch_1"]) is None
    True
    """
    found = [
        _SPELLED.fullmatch(value.strip()) if isinstance(value, str) else None for value in values
    ]
    if any(one is None and value is not None for one, value in zip(found, values, strict=True)):
        return None
    if len({one[1] for one in found if one is not None}) != 1:
        return None
    return [None if one is None else int(one[2]) for one in found]


def with_numbers(chunk: Chunk, step: str) -> Chunk:
    """Return rows with numbers for steps that are spelled with a name."""
    steps = numbered(chunk[step])
    return chunk if steps is None else chunk | {step: steps}


def has_steps(chunks: Iterable[Chunk], step: str) -> tuple[bool, str]:
    """Return whether a column holds a whole step anywhere, and a value of it if it does not.

    Reads no further than the first step.
    """
    example = ""
    for chunk in chunks:
        if len(whole_steps(with_numbers(chunk, step)[step])):
            return True, ""
        known = [value for value in chunk[step] if not _is_missing(value)]
        example = example or (str(known[0])[:_LONGEST_SHOWN] if known else "")
    return False, example


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and bool(np.isnan(value)))
