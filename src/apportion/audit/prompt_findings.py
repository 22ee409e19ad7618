"""Prompts to look at: always right, always wrong, forgotten.

Axes: G groups, Q prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from apportion.audit.forgetting import forgotten
from apportion.audit.shared_words import SharedWords, shared_words
from apportion.audit.waste import ALL_RIGHT, ALL_WRONG, NOT_SCORED
from apportion.recording import GroupTable
from apportion.validate import FloatArray, IntArray

_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One prompt of a list.

    Attributes:
        prompt: its key.
        text: its first 200 characters, without the words that all prompts begin and end with; None
            where the record does not tell.
        num_visits: groups of it.
        num_rollouts: rollouts spent on it.
    """

    prompt: str
    text: str | None
    num_visits: int
    num_rollouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenRow(PromptRow):
    """A prompt that got worse.

    Attributes:
        early: success rate in the first third of its visits.
        late: success rate in the last third.
        p_value: chance of such a fall if nothing had changed.
    """

    early: float
    late: float
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Extreme:
    """Prompts whose every scored rollout was right, or wrong.

    Attributes:
        num_prompts: how many.
        num_revisited: of these, visited at least twice.
        median_visits: their visits, in the middle; 0 if there are none.
        num_rollouts: rollouts spent on them.
        listed: those with the most rollouts.
    """

    num_prompts: int
    num_revisited: int
    median_visits: float
    num_rollouts: int
    listed: tuple[PromptRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Prompts that were solved significantly less often late than early.

    Attributes:
        num_prompts: how many, some 5% of them by chance.
        num_tested: prompts whose counts could have shown a fall.
        num_revisited: prompts of two visits or more.
        num_lost_tenth: of these, rates that fell by more than 0.1, chance included.
        listed: the surest.
    """

    num_prompts: int
    num_tested: int
    num_revisited: int
    num_lost_tenth: int
    listed: tuple[ForgottenRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFindings:
    """What stands out among the prompts; `forgotten` is None without success counts."""

    always_right: Extreme
    always_wrong: Extreme
    forgotten: Forgotten | None


def prompt_findings(
    groups: GroupTable, kind_G: IntArray, num_success_G: IntArray | None, *, num_listed: int
) -> PromptFindings:
    """Find prompts that never varied, and prompts that got worse.

    Args:
        groups: of the run.
        kind_G: of each group, from `waste.kinds`.
        num_success_G: successes of each group; None where rewards are not of two values.
        num_listed: most prompts of a list.
    """
    size = len(groups.id_Q)
    visits_Q = np.bincount(groups.prompt_G, minlength=size).astype(np.int64)
    spent_Q = np.bincount(groups.prompt_G, weights=groups.num_requested_G, minlength=size)
    shared = shared_words(groups.text_Q or ())
    rows = _Rows(groups, visits_Q, spent_Q.astype(np.int64), shared)
    return PromptFindings(
        always_right=rows.extreme(kind_G, ALL_RIGHT, num_listed),
        always_wrong=rows.extreme(kind_G, ALL_WRONG, num_listed),
        forgotten=None if num_success_G is None else rows.forgotten(num_success_G, num_listed),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    groups: GroupTable
    visits_Q: IntArray
    spent_Q: IntArray
    shared: SharedWords

    def extreme(self, kind_G: IntArray, kind: int, num_listed: int) -> Extreme:
        size, prompt_G = len(self.visits_Q), self.groups.prompt_G
        scored_Q = np.bincount(prompt_G, weights=kind_G != NOT_SCORED, minlength=size)
        such_Q = np.bincount(prompt_G, weights=kind_G == kind, minlength=size)
        found = np.flatnonzero((such_Q == scored_Q) & (scored_Q > 0))
        found = found[np.argsort(-self.spent_Q[found], kind="stable")]
        visits = self.visits_Q[found]
        return Extreme(
            num_prompts=len(found),
            num_revisited=int((visits > 1).sum()),
            median_visits=float(np.median(visits)) if len(found) else 0.0,
            num_rollouts=int(self.spent_Q[found].sum()),
            listed=tuple(PromptRow(**self.row(int(at))) for at in found[:num_listed]),
        )

    def forgotten(self, num_success_G: IntArray, num_listed: int) -> Forgotten:
        found = forgotten(self.groups.prompt_G, num_success_G, self.groups.num_rollouts_G)
        rates: tuple[FloatArray, ...] = (found.early_F, found.late_F, found.p_value_F)
        return Forgotten(
            num_prompts=len(found.prompt_F),
            num_tested=found.num_tested,
            num_revisited=found.num_revisited,
            num_lost_tenth=found.num_lost_tenth,
            listed=tuple(
                ForgottenRow(
                    **self.row(int(at)), early=float(early), late=float(late), p_value=float(chance)
                )
                for at, early, late, chance in zip(
                    found.prompt_F[:num_listed], *(rate[:num_listed] for rate in rates), strict=True
                )
            ),
        )

    def row(self, at: int) -> dict[str, Any]:
        text = self.groups.text_Q
        return {
            "prompt": str(self.groups.id_Q[at]),
            "text": None if text is None else self.shared.cut(text[at], _LONGEST_TEXT),
            "num_visits": int(self.visits_Q[at]),
            "num_rollouts": int(self.spent_Q[at]),
        }
