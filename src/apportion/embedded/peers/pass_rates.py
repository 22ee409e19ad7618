"""Peers that go by each prompt's own earlier outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from apportion import controls
from apportion.controls import BetaPosterior
from apportion.controls.mopps import DECAY as MOPPS_DECAY
from apportion.controls.mopps import PRIOR as MOPPS_PRIOR
from apportion.controls.reinforce_ada import DECAY as ADA_DECAY
from apportion.controls.reinforce_ada import PRIOR as ADA_PRIOR
from apportion.embedded.peers.placing import placed

if TYPE_CHECKING:
    from apportion.embedded.step import Step


class ReinforceAda:
    """Give the batch rollouts by ``1 / sqrt(p)``, p a moving average of each prompt's outcomes.

    Prior Beta(1, 16) and decay 0.9 at each visit as in the code. Published least number is 1; here
    it is 2, as one rollout has no leave-one-out advantage. The other half of the hybrid strategy,
    advantages times ``1 / sqrt(mean reward)``, is not applied: the loop weighs prompts the same.

    Source: Reinforce-Ada-Est with Ada-EMA, Xiong et al., arXiv:2510.04996v3, Algorithm 1.
    """

    def __init__(self) -> None:
        self._beliefs = _Beliefs(ADA_PRIOR, ADA_DECAY)

    def __call__(self, step: Step) -> None:
        """Draw a step and learn from it."""
        size = step.prompts_per_step
        keys = step.prompts.id_B[:size].tolist()
        mean_B = self._beliefs.of(keys).mean_B
        num_B = controls.reinforce_ada(mean_B, step.budget, lower=min(2, step.rollouts_per_prompt))
        correct_B = step.draw(placed(len(step), slice(size), num_B))[:size]
        self._beliefs.learn(keys, correct_B, num_B)


class Mopps:
    """Give a full group to the candidates whose success, drawn from the posterior, is nearest 1/2.

    Prior Beta(1, 1) and no forgetting, as published for MATH. There 16 candidates stand for each
    prompt taken; here as many as the loop offers.

    Source: MoPPS, Qu et al., arXiv:2507.04632.
    """

    def __init__(self) -> None:
        self._beliefs = _Beliefs(MOPPS_PRIOR, MOPPS_DECAY)

    def __call__(self, step: Step) -> None:
        """Draw a step and learn from it."""
        belief = self._beliefs.of(step.prompts.id_B.tolist())
        taken = np.flatnonzero(controls.mopps(belief, step.prompts_per_step, step.rng))
        group = step.rollouts_per_prompt
        correct_B = step.draw(placed(len(step), taken, group))
        keys = step.prompts.id_B[taken].tolist()
        self._beliefs.learn(keys, correct_B[taken], np.full(len(taken), group))


class Knapsack:
    """Give the batch rollouts by the knapsack, each success rate measured at earlier visits.

    The rate is over the latest groups with at least two even groups' worth of rollouts (published:
    16 at 8 a prompt), or all there are. Prompts not seen before get an even group (published: those
    with fewer than 8 rewards at 8 a prompt); the others share the rest, from 2 to 16 even groups'
    worth each (published: 2 to 128).

    Source: Knapsack RL, Li et al., arXiv:2509.25849, and its code.
    """

    def __init__(self) -> None:
        self._groups: dict[str, list[tuple[int, int]]] = {}

    def __call__(self, step: Step) -> None:
        """Draw a step and learn from it."""
        size, group = step.prompts_per_step, step.rollouts_per_prompt
        keys = step.prompts.id_B[:size].tolist()
        is_known_B = np.array([key in self._groups for key in keys])
        num_B = np.full(size, group)
        if is_known_B.any():
            num_B[is_known_B] = controls.knapsack(
                [self._rate(key, 2 * group) for key in keys if key in self._groups],
                group * int(is_known_B.sum()),
                lower=min(2, group),
                upper=16 * group,
            )
        correct_B = step.draw(placed(len(step), slice(size), num_B))[:size]
        for key, correct, num in zip(keys, correct_B.tolist(), num_B.tolist(), strict=True):
            self._groups.setdefault(key, []).append((correct, num))

    def _rate(self, key: str, enough: int) -> float:
        correct, total = 0, 0
        for one_correct, one_total in reversed(self._groups[key]):
            correct, total = correct + one_correct, total + one_total
            if total >= enough:
                break
        return correct / total


class _Beliefs:
    """Beta counts by the key of a prompt."""

    def __init__(self, prior: tuple[float, float], decay: float) -> None:
        self._prior, self._decay = prior, decay
        self._counts: dict[str, tuple[float, float]] = {}

    def of(self, keys: Sequence[str]) -> BetaPosterior:
        """Return what is believed, the prior of prompts not seen."""
        count_B2 = np.array([self._counts.get(key, self._prior) for key in keys])
        return BetaPosterior(count_B2[:, 0], count_B2[:, 1])

    def learn(
        self, keys: Sequence[str], num_correct_B: ArrayLike, num_rollouts_B: ArrayLike
    ) -> None:
        """Count the outcomes of a visit, forgetting part of the earlier ones."""
        belief = self.of(keys).update(
            num_correct_B, num_rollouts_B, prior=self._prior, decay=self._decay
        )
        counts = zip(belief.alpha_B.tolist(), belief.beta_B.tolist(), strict=True)
        self._counts.update(zip(keys, counts, strict=True))
