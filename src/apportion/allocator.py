"""The one stateful object: a table of prompts, a belief about each, a law and bounds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import controls
from apportion.allocation import VarianceLaw, allocate
from apportion.errors import InvalidInputError, StateError
from apportion.predictor.base import Predictor
from apportion.predictor.skill import SkillMonitor
from apportion.types import Allocation, Forecast, Outcomes, Prompts
from apportion.validate import IntArray

NO_DATA = "No outcome has been observed yet, so every prompt gets the same."
NO_SKILL = (
    "The forecast does not beat the global mean over the recent outcomes, "
    "so every prompt gets the same."
)
_RANGE_SLACK = 1e-6


class RolloutAllocator:
    """Decides before each step how many rollouts each prompt gets, and learns from what came back.

    The same state and the same call give the same answer in every process.

    Args:
        predictor: belief about success, e.g. `apportion.predictor.GaussianProcess()`.
        variance: the law that is minimised: a name or ``law(forecast, num_rollouts_B)``.
        lower: least rollouts a prompt of the batch gets.
        upper: most rollouts a prompt gets; the whole budget if None.
        reward_range: lowest and highest possible reward; beliefs are kept on [0, 1].
        do_no_harm: split evenly while there is no data, or while the forecasts score no better
            than the global mean; `Allocation.reason` then says so.

    >>> from apportion.predictor import Beta
    >>> allocator = RolloutAllocator(Beta(), lower=2)
    >>> batch = Prompts(id_B=["easy", "even"])
    >>> allocator.allocate(batch, 16).num_rollouts_B
    array([8, 8])
    >>> for step in range(3):
    ...     rewards, groups = [1] * 8 + [0, 1] * 4, [0] * 8 + [1] * 8
    ...     allocator.observe(Outcomes.of_rewards(batch.id_B, rewards, groups, step=step))
    >>> n_B = allocator.allocate(batch, 16).num_rollouts_B
    >>> int(n_B.sum()), bool(n_B[0] < n_B[1])
    (16, True)
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        variance: str | VarianceLaw = "rloo",
        lower: int = 2,
        upper: int | None = None,
        reward_range: tuple[float, float] = (0.0, 1.0),
        do_no_harm: bool = True,
    ) -> None:
        low, high = reward_range
        if not low < high:
            raise InvalidInputError(
                f"reward_range is ({low:g}, {high:g}), but the first must be below the second."
            )
        self.predictor = predictor
        self.variance = variance
        self.lower = lower
        self.upper = upper
        self.reward_range = reward_range
        self.do_no_harm = do_no_harm
        self.step = 0
        self.num_ignored = 0
        self._skill = SkillMonitor()
        self._row_of_id: dict[str, int] = {}
        self._num_observed = 0
        self._has_prior = False

    def __len__(self) -> int:
        """Return Q, the number of prompts known."""
        return len(self._row_of_id)

    @property
    def skill(self) -> float:
        """Nats per rollout by which recent forecasts beat the global mean."""
        return self._skill.gain_per_rollout

    def add(self, prompts: Prompts) -> None:
        """Enter prompts into the table ahead of time; known ones are skipped.

        Predictors that carry what one prompt teaches to others reach only prompts in the table, so
        give them the whole data set here when it is at hand.
        """
        self._rows(prompts)

    def forecast(self, prompts: Prompts, *, step: int | None = None) -> Forecast:
        """Return the belief about these prompts at policy step `step` (the current one if None)."""
        return self.predictor.forecast(self._rows(prompts), self.step if step is None else step)

    def allocate(
        self, prompts: Prompts, budget: int, *, step: int | None = None, upper: int | None = None
    ) -> Allocation:
        """Split `budget` rollouts over the prompts, exactly.

        Args:
            prompts: the batch; new ones are entered into the table.
            budget: rollouts of this step, in all.
            step: policy step of the decision; the one after the last observed if None.
            upper: most rollouts a prompt gets in this call; the allocator's own if None.

        Returns:
            The allocation; its `reason` is empty if the forecast decided.

        Raises:
            InfeasibleBudgetError: no whole numbers within the bounds sum to the budget.
        """
        forecast = self.forecast(prompts, step=step)
        lower, upper = self.lower, self.upper if upper is None else upper
        chosen = allocate(forecast, budget, variance=self.variance, lower=lower, upper=upper)
        reason = self._reason_for_uniform()
        if not reason:
            return chosen
        even_B = controls.uniform(forecast, budget, lower=lower, upper=upper)
        return replace(
            chosen,
            num_rollouts_B=even_B,
            relaxed_B=even_B.astype(np.float64),
            price=0.0,
            variance=chosen.uniform_variance,
            reason=reason,
        )

    def observe(self, outcomes: Outcomes) -> None:
        """Learn from outcomes: late, partial, repeated, unknown and NaN ones are legal.

        Groups of a prompt that was never entered and groups without a scored reward teach nothing;
        they are counted in `num_ignored`. Late outcomes weigh less by their age in policy steps.
        """
        row_B = np.array([self._row_of_id.get(key, -1) for key in outcomes.prompt_B.tolist()])
        usable_B = (row_B >= 0) & (outcomes.num_rollouts_B > 0)
        usable_B &= np.isfinite(outcomes.reward_sum_B) & np.isfinite(outcomes.reward_sumsq_B)
        self.num_ignored += int((~usable_B).sum())
        index_B = np.flatnonzero(usable_B)
        for row, group in _by_policy_step(row_B[index_B], self._rescaled(outcomes.take(index_B))):
            before = self.predictor.forecast(row, int(group.policy_step_B[0]))
            count = group.num_rollouts_B.astype(np.float64)
            self._skill.observe(before.mean_B, group.reward_sum_B, count)
            self.predictor.update(row, group)
            self._num_observed += int(group.num_rollouts_B.sum())
        self.step = max(self.step, outcomes.step + 1)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the whole state as arrays by name (constructor arguments are not part)."""
        encoded = [key.encode() for key in self._row_of_id]
        state: dict[str, NDArray[Any]] = {
            "ids": np.frombuffer(b"".join(encoded), dtype=np.uint8).copy(),
            "id_lengths": np.array([len(key) for key in encoded], dtype=np.int64),
            "counters": np.array(
                [self.step, self.num_ignored, self._num_observed, int(self._has_prior)],
                dtype=np.int64,
            ),
        }
        for owner, part in (("skill", self._skill), ("predictor", self.predictor)):
            state |= {f"{owner}.{name}": array for name, array in part.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` returned, bit for bit.

        Raises:
            StateError: something is missing or belongs to another predictor.
        """
        try:
            ids, lengths = state["ids"].tobytes(), state["id_lengths"]
            step, num_ignored, num_observed, has_prior = map(int, state["counters"])
            ends = np.cumsum(lengths).tolist()
            keys = [ids[end - size : end].decode() for end, size in zip(ends, lengths, strict=True)]
        except (KeyError, ValueError) as error:
            raise StateError(
                f"The allocator state is damaged or incomplete ({error}). Start without it."
            ) from error
        self.predictor.load_state_dict(_part(state, "predictor"))
        self._skill.load_state_dict(_part(state, "skill"))
        self._row_of_id = {key: row for row, key in enumerate(keys)}
        self.step, self.num_ignored, self._num_observed = step, num_ignored, num_observed
        self._has_prior = bool(has_prior)

    def _reason_for_uniform(self) -> str:
        if not self.do_no_harm:
            return ""
        if self._num_observed == 0:
            return "" if self._has_prior else NO_DATA
        return "" if self._skill.has_skill else NO_SKILL

    def _rows(self, prompts: Prompts) -> IntArray:
        keys = prompts.id_B.tolist()
        new = [i for i, key in enumerate(keys) if key not in self._row_of_id]
        if new:
            first = {keys[i]: i for i in reversed(new)}
            order = sorted(first.values())
            fresh = prompts.take(order)
            self.predictor.add(fresh)
            for i in order:
                self._row_of_id[keys[i]] = len(self._row_of_id)
            if fresh.prior_count_B is not None:
                self._has_prior |= bool((fresh.prior_count_B > 0).any())
        return np.array([self._row_of_id[key] for key in keys], dtype=np.int64)

    def _rescaled(self, outcomes: Outcomes) -> Outcomes:
        low, high = self.reward_range
        width = high - low
        count = outcomes.num_rollouts_B.astype(np.float64)
        total = (outcomes.reward_sum_B - low * count) / width
        square = outcomes.reward_sumsq_B - 2.0 * low * outcomes.reward_sum_B + low**2 * count
        inside = np.clip(total, 0.0, count)
        far = np.abs(total - inside) > _RANGE_SLACK * count
        if far.any():
            at = int(np.flatnonzero(far)[0])
            mean = outcomes.reward_sum_B[at] / count[at]
            warnings.warn(
                f"A group's mean reward is {mean:g}, outside reward_range ({low:g}, {high:g}); it "
                "is clipped for the belief. Give the allocator the range of your rewards.",
                stacklevel=3,
            )
        return replace(outcomes, reward_sum_B=inside, reward_sumsq_B=square / width**2)


