"""Problems: what they share, what the base policy answers, and which answer is correct."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.types import Prompts
from apportion.validate import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProblemSet:
    """Some problems.

    Attributes:
        feature_QD: what problems share.
        base_logit_QK: logits of the base policy.
        correct_Q: the correct mode.
    """

    feature_QD: FloatArray
    base_logit_QK: FloatArray
    correct_Q: IntArray

    def __post_init__(self) -> None:
        """Check that the arrays fit one another."""
        feature_QD = validate.numbers("feature_QD", self.feature_QD)
        logit_QK = validate.numbers("base_logit_QK", self.base_logit_QK)
        correct_Q = validate.counts("correct_Q", self.correct_Q)
        if feature_QD.ndim != 2 or logit_QK.ndim != 2 or min(*feature_QD.shape, len(correct_Q)) < 1:
            raise InvalidInputError(
                f"feature_QD and base_logit_QK have shapes {feature_QD.shape} and "
                f"{logit_QK.shape}, but must be tables with a row for each problem."
            )
        validate.check_size("feature_QD", feature_QD, len(correct_Q))
        validate.check_size("base_logit_QK", logit_QK, len(correct_Q))
        if not (np.isfinite(feature_QD).all() and np.isfinite(logit_QK).all()):
            raise InvalidInputError("feature_QD and base_logit_QK must be finite.")
        if logit_QK.shape[1] < 2 or correct_Q.max() >= logit_QK.shape[1]:
            raise InvalidInputError(
                f"correct_Q holds {correct_Q.max()}, but base_logit_QK has {logit_QK.shape[1]} "
                "modes; there must be at least two, numbered from 0."
            )
        object.__setattr__(self, "feature_QD", np.ascontiguousarray(feature_QD))
        object.__setattr__(self, "base_logit_QK", np.ascontiguousarray(logit_QK))
        object.__setattr__(self, "correct_Q", correct_Q)

    def __len__(self) -> int:
        """Return Q, the number of problems."""
        return len(self.correct_Q)

    @property
    def base_success_Q(self) -> FloatArray:
        """Success of the base policy."""
        share_QK = np.exp(self.base_logit_QK - self.base_logit_QK.max(axis=1, keepdims=True))
        return np.asarray(share_QK[np.arange(len(self)), self.correct_Q] / share_QK.sum(axis=1))

    def take(self, rows: slice | IntArray) -> ProblemSet:
        """Return the problems in these rows."""
        return ProblemSet(
            feature_QD=self.feature_QD[rows],
            base_logit_QK=self.base_logit_QK[rows],
            correct_Q=self.correct_Q[rows],
        )

    def prompts(self) -> Prompts:
        """Return the problems as an allocator sees them: a key and features."""
        return Prompts(id_B=np.arange(len(self)).astype(str), feature_BD=self.feature_QD)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problems:
    """Problems to train on and problems to judge by.

    Attributes:
        train: seen in training.
        held_out: never seen; they gain by what the features teach alone.
    """

    train: ProblemSet
    held_out: ProblemSet

    def __post_init__(self) -> None:
        """Check that one policy fits both."""
        for name in ("feature_QD", "base_logit_QK"):
            width, other = (getattr(part, name).shape[1] for part in (self.train, self.held_out))
            if width != other:
                raise InvalidInputError(
                    f"{name} has {width} columns for training and {other} for held-out problems."
                )

    @property
    def num_modes(self) -> int:
        """K, answer modes of a problem."""
        return int(self.train.base_logit_QK.shape[1])
