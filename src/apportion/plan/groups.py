"""Parts of a sweep in which n alone is compared: one allocator and one B_p, or one batch.

Over all runs the frontier takes the best of everything, so n* may move because B_p or the allocator
does. Within one B_p and allocator it cannot. At a fixed batch ``B = n B_p`` every step costs the
same and every rule gives it the same learning rate, so n is traded for prompts alone: n*(M) over
steps ``M = C / B``, and ``B_p*(M) = B / n*(M)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from apportion.plan.analysis import Analysis, Fits, analysis_of
from apportion.plan.runs import Cell
from apportion.plan.scaling_law import ScalingLaw

MOST_DRAWS = 50
"""Resampled sets of runs behind the intervals of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Settings that are compared among themselves.

    Attributes:
        numbers: their positions among all settings.
        analysis: of them alone.
    """

    numbers: tuple[int, ...]
    analysis: Analysis

    @property
    def first(self) -> Cell:
        """One of them, which tells what they share."""
        return self.analysis.cells[0]


def groups_of(fits: Fits) -> list[Group]:
    """Return the groups of one B_p and one allocator; none if all settings share both.

    Those with one n are left out.

    Source: IsoCompute Playbook, section 4.1: n*(C) at a fixed B_p.
    """
    keys = {_prompts_and_allocator(cell) for cell in fits.cells}
    return _grouped(fits, _prompts_and_allocator) if len(keys) > 1 else []


def fixed_batches_of(fits: Fits) -> list[Group]:
    """Return the groups of one batch and one allocator in which n is traded for prompts.

    Source: IsoCompute Playbook, section 4.2: n*(M) and B_p*(M) at a fixed batch.
    """
    return _grouped(fits, lambda cell: (cell.batch, cell.allocator))


def in_steps(law: ScalingLaw, batch: int) -> ScalingLaw:
    """Return a law of compute as one of steps at a fixed batch: ``log10 M0 = log10 C0 - log10 B``.

    The Playbook's own form is linear in M; in the logarithm of M it is the law of 4.1 again.

    Args:
        law: sigmoid law of n*(C).
        batch: B, rollouts of a step.

    >>> from apportion.plan.scaling_law import sigmoid_law
    >>> law = sigmoid_law(6.0, 4.5, 6.0, 3.0)
    >>> float(in_steps(law, 8192)(100)) == float(law(100 * 8192))
    True
    """
    shift = float(np.log10(batch))
    parameters = tuple(
        replace(
            one,
            name="log10_M0",
            value=one.value - shift,
            low=one.low - shift,
            high=one.high - shift,
        )
        if one.name == "log10_C0"
        else one
        for one in law.parameters
    )
    return replace(law, parameters=parameters)


def _grouped(fits: Fits, key_of: Callable[[Cell], tuple[int, str]]) -> list[Group]:
    """Return the groups with two different n or more."""
    numbers_of: dict[tuple[int, str], list[int]] = {}
    for number, cell in enumerate(fits.cells):
        numbers_of.setdefault(key_of(cell), []).append(number)
    return [
        Group(numbers=tuple(numbers), analysis=analysis_of(fits.part(numbers, MOST_DRAWS)))
        for _, numbers in sorted(numbers_of.items())
        if len({fits.cells[s].rollouts_per_prompt for s in numbers}) > 1
    ]


def _prompts_and_allocator(cell: Cell) -> tuple[int, str]:
    return cell.prompts_per_step, cell.allocator