def _by_policy_step(row_B: IntArray, outcomes: Outcomes) -> Iterator[tuple[IntArray, Outcomes]]:
    """Yield the groups of each policy step in order, those of one prompt merged."""
    for policy_step in np.unique(outcomes.policy_step_B):
        index = np.flatnonzero(outcomes.policy_step_B == policy_step)
        row, first, place = np.unique(row_B[index], return_index=True, return_inverse=True)
        part = outcomes.take(index)
        if len(row) == len(index):
            yield row_B[index], part
            continue

        def summed(values: NDArray[Any], place: IntArray = place) -> NDArray[Any]:
            return np.bincount(place, weights=values).astype(values.dtype)

        yield (
            row,
            Outcomes(
                prompt_B=part.prompt_B[first],
                num_requested_B=summed(part.num_requested_B),
                num_rollouts_B=summed(part.num_rollouts_B),
                reward_sum_B=summed(part.reward_sum_B),
                reward_sumsq_B=summed(part.reward_sumsq_B),
                num_tokens_B=summed(part.num_tokens_B),
                num_truncated_B=summed(part.num_truncated_B),
                step=part.step,
                policy_step_B=part.policy_step_B[first],
            ),
        )


def _part(state: dict[str, NDArray[Any]], owner: str) -> dict[str, NDArray[Any]]:
    return {
        name.removeprefix(f"{owner}."): array
        for name, array in state.items()
        if name.startswith(f"{owner}.")
    }
