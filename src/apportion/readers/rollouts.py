"""Rows of a dump as small groups: one rollout each, a list of rewards, or counts k of n."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.readers.columns import Columns
from apportion.readers.prompts import PromptTable
from apportion.readers.tally import Tally
from apportion.validate import FloatArray, IntArray

Chunk = dict[str, list[Any]]
PartArray = NDArray[np.void]

PART = np.dtype(
    [
        ("segment", "i8"),
        ("step", "i8"),
        ("group", "i8"),
        ("prompt", "i8"),
        ("first", "i8"),
        ("num_requested", "i8"),
        ("num_rollouts", "i8"),
        ("reward_sum", "f8"),
        ("reward_sumsq", "f8"),
        ("reward_low", "f8"),
        ("reward_high", "f8"),
        ("mark_low", "f8"),
        ("mark_high", "f8"),
        ("num_tokens", "i8"),
        ("num_truncated", "i8"),
        ("is_whole", "?"),
        ("is_mixed", "?"),
    ]
)
"""A part of a group: what adds up, and the ends of what differs within it.

``segment`` numbers stretches of a file whose steps never fall. ``mark`` is a number that differs
wherever a component of the reward does. A part ``is_whole`` if its row stands for a visit of its
own, and ``is_mixed`` if its rows name several prompts.
"""

_LARGEST_REWARD = 1e100
_LARGEST_WHOLE = 2.0**53
_LARGEST_COUNT = 2.0**31
_PERCENT = re.compile(r"([-+]?\d+(?:[.,]\d+)?) ?%")
_COMMA = re.compile(r"[-+]?\d*(?:,\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d+(?:,\d{3})?")
_WORDS = {"true": 1.0, "false": 0.0}


def parts_of(
    chunk: Chunk,
    columns: Columns,
    prompts: PromptTable,
    tally: Tally,
    file: str,
    *,
    mark_R: FloatArray | None = None,
) -> PartArray:
    """Return one part a row, without the rows that cannot be used.

    Args:
        chunk: columns of R rows.
        columns: which of them holds what, from `choose`.
        prompts: numbers the prompts; grows.
        tally: counts what is odd.
        file: name of the file, for the tally.
        mark_R: a number a row that differs wherever a reward component does.
    """
    assert columns.prompt is not None
    size = len(chunk[columns.prompt])
    part_R = np.zeros(size, dtype=PART)
    if columns.num_success is not None:
        usable_R = _count(part_R, chunk, columns)
        tally.add("rows", "do not count k of n successes and were left out", file, _num(~usable_R))
    else:
        usable_R = np.ones(size, dtype=np.bool_)
        _score(part_R, chunk[columns.reward or ""])
        unscored_R = part_R["num_rollouts"] < part_R["num_requested"]
        what = "have no finite reward and count as asked for, not as scored"
        tally.add("rows", what, file, _num(unscored_R))
        _say_spelling(chunk[columns.reward or ""], unscored_R, tally, file)
    if columns.step is not None:
        step_R = numbers(chunk[columns.step])
        timed_R = _is_step(step_R)
        part_R["step"] = np.where(timed_R, step_R, 0.0).astype(np.int64)
        tally.add("rows", "have no whole step and were left out", file, _num(~timed_R))
        usable_R &= timed_R
    named_R = _name(part_R, chunk, columns, prompts)
    tally.add("rows", "have no prompt and were left out", file, _num(~named_R))
    _add_lengths(part_R, chunk, columns)
    is_marked_R = part_R["num_rollouts"] > 0
    part_R["mark_low"] = np.inf if mark_R is None else np.where(is_marked_R, mark_R, np.inf)
    part_R["mark_high"] = -np.inf if mark_R is None else np.where(is_marked_R, mark_R, -np.inf)
    return part_R[usable_R & named_R]


def numbers(values: Sequence[Any]) -> FloatArray:
    """Return one number a value, whatever it is; NaN where it says none.

    Per cent and decimal commas are read where all words of the column are written so.

    >>> numbers(["1", True, None, "false", [1], "x"])
    array([ 1.,  1., nan,  0., nan, nan])
    >>> numbers(["50%", "100 %"]), numbers(["0,5", "1"]), numbers(["0,5", "0.5"])
    (array([0.5, 1. ]), array([0.5, 1. ]), array([nan, 0.5]))
    """
    try:
        value_R = np.asarray(values, dtype=np.float64)
        if value_R.ndim == 1:
            return value_R
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([_number(value) for value in _plain(values)], dtype=np.float64)


def _plain(values: Sequence[Any]) -> Sequence[Any]:
    """Return per cent as shares and decimal commas as points, if all words are written so."""
    words = [one for value in values if isinstance(value, str) and (one := value.strip())]
    if not words or any(type(value) in (int, float) and value == value for value in values):
        return values
    if all(map(_PERCENT.fullmatch, words)):
        return [_share(value) if isinstance(value, str) else value for value in values]
    if all(map(_COMMA.fullmatch, words)) and not all(map(_THOUSANDS.fullmatch, words)):
        return [value.replace(",", ".") if isinstance(value, str) else value for value in values]
    return values


def _share(percent: str) -> float | None:
    found = _PERCENT.fullmatch(percent.strip())
    return None if found is None else float(found[1].replace(",", ".")) / 100


def _number(value: Any) -> float:
    if isinstance(value, str):
        known = _WORDS.get(value.strip().lower())
        if known is not None:
            return known
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _count(part_R: PartArray, chunk: Chunk, columns: Columns) -> NDArray[np.bool_]:
    success_R = numbers(chunk[columns.num_success or ""])
    num_R = numbers(chunk[columns.num_rollouts or ""])
    good_R = (success_R >= 0) & (success_R <= num_R) & (num_R > 0) & (num_R <= _LARGEST_COUNT)
    good_R &= (success_R == np.floor(success_R)) & (num_R == np.floor(num_R))
    success_R, num_R = np.where(good_R, success_R, 0.0), np.where(good_R, num_R, 0.0)
    part_R["num_requested"] = part_R["num_rollouts"] = num_R.astype(np.int64)
    part_R["reward_sum"] = part_R["reward_sumsq"] = success_R
    part_R["reward_low"] = success_R == num_R
    part_R["reward_high"] = success_R > 0
    part_R["is_whole"] = True
    return good_R


def _score(part_R: PartArray, values: Sequence[Any]) -> None:
    reward_N = numbers(values)
    row_N = np.arange(len(values))
    if np.isnan(reward_N).any():
        listed = [_listed(value) for value in values]
        num_R = np.array([1 if one is None else len(one) for one in listed], dtype=np.int64)
        part_R["is_whole"] = [one is not None for one in listed]
        if part_R["is_whole"].any():
            pairs = zip(values, listed, strict=True)
            flat = [one for value, many in pairs for one in ([value] if many is None else many)]
            reward_N, row_N = numbers(flat), np.repeat(row_N, num_R)
    scored_N = np.abs(reward_N) <= _LARGEST_REWARD
    known_N = np.where(scored_N, reward_N, 0.0)
    size = len(part_R)
    part_R["num_requested"] = np.bincount(row_N, minlength=size)
    part_R["num_rollouts"] = np.bincount(row_N, weights=scored_N, minlength=size)
    part_R["reward_sum"] = np.bincount(row_N, weights=known_N, minlength=size)
    part_R["reward_sumsq"] = np.bincount(row_N, weights=known_N**2, minlength=size)
    part_R["reward_low"], part_R["reward_high"] = np.inf, -np.inf
    np.minimum.at(part_R["reward_low"], row_N[scored_N], reward_N[scored_N])
    np.maximum.at(part_R["reward_high"], row_N[scored_N], reward_N[scored_N])


def _say_spelling(
    values: Sequence[Any], unscored_R: NDArray[np.bool_], tally: Tally, file: str
) -> None:
    """Show a reward that may be a number, but is not written as one."""
    for at in np.flatnonzero(unscored_R).tolist():
        word = values[at].strip() if isinstance(values[at], str) else ""
        if word and (_PERCENT.fullmatch(word) or _COMMA.fullmatch(word)):
            tally.say(f"Some rewards of {file} are written like {word!r}: write all as numbers.")
            return


def _listed(value: Any) -> list[Any] | None:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return list(value) if isinstance(value, list | tuple) else None


def _name(
    part_R: PartArray, chunk: Chunk, columns: Columns, prompts: PromptTable
) -> NDArray[np.bool_]:
    values = chunk[columns.prompt or ""]
    groups = None if columns.group is None else chunk[columns.group]
    if groups is not None and columns.group != columns.prompt:
        pairs = zip(values, groups, strict=True)
        values = [group if value is None else value for value, group in pairs]
    texts = None if columns.text is None else chunk[columns.text]
    part_R["prompt"] = prompts.numbers(values, texts)
    part_R["group"] = part_R["prompt"]
    if groups is not None:
        pairs = zip(groups, part_R["prompt"].tolist(), strict=True)
        part_R["group"] = [prompt if one is None else hash(str(one)) for one, prompt in pairs]
    return np.asarray(part_R["prompt"] >= 0)


def _add_lengths(part_R: PartArray, chunk: Chunk, columns: Columns) -> None:
    if columns.tokens is not None:
        part_R["num_tokens"] = _total(chunk[columns.tokens]).astype(np.int64)
    if columns.truncated is not None:
        cut_R = _total(chunk[columns.truncated]).astype(np.int64)
        part_R["num_truncated"] = np.minimum(cut_R, part_R["num_requested"])


def _total(values: Sequence[Any]) -> FloatArray:
    """Return one number a row, 0 where it says none; a list adds up."""
    value_R = numbers(values)
    if np.isnan(value_R).any():
        listed = [_listed(value) for value in values]
        for at, many in enumerate(listed):
            if many is not None:
                value_R[at] = _counted(numbers(many)).sum()
    return _counted(value_R)


def _counted(value_N: FloatArray) -> FloatArray:
    return np.clip(np.nan_to_num(value_N, posinf=0.0), 0.0, _LARGEST_COUNT)


def _num(mask_R: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(mask_R))


def whole_steps(values: Sequence[Any]) -> IntArray:
    """Return the different steps of a column that are whole numbers, in order.

    >>> whole_steps([3, "2", None, 2.5])
    array([2, 3])
    """
    step_R = numbers(values)
    return np.unique(step_R[_is_step(step_R)]).astype(np.int64)


def _is_step(step_R: FloatArray) -> NDArray[np.bool_]:
    return np.asarray((step_R >= 0) & (step_R < _LARGEST_WHOLE) & (step_R == np.floor(step_R)))
