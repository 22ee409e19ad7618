"""A Gaussian process over the logits of all prompts that knows how noisy its evidence is.

The logit of prompt q is ``f_q = phi_q . w + e_q``: what its features say and what is its own. That
is a Gaussian process with the finite kernel

    K(q, q') = bias_var + feature_var psi(x_q) . psi(x_q') + residual_var [q = q'],

where psi are finite features of the Gaussian kernel (`KernelFeatures`), kept in weight space, so
that a step costs O(B M^2) for M features and a prompt costs three numbers beside its own features.
The evidence on a prompt is a *site*, a Gaussian pseudo-observation of f_q with precision
tau_q and shift nu_q (its mean is nu_q / tau_q); marginalised over e_q it tells w

    omega_q = tau_q / (1 + residual_var tau_q),   eta_q = nu_q / (1 + residual_var tau_q),

and the belief about w has precision ``P0^-1 + sum_q omega_q phi_q phi_q'`` and shift
``sum_q eta_q phi_q``. A prompt is forecast from w *without* its own share (a rank-one downdate)
plus e_q, combined with its own site; so nothing counts twice and a visit replaces the share of the
one before exactly. Noise-aware counterpart of VIP (Nguyen et al., ICLR 2026, Sec. 5.1); sites:
Minka, "Expectation propagation", UAI 2001, Sec. 3, in one parallel sweep.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from apportion.errors import StateError
from apportion.predictor.features import KernelFeatures
from apportion.predictor.moments import logistic_moments, tilted_moments
from apportion.predictor.rows import Column, FeatureTable, State, check_names, saved, within
from apportion.types import Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray

_CHUNK = 8192
_EDGE = 1e-12
_REBUILD_EVERY = 4096
_DRIFT = 1e-6
"""Float noise of the saved gram matrix, relative to its largest eigenvalue."""


class _Weights(NamedTuple):
    """Belief about w at one step: ``half.T @ half`` is its covariance."""

    half_MM: FloatArray
    mean_M: FloatArray


class _Latent(NamedTuple):
    """Belief about the logits of a batch, and the parts it was made of."""

    phi_BM: FloatArray
    mean_B: FloatArray
    var_B: FloatArray
    tau_B: FloatArray
    nu_B: FloatArray
    omega_B: FloatArray
    eta_B: FloatArray


class GaussianProcess:
    """Success rates with a Gaussian process on features, binomial noise and fading evidence.

    All evidence fades by ``decay`` a policy step: sites when their prompt is looked at, what w
    knows in one multiplication. With ``decay=1`` it is the exact Gaussian process for its sites.
    A late outcome counts ``decay ** age``. A step before the latest one learned from is forecast
    as the latest one. Rewards between 0 and 1 count as fractions of a success.

    Offline pass rates enter as evidence on the weights of step 0, at most ``max_prior_count``
    rollouts of it, and fade like all evidence: w soon knows better what the run has become.

    The first prompts added fix the bandwidth and the anchors of the kernel, so give the whole
    table, or a fair sample of it, first. Distances are taken as the features come: scale columns
    such that equal differences mean equally much. Prompts without features share the bias alone.

    The defaults are near the least squared error of the forecast over simulated populations:
    clustered difficulty, features that tell a part of it, 4 or 8 rollouts, about 30 steps an epoch,
    success rising and wandering. The optimum is flat: decay .98 to .99 and residual_var 2 to 6 lie
    within 7 % on average, feature_var hardly matters. With many more steps an epoch, or little
    drift, take a decay nearer to 1.

    Args:
        decay: what one policy step leaves of the evidence, in (0, 1].
        bias_var: prior variance of the logit that all prompts share.
        feature_var: prior variance of what features explain, over prompts of average norm.
        residual_var: prior variance of what is a prompt's own.
        max_prior_count: the most rollouts that an offline pass rate counts for.

    >>> process = GaussianProcess()
    >>> process.add(Prompts(id_B=["a", "b"]))
    >>> process.forecast(np.array([0, 1]), 0).mean_B
    array([0.5, 0.5])
    """

    def __init__(
        self,
        *,
        decay: float = 0.985,
        bias_var: float = 4.0,
        feature_var: float = 12.0,
        residual_var: float = 6.0,
        max_prior_count: float = 16.0,
    ) -> None:
        self.decay = within("decay", decay, above=0.0, at_most=1.0)
        self.bias_var = within("bias_var", bias_var, above=0.0)
        self.feature_var = within("feature_var", feature_var, at_least=0.0)
        self.residual_var = within("residual_var", residual_var, at_least=0.0)
        self.max_prior_count = within("max_prior_count", max_prior_count, at_least=0.0)
        self._feature = FeatureTable()
        self._kernel = KernelFeatures.fit(np.zeros((0, 0)))
        self._tau, self._nu = Column(np.float64), Column(np.float64)
        self._last = Column(np.int64)
        self._clock = 0
        self._num_updates = 0
        self._gram_MM, self._shift_M = np.zeros((1, 1)), np.zeros(1)

    def add(self, prompts: Prompts) -> None:
        """Append B new prompts; offline pass rates become fading evidence of step 0.

        Raises:
            InvalidInputError: the number of features differs from that of the first prompts.
        """
        size, num_known = len(prompts), len(self._feature)
        self._feature.add(prompts)
        self._tau.append(np.zeros(size))
        self._nu.append(np.zeros(size))
        self._last.append(np.full(size, self._clock, dtype=np.int64))
        if num_known == 0:
            self._kernel = KernelFeatures.fit(self._feature.values)
            width = 1 + self._kernel.num_features
            self._gram_MM, self._shift_M = np.zeros((width, width)), np.zeros(width)
        if prompts.prior_mean_B is None or prompts.prior_count_B is None:
            return
        known_B = np.flatnonzero(prompts.prior_count_B > 0)
        count_B = np.minimum(prompts.prior_count_B[known_B], self.max_prior_count)
        success_B = prompts.prior_mean_B[known_B] * count_B
        self._learn(num_known + known_B, success_B, count_B, np.zeros(len(known_B), dtype=np.int64))

    def forecast(self, row_B: IntArray, step: int) -> Forecast:
        """Return mean and variance of ``sigmoid(f)``; the reward variance is m(1-m) - var."""
        mean_B, var_B = self.latent(row_B, step)
        first_B, second_B = logistic_moments(mean_B, var_B)
        first_B = np.clip(first_B, _EDGE, 1.0 - _EDGE)
        return Forecast.of_success(first_B, np.minimum(second_B, first_B * (1.0 - first_B)))

    def latent(self, row_B: IntArray, step: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the logits f of these rows at this policy step."""
        step = max(step, self._clock)
        latent = self._latent(np.asarray(row_B, dtype=np.int64), step, self._weights(step))
        return latent.mean_B, latent.var_B

    def update(self, row_B: IntArray, outcomes: Outcomes) -> None:
        """Add to each prompt's site what its rollouts say, weighing k of n as binomial."""
        self._learn(
            np.asarray(row_B, dtype=np.int64),
            outcomes.reward_sum_B,
            outcomes.num_rollouts_B.astype(np.float64),
            outcomes.policy_step_B,
        )

    def state_dict(self) -> State:
        """Return sites, features and the belief about w."""
        return {
            "tau_Q": self._tau.values.copy(),
            "nu_Q": self._nu.values.copy(),
            "last_Q": self._last.values.copy(),
            "gram_MM": self._gram_MM.copy(),
            "shift_M": self._shift_M.copy(),
            "clock": np.array([self._clock, self._num_updates], dtype=np.int64),
            "settings": self._settings(),
            **self._feature.state_dict(),
            **self._kernel.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned.

        Raises:
            StateError: it is another predictor's, damaged, or rests on other settings.
        """
        check_names(state, self.state_dict())
        settings = saved(state, "settings", size=4)
        if not np.array_equal(settings, self._settings()):
            raise StateError(
                "The state rests on decay, bias_var, feature_var, residual_var = "
                f"{settings.tolist()}, but this GaussianProcess has {self._settings().tolist()}. "
                "Make it with the same."
            )
        feature = FeatureTable()
        feature.load_state_dict(state)
        kernel = KernelFeatures.of_state(state)
        size, width = len(feature), 1 + kernel.num_features
        if kernel.num_inputs != feature.num_features:
            raise StateError(
                f"The saved anchor_AD has {kernel.num_inputs} features, but feature_QD has "
                f"{feature.num_features}. Start without the state."
            )
        clock, num_updates = saved(state, "clock", size=2, dtype=np.int64, at_least=0).tolist()
        tau_Q = saved(state, "tau_Q", size=size, at_least=0.0)
        nu_Q = saved(state, "nu_Q", size=size)
        last_Q = saved(state, "last_Q", size=size, dtype=np.int64, at_least=0, at_most=clock)
        gram_MM = _saved_gram(state, width)
        shift_M = saved(state, "shift_M", size=width)
        self._feature, self._kernel = feature, kernel
        self._gram_MM, self._shift_M = gram_MM, shift_M
        self._tau.replace(tau_Q)
        self._nu.replace(nu_Q)
        self._last.replace(last_Q)
        self._clock, self._num_updates = clock, num_updates

    def _settings(self) -> FloatArray:
        return np.array([self.decay, self.bias_var, self.feature_var, self.residual_var])

    def _phi(self, row_B: IntArray) -> FloatArray:
        """Return the rows of phi in units of their prior: the prior of w is N(0, 1)."""
        phi_BM = np.empty((len(row_B), 1 + self._kernel.num_features))
        phi_BM[:, 0] = np.sqrt(self.bias_var)
        phi_BM[:, 1:] = np.sqrt(self.feature_var) * self._kernel(self._feature.values[row_B])
        return phi_BM

    def _share(self, tau_B: FloatArray, nu_B: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return omega and eta: what sites say about w once e_q is integrated out."""
        damping_B = 1.0 / (1.0 + self.residual_var * tau_B)
        return tau_B * damping_B, nu_B * damping_B

    def _weights(self, step: int) -> _Weights:
        fade = self.decay ** (step - self._clock)
        precision_MM = np.eye(len(self._shift_M)) + fade * self._gram_MM
        half_MM = np.linalg.inv(np.linalg.cholesky(precision_MM))
        return _Weights(half_MM, half_MM.T @ (half_MM @ (fade * self._shift_M)))

    def _latent(self, row_B: IntArray, step: int, weights: _Weights) -> _Latent:
        phi_BM = self._phi(row_B)
        fade_B = self.decay ** (step - self._last.values[row_B]).astype(np.float64)
        tau_B, nu_B = self._tau.values[row_B], self._nu.values[row_B]
        omega_B, eta_B = (fade_B * share_B for share_B in self._share(tau_B, nu_B))
        tau_B, nu_B = fade_B * tau_B, fade_B * nu_B
        mean_B = phi_BM @ weights.mean_M
        var_B = ((phi_BM @ weights.half_MM.T) ** 2).sum(axis=1)
        # The belief of w without this prompt: omega * var < 1, for the rest is positive definite.
        rest_B = np.maximum(1.0 - omega_B * var_B, _EDGE)
        prior_mean_B = (mean_B - var_B * eta_B) / rest_B
        prior_precision_B = 1.0 / (var_B / rest_B + self.residual_var)
        precision_B = prior_precision_B + tau_B
        mean_B = (prior_precision_B * prior_mean_B + nu_B) / precision_B
        return _Latent(phi_BM, mean_B, 1.0 / precision_B, tau_B, nu_B, omega_B, eta_B)

    def _learn(
        self, row_B: IntArray, success_B: FloatArray, count_B: FloatArray, step_B: IntArray
    ) -> None:
        if len(row_B) == 0:
            return
        self._advance(max(self._clock, int(step_B.max())))
        weight_B = self.decay ** (self._clock - step_B).astype(np.float64)
        weights = self._weights(self._clock)
        gram_MM, shift_M = self._gram_MM.copy(), self._shift_M.copy()
        for start in range(0, len(row_B), _CHUNK):
            part = slice(start, start + _CHUNK)
            row, k, n = row_B[part], (weight_B * success_B)[part], (weight_B * count_B)[part]
            old = self._latent(row, self._clock, weights)
            mean_B, var_B, _ = tilted_moments(old.mean_B, old.var_B, k, n)
            tau_B = old.tau_B + np.maximum(1.0 / var_B - 1.0 / old.var_B, 0.0)
            nu_B = old.nu_B + mean_B / var_B - old.mean_B / old.var_B
            omega_B, eta_B = self._share(tau_B, nu_B)
            gram_MM += (old.phi_BM * (omega_B - old.omega_B)[:, None]).T @ old.phi_BM
            shift_M += old.phi_BM.T @ (eta_B - old.eta_B)
            self._tau.values[row], self._nu.values[row] = tau_B, nu_B
            self._last.values[row] = self._clock
        self._gram_MM, self._shift_M = 0.5 * (gram_MM + gram_MM.T), shift_M
        self._num_updates += 1
        if self._num_updates % _REBUILD_EVERY == 0:
            self._rebuild()

    def _advance(self, step: int) -> None:
        fade = self.decay ** (step - self._clock)
        self._gram_MM *= fade
        self._shift_M *= fade
        self._clock = step

    def _rebuild(self) -> None:
        """Sum the shares of all prompts afresh, so that float drift cannot pile up."""
        gram_MM, shift_M = np.zeros_like(self._gram_MM), np.zeros_like(self._shift_M)
        for start in range(0, len(self._tau), _CHUNK):
            part = slice(start, start + _CHUNK)
            row_B = start + np.arange(len(self._tau.values[part]))
            fade_B = self.decay ** (self._clock - self._last.values[part]).astype(np.float64)
            omega_B, eta_B = self._share(self._tau.values[part], self._nu.values[part])
            phi_BM = self._phi(row_B)
            gram_MM += (phi_BM * (fade_B * omega_B)[:, None]).T @ phi_BM
            shift_M += phi_BM.T @ (fade_B * eta_B)
        self._gram_MM, self._shift_M = gram_MM, shift_M


def _saved_gram(state: State, width: int) -> FloatArray:
    """Return the saved matrix of the weights; it must be a sum of squares, up to float noise."""
    gram_MM: FloatArray = saved(state, "gram_MM", size=width, num_axes=2)
    if gram_MM.shape[1] == width:
        slack = _DRIFT * max(1.0, float(np.abs(gram_MM).max()))
        symmetric = bool((np.abs(gram_MM - gram_MM.T) <= slack).all())
        if symmetric and np.linalg.eigvalsh(gram_MM).min() >= -slack * width:
            return gram_MM
    raise StateError(
        f"The saved gram_MM of shape {gram_MM.shape} must be symmetric, {width} wide and without "
        "negative eigenvalues. Start without the state."
    )
