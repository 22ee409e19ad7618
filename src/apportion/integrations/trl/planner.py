"""What the first process does around each batch: decide, learn, keep the books; no tensors here."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from apportion.allocator import RolloutAllocator
from apportion.errors import InvalidInputError
from apportion.run_log import RunLog, holds_a_run
from apportion.types import Allocation, Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray

from .rows import Row, prompts_of_rows

logger = logging.getLogger(__name__)

Values = dict[str, float]


class RolloutPlanner:
    """Asks the allocator, feeds it, and writes the run log.

    Args:
        args: a configuration with the fields of `AdaptiveRolloutConfig`.
        allocator: decides; None in mode ``"uniform"``.
        embed: makes features of prompts that have none.

    Attributes:
        sampled: the prompts of the last batch, those that rollouts were given to.
    """

    def __init__(
        self, args: Any, allocator: RolloutAllocator | None, embed: Any | None = None
    ) -> None:
        self.args = args
        self.allocator = allocator
        self.embed = embed
        self.run_log: RunLog | None = None
        self.last_values: Values = {}
        self.sampled: Prompts | None = None
        self._allocation: Allocation | None = None
        self._forecast: Forecast | None = None
        self._seconds = 0.0
        self._reason = ""
        self._unwritten: tuple[int, list[Values]] | None = None

    def read(self, rows: Sequence[Row]) -> Prompts:
        """Read prompts from rows of the data set, with features if there is an embedding."""
        prompts = prompts_of_rows(
            rows,
            key_column=self.args.prompt_key_column,
            prior_mean_column=self.args.prior_mean_column,
            prior_count_column=self.args.prior_count_column,
        )
        if self.embed is None or prompts.text_B is None:
            return prompts
        return Prompts(
            id_B=prompts.id_B,
            text_B=prompts.text_B,
            feature_BD=self.embed.transform(prompts.text_B),
            prior_mean_B=prompts.prior_mean_B,
            prior_count_B=prompts.prior_count_B,
        )

    def decide(
        self, heads: Sequence[Row], budget: int, step: int, *, extra: Sequence[Row] = ()
    ) -> list[int]:
        """Return how many rollouts each prompt gets; they sum to the budget.

        Args:
            heads: one row for each prompt of an even batch.
            budget: rollouts of the batch.
            step: updates of the weights so far.
            extra: one row for each further candidate of an allocator that chooses.

        Returns:
            The rollouts of each head, then of each further candidate.

        Raises:
            InvalidInputError: the allocator's answer does not sum to the budget.
        """
        started = time.perf_counter()
        prompts, self._allocation, self._forecast = self.read([*heads, *extra]), None, None
        counts = [budget // len(heads)] * len(heads) + [0] * len(extra)
        if self.allocator is not None:
            self._allocation = self._asked(self.allocator, prompts, budget, step, len(heads))
            self._tell(self._allocation.reason)
            if self.args.allocator_mode == "adaptive":
                counts = [int(count) for count in self._allocation.num_rollouts_B]
        is_sampled_B = np.array(counts) > 0
        self.sampled = prompts.take(is_sampled_B)
        if self._allocation is not None and self._allocation.forecast is not None:
            self._forecast = self._allocation.forecast.take(is_sampled_B)
        self._seconds = time.perf_counter() - started
        return counts

    def _asked(
        self, allocator: Any, prompts: Prompts, budget: int, step: int, num_even: int
    ) -> Allocation:
        """Ask the allocator, and check its answer."""
        chooses = getattr(allocator, "chooses", False)
        options = {"prompts_per_step": num_even} if chooses else {}
        allocation: Allocation = allocator.allocate(prompts, budget, step=step, **options)
        counts, least = allocation.num_rollouts_B.tolist(), 0 if chooses else 1
        if len(counts) != len(prompts) or sum(counts) != budget or min(counts) < least:
            raise InvalidInputError(
                f"The allocator gave {counts} to {len(prompts)} prompts, but each must get at "
                f"least {least} and all together {budget}."
            )
        return allocation

    def learn(
        self,
        reward_N: FloatArray,
        group_N: IntArray,
        *,
        num_tokens_N: IntArray,
        truncated_N: IntArray,
        step: int,
    ) -> Values:
        """Hand what came back to the allocator and the run log.

        Args:
            reward_N: one reward a rollout; NaN where it was not scored.
            group_N: position of each rollout's prompt among those sampled.
            num_tokens_N: completion tokens.
            truncated_N: 1 where the length limit was hit.
            step: updates of the weights that sampled them.

        Returns:
            What to log under ``rollouts/``.
        """
        if self.sampled is None:
            raise RuntimeError("learn follows decide")
        outcomes = Outcomes.of_rewards(
            self.sampled.id_B,
            reward_N,
            group_N,
            step=step,
            num_tokens_N=num_tokens_N,
            truncated_N=truncated_N,
        )
        started = time.perf_counter()
        if self.allocator is not None:
            self.allocator.observe(outcomes)
        self._seconds += time.perf_counter() - started
        values = measures(outcomes, reward_N, group_N)
        if self._allocation is not None and self.allocator is not None:
            shadow = self.args.allocator_mode == "shadow"
            reward_range = getattr(self.allocator, "reward_range", (0.0, 1.0))
            values |= decision_measures(self._allocation, shadow=shadow)
            values |= forecast_error(self._forecast, outcomes, reward_range)
            if hasattr(self.allocator, "share_touched"):
                values["share_touched"] = float(self.allocator.share_touched)
        values["allocation_seconds"] = self._seconds
        self.last_values = values
        if self.run_log is not None:
            self.run_log.log_groups(outcomes, self._forecast)
            self.run_log.log_prompts(self.sampled)
            self._write_later(step, values)
        return values

    def check_run_folder(self) -> None:
        """Raise if a run from the start would find another one in its folder.

        Raises:
            RunFolderError: the folder holds a run.
        """
        folder = self.args.rollout_log_dir
        if folder is None or self.run_log is not None:
            return
        if os.path.exists(os.path.join(folder, "run.json")):
            raise holds_a_run(folder)

    def open_run_log(self, config: dict[str, Any], step: int) -> None:
        """Open the run log on first use, continuing where `step` updates have been made."""
        if self.args.rollout_log_dir is None or self.run_log is not None:
            return
        self.run_log = RunLog.create(
            self.args.rollout_log_dir, config, resume_step=step if step > 0 else None
        )

    def checkpoint(self) -> None:
        """Make the run log durable."""
        if self.run_log is not None:
            self._write()
            self.run_log.checkpoint()

    def close(self) -> None:
        """Finish the run log."""
        if self.run_log is not None:
            self._write()
            self.run_log.close()
            self.run_log = None

    def _write_later(self, step: int, values: Values) -> None:
        # Several batches may be generated within one step; the log has one line a step.
        if self._unwritten is not None and self._unwritten[0] != step:
            self._write()
        if self._unwritten is None:
            self._unwritten = (step, [])
        self._unwritten[1].append(values)

    def _write(self) -> None:
        if self._unwritten is None or self.run_log is None:
            return
        step, parts = self._unwritten
        names = dict.fromkeys(name for part in parts for name in part)
        line = {name: float(np.mean([p[name] for p in parts if name in p])) for name in names}
        self.run_log.log_step(step, line)
        self._unwritten = None

    def _tell(self, reason: str) -> None:
        if reason != self._reason:
            logger.info(reason or "The forecast decides how many rollouts each prompt gets.")
        self._reason = reason


def measures(outcomes: Outcomes, reward_N: FloatArray, group_N: IntArray) -> Values:
    """Describe a batch: what every prompt counts the same in, and how the groups were.

    >>> out = Outcomes.of_rewards(["a", "b"], [1.0, 1.0, 0.0, 1.0], [0, 0, 1, 1], step=0)
    >>> values = measures(out, np.array([1.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1]))
    >>> values["reward_prompt_mean"], values["frac_groups_without_signal"]
    (0.75, 0.5)
    """
    size_B, scored_B = outcomes.num_requested_B, outcomes.num_rollouts_B
    least_B, most_B = np.full(len(outcomes), np.inf), np.full(len(outcomes), -np.inf)
    known_N = np.isfinite(reward_N)
    np.minimum.at(least_B, group_N[known_N], reward_N[known_N])
    np.maximum.at(most_B, group_N[known_N], reward_N[known_N])
    mean_B = outcomes.reward_sum_B[scored_B > 0] / scored_B[scored_B > 0]
    return {
        "reward_prompt_mean": float(mean_B.mean()) if len(mean_B) else math.nan,
        "num_prompts": float(len(outcomes)),
        "num_rollouts": float(size_B.sum()),
        "num_scored": float(scored_B.sum()),
        "group_size_min": float(size_B.min()),
        "group_size_max": float(size_B.max()),
        "group_size_std": float(size_B.std()),
        "frac_groups_without_signal": float(np.mean(~(most_B > least_B))),
    }


def decision_measures(allocation: Allocation, *, shadow: bool) -> Values:
    """Describe a decision; what a shadow would have done goes apart."""
    prefix = "shadow_" if shadow else ""
    chooses = np.isfinite(allocation.gain)
    ratio = allocation.gain_ratio if chooses else allocation.variance_ratio
    values = {
        "fallback": float(bool(allocation.reason)),
        f"{prefix}{'gain' if chooses else 'variance'}_ratio": float(ratio),
    }
    if chooses:
        values["num_candidates"] = float(len(allocation.num_rollouts_B))
    if shadow:
        size_B = allocation.num_rollouts_B[allocation.num_rollouts_B > 0]
        values["shadow_num_prompts"] = float(len(size_B))
        values["shadow_group_size_min"] = float(size_B.min())
        values["shadow_group_size_max"] = float(size_B.max())
        values["shadow_group_size_std"] = float(size_B.std())
    return values


def forecast_error(
    forecast: Forecast | None, outcomes: Outcomes, reward_range: tuple[float, float]
) -> Values:
    """Return how far the forecasts were from the observed means, which are mapped to [0, 1]."""
    scored_B = outcomes.num_rollouts_B > 0
    if forecast is None or not scored_B.any():
        return {}
    low, high = reward_range
    mean_B = outcomes.reward_sum_B[scored_B] / outcomes.num_rollouts_B[scored_B]
    seen_B = np.clip((mean_B - low) / (high - low), 0.0, 1.0)
    return {"forecast_mae": float(np.abs(forecast.mean_B[scored_B] - seen_B).mean())}
