"""VIP's predictor as published: a Gaussian process whose observations are taken as exact."""

from __future__ import annotations

import numpy as np

from apportion.errors import InvalidInputError
from apportion.predictor.features import gaussian_kernel, median_distance, saved_bandwidth
from apportion.predictor.moments import sigmoid
from apportion.predictor.rows import Column, FeatureTable, State, check_names, saved, within
from apportion.types import Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray

_JITTER = 1e-4
_MAX_LATENT = 1e6
_CHUNK = 16_384


class VIP:
    """The recursion of VIP over all prompts, kept for comparison.

    With g = logit of the mean reward clipped to [eps, 1 - eps], over the batch B and the rest B^c,

        ``m[B^c] += K(B^c, B) K(B, B)^-1 (g - m[B])``,   ``m[B] = g``,   ``p = sigmoid(m)``,

    ``K(x, x') = exp(-|x - x'|^2 / (2 h^2))``, m starts at 0, h is the median distance. Neither the
    number of rollouts nor their age counts, and no doubt is stated (``var = 0``).

    What the paper leaves open: eps and the jitter 1e-4 are those of the authors' code; h is the
    median over the pairs of at most 1,000 evenly spaced rows, fixed at the first update; rows added
    later start from m = 0 and learn from then on. Distances are never stored: a step factors
    one B x B matrix and multiplies one Q x B matrix. The jitter is raised tenfold until that matrix
    can be factored. Latents are cut at 1e6 to stay finite where
    the recursion diverges, which near-duplicate prompts can bring about.

    Args:
        eps: how far observed rates are kept from 0 and 1.

    VIP, Nguyen et al., ICLR 2026, Sec. 5.1.

    >>> vip = VIP()
    >>> vip.add(Prompts(id_B=["a", "b", "c"], feature_BD=[[0.0], [0.1], [9.0]]))
    >>> vip.update(np.array([0]), Outcomes.of_rewards(["a"], [1, 1, 1, 0], [0] * 4, step=0))
    >>> vip.forecast(np.arange(3), 1).mean_B.round(2)
    array([0.75, 0.75, 0.66])
    """

    def __init__(self, *, eps: float = 1e-6) -> None:
        self.eps = within("eps", eps, above=0.0, below=0.5)
        self._feature = FeatureTable()
        self._mean = Column(np.float64)
        self._bandwidth = 0.0

    def add(self, prompts: Prompts) -> None:
        """Append B new prompts with latent mean 0.

        Raises:
            InvalidInputError: prompts without features, or with another number of features.
        """
        if prompts.feature_BD is None and len(prompts):
            raise InvalidInputError(
                "VIP shares strength through features, but feature_BD is None. Embed the texts "
                "(apportion.embedding.hashed_ngrams) or use Beta, which needs none."
            )
        self._feature.add(prompts)
        self._mean.append(np.zeros(len(prompts)))

    def forecast(self, row_B: IntArray, step: int) -> Forecast:
        """Return ``sigmoid(m)`` without doubt; the step does not matter."""
        return Forecast.of_success(sigmoid(self._mean.values[row_B]))

    def update(self, row_B: IntArray, outcomes: Outcomes) -> None:
        """Overwrite the latent means of the batch and carry the change to all other prompts."""
        if len(row_B) == 0:
            return
        if self._bandwidth == 0.0:
            self._bandwidth = median_distance(self._feature.values)
        rate_B = np.clip(outcomes.reward_sum_B / outcomes.num_rollouts_B, self.eps, 1.0 - self.eps)
        observed_B = np.log(rate_B) - np.log1p(-rate_B)
        feature_BD = self._feature.values[row_B]
        half_BB = _half(gaussian_kernel(feature_BD, feature_BD, self._bandwidth))
        surprise_B = observed_B - self._mean.values[row_B]
        weight_B = np.linalg.solve(half_BB.T, np.linalg.solve(half_BB, surprise_B))
        for start in range(0, len(self._mean), _CHUNK):
            part = slice(start, start + _CHUNK)
            kernel_AB = gaussian_kernel(self._feature.values[part], feature_BD, self._bandwidth)
            self._mean.values[part] += kernel_AB @ weight_B
        np.clip(self._mean.values, -_MAX_LATENT, _MAX_LATENT, out=self._mean.values)
        self._mean.values[row_B] = observed_B

    def state_dict(self) -> State:
        """Return the latent means, the features and the bandwidth."""
        return {
            "mean_Q": self._mean.values.copy(),
            "bandwidth": np.array([self._bandwidth]),
            **self._feature.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; raise `StateError` if it does not fit."""
        check_names(state, self.state_dict())
        feature = FeatureTable()
        feature.load_state_dict(state, complete=True)
        mean_Q = saved(state, "mean_Q", size=len(feature))
        self._bandwidth = saved_bandwidth(state, unset=True)
        self._feature = feature
        self._mean.replace(mean_Q)


def _half(kernel_BB: FloatArray) -> FloatArray:
    """Return the Cholesky factor of the kernel with the least jitter that allows one."""
    jitter = _JITTER
    while True:
        kernel_BB[np.diag_indices(len(kernel_BB))] = 1.0 + jitter
        try:
            return np.asarray(np.linalg.cholesky(kernel_BB), dtype=np.float64)
        except np.linalg.LinAlgError:
            if jitter > len(kernel_BB):  # such a diagonal dominates: something is not a number
                raise
            jitter *= 10.0
