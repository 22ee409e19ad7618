r"""How noisy one rollout's gradient is, measured: the ``kappa`` of `apportion.gain`.

With ``v = p(1-p)`` the leave-one-out gradient of one prompt from n rollouts has the mean ``g`` and
a noise (trace of its covariance) of ``S / (n-1)``. `apportion.gain.Progress` takes

    ``S = kappa |g|^2 / v``,    so that    ``kappa = v S / |g|^2``.

Both parts are estimated without bias, weighted by ``v`` where they are noise, and summed over the
prompts before they are divided: a prompt's own ratio would be a quotient of two noisy numbers, and
the prompts that teach most count most. That ``|g|`` is in proportion to ``v`` is not needed.

``v`` must not come from the same rollouts: a group of equal rewards has a gradient of 0 *and* no
spread. Take a forecast's `reward_var_B`. Gradients may be sketches (the last layer, or a random
projection), for what is estimated is a ratio of squared lengths.

A diagnostic rather than a need: the choice of prompts hardly changes between 0.3 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.gain import KAPPA_RANGE
from apportion.validate import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRatio:
    """Kappa with what it was made of.

    Attributes:
        signal: estimate of ``sum_i |g_i|^2``.
        noise: estimate of ``sum_i v_i S_i``.
    """

    signal: float
    noise: float

    @property
    def is_identified(self) -> bool:
        """Whether the signal stands out from the noise; more prompts or rollouts help if not."""
        return self.signal > 0.0

    @property
    def measured(self) -> float | None:
        """``noise / signal`` as it is, None if it is not identified."""
        return self.noise / self.signal if self.is_identified else None

    @property
    def kappa(self) -> float | None:
        """The same, kept in `apportion.gain.KAPPA_RANGE`."""
        measured = self.measured
        return None if measured is None else float(np.clip(measured, *KAPPA_RANGE))


def from_halves(
    dot_B: ArrayLike, square_distance_B: ArrayLike, reward_var_B: ArrayLike, num_half_B: ArrayLike
) -> NoiseRatio:
    """Estimate kappa from the gradients ``a`` and ``b`` of two halves of each group.

    ``|g|^2 = E[a b]`` and ``S = (m-1) E|a-b|^2 / 2``: each half of m rollouts has advantages of its
    own, so that the two are independent.

    Args:
        dot_B: ``a_i b_i`` of each prompt.
        square_distance_B: ``|a_i - b_i|^2``.
        reward_var_B: ``v_i``, known from elsewhere.
        num_half_B: rollouts m of each half, at least 2.

    Raises:
        InvalidInputError: malformed input.

    Source: ours.

    >>> from_halves([0.04, 0.02], [0.5, 0.2], [0.25, 0.1], [4, 4]).measured
    3.625
    """
    variance_B = _variances(reward_var_B)
    size = len(variance_B)
    signal_B = validate.vector("dot_B", dot_B, size=size)
    distance_B = _squares("square_distance_B", square_distance_B, size)
    num_B = validate.counts("num_half_B", num_half_B, size=size, at_least=2)
    noise_B = 0.5 * distance_B * (num_B - 1.0)
    return NoiseRatio(signal=float(signal_B.sum()), noise=float(variance_B @ noise_B))


def from_two_sizes(
    square_small_B: ArrayLike,
    square_large_B: ArrayLike,
    reward_var_B: ArrayLike,
    num_small_B: ArrayLike,
    num_large_B: ArrayLike,
) -> NoiseRatio:
    """Estimate kappa from squared gradient norms of each prompt at two numbers of rollouts.

    ``E|g_n|^2 = |g|^2 + S / (n-1)``, at two n two equations:
    ``|g|^2 = (l |g_L|^2 - s |g_S|^2) / (l-s)``, ``S = (|g_S|^2 - |g_L|^2) / (1/s - 1/l)`` with
    ``s = n_S - 1`` and ``l = n_L - 1``.

    The small group may be a part of the large one; averaged over several parts it is less noisy.

    Args:
        square_small_B: ``|g_S|^2`` of each prompt.
        square_large_B: ``|g_L|^2``.
        reward_var_B: ``v_i``, known from elsewhere.
        num_small_B: rollouts of the small group, at least 2.
        num_large_B: rollouts of the large group, more than that.

    Raises:
        InvalidInputError: malformed input.

    Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018, appendix A.1, with
    ``n-1`` for the batch size: leave-one-out spends one rollout on the baseline.

    >>> from_two_sizes([0.6], [0.3], [0.2], [4], [10]).measured
    1.8
    """
    variance_B = _variances(reward_var_B)
    size = len(variance_B)
    small_B = _squares("square_small_B", square_small_B, size)
    large_B = _squares("square_large_B", square_large_B, size)
    num_B = validate.counts("num_small_B", num_small_B, size=size, at_least=2)
    more_B = validate.counts("num_large_B", num_large_B, size=size)
    _check_larger(num_B, more_B)
    s_B, l_B = num_B - 1.0, more_B - 1.0
    signal_B = (l_B * large_B - s_B * small_B) / (l_B - s_B)
    noise_B = (small_B - large_B) / (1.0 / s_B - 1.0 / l_B)
    noise = max(float(variance_B @ noise_B), 0.0)
    return NoiseRatio(signal=float(signal_B.sum()), noise=noise)


def _variances(reward_var_B: ArrayLike) -> FloatArray:
    variance_B = _squares("reward_var_B", reward_var_B, None)
    if not len(variance_B):
        raise InvalidInputError("There are no prompts. Give at least one.")
    return variance_B


def _squares(name: str, values: ArrayLike, size: int | None) -> FloatArray:
    square_B = validate.vector(name, values, size=size)
    bad_i = np.flatnonzero(square_B < 0.0)
    if bad_i.size:
        at = int(bad_i[0])
        raise InvalidInputError(f"{name}[{at}] is {square_B[at]:g}, but must not be negative.")
    return square_B


def _check_larger(num_B: IntArray, more_B: IntArray) -> None:
    bad_i = np.flatnonzero(more_B <= num_B)
    if bad_i.size:
        at = int(bad_i[0])
        raise InvalidInputError(
            f"num_large_B[{at}] is {more_B[at]}, but must be more than num_small_B[{at}] = "
            f"{num_B[at]}. Give groups of two sizes."
        )
