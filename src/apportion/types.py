"""The nouns of apportion: frozen dataclasses of arrays that cross from room to room.

Axis legend (array names end in their axes; counts start with ``num_``):

====  =====================================================================
Q     prompts known to an allocator
B     prompts in a batch
N     rollouts in a batch, ``N = sum(num_rollouts_B)``; ragged, never padded
D     features of a prompt
====  =====================================================================

Ragged data are flat: values over N plus ``group_N``, the position of each rollout's prompt in B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.validate import FloatArray, IntArray

StrArray = NDArray[np.str_]

_LARGEST_FEATURE = 1e100
"""So that squared distances stay finite."""
_DOUBT_SLACK = 1e-9
"""Float noise that a doubt may exceed m(1-m) by; it is then clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts of one batch, by stable key.

    Attributes:
        id_B: stable key of each prompt, e.g. a dataset column or a hash of the text. The same key
            twice in a batch means two groups of one prompt.
        feature_BD: any embedding of the prompts, or None.
        prior_mean_B: success rate measured before the run, or None.
        prior_count_B: how many rollouts that rate rests on, or None.
        text_B: the prompt texts, from which an allocator may make features, or None.
    """

    id_B: StrArray
    feature_BD: FloatArray | None = None
    prior_mean_B: FloatArray | None = None
    prior_count_B: FloatArray | None = None
    text_B: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check shapes and ranges."""
        id_B = _keys("id_B", self.id_B)
        size = len(id_B)
        object.__setattr__(self, "id_B", id_B)
        if self.feature_BD is not None:
            feature_BD = validate.numbers("feature_BD", self.feature_BD)
            if feature_BD.ndim != 2:
                raise InvalidInputError(
                    f"feature_BD must have two axes (prompts, features), got {feature_BD.shape}."
                )
            validate.check_size("feature_BD", feature_BD, size)
            _check_features(feature_BD)
            object.__setattr__(self, "feature_BD", feature_BD)
        if (self.prior_mean_B is None) != (self.prior_count_B is None):
            raise InvalidInputError("prior_mean_B and prior_count_B come together, or not at all.")
        if self.prior_mean_B is not None and self.prior_count_B is not None:
            mean_B = validate.probability("prior_mean_B", self.prior_mean_B, size=size)
            count_B = validate.vector("prior_count_B", self.prior_count_B, size=size)
            if (count_B < 0).any():
                raise InvalidInputError("prior_count_B must not be negative.")
            object.__setattr__(self, "prior_mean_B", mean_B)
            object.__setattr__(self, "prior_count_B", count_B)
        if self.text_B is not None:
            object.__setattr__(self, "text_B", tuple(self.text_B))
            if len(self.text_B) != size:
                raise InvalidInputError(
                    f"text_B has {len(self.text_B)} texts, but there are {size} prompts."
                )

    def __len__(self) -> int:
        """Return B, the number of prompts."""
        return len(self.id_B)

    def take(self, index_B: ArrayLike) -> Prompts:
        """Return the prompts at these positions, or where a mask of length B is true."""
        index = validate.positions("index_B", index_B, len(self))
        return Prompts(
            id_B=self.id_B[index],
            feature_BD=None if self.feature_BD is None else self.feature_BD[index],
            prior_mean_B=None if self.prior_mean_B is None else self.prior_mean_B[index],
            prior_count_B=None if self.prior_count_B is None else self.prior_count_B[index],
            text_B=None if self.text_B is None else tuple(self.text_B[i] for i in index),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is believed about the success of each prompt before it is sampled.

    Attributes:
        mean_B: expected reward m (success probability), in [0, 1].
        var_B: doubt about that mean; at most m(1-m).
        reward_var_B: expected variance of one reward; m(1-m) - var for 0/1 rewards.
    """

    mean_B: FloatArray
    var_B: FloatArray
    reward_var_B: FloatArray

    def __post_init__(self) -> None:
        """Check that the three agree with one another."""
        mean_B = validate.probability("mean_B", self.mean_B)
        size = len(mean_B)
        var_B = validate.vector("var_B", self.var_B, size=size)
        reward_var_B = validate.vector("reward_var_B", self.reward_var_B, size=size)
        most_B = mean_B * (1.0 - mean_B)
        for name, value_B in (("var_B", var_B), ("reward_var_B", reward_var_B)):
            bad_i = np.flatnonzero((value_B < -_DOUBT_SLACK) | (value_B > most_B + _DOUBT_SLACK))
            if bad_i.size:
                at = int(bad_i[0])
                raise InvalidInputError(
                    f"{name}[{at}] is {value_B[at]:g}, but with mean {mean_B[at]:g} it must lie in "
                    f"[0, m(1-m)] = [0, {most_B[at]:g}]."
                )
        object.__setattr__(self, "mean_B", mean_B)
        object.__setattr__(self, "var_B", np.clip(var_B, 0.0, most_B))
        object.__setattr__(self, "reward_var_B", np.clip(reward_var_B, 0.0, most_B))

    def __len__(self) -> int:
        """Return B, the number of prompts."""
        return len(self.mean_B)

    @classmethod
    def of_success(cls, success_B: ArrayLike, doubt_B: ArrayLike | None = None) -> Forecast:
        """Make a forecast for 0/1 rewards; without doubt when none is given.

        ``reward_var = m(1-m) - doubt``.

        >>> Forecast.of_success([0.5], [0.05]).reward_var_B
        array([0.2])
        """
        mean_B = validate.probability("success", success_B)
        if doubt_B is None:
            var_B = np.zeros_like(mean_B)
        else:
            var_B = validate.vector("doubt", doubt_B, size=len(mean_B))
        most_B = mean_B * (1.0 - mean_B)
        bad_i = np.flatnonzero((var_B < 0.0) | (var_B > most_B + _DOUBT_SLACK))
        if bad_i.size:
            at = int(bad_i[0])
            raise InvalidInputError(
                f"doubt[{at}] is {var_B[at]:g}, but a probability of mean {mean_B[at]:g} has a "
                f"variance in [0, m(1-m)] = [0, {most_B[at]:g}]."
            )
        var_B = np.minimum(var_B, most_B)
        return cls(mean_B=mean_B, var_B=var_B, reward_var_B=most_B - var_B)

    def take(self, index_B: ArrayLike) -> Forecast:
        """Return the forecast at these positions, or where a mask of length B is true."""
        index = validate.positions("index_B", index_B, len(self))
        return Forecast(
            mean_B=self.mean_B[index],
            var_B=self.var_B[index],
            reward_var_B=self.reward_var_B[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """How many rollouts each prompt of a batch gets.

    Attributes:
        num_rollouts_B: the integer answer; sums to the budget exactly.
        relaxed_B: the answer if rollouts could be split, for comparison.
        price: the drop in variance that the last rollout granted bought (0 if none was free).
        variance: total gradient variance of this allocation under the forecast.
        uniform_variance: the same for an even split (remainder by position, within the bounds).
        forecast: what the decision rests on, if there was one.
        reason: empty if the forecast decided, else a sentence why it did not.
        gain: expected gain, where prompts were chosen among candidates; the variances are then NaN,
            for the noise of other prompts is no measure, and the price is one of gain.
        uniform_gain: the same for the even split over the prompts that it would take.
        gain_bound: what no choice within the limits could exceed.
    """

    num_rollouts_B: IntArray
    relaxed_B: FloatArray
    price: float
    variance: float
    uniform_variance: float
    forecast: Forecast | None = None
    reason: str = ""
    gain: float = math.nan
    uniform_gain: float = math.nan
    gain_bound: float = math.nan

    @property
    def group_N(self) -> IntArray:
        """Position in B of each rollout's prompt: 0, 0, 1, 1, 1, 2, ..."""
        return np.repeat(np.arange(len(self.num_rollouts_B)), self.num_rollouts_B)

    @property
    def variance_ratio(self) -> float:
        """Variance of this allocation over that of the even split; 1 where both are 0."""
        if self.uniform_variance == 0.0:
            return 1.0
        return self.variance / self.uniform_variance

    @property
    def gain_ratio(self) -> float:
        """Expected gain over that of the even split; 1 where both are 0."""
        if self.uniform_gain == 0.0:
            return 1.0 if self.gain == 0.0 else math.inf
        return self.gain / self.uniform_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What came back from sampling, summed over each group.

    Attributes:
        prompt_B: key of each group's prompt; the same key may stand more than once.
        num_requested_B: rollouts asked for.
        num_rollouts_B: rollouts that were scored (0 if all failed or none was scorable).
        reward_sum_B: sum of the scored rewards.
        reward_sumsq_B: sum of their squares.
        num_tokens_B: completion tokens of the group.
        num_truncated_B: rollouts that ended at the length limit.
        step: training step that these outcomes belong to.
        policy_step_B: number of updates of the weights that sampled them; defaults to `step`.
    """

    prompt_B: StrArray
    num_requested_B: IntArray
    num_rollouts_B: IntArray
    reward_sum_B: FloatArray
    reward_sumsq_B: FloatArray
    num_tokens_B: IntArray
    num_truncated_B: IntArray
    step: int
    policy_step_B: IntArray

    def __len__(self) -> int:
        """Return B, the number of groups."""
        return len(self.prompt_B)

    @classmethod
    def of_rewards(
        cls,
        prompt_B: Sequence[str] | StrArray,
        reward_N: ArrayLike,
        group_N: ArrayLike,
        *,
        step: int,
        num_tokens_N: ArrayLike | None = None,
        truncated_N: ArrayLike | None = None,
        policy_step: int | None = None,
    ) -> Outcomes:
        """Sum single rewards into groups; a NaN reward counts as requested, not as scored.

        Args:
            prompt_B: key of each group's prompt.
            reward_N: one reward a rollout; NaN where it could not be scored.
            group_N: position in `prompt_B` of each rollout's prompt.
            step: training step.
            num_tokens_N: completion tokens of each rollout, if known.
            truncated_N: whether each rollout hit the length limit, if known.
            policy_step: updates of the weights that sampled them; `step` if None.

        Raises:
            InvalidInputError: the arrays disagree in length or a group does not exist.

        >>> out = Outcomes.of_rewards(["a", "b"], [1, 0, 1, np.nan], [0, 0, 1, 1], step=3)
        >>> out.reward_sum_B, out.num_rollouts_B, out.num_requested_B
        (array([1., 1.]), array([2, 1]), array([2, 2]))
        """
        id_B = _keys("prompt_B", prompt_B)
        size = len(id_B)
        reward = validate.numbers("reward_N", reward_N).ravel()
        step = validate.whole_number("step", step, at_least=0)
        group = validate.counts("group_N", group_N, size=len(reward))
        if group.size and group.max() >= size:
            raise InvalidInputError(
                f"group_N holds {group.max()}, but there are {size} prompts (0 to {size - 1})."
            )
        scored = np.isfinite(reward)
        known = np.where(scored, reward, 0.0)

        def total(weight_N: NDArray[np.floating] | NDArray[np.bool_]) -> FloatArray:
            return np.bincount(group, weights=weight_N, minlength=size).astype(np.float64)

        def whole(name: str, num_N: ArrayLike | None) -> IntArray:
            if num_N is None:
                return np.zeros(size, dtype=np.int64)
            num = validate.counts(name, num_N)
            if len(num) != len(reward):
                raise InvalidInputError(
                    f"{name} has {len(num)} values, but there are {len(reward)} rewards."
                )
            return total(num.astype(np.float64)).astype(np.int64)

        policy = step
        if policy_step is not None:
            policy = validate.whole_number("policy_step", policy_step, at_least=0)
        return cls(
            prompt_B=id_B,
            num_requested_B=np.bincount(group, minlength=size).astype(np.int64),
            num_rollouts_B=total(scored).astype(np.int64),
            reward_sum_B=total(known),
            reward_sumsq_B=total(known**2),
            num_tokens_B=whole("num_tokens_N", num_tokens_N),
            num_truncated_B=whole("truncated_N", truncated_N),
            step=step,
            policy_step_B=np.full(size, policy, dtype=np.int64),
        )

    def take(self, index_B: ArrayLike) -> Outcomes:
        """Return the groups at these positions, or where a mask of length B is true."""
        index = validate.positions("index_B", index_B, len(self))
        return Outcomes(
            prompt_B=self.prompt_B[index],
            num_requested_B=self.num_requested_B[index],
            num_rollouts_B=self.num_rollouts_B[index],
            reward_sum_B=self.reward_sum_B[index],
            reward_sumsq_B=self.reward_sumsq_B[index],
            num_tokens_B=self.num_tokens_B[index],
            num_truncated_B=self.num_truncated_B[index],
            step=self.step,
            policy_step_B=self.policy_step_B[index],
        )


def _keys(name: str, values: object) -> StrArray:
    """Return keys on one axis; numpy drops NUL at the end of a text, which would merge keys."""
    try:
        key_B = np.atleast_1d(np.asarray(values, dtype=np.str_))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{name} must be one text a prompt on one axis.") from error
    if key_B.ndim != 1:
        raise InvalidInputError(f"{name} must have one axis, got shape {key_B.shape}.")
    for at, key in enumerate(np.atleast_1d(np.asarray(values, dtype=object)).tolist()):
        if isinstance(key, str) and "\0" in key:
            raise InvalidInputError(
                f"{name}[{at}] is {key[:40]!r}, but a key must not hold the character NUL. "
                "Replace it, or use a hash of the text (apportion.prompt_key)."
            )
    return key_B


def _check_features(feature_BD: FloatArray) -> None:
    bad_i, bad_j = np.nonzero(~(np.abs(feature_BD) <= _LARGEST_FEATURE))
    if bad_i.size:
        prompt, feature = int(bad_i[0]), int(bad_j[0])
        raise InvalidInputError(
            f"feature_BD[{prompt}, {feature}] is {feature_BD[prompt, feature]:g}, but every value "
            f"must be finite and within {_LARGEST_FEATURE:g} of 0. Scale the features, or leave "
            "such prompts out."
        )
