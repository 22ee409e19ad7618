"""VIP as published, and as its released code allocates, each with a predictor of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from apportion import controls
from apportion.allocation import allocate
from apportion.allocator import RolloutAllocator
from apportion.embedded.peers.placing import placed
from apportion.embedding import hashed_ngrams
from apportion.predictor import VIP
from apportion.types import Forecast, Prompts
from apportion.validate import IntArray

if TYPE_CHECKING:
    from apportion.embedded.step import Step


class Vip:
    """Split the batch as VIP's theory says for Dr. GRPO, solved exactly.

    From 3 rollouts, the paper's least, to twice an even group (published code: 16 at 8 a prompt).
    The kernel is over features of the prompts given, or over hashed n-grams of their texts in place
    of MiniLM. Advantages are the loop's.

    Args:
        prompts: all prompts of the run, with features or texts; a step's outcomes teach all.

    Raises:
        InvalidInputError: prompts with neither features nor texts.

    Source: VIP, Nguyen et al., ICLR 2026, section 5.1 and Theorem 5.1.
    """

    def __init__(self, prompts: Prompts) -> None:
        self._belief = _belief_of(prompts)

    def __call__(self, step: Step) -> None:
        """Draw a step and learn from it."""
        _draw(step, self._belief, self._split)

    def _split(self, forecast: Forecast, budget: int, group: int) -> IntArray:
        return allocate(
            forecast, budget, variance="dr_grpo", lower=3, upper=2 * group
        ).num_rollouts_B


class VipCode:
    """Split the batch as the released allocator of VIP does.

    Published bounds are [4, 16], and nothing below 4, at 8 a prompt; scaled to [1/2, 2] even
    groups, at least 2 rollouts. The predictor is that of the paper: the released one differs
    between versions (prior mean -1 or -5, length scale 0.27 to 0.5, a window of steps).

    Args:
        prompts: all prompts of the run, with features or texts; a step's outcomes teach all.

    Raises:
        InvalidInputError: prompts with neither features nor texts.

    Source: the repository of VIP, see `apportion.controls.vip_code`.
    """

    def __init__(self, prompts: Prompts) -> None:
        self._belief = _belief_of(prompts)

    def __call__(self, step: Step) -> None:
        """Draw a step and learn from it."""
        _draw(step, self._belief, self._split)

    def _split(self, forecast: Forecast, budget: int, group: int) -> IntArray:
        least = min(max(2, group // 2), group)
        return controls.vip_code(forecast.mean_B, budget, lower=least, upper=2 * group, keep=least)


def _belief_of(prompts: Prompts) -> RolloutAllocator:
    """Return VIP's own predictor over all prompts."""
    if prompts.feature_BD is None and prompts.text_B is not None:
        prompts = replace(prompts, feature_BD=hashed_ngrams(prompts.text_B))
    belief = RolloutAllocator(VIP(), do_no_harm=False)
    belief.add(prompts)
    return belief


def _draw(
    step: Step, belief: RolloutAllocator, split: Callable[[Forecast, int, int], IntArray]
) -> None:
    """Split the even batch by VIP's predictions, draw it and learn from it."""
    size = step.prompts_per_step
    forecast = belief.forecast(step.prompts.take(np.arange(size)), step=step.number)
    num_B = split(forecast, step.budget, step.rollouts_per_prompt)
    step.draw(placed(len(step), slice(size), num_B))
    belief.observe(step.outcomes())
