"""A file whose steps fall back: a resumed run, a new epoch, or the same rows once more.

A segment is a stretch of rows whose steps never fall. In a file that was written in order, each
segment holds whole steps; in one whose rows are shuffled, segments say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apportion.readers.rollouts import PartArray
from apportion.readers.tally import Tally
from apportion.validate import IntArray

MOST_SEGMENTS = 1000
"""Steps that fall more often than this are not in order."""
_NEARLY_FIRST = 0.05
_NEARLY_ALL = 0.9
_MOST_OF_CHANCE = 0.2
_COMPARED = ("step", "prompt", "num_requested", "reward_sum", "reward_sumsq", "num_tokens")


@dataclass(frozen=True, slots=True)
class _Segment:
    """Where the groups of a segment stand, its steps in order, and its (step, prompt) pairs."""

    at_G: IntArray
    step_T: IntArray
    visits: frozenset[tuple[int, int]]


def settled(part_G: PartArray, file: str, tally: Tally) -> PartArray:
    """Return the groups of a file with each step of the run once, and say what was done.

    A fall back to the first step begins a new epoch: its steps go on counting. A fall to a later
    step is a resume: the later rows count. Rows that are not in order are left as they are.

    Args:
        part_G: one part for each segment, step and group.
        file: name of the file.
        tally: takes what was assumed.
    """
    segments = _segments(part_G)
    if len(segments) < 2 or not _is_repeated(segments) or not _are_in_order(part_G, segments):
        part_G["segment"] = 0
        return part_G
    return _joined(part_G, segments, file, tally)


def is_same(earlier_G: PartArray, later_G: PartArray) -> bool:
    """Return whether two lists of groups hold the same prompts with the same rewards, steps alike.

    Groups whose rewards are all equal may agree by chance, so that some have to differ within.
    """
    if len(earlier_G) != len(later_G):
        return False
    one, other = (
        part_G[np.lexsort([part_G[name] for name in _COMPARED])] for part_G in (earlier_G, later_G)
    )
    has_signal = bool((one["reward_high"] > one["reward_low"]).any())
    return has_signal and all(np.array_equal(one[name], other[name]) for name in _COMPARED)


def _segments(part_G: PartArray) -> list[_Segment]:
    order_G = np.argsort(part_G["segment"], kind="stable")
    cuts = np.flatnonzero(np.diff(part_G["segment"][order_G])) + 1
    found = []
    for at_G in np.split(order_G, cuts):
        step_G, prompt_G = part_G["step"][at_G], part_G["prompt"][at_G]
        visits = frozenset(zip(step_G.tolist(), prompt_G.tolist(), strict=True))
        found.append(_Segment(at_G, np.unique(step_G), visits))
    return found


def _is_repeated(segments: list[_Segment]) -> bool:
    """Return whether a prompt comes again in the same step, after a fall."""
    return len(frozenset().union(*(one.visits for one in segments))) < sum(
        len(one.visits) for one in segments
    )


def _are_in_order(part_G: PartArray, segments: list[_Segment]) -> bool:
    """Return whether each segment holds whole steps, none of those between passed over."""
    if any(len(one.step_T) < 2 for one in segments[:-1]) or len(segments[0].step_T) < 2:
        return False
    if len(segments) == 2 and len(segments[1].step_T) < 2:
        return False
    known = segments[0].step_T
    for one in segments[1:]:
        between = known[(known >= one.step_T[0]) & (known <= one.step_T[-1])]
        if not np.isin(between, one.step_T).all():
            return False
        known = np.union1d(known, one.step_T)
    if len(segments) - 1 > _MOST_OF_CHANCE * _falls_of_chance(part_G):
        return False
    return not _is_one_rollout_each(part_G, segments)


def _falls_of_chance(part_G: PartArray) -> float:
    """Return how often steps are expected to fall if rows come in random order.

    ``(R - 1) (1 - sum_t p_t^2) / 2`` for R rows, p_t of them at step t.
    """
    num_G = np.where(part_G["is_whole"], 1, part_G["num_requested"])
    _, at_G = np.unique(part_G["step"], return_inverse=True)
    num_T = np.bincount(at_G, weights=num_G)
    num_rows = num_T.sum()
    return float((num_rows - 1) * (1 - np.sum((num_T / num_rows) ** 2)) / 2)


def _is_one_rollout_each(part_G: PartArray, segments: list[_Segment]) -> bool:
    """Return whether all segments hold the same groups, a rollout of each."""
    is_single = bool((part_G["num_requested"] == 1).all() and not part_G["is_whole"].any())
    shared = frozenset.intersection(*(one.visits for one in segments))
    most = max(len(one.visits) for one in segments)
    return is_single and len(shared) >= _NEARLY_ALL * most


def _joined(part_G: PartArray, segments: list[_Segment], file: str, tally: Tally) -> PartArray:
    kept_G = np.ones(len(part_G), dtype=np.bool_)
    epoch, offset, num_epochs = [segments[0]], 0, 1
    first = int(segments[0].step_T[0])
    shift_G = np.zeros(len(part_G), dtype=np.int64)
    num_copies = 0
    for one in segments[1:]:
        if any(is_same(part_G[seen.at_G], part_G[one.at_G]) for seen in epoch):
            kept_G[one.at_G] = False
            num_copies += 1
            continue
        known = np.unique(np.concatenate([seen.step_T for seen in epoch]))
        if _is_new_epoch(one, epoch, known):
            offset += int(known[-1]) + 1 - first
            epoch, num_epochs = [one], num_epochs + 1
        else:
            _leave_out(part_G, kept_G, one, epoch, known, file, tally)
            epoch.append(one)
        shift_G[one.at_G] = offset
    part_G["step"] += shift_G
    part_G["segment"] = 0
    if num_copies:
        times = "once more" if num_copies == 1 else f"{num_copies} times more"
        tally.say(f"{file} holds the same rows {times}: each counts once.")
    if num_epochs > 1:
        tally.say(
            f"The step of {file} starts again {_times(num_epochs - 1)}, as with each epoch: steps "
            "go on counting from the epoch before."
        )
    return part_G[kept_G]


def _is_new_epoch(one: _Segment, epoch: list[_Segment], known: IntArray) -> bool:
    """Return whether a segment begins a new epoch, rather than repeat steps of the old one.

    A run that was started again from its first step has the same prompts, and goes further.
    """
    if np.searchsorted(known, one.step_T[0]) > _NEARLY_FIRST * len(known):
        return False
    goes_further = one.step_T[-1] > known[-1]
    if one.step_T[0] > known[0]:
        return not goes_further
    before = frozenset().union(*(seen.visits for seen in epoch))
    num_same = len(before & one.visits)
    return not (goes_further and num_same >= _NEARLY_ALL * len(before))


def _leave_out(
    part_G: PartArray,
    kept_G: NDArray[np.bool_],
    one: _Segment,
    epoch: list[_Segment],
    known: IntArray,
    file: str,
    tally: Tally,
) -> None:
    """Leave out the groups of earlier segments at the steps that a later segment repeats."""
    at_G = np.concatenate([seen.at_G for seen in epoch])
    at_G = at_G[kept_G[at_G] & np.isin(part_G["step"][at_G], one.step_T)]
    kept_G[at_G] = False
    first, last = int(one.step_T[0]), int(min(known[-1], one.step_T[-1]))
    steps = f"step {first} was" if first == last else f"steps {first} to {last} were"
    tally.say(
        f"The step of {file} falls back from {int(known[-1])} to {first}, as after a resume: the "
        f"later rows count, and {len(at_G):,} earlier groups of {steps} left out."
    )


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")
