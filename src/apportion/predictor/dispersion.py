"""How much single rewards vary against the most that their mean allows.

    dispersion = Var(R) / (m (1 - m)),   1 for 0/1 rewards, less for real-valued ones

Rewards in [0, 1] of mean m have a variance of at most m(1-m). Both parts are summed without bias
from groups of two and more: with the sample variance ``s^2`` of n rewards of mean r,
``E[s^2] = Var(R)`` and ``E[r(1-r) + s^2/n] = m(1-m)``.
"""

from __future__ import annotations

import numpy as np

from apportion.predictor.rows import Column, State, saved
from apportion.validate import FloatArray, IntArray

_KEEP = 0.99
_KEEP_OWN = 0.9
_OWN_WEIGHT = 1.0
"""Sum of m(1-m) at which a prompt's own dispersion counts as much as that of all."""
_LEAST = 0.01
_START = 1.0
_LEAST_SUM = 1e-12


class Dispersion:
    """Dispersion of everyone and of each prompt, shrunk to it; both forget slowly."""

    def __init__(self) -> None:
        self._spread, self._most = Column(np.float64), Column(np.float64)
        self._all_A = np.full(2, _START)

    def add(self, size: int) -> None:
        """Append prompts without evidence."""
        self._spread.append(np.zeros(size))
        self._most.append(np.zeros(size))

    def of(self, row_B: IntArray) -> FloatArray:
        """Return the dispersion expected of these prompts, in [0.01, 1]."""
        spread, most = self._all_A
        own_B = self._spread.values[row_B] + _OWN_WEIGHT * spread / most
        dispersion_B = own_B / (self._most.values[row_B] + _OWN_WEIGHT)
        return np.asarray(np.clip(dispersion_B, _LEAST, 1.0))

    def learn(
        self, row_B: IntArray, num_B: FloatArray, sum_B: FloatArray, sumsq_B: FloatArray
    ) -> None:
        """Learn from groups of rewards in [0, 1]: their number, sum and sum of squares."""
        many_B = num_B >= 2.0
        row, num, total = row_B[many_B], num_B[many_B], sum_B[many_B]
        if len(row) == 0:
            return
        spread, most = spread_and_most(num, total, sumsq_B[many_B])
        if most.any():  # constant groups of 0 or 1 tell nothing, and must not wear the sums away
            new_A = np.array([spread.sum(), most.sum()])
            self._all_A = np.maximum(_KEEP * self._all_A + new_A, _LEAST_SUM)
        self._spread.values[row] = _KEEP_OWN * self._spread.values[row] + spread
        self._most.values[row] = _KEEP_OWN * self._most.values[row] + most

    def state_dict(self) -> State:
        """Return the sums of each prompt and of all."""
        return {
            "reward_spread_Q": self._spread.values.copy(),
            "reward_most_Q": self._most.values.copy(),
            "reward_sums": self._all_A.copy(),
        }

    @classmethod
    def of_state(cls, state: State, *, size: int) -> Dispersion:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        found = cls()
        found._spread.replace(saved(state, "reward_spread_Q", size=size, at_least=0.0))
        found._most.replace(saved(state, "reward_most_Q", size=size, at_least=0.0))
        found._all_A = saved(state, "reward_sums", size=2, at_least=_LEAST_SUM)
        return found


def spread_and_most(
    num_B: FloatArray, sum_B: FloatArray, sumsq_B: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return ``(n - 1) s^2`` and ``(n - 1) (r(1-r) + s^2/n)`` of groups of rewards in [0, 1].

    The second is in a form that equals the first exactly for 0/1 rewards.

    >>> spread_and_most(np.array([4.0]), np.array([1.0]), np.array([1.0]))
    (array([0.75]), array([0.75]))
    """
    mean_B = sum_B / num_B
    # 0/1 rewards have sumsq = sum; what exceeds it is float noise.
    square_B = np.clip(sumsq_B, sum_B * mean_B, sum_B)
    spread_B = square_B - sum_B * mean_B
    return spread_B, spread_B + (1.0 - 1.0 / num_B) * (sum_B - square_B)
