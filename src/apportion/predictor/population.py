"""What prompts teach one another: a regression of logits on features that forgets at two speeds.

The logit of prompt q is ``f_q = phi_q . w + e_q`` with ``e_q ~ N(0, spread_q)`` its own. The
evidence on a prompt is a Gaussian pseudo-observation of f_q, a *site* with precision tau and shift
nu; with e_q integrated out it tells w

    omega_q = tau / (1 + spread_q tau),   eta_q = nu / (1 + spread_q tau),

so that the belief about w has precision ``P0 + sum_q omega_q phi_q phi_q'`` and shift
``sum_q eta_q phi_q``. A prompt is forecast *without* its own share (a rank-one downdate): its own
past speaks elsewhere, and a visit replaces the share of the one before exactly.

Nothing here is set by the user. Two copies fade by .98 and .998 a policy step and are weighed by
how well they foretold first visits; the prior variance of the feature weights is estimated anew at
each visit, ``|w|^2 / gamma`` (MacKay, "Bayesian interpolation", Neural Computation 4, 1992).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apportion.errors import StateError
from apportion.predictor import mixture
from apportion.predictor.rows import Column, State, saved
from apportion.validate import FloatArray, IntArray

FADE_R = np.array([0.98, 0.998])
"""What a policy step leaves of the evidence: 35 and 350 steps until half of it is gone."""
BIAS_VAR = 4.0
"""Prior variance of the logit that all prompts share."""
_STRENGTH = 8.0
"""Prior variance of a feature weight before any evidence, held with the weight of 4 of them."""
_STRENGTH_COUNT = 4.0
_LEAST_STRENGTH, _MOST_STRENGTH = 0.1, 200.0
_KEEP_SCORE = 0.98
_EDGE = 1e-12
_MOST_SHARE = 1e9
_DRIFT = 1e-6
"""Float noise of the saved gram matrix, relative to its largest value."""


class PopulationForecast(NamedTuple):
    """What the others tell about the logits of a batch, e_q left out."""

    mean_RB: FloatArray
    var_RB: FloatArray
    mean_B: FloatArray
    var_B: FloatArray


class Population:
    """Two fading regressions on M features (the first is the constant 1), in weight space.

    A step costs O(B M^2 + M^3), whatever the number of prompts; a prompt costs three numbers.
    """

    def __init__(self) -> None:
        self._omega, self._eta = Column(np.float64), Column(np.float64)
        self._last = Column(np.int64)
        self._clock = 0
        self._score_R = np.zeros(len(FADE_R))
        self.start(1)

    def start(self, num_features: int) -> None:
        """Begin with this many features and no evidence."""
        size = len(FADE_R)
        self._gram_RMM = np.zeros((size, num_features, num_features))
        self._shift_RM = np.zeros((size, num_features))
        self._strength_R = np.full(size, _STRENGTH)
        self._solved: tuple[int, list[tuple[FloatArray, FloatArray]]] | None = None

    def add(self, size: int) -> None:
        """Append prompts without evidence."""
        self._omega.append(np.zeros(size))
        self._eta.append(np.zeros(size))
        self._last.append(np.full(size, self._clock, dtype=np.int64))

    @property
    def strength_R(self) -> FloatArray:
        """Estimated prior variance of a feature weight, at each speed."""
        return self._strength_R

    @property
    def weight_R(self) -> FloatArray:
        """How much each speed is trusted."""
        return mixture.weights(self._score_R)

    def forecast(self, phi_BM: FloatArray, row_B: IntArray, step: int) -> PopulationForecast:
        """Return mean and variance of ``phi . w`` given all prompts but the forecast one."""
        step = max(step, self._clock)
        mean_RB, var_RB = np.empty((2, len(FADE_R), len(row_B)))
        for r, (half_MM, weight_M) in enumerate(self._weights(step)):
            omega_B, eta_B = self._share(r, row_B, step)
            mean_B = phi_BM @ weight_M
            var_B = ((phi_BM @ half_MM.T) ** 2).sum(axis=1)
            # omega * var < 1, for the evidence of the others is positive definite.
            rest_B = np.maximum(1.0 - omega_B * var_B, _EDGE)
            mean_RB[r] = (mean_B - var_B * eta_B) / rest_B
            var_RB[r] = var_B / rest_B
        mean_B, var_B = mixture.moments(mean_RB.T, var_RB.T, self.weight_R)
        return PopulationForecast(mean_RB, var_RB, mean_B, var_B)

    def score(self, log_evidence_R: FloatArray) -> None:
        """Weigh the speeds by the log probability that each gave to new first visits."""
        self._score_R = _KEEP_SCORE * self._score_R + log_evidence_R
        self._score_R -= self._score_R.max()

    def learn(
        self,
        phi_BM: FloatArray,
        row_B: IntArray,
        tau_B: FloatArray,
        nu_B: FloatArray,
        spread_B: FloatArray,
        step: int,
    ) -> None:
        """Replace the sites of these prompts, seen at this step, which is not before the last."""
        self._estimate_strength(step)
        damping_B = 1.0 / (1.0 + spread_B * tau_B)
        omega_B, eta_B = tau_B * damping_B, nu_B * damping_B
        for r in range(len(FADE_R)):
            old_omega_B, old_eta_B = self._share(r, row_B, step)
            fade = FADE_R[r] ** (step - self._clock)
            self._gram_RMM[r] *= fade
            self._gram_RMM[r] += (phi_BM * (omega_B - old_omega_B)[:, None]).T @ phi_BM
            self._shift_RM[r] = fade * self._shift_RM[r] + phi_BM.T @ (eta_B - old_eta_B)
        self._omega.values[row_B], self._eta.values[row_B] = omega_B, eta_B
        self._last.values[row_B] = step
        self._clock, self._solved = step, None

    def state_dict(self) -> State:
        """Return the shares of the prompts, the belief about w and what was estimated."""
        return {
            "omega_Q": self._omega.values.copy(),
            "eta_Q": self._eta.values.copy(),
            "share_step_Q": self._last.values.copy(),
            "gram_RMM": self._gram_RMM.copy(),
            "shift_RM": self._shift_RM.copy(),
            "strength_R": self._strength_R.copy(),
            "score_R": self._score_R.copy(),
            "share_clock": np.array([self._clock], dtype=np.int64),
        }

    @classmethod
    def of_state(cls, state: State, *, size: int, num_features: int) -> Population:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        found, speeds = cls(), len(FADE_R)
        clock = int(saved(state, "share_clock", size=1, dtype=np.int64, at_least=0)[0])
        found._clock = clock
        found._omega.replace(saved(state, "omega_Q", size=size, at_least=0.0, at_most=_MOST_SHARE))
        found._eta.replace(saved(state, "eta_Q", size=size))
        found._last.replace(
            saved(state, "share_step_Q", size=size, dtype=np.int64, at_least=0, at_most=clock)
        )
        found._gram_RMM = _saved_gram(state, num_features)
        found._shift_RM = saved(state, "shift_RM", size=speeds, num_axes=2)
        if found._shift_RM.shape[1] != num_features:
            raise StateError(
                f"The saved shift_RM has shape {found._shift_RM.shape}, but there are "
                f"{num_features} features. Start without the state."
            )
        found._strength_R = saved(
            state, "strength_R", size=speeds, at_least=_LEAST_STRENGTH, at_most=_MOST_STRENGTH
        )
        found._score_R = saved(state, "score_R", size=speeds, at_most=0.0)
        return found

    def _share(self, r: int, row_B: IntArray, step: int) -> tuple[FloatArray, FloatArray]:
        fade_B = FADE_R[r] ** (step - self._last.values[row_B]).astype(np.float64)
        return fade_B * self._omega.values[row_B], fade_B * self._eta.values[row_B]

    def _weights(self, step: int) -> list[tuple[FloatArray, FloatArray]]:
        """Return for each speed H with ``H'H`` the covariance of w, and the mean of w."""
        if self._solved is None or self._solved[0] != step:
            solved = []
            for r, strength in enumerate(self._strength_R):
                fade = FADE_R[r] ** (step - self._clock)
                precision_MM = fade * self._gram_RMM[r]
                precision_MM[np.diag_indices(len(precision_MM))] += 1.0 / strength
                precision_MM[0, 0] += 1.0 / BIAS_VAR - 1.0 / strength
                half_MM = np.linalg.inv(np.linalg.cholesky(precision_MM))
                solved.append((half_MM, half_MM.T @ (half_MM @ (fade * self._shift_RM[r]))))
            self._solved = (step, solved)
        return self._solved[1]

    def _estimate_strength(self, step: int) -> None:
        """One step of MacKay's fixed point, from what was known before the new evidence."""
        num_weights = self._shift_RM.shape[1] - 1
        if num_weights == 0:
            return
        for r, (half_MM, weight_M) in enumerate(self._weights(step)):
            unknown = float((half_MM[:, 1:] ** 2).sum()) / self._strength_R[r]
            known = max(num_weights - unknown, 0.0)
            square = float((weight_M[1:] ** 2).sum())
            strength = (square + _STRENGTH_COUNT * _STRENGTH) / (known + _STRENGTH_COUNT)
            self._strength_R[r] = np.clip(strength, _LEAST_STRENGTH, _MOST_STRENGTH)


def _saved_gram(state: State, width: int) -> FloatArray:
    """Return the saved matrices of the weights; they must be sums of squares, up to float noise."""
    gram_RMM: FloatArray = saved(state, "gram_RMM", size=len(FADE_R), num_axes=3)
    if gram_RMM.shape[1:] == (width, width):
        slack = _DRIFT * max(1.0, float(np.abs(gram_RMM).max()))
        symmetric = bool((np.abs(gram_RMM - gram_RMM.transpose(0, 2, 1)) <= slack).all())
        if symmetric and np.linalg.eigvalsh(gram_RMM).min() >= -slack * width:
            return gram_RMM
    raise StateError(
        f"The saved gram_RMM of shape {gram_RMM.shape} must be symmetric, {width} wide and without "
        "negative eigenvalues. Start without the state."
    )
