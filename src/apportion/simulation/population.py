"""What simulated problems are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion import validate
from apportion.difficulty import Profile
from apportion.errors import InvalidInputError
from apportion.simulation.base_success import (
    PUBLISHED,
    Published,
    profiled_success,
    published_success,
)
from apportion.simulation.problems import Problems, ProblemSet

SUCCESS_LIMITS = (1e-5, 1.0 - 1e-5)
"""Base success is kept between these, so that logits are finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """What problems are drawn from.

    A problem has features ``phi ~ N(0, diag(s))`` with ``s_i ~ i^-spectrum`` and ``sum s = 1``. Its
    correct mode is drawn from ``softmax(signal * teacher^T phi)``, with a standard normal teacher
    that all problems share: what can be learned from others. The wrong modes have standard normal
    base logits; that of the correct one is set such that base success is the one drawn.

    Attributes:
        difficulty: "easy" are problems that the base model solved in 5 to 9 of 16 samples, "hard"
            those it solved in at most 1, both in proportions published for mathematics; or the
            profile of a set of yours.
        num_train: problems to train on.
        num_held_out: problems to judge by.
        num_modes: answers that the policy chooses among.
        num_features: features of a problem.
        spectrum: how fast the variance of the features falls; 0 makes all the same.
        signal: how far the features explain the correct mode; at 0 nothing can be learned for
            held-out problems.
        seed: of the draw.

    Raises:
        InvalidInputError: a number is out of its range.

    >>> problems = Population(num_train=200, num_held_out=100).problems()
    >>> problems.train.feature_QD.shape, problems.held_out.base_logit_QK.shape
    ((200, 64), (100, 8))
    """

    difficulty: Published | Profile = "easy"
    num_train: int = 6000
    num_held_out: int = 1000
    num_modes: int = 8
    num_features: int = 64
    spectrum: float = 0.0
    signal: float = 1.69
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        if not isinstance(self.difficulty, Profile):
            validate.choice("difficulty", self.difficulty, list(PUBLISHED))
        for name, least in (
            ("num_train", 1),
            ("num_held_out", 1),
            ("num_modes", 2),
            ("num_features", 1),
            ("seed", 0),
        ):
            validate.whole_number(name, getattr(self, name), at_least=least)
        for name in ("spectrum", "signal"):
            if validate.number(name, getattr(self, name)) < 0.0:
                raise InvalidInputError(
                    f"{name} is {getattr(self, name):g}, but must not be negative."
                )

    def problems(self) -> Problems:
        """Draw the problems; the same population gives the same ones."""
        rng = np.random.default_rng(self.seed)
        num = self.num_train + self.num_held_out
        share_D = np.arange(1.0, self.num_features + 1.0) ** -self.spectrum
        feature_QD = rng.normal(size=(num, self.num_features)) * np.sqrt(share_D / share_D.sum())
        explained_QK = feature_QD @ rng.normal(size=(self.num_features, self.num_modes))
        correct_Q = (self.signal * explained_QK + rng.gumbel(size=explained_QK.shape)).argmax(
            axis=1
        )
        drawn_Q = (
            profiled_success(rng, self.difficulty, num)
            if isinstance(self.difficulty, Profile)
            else published_success(rng, self.difficulty, num)
        )
        success_Q = np.clip(drawn_Q, *SUCCESS_LIMITS)
        logit_QK = rng.normal(size=(num, self.num_modes))
        row_Q = np.arange(num)
        logit_QK[row_Q, correct_Q] = -np.inf
        wrong_Q = np.log(np.exp(logit_QK).sum(axis=1))
        logit_QK[row_Q, correct_Q] = np.log(success_Q / (1.0 - success_Q)) + wrong_Q
        drawn = ProblemSet(feature_QD=feature_QD, base_logit_QK=logit_QK, correct_Q=correct_Q)
        return Problems(
            train=drawn.take(slice(None, self.num_train)),
            held_out=drawn.take(slice(self.num_train, None)),
        )
