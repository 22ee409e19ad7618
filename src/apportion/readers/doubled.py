"""A file whose rows all stand twice in a row, as two handlers of one logger leave them."""

from __future__ import annotations

import numpy as np

from apportion.readers.rollouts import PartArray

_COMPARED = ("reward_sum", "reward_sumsq", "num_rollouts", "num_tokens", "num_truncated")
_FEWEST_CHANGES = 20
"""By chance so many changes all fall between pairs once in a million files."""


class RowPairs:
    """Watches whether rows change between pairs alone.

    Rollouts of one group may be equal by chance, but they change within groups now and then, and
    in a file without copies every second change falls within a pair.
    """

    def __init__(self) -> None:
        """Start before the first row."""
        self._num_rows = self._num_changes = 0
        self._is_broken = False
        self._last: PartArray | None = None

    @property
    def are_all(self) -> bool:
        """Whether all rows so far stand in pairs, and would hardly do so by chance."""
        is_even = self._num_rows % 2 == 0
        return is_even and not self._is_broken and self._num_changes >= _FEWEST_CHANGES

    def add(self, part_R: PartArray) -> None:
        """Look at the next rows, in the order of the file."""
        start, self._num_rows = self._num_rows, self._num_rows + len(part_R)
        if self._is_broken:
            return
        known_R = part_R if self._last is None else np.concatenate([self._last, part_R])
        offset = start + len(part_R) - len(known_R) + 1
        is_other_R = np.logical_or.reduce(
            [known_R[name][1:] != known_R[name][:-1] for name in ("step", "group")]
        )
        is_changed_R = np.logical_or.reduce(
            [known_R[name][1:] != known_R[name][:-1] for name in _COMPARED]
        )
        is_odd_R = (offset + np.arange(len(is_changed_R))) % 2 == 1
        self._is_broken = bool(((is_changed_R | is_other_R) & is_odd_R).any())
        is_told_R = is_changed_R | is_other_R
        is_told_R &= ~is_other_R | known_R["is_whole"][1:]
        self._num_changes += int(np.count_nonzero(is_told_R))
        self._last = part_R[-1:].copy()
