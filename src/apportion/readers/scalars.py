"""Gathers the points of scalar curves, whatever a logger wrote in their place."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

import numpy as np

from apportion.recording import Curve

_LARGEST_STEP = 2**63 - 1


class Points:
    """Points by name, and a count of everything odd that was met on the way.

    >>> points = Points()
    >>> for step, reward in ((2, 0.5), (1, 0.25), (2, "0.75")):
    ...     points.add_row(step, {"reward": reward, "text": "hello"})
    >>> curves, notes = points.finish()
    >>> curves["reward"].step_T, curves["reward"].value_T
    (array([1, 2]), array([0.25, 0.75]))
    >>> notes[0]
    '1 step holds more than one value of a curve, as after a resume; the last one counts.'
    """

    def __init__(self) -> None:
        """Start without points."""
        self._step: dict[str, array[int]] = {}
        self._value: dict[str, array[float]] = {}
        self._notes: list[str] = []
        self._text: dict[str, tuple[int, int, str]] = {}
        self._num_without_step = 0
        self._num_empty = 0
        self._num_boolean = 0

    def __len__(self) -> int:
        """Return how many points were gathered."""
        return sum(map(len, self._step.values()))

    @property
    def names(self) -> set[str]:
        """The names that have a point."""
        return set(self._step)

    def first_step(self, names: set[str]) -> int:
        """Return the lowest step of these curves."""
        return min(min(self._step[name]) for name in names)

    def note(self, sentence: str) -> None:
        """Add a sentence on what was left out or assumed."""
        self._notes.append(sentence)

    def add_row(self, step: object, values: Mapping[str, object]) -> None:
        """Add what was logged at a step; without a usable step, count the row as left out."""
        number = whole_step(step)
        if number is None:
            self._num_without_step += 1
            return
        for name, value in values.items():
            self.add(name, number, value)

    def add(self, name: str, step: int, value: object) -> None:
        """Add one point. Null counts as NaN, a quoted number as one; lists and tables are none."""
        if isinstance(value, bool):
            self._num_boolean += 1
        elif value is None:
            value = math.nan
        elif isinstance(value, str):
            number = quoted_number(value)
            if number is None:
                count, at, text = self._text.get(name, (0, step, value[:30]))
                self._text[name] = (count + 1, at, text)
                return
            value = number
        elif not isinstance(value, int | float):
            return
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self._num_empty += 1
            number = math.nan
        if name not in self._step:
            self._step[name], self._value[name] = array("q"), array("d")
        self._step[name].append(step)
        self._value[name].append(number)

    def extend(self, later: Points, prefix: str = "") -> None:
        """Add all that another collection holds, with `prefix` before its names."""
        for name, step in later._step.items():
            self._step.setdefault(prefix + name, array("q")).extend(step)
            self._value.setdefault(prefix + name, array("d")).extend(later._value[name])
        for name, text in later._text.items():
            self._text.setdefault(prefix + name, text)
        self._notes.extend(later._notes)
        self._num_without_step += later._num_without_step
        self._num_empty += later._num_empty
        self._num_boolean += later._num_boolean

    def finish(self) -> tuple[dict[str, Curve], list[str]]:
        """Return the curves, steps ascending with one value each, and the notes."""
        curves = {}
        doubled: set[int] = set()
        for name, step in self._step.items():
            curves[name], twice = _curve(step, self._value[name])
            doubled.update(twice)
        return curves, [*self._notes, *self._oddities(len(doubled))]

    def _oddities(self, num_doubled: int) -> list[str]:
        notes = []
        if num_doubled:
            steps = "1 step holds" if num_doubled == 1 else f"{num_doubled} steps hold"
            notes.append(
                f"{steps} more than one value of a curve, as after a resume; the last one counts."
            )
        if self._num_empty:
            count = counted(self._num_empty, "value is", "values are")
            notes.append(f"{count} NaN, infinite or null; the curves hold NaN there.")
        if self._num_boolean:
            count = counted(self._num_boolean, "value is", "values are")
            notes.append(f"{count} true or false, counted as 1 and 0.")
        text = {name: self._text[name] for name in self._text if name in self._step}
        if text:
            name, (_, step, shown) = next(iter(text.items()))
            count = counted(sum(one[0] for one in text.values()), "text", "texts")
            notes.append(
                f"{count} in the place of numbers left out, the first {shown!r} for "
                f"{name[:60]!r} at step {step}."
            )
        if self._num_without_step:
            count = counted(self._num_without_step, "row has", "rows have")
            notes.append(f"{count} no whole step number and count for nothing.")
        if not self._step:
            notes.append("The log holds no numbers.")
        return notes


def whole_step(value: object) -> int | None:
    """Return a step as a whole number from 0; None if it is not one.

    >>> whole_step(3.0), whole_step("12"), whole_step("7/100"), whole_step(-1), whole_step(0.5)
    (3, 12, 7, None, None)
    """
    if isinstance(value, str):
        value = quoted_number(value.partition("/")[0])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if 0 <= value <= _LARGEST_STEP else None


def quoted_number(text: str) -> int | float | None:
    """Return the number that a text spells; None if it spells none.

    >>> quoted_number("0.5"), quoted_number("12"), quoted_number("1_000"), quoted_number("two")
    (0.5, 12, None, None)
    """
    if len(text) > 60 or "_" in text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def counted(count: int, one: str, many: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "line", "lines"), counted(2, "line", "lines")
    ('1 line', '2 lines')
    """
    return f"{count} {one if count == 1 else many}"


def _curve(step: array[int], value: array[float]) -> tuple[Curve, list[int]]:
    """Sort by step and keep the last value of each; return the steps whose values differed."""
    step_T = np.array(step, dtype=np.int64)
    value_T = np.array(value, dtype=np.float64)
    order = np.argsort(step_T, kind="stable")
    step_T, value_T = step_T[order], value_T[order]
    same = step_T[1:] == step_T[:-1]
    both_nan = np.isnan(value_T[1:]) & np.isnan(value_T[:-1])
    differs = same & (value_T[1:] != value_T[:-1]) & ~both_nan
    last = np.append(~same, True)
    curve = Curve(step_T=step_T[last], value_T=value_T[last])
    return curve, np.unique(step_T[1:][differs]).tolist()
