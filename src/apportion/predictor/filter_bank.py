"""The default predictor: filters over the logit of each prompt that tune themselves.

The success of prompt q at policy step t is ``sigmoid(f_q(t))``. Three things are believed of f_q:

* before the first visit, what its features say: a regression on all other prompts (`Population`)
  leaves mean and variance, and a spread of its own, estimated from first visits;
* its own rollouts: k of n as a binomial, matched in moments (Minka, UAI 2001, Sec. 3);
* its movement: since the last visit it went with everyone by ``slope_q (g(t) - g(last))``, where g
  is the common `Trend` and ``slope_q = 4 E[p(1-p)]``, and by itself by a random walk,

      mean = mean + slope_q (g(t) - g(last)),    var = var + rate (t - last).

How fast prompts move by themselves is not known beforehand: K filters run side by side, with rates
from 1e-4 to 0.1 a step, and are weighed by how well they foretold what came (the predictive
likelihood, fading). So evidence counts by its number (0 of 4 and 0 of 64 differ) and by its age.

Rewards between 0 and 1 count as fractions of a success, ``1/dispersion`` times as telling as 0/1
rewards of the same mean (`Dispersion`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from apportion.errors import StateError
from apportion.predictor import mixture
from apportion.predictor.dispersion import Dispersion
from apportion.predictor.features import KernelFeatures, evenly
from apportion.predictor.moments import QUICK, logistic_moments, tilted_moments
from apportion.predictor.population import Population, PopulationForecast
from apportion.predictor.rows import Column, FeatureTable, State, check_names, saved, within
from apportion.predictor.trend import Trend
from apportion.types import Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray

RATE_K = 10.0 ** np.arange(-4.0, -0.75, 0.5)
"""Variance that the random walk of a logit adds a policy step."""
SPREAD_S = 0.5 * 1.6 ** np.arange(10.0)
"""Candidates for the variance of what is a prompt's own, before it is first seen."""
_SEEN_SPREAD = 2.0
"""A prompt once seen may move away from its like: its own spread counts as so much wider."""
_SPREAD_GUESS, _SPREAD_GUESS_LOG_VAR = 6.0, 1.0
_KEEP_RATE_SCORE, _KEEP_SPREAD_SCORE = 0.98, 0.995
_MOST_SCORED = 64
"""First visits of a batch that the spread and the regressions are scored on."""
_MOST_GROWN = 2.0
"""However long ago, a prompt is not less known than twice what the others tell of it."""
_MOST_COUNTED = 1e9
"""Rollouts of a group beyond it tell no more than float noise."""
_CHUNK = 4096
_EDGE = 1e-12
_LEAST_PRECISION = 1e-9
_NEGLIGIBLE = 1e-9
"""Weight below which a filter does not tell in a forecast."""
_FARTHEST = 300.0
"""Logits beyond it cannot be told from it."""


@dataclass(frozen=True, slots=True)
class _Belief:
    """What is believed of a batch before its outcomes: K filters over the logits of B prompts."""

    phi_BM: FloatArray
    others: PopulationForecast
    prior_var_B: FloatArray
    spread_B: FloatArray
    slope_B: FloatArray
    age_B: FloatArray
    mean_BK: FloatArray
    var_BK: FloatArray


