"""What readers of a sweep are asked for, and what they give back of each run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import numpy as np

from apportion import validate
from apportion.audit.choice import CHOOSING_ARMS
from apportion.errors import InvalidInputError
from apportion.plan.runs import Run
from apportion.validate import FloatArray

MEAN = "mean"
"""The metric that every kind of record has."""
_LARGEST = 1e300
_MOST_POINTS = 50
"""Points of a training reward: more steps than that are averaged in rows."""


class NotRecordedError(InvalidInputError):
    """A run that says nothing of what is asked for, though nothing is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of records of runs.

    Attributes:
        metric: ``mean``, ``best@k``, ``worst@k``, or the name of a column or a logged curve.
        split: problems that our own runs were evaluated on.
        rollouts_per_prompt: n of logs that do not tell it.
        prompts_per_step: B_p of logs that do not tell it.
        training_reward: whether the training reward will do where nothing else was recorded.

    Raises:
        InvalidInputError: a number is below 1.
    """

    metric: str = MEAN
    split: str = "held_out"
    rollouts_per_prompt: int | None = None
    prompts_per_step: int | None = None
    training_reward: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("rollouts_per_prompt", "prompts_per_step"):
            if getattr(self, name) is not None:
                validate.whole_number(name, getattr(self, name), at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run with where it came from.

    Attributes:
        run: the run.
        place: file or folder that tells it from others of its name.
        is_training: whether its reward is that of training.
        told: its configuration, as recorded.
        notes: what was left out or assumed.
    """

    run: Run
    place: Path
    is_training: bool = False
    told: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def allocator_of(told: Mapping[str, object]) -> str:
    """Return who decided the group sizes of a run of ours, by its configuration.

    >>> allocator_of({"arm": "adaptive", "objective": "progress", "candidates": 3})
    'adaptive (progress, 3 x)'
    >>> allocator_of({"allocator_mode": "shadow"}), allocator_of({"arm": "vip"}), allocator_of({})
    ('uniform', 'vip', 'uniform')
    """
    arm = str(told.get("arm") or told.get("allocator_mode") or "uniform")
    if arm in ("uniform", "shadow"):
        return "uniform"
    candidates = told.get("candidates") or 1
    objective = told.get("objective", "variance")
    if objective is None:  # TRL's trainers then choose by whether there is anything to choose from
        objective = "variance" if candidates == 1 else "coverage"
    if arm not in CHOOSING_ARMS or objective == "variance":
        return arm
    return f"{arm} ({objective}, {candidates} x)"


def is_choosing(allocator: str) -> bool:
    """Return whether an allocator leaves prompts out.

    >>> is_choosing("adaptive (progress, 3 x)"), is_choosing("adaptive")
    (True, False)
    """
    return allocator.endswith(" x)")


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a recorded value is a number that is worth one.

    >>> is_number(1), is_number(True), is_number(float("nan")), is_number(10**400)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def whole(value: object) -> int | None:
    """Return a whole number of at least 1, rounded; None if it is none.

    >>> whole(8), whole(7.6), whole("8"), whole(True), whole(0)
    (8, 8, None, None, None)
    """
    return max(round(value), 0) or None if is_number(value) else None


def rate(value: object) -> float | None:
    """Return a learning rate, to the digits in which runs of one setting agree.

    >>> rate(1e-6), rate(9.9999999e-7), rate(0.0), rate(None)
    (1e-06, 1e-06, None, None)
    """
    return float(f"{value:.6g}") if is_number(value) and value > 0.0 else None


def seed(value: object) -> int:
    """Return a seed; 0 where none was recorded."""
    return int(value) if is_number(value) else 0


def sizes_of(told: Mapping[str, object], wanted: Wanted, place: Path) -> tuple[int, int]:
    """Return n and B_p as recorded, else as the user says.

    Raises:
        InvalidInputError: neither tells.
    """
    sizes = []
    for name in ("rollouts_per_prompt", "prompts_per_step"):
        size = whole(told.get(name)) or getattr(wanted, name)
        if size is None:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidInputError(
                f"{place} does not tell its {name}. Give {flag}, which then goes for every log "
                "that does not tell; logs of several sizes are better put in one CSV."
            )
        sizes.append(size)
    return sizes[0], sizes[1]


def averaged(compute_T: FloatArray, reward_T: FloatArray) -> tuple[FloatArray, FloatArray, int]:
    """Average a training reward over equal rows of steps; return how many steps a row has.

    >>> averaged(np.arange(1.0, 101.0), np.linspace(0, 1, 100))[0][:2]
    array([1.5, 3.5])
    """
    size = math.ceil(len(compute_T) / _MOST_POINTS)
    starts = np.arange(0, len(compute_T), size)
    num = np.diff(np.append(starts, len(compute_T)))
    return (
        np.add.reduceat(compute_T, starts) / num,
        np.add.reduceat(reward_T, starts) / num,
        size,
    )
