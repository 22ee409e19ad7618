"""A column of 0 and 1 beside a shaped reward: what the run is about, if the user knows of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.readers.rollouts import Chunk, PartArray, numbers
from apportion.readers.tally import Tally, listed

_KNOWN = (
    "acc",
    "accuracy",
    "correct",
    "is_correct",
    "success",
    "passed",
)


class BinaryColumns:
    """Keeps the few different values of the reward and of columns that may be 0 or 1.

    >>> columns, tally = BinaryColumns(), Tally()
    >>> part_R = np.zeros(3, dtype=[("reward_low", "f8"), ("reward_high", "f8")])
    >>> part_R["reward_low"] = part_R["reward_high"] = [-1.0, 0.5, 1.0]
    >>> columns.add({"acc": [False, True, True]}, ["acc"], part_R)
    >>> columns.say(tally)
    >>> tally.sentences()
    ('acc in this dump is 0 or 1: audit it with --reward-column acc.',)
    """

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._rewards: set[float] = set()
        self._values_of: dict[str, set[float]] = {}

    def add(self, chunk: Chunk, names: Sequence[str], part_R: PartArray) -> None:
        """Look at the rewards of some rows, and at the columns with these names."""
        if len(self._rewards) < 3:
            reward_R = np.concatenate([part_R["reward_low"], part_R["reward_high"]])
            self._rewards |= _first_values(reward_R[np.isfinite(reward_R)])
        for name in names:
            values = self._values_of.setdefault(name, set())
            if values <= {0.0, 1.0}:
                value_R = numbers(chunk[name])
                values |= _first_values(value_R[~np.isnan(value_R)])

    def say(self, tally: Tally) -> None:
        """Name the columns of 0 and 1, if the reward takes more values than two."""
        found = [name for name, values in self._values_of.items() if values == {0.0, 1.0}]
        if not found or len(self._rewards) < 3:
            return
        each = "is 0 or 1: audit it" if len(found) == 1 else "are 0 or 1: audit one of them"
        tally.say(f"{listed(found)} in this dump {each} with --reward-column {found[0]}.")


def binary_names(names: Sequence[str], reward: str | None) -> list[str]:
    """Return the columns that are called like a success, and are not the reward.

    >>> binary_names(["score", "Acc", "acc_std"], "score")
    ['Acc']
    """
    return [name for name in names if name != reward and name.strip().lower() in _KNOWN]


def _first_values(value_N: np.ndarray) -> set[float]:
    return set(np.unique(value_N)[:3].tolist())
