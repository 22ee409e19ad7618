"""The lowest and the highest reward of a record, and whether very few rewards set them."""

from __future__ import annotations

import numpy as np

from apportion.readers.rollouts import PartArray
from apportion.readers.tally import Tally
from apportion.validate import FloatArray

_MOST_KEPT = 2**10
_FEW = 1e-3
_FEWEST_ROWS = 100
_FAR = 10.0


class RewardRange:
    """Keeps the ends of the rewards, and as many of the outermost as 0.1% of a million rows.

    >>> rewards, tally = RewardRange(), Tally()
    >>> part_R = np.zeros(500, dtype=[("num_rollouts", "i8"), *((f"reward_{end}", "f8")
    ...     for end in ("low", "high"))])
    >>> part_R["num_rollouts"], part_R["reward_high"][::2] = 1, 1.0
    >>> part_R["reward_high"][7] = 50.0
    >>> rewards.add(part_R)
    >>> rewards.say(tally)
    >>> tally.sentences()[0]
    'The rewards reach from 0 to 50, but all others than 1 of 500 lie within 0 and 1.'
    """

    def __init__(self) -> None:
        """Start with no reward seen."""
        self._low_N = self._high_N = np.zeros(0)
        self._num_rows = 0

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest reward; (inf, -inf) if there was none."""
        return float(self._low_N.min(initial=np.inf)), float(self._high_N.max(initial=-np.inf))

    def add(self, part_R: PartArray) -> None:
        """Look at the rewards of some rows."""
        scored_R = part_R["num_rollouts"] > 0
        self._num_rows += int(np.count_nonzero(scored_R))
        self._low_N = _outermost(self._low_N, part_R["reward_low"][scored_R], 1)
        self._high_N = _outermost(self._high_N, part_R["reward_high"][scored_R], -1)

    def say(self, tally: Tally) -> None:
        """Say so if very few rewards lie far beyond all others."""
        few = min(max(1, int(_FEW * self._num_rows)), _MOST_KEPT - 1)
        if self._num_rows < _FEWEST_ROWS:
            return
        low, high = self.ends
        inner_low, inner_high = float(self._low_N[few]), float(self._high_N[few])
        if not 0.0 < _FAR * (inner_high - inner_low) < high - low:
            return
        num_far = int((self._low_N < inner_low).sum() + (self._high_N > inner_high).sum())
        tally.say(
            f"The rewards reach from {low:g} to {high:g}, but all others than {num_far:,} of "
            f"{self._num_rows:,} lie within {inner_low:g} and {inner_high:g}."
        )


def _outermost(kept_N: FloatArray, new_N: FloatArray, sign: int) -> FloatArray:
    """Return the lowest values in order (sign 1), or the highest from the top (sign -1)."""
    return np.asarray(sign * np.sort(sign * np.concatenate([kept_N, new_N]))[:_MOST_KEPT])
