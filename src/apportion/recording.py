"""What a run left behind: its groups in order, and its scalar curves.

Axes beside those of `types`: G groups of a recorded run, T points of one scalar curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.types import Outcomes, Prompts, StrArray
from apportion.validate import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """Groups of a recorded run, steps ascending; within a step in the order of the record.

    Attributes:
        id_Q: stable key of each prompt that occurs.
        text_Q: what each prompt says, or None where the record does not tell.
        prompt_G: row of each group's prompt in `id_Q`.
        step_G: training step, never falling.
        policy_step_G: number of updates of the weights that sampled it.
        num_requested_G: rollouts asked for (those recorded, if nothing else is known).
        num_rollouts_G: rollouts with a finite reward.
        reward_sum_G: sum of those rewards.
        reward_sumsq_G: sum of their squares.
        signal_G: whether the rewards differ by more than float noise.
        num_tokens_G: completion tokens; 0 where unknown.
        num_truncated_G: rollouts that hit the length limit; 0 where unknown.
        hidden_G: whether reward components differ within the group while their sum does not;
            None where the record has no components.
        feature_QD: features of the prompts, if recorded; NaN rows for prompts without.
    """

    id_Q: StrArray
    text_Q: tuple[str, ...] | None
    prompt_G: IntArray
    step_G: IntArray
    policy_step_G: IntArray
    num_requested_G: IntArray
    num_rollouts_G: IntArray
    reward_sum_G: FloatArray
    reward_sumsq_G: FloatArray
    signal_G: NDArray[np.bool_]
    num_tokens_G: IntArray
    num_truncated_G: IntArray
    hidden_G: NDArray[np.bool_] | None = None
    feature_QD: FloatArray | None = None

    def __len__(self) -> int:
        """Return G, the number of groups."""
        return len(self.prompt_G)

    @property
    def rate_G(self) -> FloatArray:
        """Mean reward of each group; NaN where none was scored."""
        empty = np.full(len(self), np.nan)
        scored = self.num_rollouts_G > 0
        return np.asarray(
            np.divide(self.reward_sum_G, self.num_rollouts_G, out=empty, where=scored)
        )

    @property
    def prompts(self) -> Prompts:
        """The prompts, as an allocator takes them (without features)."""
        return Prompts(id_B=self.id_Q, text_B=self.text_Q)

    def steps(self) -> Iterator[tuple[int, slice]]:
        """Yield each step and where its groups stand."""
        start_T = np.flatnonzero(np.diff(self.step_G, prepend=self.step_G[:1] - 1))
        end_T = [*start_T[1:], len(self)][: len(start_T)]
        for start, end in zip(start_T, end_T, strict=True):
            yield int(self.step_G[start]), slice(int(start), int(end))

    def outcomes(self, part: slice) -> Outcomes:
        """Return the groups of one step as an allocator learns from them."""
        return Outcomes(
            prompt_B=self.id_Q[self.prompt_G[part]],
            num_requested_B=self.num_requested_G[part],
            num_rollouts_B=self.num_rollouts_G[part],
            reward_sum_B=self.reward_sum_G[part],
            reward_sumsq_B=self.reward_sumsq_G[part],
            num_tokens_B=self.num_tokens_G[part],
            num_truncated_B=self.num_truncated_G[part],
            step=int(self.step_G[part][0]),
            policy_step_B=self.policy_step_G[part],
        )


def table_of_counts(
    prompt_G: ArrayLike,
    step_G: ArrayLike,
    num_success_G: ArrayLike,
    num_rollouts_G: ArrayLike,
    *,
    text_of: Mapping[str, str] | None = None,
) -> GroupTable:
    """Return the table of groups of 0/1 rewards, given as k of n.

    Args:
        prompt_G: key of each group's prompt.
        step_G: its training step; groups are put in the order of steps.
        num_success_G: its successes k.
        num_rollouts_G: its rollouts n, or one number for all.
        text_of: texts of prompts by key, if known.

    Raises:
        InvalidInputError: lengths differ, or k is not within [0, n].

    >>> table = table_of_counts(["a", "b"], [0, 0], [4, 1], 4)
    >>> table.rate_G, table.signal_G
    (array([1.  , 0.25]), array([False,  True]))
    """
    key_G = np.asarray(prompt_G, dtype=np.str_)
    step = validate.counts("step_G", step_G, size=len(key_G))
    success = validate.counts("num_success_G", num_success_G, size=len(key_G))
    num = validate.counts(
        "num_rollouts_G", np.broadcast_to(np.asarray(num_rollouts_G), key_G.shape)
    )
    if (success > num).any():
        at = int(np.argmax(success > num))
        raise InvalidInputError(
            f"num_success_G[{at}] is {success[at]}, above num_rollouts_G[{at}] = {num[at]}."
        )
    order = np.argsort(step, kind="stable")
    id_Q, prompt = np.unique(key_G[order], return_inverse=True)
    success, num = success[order], num[order]
    zero = np.zeros(len(order), dtype=np.int64)
    return GroupTable(
        id_Q=id_Q,
        text_Q=None if text_of is None else tuple(text_of[key] for key in id_Q.tolist()),
        prompt_G=prompt.astype(np.int64),
        step_G=step[order],
        policy_step_G=step[order],
        num_requested_G=num,
        num_rollouts_G=num,
        reward_sum_G=success.astype(np.float64),
        reward_sumsq_G=success.astype(np.float64),
        signal_G=(success > 0) & (success < num),
        num_tokens_G=zero,
        num_truncated_G=zero,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One scalar over the steps of a run, as its logger named it.

    Attributes:
        step_T: training step of each point, never falling.
        value_T: its value; NaN where the logger wrote none.
    """

    step_T: IntArray
    value_T: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded run: groups, curves, or both.

    Attributes:
        source: what it was read from, in words (``"TRL completions"``).
        groups: the groups; None if the record holds scalars alone.
        curves: scalar curves by the names that the logger gave them.
        reward_range: lowest and highest reward seen (of groups' means, where single rewards are
            not recorded); (0, 1) without groups.
        has_steps: False if steps were not recorded and visits of a prompt stand in for them.
        config: settings of the run, as far as the record tells (our own run folders do).
        notes: sentences on what was left out or assumed.
    """

    source: str
    groups: GroupTable | None = None
    curves: dict[str, Curve] = field(default_factory=dict)
    reward_range: tuple[float, float] = (0.0, 1.0)
    has_steps: bool = True
    config: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
