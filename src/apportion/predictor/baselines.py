"""The predictors that VIP was compared with, and the truth itself."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.predictor.rows import FeatureTable, State, check_names, saved, within
from apportion.types import Forecast, Outcomes, Prompts, StrArray
from apportion.validate import FloatArray, IntArray

_EMPTY_START = 0.5


class MovingAverage:
    """The same forecast for every prompt: the mean success rate of recent steps.

    The mean is over the groups of the last ``window`` policy steps seen, each group counting once;
    0.5 before the first outcome. No doubt is stated.

    Args:
        window: how many policy steps count.

    VIP, Nguyen et al., ICLR 2026, Sec. 6 (a baseline there; the authors' code averages over all
    prompts, not prompt by prompt).

    >>> average = MovingAverage(window=2)
    >>> average.add(Prompts(id_B=["a", "b"]))
    >>> average.update(np.array([0]), Outcomes.of_rewards(["a"], [1, 0, 0, 0], [0] * 4, step=0))
    >>> average.forecast(np.array([1]), 1).mean_B
    array([0.25])
    """

    def __init__(self, *, window: int = 10) -> None:
        self.window = validate.whole_number("window", window, at_least=1)
        self._step_W = np.zeros(0, dtype=np.int64)
        self._rate_sum_W: FloatArray = np.zeros(0)
        self._num_groups_W: FloatArray = np.zeros(0)

    def add(self, prompts: Prompts) -> None:
        """Nothing is kept of a single prompt."""

    def forecast(self, row_B: IntArray, step: int) -> Forecast:
        """Return the mean of the window for each row."""
        num_groups = self._num_groups_W.sum()
        mean = self._rate_sum_W.sum() / num_groups if num_groups else _EMPTY_START
        return Forecast.of_success(np.full(len(row_B), min(max(mean, 0.0), 1.0)))

    def update(self, row_B: IntArray, outcomes: Outcomes) -> None:
        """Add the groups to their policy steps and keep the latest steps."""
        step_A = np.concatenate([self._step_W, outcomes.policy_step_B])
        rate_B = outcomes.reward_sum_B / outcomes.num_rollouts_B
        step_W, place_A = np.unique(step_A, return_inverse=True)
        rate_W = np.zeros(len(step_W))
        np.add.at(rate_W, place_A, np.concatenate([self._rate_sum_W, rate_B]))
        groups_W = np.zeros(len(step_W))
        np.add.at(groups_W, place_A, np.concatenate([self._num_groups_W, np.ones(len(rate_B))]))
        self._step_W = step_W[-self.window :]
        self._rate_sum_W = rate_W[-self.window :]
        self._num_groups_W = groups_W[-self.window :]

    def state_dict(self) -> State:
        """Return the steps of the window with their sums."""
        return {
            "step_W": self._step_W.copy(),
            "rate_sum_W": self._rate_sum_W.copy(),
            "num_groups_W": self._num_groups_W.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        check_names(state, self.state_dict())
        step_W = saved(state, "step_W", dtype=np.int64)
        rate_sum_W = saved(state, "rate_sum_W", size=len(step_W), at_least=0.0)
        self._num_groups_W = saved(state, "num_groups_W", size=len(step_W), at_least=0.0)
        self._step_W, self._rate_sum_W = step_W, rate_sum_W


class Ridge:
    """Ridge regression of the success rate on standardised features.

    ``minimise |y - b - X w|^2 + alpha |w|^2`` over the last ``window`` groups, b not penalised, X
    standardised over that window; forecasts are cut to [0, 1] and state no doubt. Without features
    it is the mean of the window; before the first outcome it is 0.5.

    Args:
        alpha: the penalty; 0.5 in the authors' code.
        window: how many of the latest groups are fitted.

    VIP, Nguyen et al., ICLR 2026, Sec. 6 (a baseline there).

    >>> ridge = Ridge()
    >>> ridge.add(Prompts(id_B=["a", "b", "c"], feature_BD=[[0.0], [1.0], [2.0]]))
    >>> out = Outcomes.of_rewards(["a", "c"], [0, 0, 1, 1], [0, 0, 1, 1], step=0)
    >>> ridge.update(np.array([0, 2]), out)
    >>> ridge.forecast(np.arange(3), 1).mean_B
    array([0.1, 0.5, 0.9])
    """

    def __init__(self, *, alpha: float = 0.5, window: int = 1024) -> None:
        self.alpha = within("alpha", alpha, above=0.0)
        self.window = validate.whole_number("window", window, at_least=1)
        self._feature = FeatureTable()
        self._row_W = np.zeros(0, dtype=np.int64)
        self._rate_W = np.zeros(0)

    def add(self, prompts: Prompts) -> None:
        """Append the features of B new prompts."""
        self._feature.add(prompts)

    def forecast(self, row_B: IntArray, step: int) -> Forecast:
        """Fit the window and evaluate the fit at these rows."""
        if len(self._row_W) == 0:
            return Forecast.of_success(np.full(len(row_B), _EMPTY_START))
        feature_WD = np.nan_to_num(self._feature.values[self._row_W])
        center_D, spread_D = feature_WD.mean(axis=0), feature_WD.std(axis=0)
        # What does not vary over the window cannot be learned from it.
        scale_D = np.divide(
            1.0,
            spread_D,
            out=np.zeros_like(spread_D),
            where=spread_D > 1e-9 * spread_D.max(initial=0.0),
        )
        feature_WD = (feature_WD - center_D) * scale_D
        center = self._rate_W.mean()
        gram_DD = feature_WD.T @ feature_WD + self.alpha * np.eye(len(center_D))
        weight_D = np.linalg.solve(gram_DD, feature_WD.T @ (self._rate_W - center))
        feature_BD = (np.nan_to_num(self._feature.values[row_B]) - center_D) * scale_D
        mean_B = center + feature_BD @ weight_D
        return Forecast.of_success(np.clip(mean_B, 0.0, 1.0))

    def update(self, row_B: IntArray, outcomes: Outcomes) -> None:
        """Put the groups at the end of the window."""
        # Within one batch the order of prompts must not matter, not even for what falls out.
        order_B = np.lexsort((row_B, outcomes.policy_step_B))
        row_W = np.concatenate([self._row_W, row_B[order_B]])
        rate_B = outcomes.reward_sum_B / outcomes.num_rollouts_B
        self._row_W = row_W[-self.window :].astype(np.int64)
        self._rate_W = np.concatenate([self._rate_W, rate_B[order_B]])[-self.window :]

    def state_dict(self) -> State:
        """Return the features and the window."""
        return {
            "row_W": self._row_W.copy(),
            "rate_W": self._rate_W.copy(),
            **self._feature.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        check_names(state, self.state_dict())
        feature = FeatureTable()
        feature.load_state_dict(state)
        last = len(feature) - 1
        row_W = saved(state, "row_W", dtype=np.int64, at_least=0, at_most=last)
        self._rate_W = saved(state, "rate_W", size=len(row_W), at_least=0.0, at_most=1.0)
        self._row_W, self._feature = row_W, feature


class Oracle:
    """The truth, given by a function of prompt keys: the best that any predictor could do.

    Args:
        success_of: returns the present success probability of each of the keys it is given.

    >>> oracle = Oracle(lambda id_B: np.where(id_B == "easy", 0.9, 0.1))
    >>> oracle.add(Prompts(id_B=["easy", "hard"]))
    >>> oracle.forecast(np.array([1, 0]), 0).mean_B
    array([0.1, 0.9])
    """

    def __init__(self, success_of: Callable[[StrArray], ArrayLike]) -> None:
        self._success_of = success_of
        self._id_Q: StrArray = np.zeros(0, dtype=np.str_)

    def add(self, prompts: Prompts) -> None:
        """Remember the keys of B new prompts."""
        self._id_Q = np.concatenate([self._id_Q, prompts.id_B])

    def forecast(self, row_B: IntArray, step: int) -> Forecast:
        """Return what the function says now.

        Raises:
            InvalidInputError: it does not return one probability for each key.
        """
        id_B = self._id_Q[row_B]
        mean_B = validate.probability("success_of", self._success_of(id_B), size=len(id_B))
        return Forecast.of_success(mean_B)

    def update(self, row_B: IntArray, outcomes: Outcomes) -> None:
        """The truth needs no outcomes."""

    def state_dict(self) -> State:
        """Return the keys as code points, one row a key, padded with 0."""
        return {"code_QC": _code_points(self._id_Q)}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        check_names(state, ["code_QC"])
        code_QC = saved(
            state, "code_QC", dtype=np.int64, num_axes=2, at_least=0, at_most=sys.maxunicode
        )
        self._id_Q = _strings(code_QC)


def _code_points(id_Q: StrArray) -> IntArray:
    width = id_Q.dtype.itemsize // 4
    if len(id_Q) == 0:
        return np.zeros((0, width), dtype=np.int64)
    return np.ascontiguousarray(id_Q).view(np.uint32).reshape(len(id_Q), width).astype(np.int64)


def _strings(code_QC: IntArray) -> StrArray:
    size, width = code_QC.shape
    if size == 0 or width == 0:
        return np.zeros(size, dtype=np.str_)
    return np.ascontiguousarray(code_QC.astype(np.uint32)).view(f"<U{width}").ravel()
