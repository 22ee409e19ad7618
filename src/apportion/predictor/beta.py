"""Counts of success and failure for each prompt, fading with the age of the policy."""

from __future__ import annotations

import numpy as np

from apportion.errors import StateError
from apportion.predictor.rows import Column, State, check_names, saved, within
from apportion.types import Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray


class Beta:
    """A Beta belief about each prompt on its own.

    ``p ~ Beta(a, b)``, a and b being the prior counts plus successes and failures, each weighed
    ``decay ** (step - the policy step that sampled it)``;  ``m = a/(a+b)``,
    ``var = m(1-m)/(a+b+1)``. Rewards between 0 and 1 count as fractions of a success.

    An offline pass rate is part of the prior: it adds at most ``max_prior_count`` rollouts and does
    not fade, so that a prompt without recent evidence falls back to it and not to ``prior_mean``.

    The defaults are near the least squared error over the populations of `GaussianProcess`.

    Args:
        prior_mean: success rate expected of a prompt without evidence, in (0, 1).
        prior_count: how many rollouts that expectation is worth, above 0.
        decay: what one policy step leaves of the evidence, in (0, 1].
        max_prior_count: the most rollouts that an offline pass rate counts for.

    >>> beta = Beta(prior_mean=0.5, prior_count=2.0)
    >>> beta.add(Prompts(id_B=["a"]))
    >>> beta.update(np.array([0]), Outcomes.of_rewards(["a"], [1, 1, 1, 0], [0] * 4, step=0))
    >>> beta.forecast(np.array([0]), 0).mean_B.round(3)
    array([0.667])
    """

    def __init__(
        self,
        *,
        prior_mean: float = 0.5,
        prior_count: float = 1.0,
        decay: float = 0.985,
        max_prior_count: float = 8.0,
    ) -> None:
        self.prior_mean = within("prior_mean", prior_mean, above=0.0, below=1.0)
        self.prior_count = within("prior_count", prior_count, above=0.0)
        self.decay = within("decay", decay, above=0.0, at_most=1.0)
        self.max_prior_count = within("max_prior_count", max_prior_count, at_least=0.0)
        self._prior_success, self._prior_failure = Column(np.float64), Column(np.float64)
        self._success, self._failure = Column(np.float64), Column(np.float64)
        self._last = Column(np.int64)

    def add(self, prompts: Prompts) -> None:
        """Append B new prompts with their priors."""
        size = len(prompts)
        rate_B, count_B = np.zeros(size), np.zeros(size)
        if prompts.prior_mean_B is not None and prompts.prior_count_B is not None:
            rate_B = prompts.prior_mean_B
            count_B = np.minimum(prompts.prior_count_B, self.max_prior_count)
        self._prior_success.append(self.prior_count * self.prior_mean + count_B * rate_B)
        self._prior_failure.append(
            self.prior_count * (1.0 - self.prior_mean) + count_B * (1.0 - rate_B)
        )
        self._success.append(np.zeros(size))
        self._failure.append(np.zeros(size))
        self._last.append(np.zeros(size, dtype=np.int64))

    def forecast(self, row_B: IntArray, step: int) -> Forecast:
        """Return mean and variance of the Beta; the reward variance is m(1-m) - var."""
        fade_B = self._fade(np.maximum(step - self._last.values[row_B], 0))
        a_B = self._prior_success.values[row_B] + fade_B * self._success.values[row_B]
        b_B = self._prior_failure.values[row_B] + fade_B * self._failure.values[row_B]
        total_B = a_B + b_B
        mean_B = a_B / total_B
        return Forecast.of_success(mean_B, mean_B * (1.0 - mean_B) / (total_B + 1.0))

    def update(self, row_B: IntArray, outcomes: Outcomes) -> None:
        """Let old counts fade to the newest step of the prompt, then add the new ones."""
        last_B = self._last.values[row_B]
        now_B = np.maximum(last_B, outcomes.policy_step_B)
        old_B, new_B = self._fade(now_B - last_B), self._fade(now_B - outcomes.policy_step_B)
        success_B = outcomes.reward_sum_B
        failure_B = np.maximum(outcomes.num_rollouts_B - success_B, 0.0)
        self._success.values[row_B] = old_B * self._success.values[row_B] + new_B * success_B
        self._failure.values[row_B] = old_B * self._failure.values[row_B] + new_B * failure_B
        self._last.values[row_B] = now_B

    def state_dict(self) -> State:
        """Return the counts, the priors and the step that each count has faded to."""
        return {name: column.values.copy() for name, column in self._columns().items()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        columns = self._columns()
        check_names(state, columns)
        size = len(np.atleast_1d(state["last_Q"]))
        arrays = {
            name: saved(
                state,
                name,
                size=size,
                dtype=np.int64 if name == "last_Q" else np.float64,
                at_least=0,
            )
            for name in columns
        }
        if (arrays["prior_success_Q"] + arrays["prior_failure_Q"] <= 0.0).any():
            raise StateError(
                "The saved prior_success_Q and prior_failure_Q are both 0 for a prompt, but must "
                "sum to more. Start without the state."
            )
        for name, column in columns.items():
            column.replace(arrays[name])

    def _columns(self) -> dict[str, Column]:
        return {
            "prior_success_Q": self._prior_success,
            "prior_failure_Q": self._prior_failure,
            "success_Q": self._success,
            "failure_Q": self._failure,
            "last_Q": self._last,
        }

    def _fade(self, age_B: IntArray) -> FloatArray:
        return np.asarray(self.decay ** age_B.astype(np.float64))
