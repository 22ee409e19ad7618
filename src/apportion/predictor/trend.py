"""How far the policy has come: one number that all prompts share, and its speed.

    level(t + 1) = level(t) + speed(t) + noise,   speed(t + 1) = 0.98 speed(t) + noise

A prompt moves with it by its *slope*, four times its expected p(1-p): a prompt that always or never
succeeds gives no gradient and hardly moves. A speed that nothing confirms dies down, so that it can
neither run away nor be drawn out for ever. A damped linear trend, kept by a Kalman filter (Harvey,
"Forecasting, Structural Time Series Models and the Kalman Filter", 1989, Sec. 2.3.2).
"""

from __future__ import annotations

import numpy as np

from apportion.errors import StateError
from apportion.predictor.rows import State, saved
from apportion.validate import FloatArray

_KEEP_SPEED = 0.98
_SPEED_SHARE = 1.0 / 400.0
"""Variance of the speed's steps against the level's: a speed lasts about 20 steps."""
_START_SPEED_VAR = 1e-4
_ROUNDING = 1e-9


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
        return float(self.state_A[0] + _way(max(step - self.step, 0)) * self.state_A[1])

    def advance(self, step: int, rate: float) -> None:
        """Move on to a step; the level takes up variance `rate` a step."""
        ahead = step - self.step
        if ahead <= 0:
            return
        move_AA = np.array([[1.0, _way(ahead)], [0.0, _KEEP_SPEED**ahead]])
        self.state_A = move_AA @ self.state_A
        self.cov_AA = move_AA @ self.cov_AA @ move_AA.T
        self.cov_AA += rate * _noise(ahead)
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
            "trend_cov": self.cov_AA.flatten(),
        }

    @classmethod
    def of_state(cls, state: State) -> Trend:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        found = cls()
        found.step = int(saved(state, "trend_step", size=1, dtype=np.int64, at_least=0)[0])
        found.state_A = saved(state, "trend_state", size=2)
        found.cov_AA = saved(state, "trend_cov", size=4).reshape(2, 2)
        slack = _ROUNDING * float(np.abs(found.cov_AA).max())
        skew = abs(found.cov_AA[0, 1] - found.cov_AA[1, 0])
        if skew > slack or np.linalg.eigvalsh(found.cov_AA)[0] < -slack:
            raise StateError(
                f"The saved trend_cov is {state['trend_cov'].tolist()}, but must be a covariance. "
                "Start without the state."
            )
        return found


def _way(ahead: int) -> float:
    """Return how far a speed of 1 gets in so many steps: ``1 + .98 + .98^2 + ...``."""
    return (1.0 - _KEEP_SPEED**ahead) / (1.0 - _KEEP_SPEED)


def _noise(ahead: int) -> FloatArray:
    """Return what so many steps add to the covariance at a rate of 1.

    What the speed takes up i steps before the end has moved the level by ``way(i)`` since.
    """
    way = _way(ahead)
    square = (1.0 - _KEEP_SPEED ** (2 * ahead)) / (1.0 - _KEEP_SPEED**2)
    along = (way - square) / (1.0 - _KEEP_SPEED)
    level = (ahead - 2.0 * way + square) / (1.0 - _KEEP_SPEED) ** 2
    return np.diag([float(ahead), 0.0]) + _SPEED_SHARE * np.array([[level, along], [along, square]])
