"""The one stateful object: a table of prompts, a belief about each, a law and bounds."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import controls, validate
from apportion.allocation import VarianceLaw, allocate
from apportion.errors import InfeasibleBudgetError, InvalidInputError
from apportion.gain import KAPPA_RANGE, Coverage, Gain, Progress
from apportion.observing import are_two_values, by_policy_step, checked_range, rescaled
from apportion.predictor.base import Predictor
from apportion.predictor.skill import SkillMonitor
from apportion.saved_state import damaged, part_of, saved, saved_keys
from apportion.selection import select
from apportion.types import Allocation, Forecast, Outcomes, Prompts
from apportion.validate import IntArray

OBJECTIVES = ("variance", "progress", "coverage")
NO_DATA = "No outcome has been observed yet, so every prompt gets the same."
NO_SKILL = (
    "The forecast does not beat the global mean over the recent outcomes, "
    "so every prompt gets the same."
)
OUT_OF_RANGE = (
    "A group's mean reward was {mean:.12g}, outside reward_range ({low:.12g}, {high:.12g}), so "
    "every prompt gets the same. Give the allocator the range of your rewards."
)
OUTSIDE_WARNING = (
    "A group's mean reward is {mean:g}, outside reward_range ({low:g}, {high:g}); it is clipped "
    "for the belief. Give the allocator the range of your rewards."
)
NOT_TWO_VALUES_WARNING = (
    "A group has rewards other than the two ends of reward_range ({low:g}, {high:g}), but the "
    'objective "coverage" counts successes and failures; their mean is taken for the chance of a '
    'success. Choose "progress", which takes rewards of any value, or give the allocator the two '
    "values of your rewards for a range."
)
EXPLORATION = 0.1
"""Share of the budget for candidates not looked at for longest, unless another is asked for."""
_LEAST_GROUP = 2
_MOST_COUNTED = 2**62
_ROW_A_PROMPT = re.compile(r"_Q[A-Z]*$")


class RolloutAllocator:
    """Decides before each step how many rollouts each prompt gets, and learns from what came back.

    The same state and the same call give the same answer in every process.

    Args:
        predictor: belief about success, e.g. `apportion.predictor.FilterBank()`.
        variance: the law that is minimised: a name or ``law(forecast, num_rollouts_B)``.
        lower: least rollouts a prompt of the batch gets.
        upper: most rollouts a prompt gets; the whole budget if None.
        reward_range: lowest and highest possible reward; beliefs are kept on [0, 1].
        objective: "variance" gives every prompt of the batch its share, such that the gradient is
            least noisy. "progress" and "coverage" take the prompts for candidates, of which some
            get nothing, and look for the largest gain, see `apportion.gain`; "coverage" is for 0/1
            rewards and warns of others.
        exploration: share of the budget that goes to the candidates that were not looked at for
            longest, `lower` rollouts each, whatever they promise. With E of them a step, a prompt
            is looked at the Q/E-th time (rounded up) that it is a candidate at the latest, Q the
            prompts known, if each step is observed before the next is decided. That holds while the
            forecast decides: the even split of `do_no_harm` follows your own order of batches.
        kappa: noise of a rollout's gradient over its signal, for "progress"; kept in [0.3, 3].
        do_no_harm: split evenly while there is no data, while the forecasts score no better than
            the global mean, or once a group's mean reward lay outside `reward_range`;
            `Allocation.reason` then says so. An offline prior counts as data: a single prompt that
            has one lets the forecast decide before the first outcome.

    Raises:
        InvalidInputError: `reward_range` is not two finite numbers, the first below the second.

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
        objective: str = "variance",
        exploration: float = EXPLORATION,
        kappa: float = 1.0,
    ) -> None:
        self.predictor = predictor
        self.variance = variance
        self.lower = lower
        self.upper = upper
        self.reward_range = checked_range(reward_range)
        self.do_no_harm = do_no_harm
        self.objective = validate.choice("objective", objective, OBJECTIVES)
        if self.chooses and validate.whole_number("lower", lower, at_least=0) < _LEAST_GROUP:
            raise InvalidInputError(
                f"lower is {lower}, but where prompts are chosen a group has at least "
                f"{_LEAST_GROUP} rollouts: fewer have no advantage. Raise it."
            )
        self.exploration = validate.number("exploration", exploration)
        if not 0.0 <= self.exploration < 1.0:
            raise InvalidInputError(
                f"exploration is {exploration:g}, but must be a share of the budget in [0, 1)."
            )
        self.kappa = float(np.clip(validate.number("kappa", kappa), *KAPPA_RANGE))
        self.step = 0
        self.num_ignored = 0
        self._skill = SkillMonitor()
        self._row_of_id: dict[str, int] = {}
        self._last_step_Q = np.zeros(0, dtype=np.int64)
        self._num_observed = 0
        self._has_prior = False
        self._mean_outside: float | None = None
        self._has_warned = False

    def __len__(self) -> int:
        """Return Q, the number of prompts known."""
        return len(self._row_of_id)

    @property
    def chooses(self) -> bool:
        """Whether prompts are candidates, of which some get nothing."""
        return self.objective != "variance"

    @property
    def share_touched(self) -> float:
        """Share of the known prompts that were ever sampled; 0 if none is known."""
        return float((self._last_step_Q >= 0).mean()) if len(self) else 0.0

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
        self,
        prompts: Prompts,
        budget: int,
        *,
        step: int | None = None,
        upper: int | None = None,
        prompts_per_step: int | None = None,
    ) -> Allocation:
        """Split `budget` rollouts over the prompts, exactly.

        Args:
            prompts: the batch, or the candidates to choose from; new ones are entered into the
                table.
            budget: rollouts of this step, in all.
            step: policy step of the decision; the one after the last observed if None.
            upper: most rollouts a prompt gets in this call; the allocator's own if None.
            prompts_per_step: how many prompts an even split takes: the first ones, of at least as
                many. If None, all; of candidates, as many as can have `lower` each.

        Returns:
            The allocation; its `reason` is empty if the forecast decided. Prompts that were not
            chosen have 0 rollouts. Its `uniform_gain` is NaN if the even split does not fit the
            bounds, which is no mistake without `do_no_harm`.

        Raises:
            InvalidInputError: `prompts_per_step` is no whole number of 1 or more, above the number
                of prompts, or below it for the objective "variance".
            InfeasibleBudgetError: no whole numbers within the bounds sum to the budget; with
                `do_no_harm` the even split must exist too, as any step may fall back to it.
        """
        at = self.step if step is None else step
        row_B = self._rows(prompts)
        forecast = self.predictor.forecast(row_B, at)
        upper = self.upper if upper is None else upper
        num_even = prompts_per_step
        if num_even is None:
            fit = budget // max(self.lower, 1) if self.chooses else len(prompts)
            num_even = max(min(len(prompts), fit), 1)
        num_even = validate.whole_number("prompts_per_step", num_even, at_least=1)
        if prompts_per_step is not None and num_even > len(prompts):
            raise InvalidInputError(
                f"prompts_per_step is {num_even}, but there are {len(prompts)} prompts to split "
                "among. Lower it to at most that, give more prompts, or leave it out."
            )
        if not self.chooses and num_even < len(prompts):
            raise InvalidInputError(
                f"There are {len(prompts)} candidates for prompts_per_step {num_even}, but the "
                'objective "variance" gives every prompt its share. Choose "coverage" or '
                '"progress", or give the batch alone.'
            )
        reason = self._reason_for_uniform()
        if self.chooses:
            return self._chosen(forecast, row_B, budget, num_even, upper, reason)
        chosen = allocate(forecast, budget, variance=self.variance, lower=self.lower, upper=upper)
        if not reason:
            return chosen
        even_B = controls.uniform(forecast, budget, lower=self.lower, upper=upper)
        return replace(
            chosen,
            num_rollouts_B=even_B,
            relaxed_B=even_B.astype(np.float64),
            price=0.0,
            variance=chosen.uniform_variance,
            reason=reason,
        )

    def _chosen(
        self,
        forecast: Forecast,
        row_B: IntArray,
        budget: int,
        num_even: int,
        upper: int | None,
        reason: str,
    ) -> Allocation:
        """Choose among candidates, or take the first ones evenly if there is a reason to."""
        gain: Gain = (
            Progress.of(forecast, self.kappa)
            if self.objective == "progress"
            else Coverage(forecast)
        )
        even_B, uniform_gain = np.zeros(len(forecast), dtype=np.int64), math.nan
        first = np.arange(min(num_even, len(forecast)))
        try:
            even_B[first] = controls.uniform(
                forecast.take(first), budget, lower=self.lower, upper=upper
            )
            uniform_gain = float(gain.value(even_B).sum())
        except InfeasibleBudgetError:
            if self.do_no_harm:
                raise
        num_B, price, bound = even_B, 0.0, math.nan
        if not reason:
            selection = select(
                gain,
                budget,
                size=len(forecast),
                lower=self.lower,
                upper=upper,
                required_B=self._stalest(row_B, budget),
            )
            num_B, price, bound = selection.num_rollouts_B, selection.price, selection.bound
        return Allocation(
            num_rollouts_B=num_B,
            relaxed_B=num_B.astype(np.float64),
            price=price,
            variance=math.nan,
            uniform_variance=math.nan,
            forecast=forecast,
            reason=reason,
            gain=float(gain.value(num_B).sum()),
            uniform_gain=uniform_gain,
            gain_bound=bound,
        )

    def _stalest(self, row_B: IntArray, budget: int) -> NDArray[np.bool_]:
        """Mark the candidates not looked at for longest, as many as exploration pays for."""
        num = min(int(self.exploration * budget) // max(self.lower, 1), len(row_B))
        is_stale_B = np.zeros(len(row_B), dtype=bool)
        is_stale_B[np.argsort(self._last_step_Q[row_B], kind="stable")[:num]] = True
        return is_stale_B

    def observe(self, outcomes: Outcomes) -> None:
        """Learn from outcomes: late, partial, repeated, unknown and NaN ones are legal.

        Groups of a prompt that was never entered and groups without a scored reward teach nothing;
        they are counted in `num_ignored`. Late outcomes weigh less by their age in policy steps.
        """
        row_B = np.array([self._row_of_id.get(key, -1) for key in outcomes.prompt_B.tolist()])
        usable_B = (row_B >= 0) & (outcomes.num_rollouts_B > 0)
        usable_B &= np.isfinite(outcomes.reward_sum_B) & np.isfinite(outcomes.reward_sumsq_B)
        was_sampled_B = outcomes.num_requested_B > 0
        self.num_ignored += int((~usable_B & was_sampled_B).sum())
        index_B = np.flatnonzero(usable_B)
        looked_at = row_B[(row_B >= 0) & was_sampled_B]
        np.maximum.at(self._last_step_Q, looked_at, outcomes.step)
        for row, group in by_policy_step(row_B[index_B], self._rescaled(outcomes.take(index_B))):
            before = self.predictor.forecast(row, int(group.policy_step_B[0]))
            count = group.num_rollouts_B.astype(np.float64)
            self._skill.observe(before.mean_B, group.reward_sum_B, count)
            self.predictor.update(row, group)
            self._num_observed += int(group.num_rollouts_B.sum())
        self.step = max(self.step, outcomes.step + 1)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the whole state as arrays by name (constructor arguments are not part)."""
        encoded = [key.encode(errors="surrogatepass") for key in self._row_of_id]
        outside = [] if self._mean_outside is None else [self._mean_outside]
        state: dict[str, NDArray[Any]] = {
            "ids": np.frombuffer(b"".join(encoded), dtype=np.uint8).copy(),
            "id_lengths": np.array([len(key) for key in encoded], dtype=np.int64),
            "counters": np.array(
                [self.step, self.num_ignored, self._num_observed, int(self._has_prior)],
                dtype=np.int64,
            ),
            "mean_outside_range": np.array(outside, dtype=np.float64),
            "last_step": self._last_step_Q.copy(),
        }
        for owner, part in (("skill", self._skill), ("predictor", self.predictor)):
            state |= {f"{owner}.{name}": array for name, array in part.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` returned, bit for bit.

        Raises:
            StateError: something is missing, damaged or belongs to another predictor; the allocator
                is then as it was.
        """
        keys = saved_keys(state)
        counters = saved(state, "counters", np.int64, size=4)
        if (counters < 0).any() or (counters > _MOST_COUNTED).any():
            raise damaged(f"counters hold {counters.tolist()}")
        # States of before this array and `last_step` were kept lack them.
        outside = np.zeros(0)
        if "mean_outside_range" in state:
            outside = saved(state, "mean_outside_range", np.float64)
        if len(outside) > 1 or not np.isfinite(outside).all():
            raise damaged(f"mean_outside_range holds {outside.tolist()}")
        last_step_Q = np.full(len(keys), -1, dtype=np.int64)
        if "last_step" in state:
            last_step_Q = saved(state, "last_step", np.int64, size=len(keys)).copy()
        if (last_step_Q < -1).any():
            raise damaged(f"last_step holds {last_step_Q.min()}")
        skill = SkillMonitor()
        skill.load_state_dict(part_of(state, "skill"))
        belief = part_of(state, "predictor")
        for name, array in belief.items():
            if _ROW_A_PROMPT.search(name) and np.shape(array)[:1] != (len(keys),):
                raise damaged(
                    f"predictor.{name} has shape {np.shape(array)} for {len(keys)} prompts"
                )
        self.predictor.load_state_dict(belief)  # the last that can fail
        self._skill = skill
        self._row_of_id = {key: row for row, key in enumerate(keys)}
        self._last_step_Q = last_step_Q
        self.step, self.num_ignored, self._num_observed = counters[:3].tolist()
        self._has_prior = bool(counters[3])
        self._mean_outside = float(outside[0]) if len(outside) else None

    def _reason_for_uniform(self) -> str:
        if not self.do_no_harm:
            return ""
        if self._mean_outside is not None:
            low, high = self.reward_range
            return OUT_OF_RANGE.format(mean=self._mean_outside, low=low, high=high)
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
            never_Q = np.full(len(order), -1, dtype=np.int64)
            self._last_step_Q = np.concatenate([self._last_step_Q, never_Q])
            if fresh.prior_count_B is not None:
                self._has_prior |= bool((fresh.prior_count_B > 0).any())
        return np.array([self._row_of_id[key] for key in keys], dtype=np.int64)

    def _rescaled(self, outcomes: Outcomes) -> Outcomes:
        """Return rewards on [0, 1]; warn, once each, of what belief or objective cannot take."""
        (low, high), (inside, outside) = self.reward_range, rescaled(outcomes, self.reward_range)
        if outside is not None:
            if self._mean_outside is None:
                self._mean_outside = outside
                warnings.warn(
                    OUTSIDE_WARNING.format(mean=outside, low=low, high=high), stacklevel=3
                )
        elif self.objective == "coverage" and not self._has_warned and not are_two_values(inside):
            self._has_warned = True
            warnings.warn(NOT_TWO_VALUES_WARNING.format(low=low, high=high), stacklevel=3)
        return inside