class FilterBank:
    """Success rates by filters over logits whose time scales and strengths are estimated online.

    The first prompts added fix scale and anchors of the kernel on features, so give the whole
    table, or a fair sample of it, first. Distances are taken as features come: scale columns such
    that equal differences mean equally much. Prompts without features share the constant alone.

    An offline pass rate counts as rollouts of step 0, at most `max_prior_count` of them, and ages
    like all evidence.

    A batch of B prompts costs O(B (A + M^2) + M^3) for A anchors and M features, whatever the
    number of prompts, and a prompt 176 bytes beside its features.

    Args:
        max_prior_count: the most rollouts that an offline pass rate counts for.

    >>> bank = FilterBank()
    >>> bank.add(Prompts(id_B=["a", "b"]))
    >>> bank.forecast(np.array([0, 1]), 0).mean_B
    array([0.5, 0.5])
    >>> bank.update(np.array([0]), Outcomes.of_rewards(["a"], [1, 1, 1, 1], [0] * 4, step=0))
    >>> bank.forecast(np.array([0, 1]), 1).mean_B.round(2)
    array([0.93, 0.65])
    """

    def __init__(self, *, max_prior_count: float = 16.0) -> None:
        self.max_prior_count = within("max_prior_count", max_prior_count, at_least=0.0)
        size = len(RATE_K)
        self._feature = FeatureTable()
        self._kernel = KernelFeatures.fit(np.zeros((0, 0)))
        self._population = Population()
        self._trend = Trend()
        self._dispersion = Dispersion()
        self._tau, self._nu = Column(np.float64, size), Column(np.float64, size)
        self._slope, self._level = Column(np.float64), Column(np.float64)
        self._last = Column(np.int64)
        self._clock = 0
        self._rate_score_K = np.zeros(size)
        self._spread_score_S = -0.5 * np.log(SPREAD_S / _SPREAD_GUESS) ** 2 / _SPREAD_GUESS_LOG_VAR
        self._latest: tuple[IntArray, int, _Belief] | None = None
        """The belief of the latest call; learning from what was just forecast takes it up."""

    @property
    def rate_weight_K(self) -> FloatArray:
        """How much each filter is trusted."""
        return mixture.weights(self._rate_score_K)

    @property
    def rate(self) -> float:
        """Typical variance that a logit gains a policy step."""
        return float(np.exp(self.rate_weight_K @ np.log(RATE_K)))

    @property
    def spread(self) -> float:
        """Estimated variance of what is a prompt's own before it is first seen."""
        return float(np.exp(mixture.weights(self._spread_score_S) @ np.log(SPREAD_S)))

    def add(self, prompts: Prompts) -> None:
        """Append B new prompts; offline pass rates become evidence of step 0.

        Raises:
            InvalidInputError: the number of features differs from that of the first prompts.
        """
        size, num_known = len(prompts), len(self._feature)
        self._feature.add(prompts)
        for column in (self._tau, self._nu):
            column.append(np.zeros((size, len(RATE_K))))
        for column in (self._slope, self._level):
            column.append(np.zeros(size))
        self._last.append(np.full(size, -1, dtype=np.int64))
        self._population.add(size)
        self._dispersion.add(size)
        if num_known == 0:
            self._kernel = KernelFeatures.fit(self._feature.values)
            self._population.start(1 + self._kernel.num_features)
            self._latest = None
        if prompts.prior_mean_B is None or prompts.prior_count_B is None:
            return
        count_B = np.minimum(prompts.prior_count_B, self.max_prior_count)
        known_B = np.flatnonzero(count_B > 0)
        count_B = count_B[known_B]
        success_B = prompts.prior_mean_B[known_B] * count_B
        self._learn(num_known + known_B, success_B, count_B, np.zeros(len(known_B), dtype=np.int64))

    def forecast(self, row_B: IntArray, step: int) -> Forecast:
        """Return mean, doubt and expected reward variance at this policy step.

        A step before the latest one learned from is forecast as the latest one.
        """
        row_B = np.asarray(row_B, dtype=np.int64)
        belief = self._belief(row_B, max(step, self._clock))
        weight_K = self.rate_weight_K
        told_K = weight_K > _NEGLIGIBLE
        mean_BK, var_BK = belief.mean_BK[:, told_K], belief.var_BK[:, told_K]
        first_N, second_N = logistic_moments(mean_BK.ravel(), var_BK.ravel())
        first_BK, second_BK = first_N.reshape(mean_BK.shape), second_N.reshape(mean_BK.shape)
        mean_B, var_B = mixture.moments(
            first_BK, second_BK, weight_K[told_K] / weight_K[told_K].sum()
        )
        mean_B = np.clip(mean_B, _EDGE, 1.0 - _EDGE)
        most_B = mean_B * (1.0 - mean_B)
        var_B = np.clip(var_B, _EDGE * most_B, most_B)
        return Forecast(
            mean_B=mean_B,
            var_B=var_B,
            reward_var_B=self._dispersion.of(row_B) * (most_B - var_B),
        )

    def update(self, row_B: IntArray, outcomes: Outcomes) -> None:
        """Learn from rollouts; late ones are blurred by what may have changed since."""
        row_B = np.asarray(row_B, dtype=np.int64)
        count_B = outcomes.num_rollouts_B.astype(np.float64)
        self._dispersion.learn(row_B, count_B, outcomes.reward_sum_B, outcomes.reward_sumsq_B)
        telling_B = 1.0 / self._dispersion.of(row_B)
        self._learn(
            row_B,
            telling_B * outcomes.reward_sum_B,
            telling_B * count_B,
            outcomes.policy_step_B,
        )

    def state_dict(self) -> State:
        """Return everything learned."""
        return {
            "tau_QK": self._tau.values.copy(),
            "nu_QK": self._nu.values.copy(),
            "slope_Q": self._slope.values.copy(),
            "level_Q": self._level.values.copy(),
            "last_Q": self._last.values.copy(),
            "clock": np.array([self._clock], dtype=np.int64),
            "rate_score_K": self._rate_score_K.copy(),
            "spread_score_S": self._spread_score_S.copy(),
            **self._feature.state_dict(),
            **self._kernel.state_dict(),
            **self._population.state_dict(),
            **self._trend.state_dict(),
            **self._dispersion.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        check_names(state, self.state_dict())
        feature = FeatureTable()
        feature.load_state_dict(state)
        kernel = KernelFeatures.of_state(state)
        if kernel.num_inputs != feature.num_features:
            raise StateError(
                f"The saved anchor_AD has {kernel.num_inputs} features, but feature_QD has "
                f"{feature.num_features}. Start without the state."
            )
        size, num_rates = len(feature), len(RATE_K)
        population = Population.of_state(state, size=size, num_features=1 + kernel.num_features)
        trend, dispersion = Trend.of_state(state), Dispersion.of_state(state, size=size)
        clock = int(saved(state, "clock", size=1, dtype=np.int64, at_least=0)[0])
        for name in ("share_clock", "trend_step"):
            if int(state[name][0]) != clock:
                raise StateError(
                    f"The saved {name} is {int(state[name][0])}, but clock is {clock}. "
                    "Start without the state."
                )
        arrays: dict[str, Any] = {
            "tau_QK": saved(state, "tau_QK", size=size, num_axes=2, at_least=0.0, at_most=1e15),
            "nu_QK": saved(state, "nu_QK", size=size, num_axes=2),
            "slope_Q": saved(state, "slope_Q", size=size, at_least=0.0, at_most=1.0),
            "level_Q": saved(state, "level_Q", size=size),
            "last_Q": saved(state, "last_Q", size=size, dtype=np.int64, at_least=-1, at_most=clock),
        }
        for name in ("tau_QK", "nu_QK"):
            if arrays[name].shape[1] != num_rates:
                raise StateError(
                    f"The saved {name} holds {arrays[name].shape[1]} filters, but there are "
                    f"{num_rates}. Start without the state."
                )
        rate_score_K = saved(state, "rate_score_K", size=num_rates)
        spread_score_S = saved(state, "spread_score_S", size=len(SPREAD_S))
        self._feature, self._kernel, self._population = feature, kernel, population
        self._trend, self._dispersion, self._clock = trend, dispersion, clock
        columns = (self._tau, self._nu, self._slope, self._level, self._last)
        for column, array in zip(columns, arrays.values(), strict=True):
            column.replace(array)
        self._rate_score_K, self._spread_score_S = rate_score_K, spread_score_S
        self._latest = None

    def _phi(self, row_B: IntArray) -> FloatArray:
        """Return the features of these prompts, the constant first."""
        if self._latest is not None and np.array_equal(self._latest[0], row_B):
            return self._latest[2].phi_BM
        phi_BM = np.ones((len(row_B), 1 + self._kernel.num_features))
        phi_BM[:, 1:] = self._kernel(self._feature.values[row_B])
        return phi_BM

    def _belief(self, row_B: IntArray, step: int) -> _Belief:
        if self._latest is not None:
            latest_row_B, latest_step, latest = self._latest
            if latest_step == step and np.array_equal(latest_row_B, row_B):
                return latest
        belief = self._believe(row_B, step)
        self._latest = (row_B.copy(), step, belief)
        return belief

    def _believe(self, row_B: IntArray, step: int) -> _Belief:
        phi_BM = self._phi(row_B)
        others = self._population.forecast(phi_BM, row_B, step)
        seen_B = self._last.values[row_B] >= 0
        spread_B = self.spread * np.where(seen_B, _SEEN_SPREAD, 1.0)
        prior_var_B = others.var_B + spread_B
        age_B = np.where(seen_B, step - self._last.values[row_B], 0).astype(np.float64)
        slope_B = np.where(seen_B, self._slope.values[row_B], 0.0)
        shift_B = slope_B * (self._trend.level_at(step) - self._level.values[row_B])
        prior_precision_B = 1.0 / prior_var_B
        var_BK = 1.0 / (prior_precision_B[:, None] + self._tau.values[row_B])
        mean_BK = var_BK * ((prior_precision_B * others.mean_B)[:, None] + self._nu.values[row_B])
        return _Belief(
            phi_BM=phi_BM,
            others=others,
            prior_var_B=prior_var_B,
            spread_B=spread_B,
            slope_B=slope_B,
            age_B=age_B,
            mean_BK=np.clip(mean_BK + shift_B[:, None], -_FARTHEST, _FARTHEST),
            var_BK=np.minimum(
                var_BK + RATE_K * age_B[:, None],
                np.maximum(var_BK, _MOST_GROWN * prior_var_B[:, None]),
            ),
        )

    def _learn(
        self, row_B: IntArray, success_B: FloatArray, count_B: FloatArray, step_B: IntArray
    ) -> None:
        if len(row_B) == 0:
            return
        now = max(self._clock, int(step_B.max()))
        part_B = np.minimum(1.0, _MOST_COUNTED / np.maximum(count_B, 1.0))
        success_B, count_B = part_B * success_B, part_B * count_B
        if len(row_B) > _CHUNK:  # what is learned first must not hang on the order of the batch
            order = np.argsort(row_B)
            row_B, success_B = row_B[order], success_B[order]
            count_B, step_B = count_B[order], step_B[order]
        for start in range(0, len(row_B), _CHUNK):
            part = slice(start, start + _CHUNK)
            self._learn_chunk(row_B[part], success_B[part], count_B[part], step_B[part], now)

    def _learn_chunk(
        self,
        row_B: IntArray,
        success_B: FloatArray,
        count_B: FloatArray,
        step_B: IntArray,
        now: int,
    ) -> None:
        belief = self._belief(row_B, now)
        self._score_first_visits(row_B, belief, success_B, count_B)
        mean_BK = belief.mean_BK + self._follow(belief, success_B, count_B, now)[:, None]
        shape = mean_BK.shape
        tilted = tilted_moments(
            mean_BK.ravel(),
            belief.var_BK.ravel(),
            np.repeat(success_B, shape[1]),
            np.repeat(count_B, shape[1]),
            QUICK,
        )
        revisit_B = belief.age_B > 0.0
        if revisit_B.any():
            evidence_K = tilted.log_evidence_B.reshape(shape)[revisit_B].sum(axis=0)
            score_K = _KEEP_RATE_SCORE * self._rate_score_K + evidence_K
            self._rate_score_K = score_K - score_K.max()
        new_mean_BK, new_var_BK = self._blurred(
            mean_BK,
            belief.var_BK,
            tilted.mean_B.reshape(shape),
            tilted.var_B.reshape(shape),
            (now - step_B).astype(np.float64),
        )
        self._keep(row_B, belief, new_mean_BK, new_var_BK, now)

    def _score_first_visits(
        self, row_B: IntArray, belief: _Belief, success_B: FloatArray, count_B: FloatArray
    ) -> None:
        """Weigh candidates for the own spread, and the two regressions, by what they foretold."""
        new_i = np.flatnonzero(self._last.values[row_B] < 0)
        if len(new_i) == 0:
            return
        new_i = new_i[np.argsort(row_B[new_i])]  # the order of a batch must not matter
        at = new_i[evenly(len(new_i), _MOST_SCORED)]
        k, n, others = success_B[at], count_B[at], belief.others

        def evidence(mean_CB: FloatArray, var_CB: FloatArray) -> FloatArray:
            size = len(mean_CB)
            found = tilted_moments(
                mean_CB.ravel(), var_CB.ravel(), np.tile(k, size), np.tile(n, size), QUICK
            )
            return np.asarray(found.log_evidence_B.reshape(size, -1).sum(axis=1))

        mean_SB = np.broadcast_to(others.mean_B[at], (len(SPREAD_S), len(at)))
        score_S = evidence(mean_SB, others.var_B[at] + SPREAD_S[:, None])
        score_R = evidence(others.mean_RB[:, at], others.var_RB[:, at] + self.spread)
        self._population.score(score_R)
        score_S += _KEEP_SPREAD_SCORE * self._spread_score_S
        self._spread_score_S = score_S - score_S.max()

    def _follow(
        self, belief: _Belief, success_B: FloatArray, count_B: FloatArray, now: int
    ) -> FloatArray:
        """Let the trend learn from seen prompts; return what it moves each of them."""
        expected = self._trend.level_at(now)
        self._trend.advance(now, self.rate)
        revisit_B = belief.age_B > 0.0
        if revisit_B.any():
            mean_B, var_B = mixture.moments(belief.mean_BK, belief.var_BK, self.rate_weight_K)
            mean, var = mean_B[revisit_B], var_B[revisit_B]
            found = tilted_moments(mean, var, success_B[revisit_B], count_B[revisit_B], QUICK)
            precision = np.maximum(1.0 / found.var_B - 1.0 / var, _LEAST_PRECISION)
            surprise = (found.mean_B - mean) / (precision * found.var_B)
            self._trend.learn(belief.slope_B[revisit_B], surprise, var + 1.0 / precision)
        return np.asarray(belief.slope_B * (self._trend.level - expected))

    def _blurred(
        self,
        mean_BK: FloatArray,
        var_BK: FloatArray,
        new_mean_BK: FloatArray,
        new_var_BK: FloatArray,
        late_B: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Weaken what outcomes of an older policy told by the movement since."""
        if not late_B.any():
            return new_mean_BK, new_var_BK
        told_BK = np.maximum(1.0 / new_var_BK - 1.0 / var_BK, 0.0)
        keep_BK = 1.0 / (1.0 + told_BK * RATE_K * late_B[:, None])
        blurred_var_BK = 1.0 / (1.0 / var_BK + keep_BK * told_BK)
        moved_BK = (new_mean_BK / new_var_BK - mean_BK / var_BK) * keep_BK
        return blurred_var_BK * (mean_BK / var_BK + moved_BK), blurred_var_BK

    def _keep(
        self, row_B: IntArray, belief: _Belief, mean_BK: FloatArray, var_BK: FloatArray, now: int
    ) -> None:
        """Store what the filters now believe, as sites beside what the other prompts say."""
        prior_precision_B, prior_mean_B = 1.0 / belief.prior_var_B, belief.others.mean_B
        tau_BK = np.maximum(1.0 / var_BK - prior_precision_B[:, None], _LEAST_PRECISION)
        own_BK = mean_BK * (tau_BK + prior_precision_B[:, None])
        self._tau.values[row_B] = tau_BK
        self._nu.values[row_B] = own_BK - (prior_precision_B * prior_mean_B)[:, None]
        mean_B, var_B = mixture.moments(mean_BK, var_BK, self.rate_weight_K)
        tau_B = np.maximum(1.0 / var_B - prior_precision_B, 0.0)
        nu_B = mean_B / var_B - prior_precision_B * prior_mean_B
        self._population.learn(belief.phi_BM, row_B, tau_B, nu_B, belief.spread_B, now)
        rate_B, doubt_B = logistic_moments(mean_B, var_B)
        self._slope.values[row_B] = np.clip(4.0 * (rate_B * (1.0 - rate_B) - doubt_B), 0.0, 1.0)
        self._level.values[row_B] = self._trend.level
        self._last.values[row_B] = now
        self._clock = now
        self._latest = (row_B.copy(), -1, belief)  # its features stand, the rest does not
