"""Pilot-Commit as a rule of the plain loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from apportion import bounds, controls
from apportion.embedded.peers.placing import placed
from apportion.validate import IntArray

if TYPE_CHECKING:
    from apportion.embedded.step import Step


class PilotCommit:
    """Pilot with half the budget, commit the rest evenly to the prompts in between.

    A pilot is a quarter of an even group (published: 16 of 64, 32 of 128), at least 2. Published
    steps pilot three candidates for each prompt trained on, and so spend half of all rollouts on
    pilots; here half the budget pilots as many candidates as it pays for, in order. Prompts with
    every pilot rollout right are evicted for good, those outside [0.25, 0.75] wait for their next
    turn. There is no buffer between steps: commits follow in the same step, on the same policy. If
    no prompt is in between, the rest goes to the deferred ones, or to the solved ones if all are.

    Source: Kim et al., arXiv:2605.26606, with the thresholds of the released configuration.
    """

    def __init__(self) -> None:
        self._evicted: set[str] = set()

    def __call__(self, step: Step) -> IntArray:
        """Draw the pilots and return the commits."""
        group = step.rollouts_per_prompt
        pilot = min(max(2, group // 4), group)
        at = self._unsolved(step)[: max(1, step.budget // 2 // pilot)]
        correct_A = step.draw(placed(len(step), at, pilot))[at]
        triage = controls.pilot_commit(correct_A, np.full(len(at), pilot))
        self._evicted.update(step.prompts.id_B[at[triage.is_evicted_B]].tolist())
        for is_chosen_A in (triage.is_kept_B, triage.is_deferred_B, triage.is_evicted_B):
            if is_chosen_A.any():
                break
        chosen = at[is_chosen_A]
        is_kept_B = np.zeros(len(step), dtype=bool)
        is_kept_B[chosen] = True
        step.keep(is_kept_B)
        rest = step.budget - pilot * len(at)
        none_B = np.zeros(len(chosen), dtype=np.int64)
        return placed(len(step), chosen, bounds.even_split(rest, none_B, none_B + rest))

    def _unsolved(self, step: Step) -> IntArray:
        """Return the candidates that were not evicted; all if there are none left."""
        is_open_B = np.array([key not in self._evicted for key in step.prompts.id_B.tolist()])
        return np.flatnonzero(is_open_B | ~is_open_B.any())
