"""How often the base model solves each problem, drawn such that a population is like a real set.

The success of a problem is drawn from the posterior of its count among k samples.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from apportion.difficulty import Profile
from apportion.validate import FloatArray, IntArray

Published = Literal["easy", "hard"]

PUBLISHED: dict[str, tuple[dict[int, int], tuple[float, float]]] = {
    "easy": ({5: 1380, 6: 1270, 7: 1150, 8: 1120, 9: 1060}, (1.0, 1.0)),
    "hard": ({0: 4240, 1: 760}, (0.3, 12.0)),
}
"""Problems by their successes in 16 samples, and the Beta prior of success.

IsoCompute Playbook (arXiv 2603.12151), histogram of avg@16, read off the figure. The prior is flat
for "easy"; for "hard" it is one under which 15.1% of the problems with at most one success have
one, against 15.2% there.
"""
PUBLISHED_SAMPLES = 16
_PRIOR_ROLLOUTS = 2.0
"""What the prior of a profile weighs, as much as a flat one."""


def published_success(rng: np.random.Generator, name: str, size: int) -> FloatArray:
    """Draw the success of problems like those of a published set."""
    num_of, prior = PUBLISHED[name]
    share = np.array(list(num_of.values())) / sum(num_of.values())
    success_Q = rng.choice(np.array(list(num_of)), p=share, size=size)
    return _posterior(rng, success_Q, PUBLISHED_SAMPLES, prior)


def profiled_success(rng: np.random.Generator, profile: Profile, size: int) -> FloatArray:
    """Draw problems of a profile with replacement, and the success of each from its posterior.

    ``p ~ Beta(2 m + s, 2 (1 - m) + K - s)``, s of K samples correct, m the share of all. This prior
    is flat for m = 1/2 and leaves the mean of the set where it was measured, which a flat one does
    not: 0 of 16 would become 0.056. If no sample, or each one, is correct, m lies half a success
    away from the end.
    """
    num_samples = profile.num_samples
    half = 0.5 / (num_samples * len(profile.num_success_Q))
    mean = float(np.clip(profile.num_success_Q.mean() / num_samples, half, 1.0 - half))
    success_Q = rng.choice(profile.num_success_Q, size=size)
    prior = (_PRIOR_ROLLOUTS * mean, _PRIOR_ROLLOUTS * (1.0 - mean))
    return _posterior(rng, success_Q, num_samples, prior)


def _posterior(
    rng: np.random.Generator, success_Q: IntArray, num_samples: int, prior: tuple[float, float]
) -> FloatArray:
    """Draw success from ``Beta(a + s, b + K - s)``."""
    right, wrong = prior
    return rng.beta(right + success_Q, wrong + num_samples - success_Q)
