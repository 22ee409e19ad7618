"""Reads plain rows of scalars with a step each, and tells them from rows of rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from apportion.readers.scalars import Points, quoted_number, whole_step
from apportion.readers.text_lines import Row

STEP_NAMES = (
    "step",
    "global_step",
    "train/global_step",
    "training/global_step",
    "global_step/max_steps",
    "progress/batch",
    "trainer/global_step",
    "train/step",
    "training_step",
    "train_step",
    "policy_step",
    "iteration",
    "iter",
    "Step",
)
_IDS = {"prompt_id", "group_id", "rollout_id", "sample_id", "problem_id", "uid"}
_WORDS = {
    *("prompt", "prompts", "question", "problem", "input", "messages", "answer"),
    *("completion", "completions", "response", "responses", "output", "gts"),
}
_LISTS = _WORDS | {"reward", "rewards", "score", "scores"}
_REPEATS = 0.25
"""Share of rows at the same step as the row before, with the same names, that makes rollouts."""


def step_name(row: Mapping[str, object]) -> str | None:
    """Return the name under which a row keeps its step; None if it has none.

    >>> step_name({"global_step/max_steps": "3/100", "reward": 0.5})
    'global_step/max_steps'
    """
    return next((name for name in STEP_NAMES if whole_step(row.get(name)) is not None), None)


def read_rows(rows: Iterable[Row], points: Points) -> Points | None:
    """Read one row a step; None if the rows are rollouts or groups."""
    num_rows = num_repeats = 0
    before: tuple[object, set[str]] = (None, set())
    for row in rows:
        if is_of_rollouts(row):
            return None
        name = step_name(row)
        step = None if name is None else row.pop(name)
        names = {key for key, value in row.items() if value is not None} - {"epoch"}
        num_rows += 1
        num_repeats += step == before[0] and 2 * len(names & before[1]) > len(names | before[1])
        before = (step, names)
        points.add_row(step, row)
    if num_repeats > _REPEATS * num_rows or not len(points):
        return None
    return points


def is_of_rollouts_by(names: Iterable[str]) -> bool:
    """Tell from the columns of a table that it speaks of rollouts or groups.

    >>> is_of_rollouts_by(["step", "Prompt"]), is_of_rollouts_by(["step", "reward"])
    (True, False)
    """
    return not (_IDS | _WORDS).isdisjoint(name.strip().lower() for name in names)


def is_of_rollouts(row: Mapping[str, object]) -> bool:
    """Tell whether a row speaks of one rollout or one group: it has a prompt, or lists.

    >>> is_of_rollouts({"step": 1, "prompt": "2 + 2 =", "reward": 1.0})
    True
    >>> is_of_rollouts({"step": 1, "reward": 0.5, "reward_std": 0.5})
    False
    """
    for name, value in row.items():
        word = name.lower()
        if word in _IDS and value is not None:
            return True
        if word in _LISTS and isinstance(value, list | dict):
            return True
        if word in _WORDS and isinstance(value, str) and quoted_number(value) is None:
            return True
    return False
