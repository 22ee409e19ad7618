"""Reads ``trainer_state.json``, where the trainers of transformers and TRL keep their logs."""

from __future__ import annotations

import re
from pathlib import Path

from apportion.readers.scalars import Points, counted
from apportion.readers.text_lines import head_text, json_array

_HISTORY = r'"log_history"\s*:\s*'
_GLOBAL_STEP = re.compile(r'"global_step"\s*:\s*(\d{1,18})\b')
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,18})")


def is_state(head: str) -> bool:
    """Tell from the beginning of a file whether it is a trainer's state."""
    return head.startswith("{") and re.search(_HISTORY, head) is not None


def read(path: Path) -> Points:
    """Read ``log_history``: every numeric key over ``step``, names as they stand there."""
    points = Points()
    for entry in json_array(path, points, before=_HISTORY):
        step = entry.pop("step", None)
        points.add_row(step, entry)
    return points


def read_folder(folder: Path) -> Points | None:
    """Read the newest readable state of an output folder; None if it holds none.

    The newest has the largest ``global_step``, be it in a ``checkpoint-*`` or in the folder itself.
    """
    found = [folder / "trainer_state.json", *folder.glob("checkpoint-*/trainer_state.json")]
    newest_first = sorted((path for path in found if path.is_file()), key=_age)
    for num_skipped, path in enumerate(newest_first):
        points = read(path) if is_state(head_text(path)) else Points()
        if not len(points):
            continue
        if num_skipped:
            points.note(
                f"{path.relative_to(folder)} was read; "
                f"{counted(num_skipped, 'newer trainer state holds', 'newer trainer states hold')} "
                "nothing readable."
            )
        return points
    return None


def _age(path: Path) -> tuple[int, int]:
    """Sort by global step, newest first; of two at the same step the shorter path first."""
    match = _GLOBAL_STEP.search(head_text(path)) or _CHECKPOINT.fullmatch(path.parent.name)
    return (-int(match[1]) if match else 0, len(path.parts))
