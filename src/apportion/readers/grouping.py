"""Gathers the rows of a record, in any order and from any number of files, into groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apportion.readers.doubled import RowPairs
from apportion.readers.overlaps import latest
from apportion.readers.prompts import PromptTable
from apportion.readers.restarts import MOST_SEGMENTS, settled
from apportion.readers.rollouts import PART, PartArray
from apportion.readers.tally import Tally
from apportion.recording import GroupTable
from apportion.validate import IntArray

_ADDED = ("num_requested", "num_rollouts", "reward_sum", "reward_sumsq")
_ADDED_TOO = ("num_tokens", "num_truncated")
_LOWEST = ("reward_low", "mark_low")
_HIGHEST = ("reward_high", "mark_high")
_MOST_PENDING = 2**20
_NEARLY_ALL = 0.9
_HUGE_GAP = 1000


class Grouper:
    """Merges parts of groups as they come; holds groups, never rollouts.

    With steps a group is what shares a step and a group id (or a prompt). Without, rows that
    follow one another and share it are one visit.
    """

    def __init__(self, tally: Tally) -> None:
        """Start without groups; `has_steps` tells, in the end, whether their steps are real.

        Args:
            tally: takes what was left out or assumed.
        """
        self._tally = tally
        self._paths: list[Path] = []
        self._parts: list[PartArray] = []
        self._pending: list[PartArray] = []
        self._has_step: list[bool] = []
        self._num_pending = self._num_rows = 0
        self._next_merge = _MOST_PENDING
        self._run = 0
        self._last: tuple[int, bool] | None = None
        self._segment, self._last_step = 0, 0
        self._pairs = RowPairs()
        self.has_steps = False

    def start_file(self, path: Path, *, has_step: bool) -> None:
        """Begin a file; what follows belongs to it."""
        self._close_file()
        self._paths.append(path)
        self._has_step.append(has_step)
        self._last = None
        self._segment, self._last_step = 0, 0
        self._pairs = RowPairs()

    def add(self, part_R: PartArray) -> None:
        """Add rows in the order of the file."""
        if not len(part_R):
            return
        part_R["first"] = self._num_rows + np.arange(len(part_R))
        self._num_rows += len(part_R)
        self._pairs.add(part_R)
        if self._has_step[-1]:
            self._number_segments(part_R)
        else:
            self._number_visits(part_R)
        self._pending.append(merged(part_R))
        self._num_pending += len(self._pending[-1])
        if self._num_pending > self._next_merge:
            self._pending = [merged(np.concatenate(self._pending))]
            self._num_pending = len(self._pending[0])
            # At double the size, so that what does not merge is not sorted over and over.
            self._next_merge = max(_MOST_PENDING, 2 * self._num_pending)

    def finish(self, prompts: PromptTable, *, has_marks: bool) -> GroupTable | None:
        """Return the groups, steps ascending; None if there are none.

        Args:
            prompts: the numbered prompts.
            has_marks: whether the rows told their reward components apart.

        Raises:
            InvalidInputError: the files look like two runs.
        """
        self._close_file()
        if not self._parts:
            return None
        is_timed_G = np.repeat(self._has_step, [len(part) for part in self._parts]).astype(bool)
        file_G = np.repeat(np.arange(len(self._parts)), [len(part) for part in self._parts])
        part_G = np.concatenate(self._parts)
        self._parts = []
        self.has_steps = bool(is_timed_G.any())
        if self.has_steps:
            self._leave_out_untimed(is_timed_G, file_G)
            part_G, file_G = part_G[is_timed_G], file_G[is_timed_G]
            part_G = merged(part_G[latest(part_G, file_G, self._paths, self._tally)])
            _renumber_huge(part_G, self._tally)
        else:
            part_G = _by_visit(part_G, self._tally)
        if not len(part_G):
            return None
        what = "are named by more than one prompt; the first stands for them"
        self._tally.seen("groups", "the record", len(part_G))
        self._tally.add("groups", what, "the record", int(part_G["is_mixed"].sum()))
        order_G = np.lexsort((part_G["first"], part_G["step"]))
        return _table(part_G[order_G], prompts, has_marks=has_marks)

    def _close_file(self) -> None:
        if self._paths:
            part_G = merged(np.concatenate([*self._pending, np.zeros(0, dtype=PART)]))
            file, has_step = self._paths[-1].name, self._has_step[-1]
            if self._pairs.are_all and (has_step or not part_G["is_whole"].any()):
                _halve(part_G)
                self._tally.say(f"Every row of {file} stands twice in a row: each counts once.")
            if has_step and self._segment:
                part_G = merged(settled(part_G, file, self._tally))
            self._parts.append(part_G)
        self._pending, self._num_pending, self._next_merge = [], 0, _MOST_PENDING

    def _number_segments(self, part_R: PartArray) -> None:
        """Number stretches of rows whose steps do not fall, unless steps are in no order at all."""
        if self._segment > MOST_SEGMENTS:
            return
        falls_R = np.diff(part_R["step"], prepend=max(self._last_step, 0)) < 0
        part_R["segment"] = self._segment + np.cumsum(falls_R)
        self._segment, self._last_step = int(part_R["segment"][-1]), int(part_R["step"][-1])
        if self._segment > MOST_SEGMENTS:
            for one in (*self._pending, part_R):
                one["segment"] = 0

    def _number_visits(self, part_R: PartArray) -> None:
        """Number runs of rows of one group, through the file; a whole row is a run of its own."""
        group_R, whole_R = part_R["group"], part_R["is_whole"]
        before_R = np.concatenate([group_R[:1], group_R[:-1]])
        starts_R = (group_R != before_R) | whole_R
        starts_R[1:] |= whole_R[:-1]
        starts_R[0] = whole_R[0] or self._last != (int(group_R[0]), False)
        part_R["step"] = self._run + np.cumsum(starts_R)
        self._run = int(part_R["step"][-1])
        self._last = int(group_R[-1]), bool(whole_R[-1])

    def _leave_out_untimed(self, is_timed_G: NDArray[np.bool_], file_G: IntArray) -> None:
        for file in np.unique(file_G[~is_timed_G]).tolist():
            what = "have no step, unlike the others, and were left out"
            self._tally.add("files", what, self._paths[file].name)


def merged(part_R: PartArray) -> PartArray:
    """Return one part for each (segment, step, group); `prompt` is that of the first row.

    They come in no order.
    """
    if not len(part_R):
        return part_R
    keys = tuple(part_R[name] for name in ("first", "group", "step", "segment"))
    order_R = np.lexsort(keys)
    differs_R = [key[order_R][1:] != key[order_R][:-1] for key in keys[1:]]
    starts_R = np.append(True, np.logical_or.reduce(differs_R))
    start_G = np.flatnonzero(starts_R)
    if len(start_G) == len(part_R):
        return part_R
    part_G = part_R[order_R[start_G]]
    for name in (*_ADDED, *_ADDED_TOO):
        part_G[name] = np.add.reduceat(part_R[name][order_R], start_G)
    for name in _LOWEST:
        part_G[name] = np.minimum.reduceat(part_R[name][order_R], start_G)
    for name in _HIGHEST:
        part_G[name] = np.maximum.reduceat(part_R[name][order_R], start_G)
    prompt_R = part_R["prompt"][order_R]
    other_R = prompt_R != np.repeat(part_G["prompt"], np.diff(np.append(start_G, len(part_R))))
    other_R |= part_R["is_mixed"][order_R]
    part_G["is_mixed"] = np.logical_or.reduceat(other_R, start_G)
    part_G["is_whole"] = np.logical_and.reduceat(part_R["is_whole"][order_R], start_G)
    return part_G


def _by_visit(part_G: PartArray, tally: Tally) -> PartArray:
    """Give the v-th visit of a prompt the step v."""
    if not len(part_G):
        return part_G
    comes_again = len(np.unique(part_G["group"])) < len(part_G)
    single = float((part_G["num_requested"] == 1).mean())
    if comes_again and single >= _NEARLY_ALL and not part_G["is_whole"].any():
        part_G["step"] = 1
        ever = "never" if single == 1.0 else "hardly ever"
        tally.say(
            f"Steps are not recorded and rows of one prompt {ever} follow one another: all rows of "
            "a prompt were taken as one group."
        )
        return merged(part_G)
    part_G = part_G[np.lexsort((part_G["first"], part_G["prompt"]))]
    prompt_G = part_G["prompt"]
    start_G = np.flatnonzero(np.append(True, prompt_G[1:] != prompt_G[:-1]))
    num_Q = np.diff(np.append(start_G, len(part_G)))
    part_G["step"] = 1 + np.arange(len(part_G)) - np.repeat(start_G, num_Q)
    tally.say("Steps are not recorded: the v-th visit of a prompt stands for step v.")
    return part_G


def _halve(part_G: PartArray) -> None:
    for name in (*_ADDED, *_ADDED_TOO):
        part_G[name] = part_G[name] / 2


def _renumber_huge(part_G: PartArray, tally: Tally) -> None:
    """Number steps that stand far apart 0, 1, 2, ...: a unit of time is no step."""
    steps, at_G = np.unique(part_G["step"], return_inverse=True)
    if len(steps) < 3 or np.median(np.diff(steps)) <= _HUGE_GAP:
        return
    part_G["step"] = at_G
    tally.say(
        f"The step seems to count tokens or time (it rises by {int(np.median(np.diff(steps))):,} "
        "at a time): steps were numbered 0, 1, 2, ... in its order."
    )


def _table(part_G: PartArray, prompts: PromptTable, *, has_marks: bool) -> GroupTable:
    known_Q, prompt_G = np.unique(part_G["prompt"], return_inverse=True)
    text_Q = prompts.text_Q
    signal_G = differs(part_G["reward_low"], part_G["reward_high"])
    mark_differs_G = differs(part_G["mark_low"], part_G["mark_high"])
    return GroupTable(
        id_Q=prompts.id_Q[known_Q],
        text_Q=None if text_Q is None else tuple(text_Q[at] for at in known_Q.tolist()),
        prompt_G=prompt_G.astype(np.int64),
        step_G=part_G["step"].copy(),
        policy_step_G=part_G["step"].copy(),
        num_requested_G=part_G["num_requested"].copy(),
        num_rollouts_G=part_G["num_rollouts"].copy(),
        reward_sum_G=part_G["reward_sum"].copy(),
        reward_sumsq_G=part_G["reward_sumsq"].copy(),
        signal_G=signal_G,
        num_tokens_G=part_G["num_tokens"].copy(),
        num_truncated_G=part_G["num_truncated"].copy(),
        hidden_G=mark_differs_G & ~signal_G if has_marks else None,
    )


def differs(low_G: NDArray[np.float64], high_G: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return where the ends differ by more than float noise, as `metrics.has_signal` does.

    >>> differs(np.array([0.3, 0.0, np.inf]), np.array([0.1 + 0.2, 1.0, -np.inf]))
    array([False,  True, False])
    """
    large_G = np.maximum(np.abs(low_G), np.abs(high_G))
    return np.asarray(high_G - low_G > 1e-12 + 1e-9 * large_G)
