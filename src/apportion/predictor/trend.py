"""How far the policy has come: one number that all prompts share, and its speed.

    level(t + 1) = level(t) + speed(t) + noise,   speed(t + 1) = speed(t) + noise

A prompt moves with it by its *slope*, four times its expected p(1-p): a prompt that always or never
succeeds gives no gradient and hardly moves. A local linear trend, kept by a Kalman filter (Harvey,
"Forecasting, Structural Time Series Models and the Kalman Filter", 1989, Sec. 2.3.2).
"""

from __future__ import annotations

import numpy as np

from apportion.predictor.rows import State, saved
from apportion.validate import FloatArray

_SPEED_SHARE = 1.0 / 400.0
"""Variance of the speed's steps against the level's: a speed lasts about 20 steps."""
_START_SPEED_VAR = 1e-4


class Trend:
    """Belief about level and speed at the latest policy step.

    >>> trend = Trend()
    >>> for step in range(1, 200):
    ...     trend.advance(step, 1e-3)
    ...     level = trend.level
    ...     trend.learn(np.ones(8), np.full(8, 0.02 * step - level), np.full(8, 0.01))
    >>> round(float(trend.state_A[1]), 3)
    0.02
    """

    def __init__(self) -> None:
        self.step = 0
        self.state_A = np.zeros(2)
        self.cov_AA = np.diag([0.0, _START_SPEED_VAR])

    @property
    def level(self) -> float:
        """Expected level at the latest step."""
        return float(self.state_A[0])

    def level_at(self, step: int) -> float:
        """Return the level expected at a step; no step before the latest is looked back to."""
        return float(self.state_A[0] + max(step - self.step, 0) * self.state_A[1])

    def advance(self, step: int, rate: float) -> None:
        """Move on to a step; the level takes up variance `rate` a step."""
        ahead = step - self.step
        if ahead <= 0:
            return
        move_AA = np.array([[1.0, float(ahead)], [0.0, 1.0]])
        self.state_A = move_AA @ self.state_A
        self.cov_AA = move_AA @ self.cov_AA @ move_AA.T
        self.cov_AA += rate * ahead * np.diag([1.0, _SPEED_SHARE])
        self.step = step

    def learn(self, slope_B: FloatArray, surprise_B: FloatArray, var_B: FloatArray) -> None:
        """Learn from surprises ``slope * (change of level) + N(0, var)``."""
        information = float((slope_B**2 / var_B).sum())
        if not information > 1e-12:
            return
        change = float((slope_B * surprise_B / var_B).sum()) / information
        gain_A = self.cov_AA[:, 0] / (self.cov_AA[0, 0] + 1.0 / information)
        self.state_A = self.state_A + gain_A * change
        self.cov_AA = self.cov_AA - np.outer(gain_A, self.cov_AA[0])
        self.cov_AA = 0.5 * (self.cov_AA + self.cov_AA.T)

    def state_dict(self) -> State:
        """Return step, state and covariance."""
        return {
            "trend_step": np.array([self.step], dtype=np.int64),
            "trend_state": self.state_A.copy(),
            "trend_cov": self.cov_AA.ravel(),
        }

    @classmethod
    def of_state(cls, state: State) -> Trend:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        found = cls()
        found.step = int(saved(state, "trend_step", size=1, dtype=np.int64, at_least=0)[0])
        found.state_A = saved(state, "trend_state", size=2)
        found.cov_AA = saved(state, "trend_cov", size=4).reshape(2, 2)
        return found
