"""A Beta belief about each success rate that forgets, as MoPPS and Reinforce-Ada keep it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray


@dataclass(frozen=True, slots=True)
class BetaPosterior:
    """``p_i ~ Beta(alpha_i, beta_i)``.

    Attributes:
        alpha_B: successes, the prior's included (B).
        beta_B: failures, likewise (B).

    >>> belief = BetaPosterior.of_prior(2, prior=(1.0, 1.0))
    >>> belief.update([3, 0], [4, 4]).mean_B.round(3)
    array([0.667, 0.167])
    """

    alpha_B: FloatArray
    beta_B: FloatArray

    def __post_init__(self) -> None:
        """Check that both are positive and of one length."""
        alpha_B = validate.vector("alpha_B", self.alpha_B)
        beta_B = validate.vector("beta_B", self.beta_B, size=len(alpha_B))
        for name, count_B in (("alpha_B", alpha_B), ("beta_B", beta_B)):
            if (count_B <= 0.0).any():
                raise InvalidInputError(f"{name} holds {count_B.min():g}, but must be above 0.")
        object.__setattr__(self, "alpha_B", alpha_B)
        object.__setattr__(self, "beta_B", beta_B)

    @classmethod
    def of_prior(cls, size: int, *, prior: tuple[float, float]) -> BetaPosterior:
        """Believe the prior of `size` prompts."""
        return cls(np.full(size, prior[0]), np.full(size, prior[1]))

    @property
    def mean_B(self) -> FloatArray:
        """Expected success rate."""
        mean_B: FloatArray = self.alpha_B / (self.alpha_B + self.beta_B)
        return mean_B

    def update(
        self,
        num_correct_B: ArrayLike,
        num_rollouts_B: ArrayLike,
        *,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 1.0,
    ) -> BetaPosterior:
        """Return ``alpha <- d alpha + (1-d) alpha_0 + s``, ``beta <- d beta + (1-d) beta_0 + f``.

        Args:
            num_correct_B: successes s of each prompt (B).
            num_rollouts_B: rollouts ``s + f`` of each (B).
            prior: ``alpha_0`` and ``beta_0``, what is returned to.
            decay: d, how much of the earlier counts is kept; 1 forgets nothing.

        Raises:
            InvalidInputError: more successes than rollouts, or a decay outside [0, 1].

        Source: MoPPS, Qu et al., arXiv:2507.04632, recursive update with temporal discounting.
        Reinforce-Ada discounts bare counts and adds the prior last, which is the same.
        """
        size = len(self.alpha_B)
        correct_B, failed_B = checked_outcomes(num_correct_B, num_rollouts_B, size)
        kept = float(validate.probability("decay", [decay])[0])
        return BetaPosterior(
            kept * self.alpha_B + (1.0 - kept) * prior[0] + correct_B,
            kept * self.beta_B + (1.0 - kept) * prior[1] + failed_B,
        )


def checked_outcomes(
    num_correct_B: ArrayLike, num_rollouts_B: ArrayLike, size: int
) -> tuple[FloatArray, FloatArray]:
    """Return successes and failures; raise if there are more successes than rollouts."""
    correct_B = validate.counts("num_correct_B", num_correct_B, size=size)
    total_B = validate.counts("num_rollouts_B", num_rollouts_B, size=size)
    if (correct_B > total_B).any():
        at = int(np.flatnonzero(correct_B > total_B)[0])
        raise InvalidInputError(
            f"num_correct_B[{at}] is {correct_B[at]}, more than the {total_B[at]} rollouts."
        )
    return correct_B.astype(np.float64), (total_B - correct_B).astype(np.float64)
