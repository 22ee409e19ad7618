"""Does the forecast know more than the global mean? A sliding comparison of log scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apportion.errors import StateError
from apportion.predictor.rows import check_names, saved
from apportion.validate import FloatArray

_MIN_PROBABILITY = 1e-6
_PRIOR_COUNT = 2.0


class SkillMonitor:
    """Log score of the forecasts against that of the global mean, over an exponential window.

    ``gain = sum_t w^(T-t) [log P(rewards_t | forecast) - log P(rewards_t | global mean)]``, in
    nats, where the global mean at t knows only rewards before t (and starts at one half).

    >>> monitor = SkillMonitor()
    >>> monitor.observe(np.array([0.9, 0.1]), np.array([4.0, 0.0]), np.array([4.0, 4.0]))
    >>> monitor.has_skill
    True
    """

    def __init__(self, window: float = 20.0) -> None:
        """Forget with a time constant of `window` observations (calls of `observe`)."""
        self._keep = 1.0 - 1.0 / window
        self._gain = 0.0
        self._rollouts = 0.0
        self._success = 0.5 * _PRIOR_COUNT
        self._count = _PRIOR_COUNT

    @property
    def gain_per_rollout(self) -> float:
        """Nats per rollout by which the forecast beats the global mean; 0 before any rollout."""
        return self._gain / self._rollouts if self._rollouts > 0.0 else 0.0

    @property
    def has_skill(self) -> bool:
        """Whether the forecast scored better than the global mean over the window."""
        return self._gain > 0.0

    def observe(self, mean_B: FloatArray, reward_sum_B: FloatArray, num_B: FloatArray) -> None:
        """Score forecasts made before these rewards were seen, then learn the global mean."""
        total_sum, total_num = float(np.sum(reward_sum_B)), float(np.sum(num_B))
        global_mean = np.full(1, self._success / self._count)
        gain = _log_score(mean_B, reward_sum_B, num_B) - _log_score(
            global_mean, np.array([total_sum]), np.array([total_num])
        )
        self._gain = self._keep * self._gain + gain
        self._rollouts = self._keep * self._rollouts + total_num
        self._success = self._keep * self._success + total_sum
        self._count = self._keep * self._count + total_num

    def state_dict(self) -> dict[str, NDArray[np.float64]]:
        """Return the four running sums as one array."""
        return {"sums": np.array([self._gain, self._rollouts, self._success, self._count])}

    def load_state_dict(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        check_names(state, ["sums"])
        gain, rollouts, success, count = map(float, saved(state, "sums", size=4))
        if rollouts < 0.0 or success < 0.0 or count <= 0.0:
            raise StateError(
                f"The saved skill window has rollouts {rollouts:g}, success {success:g} and count "
                f"{count:g}, but none may be negative. Start without the state."
            )
        self._gain, self._rollouts, self._success, self._count = gain, rollouts, success, count


def _log_score(mean_B: FloatArray, reward_sum_B: FloatArray, num_B: FloatArray) -> float:
    mean_B = np.clip(mean_B, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
    score_B = reward_sum_B * np.log(mean_B) + (num_B - reward_sum_B) * np.log1p(-mean_B)
    return float(np.sum(score_B))
