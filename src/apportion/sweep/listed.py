"""Runs of a sweep from a file: a table of yours, or what a plan wants to be run first."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion.errors import InvalidInputError, first_line
from apportion.sweep.settings import ALLOCATORS, RateRule, Setting, checked

_NEEDED = ("rollouts_per_prompt", "prompts_per_step")
_COLUMNS = (*_NEEDED, "learning_rate", "allocator", "seed", "num_steps")


def read_list(
    path: Path,
    *,
    rates: Sequence[RateRule],
    allocators: Sequence[str],
    seeds: Sequence[int],
    budget: int | None,
) -> list[Setting]:
    """Read runs from a CSV file or from a plan of ``apportion plan --out``.

    Args:
        path: a CSV with the columns rollouts_per_prompt and prompts_per_step, and perhaps
            learning_rate, allocator, seed and num_steps; or a plan, whose runs to make first are
            taken.
        rates: where the file has no learning rate.
        allocators: where it has none.
        seeds: where it has none.
        budget: rollouts of each run where the file has no steps.

    Raises:
        InvalidInputError: the file cannot be read, lacks a column, or holds a value that is none.
    """
    rows = _rows(path)
    if not rows:
        raise InvalidInputError(f"{path} holds no run.")
    found: dict[Setting, None] = {}
    for number, row in enumerate(rows, start=1):
        where = f"Run {number} of {path}"
        n = _whole(row, "rollouts_per_prompt", where, least=2)
        prompts = _whole(row, "prompts_per_step", where)
        steps = _steps(row, where, budget, n * prompts)
        own_rate = _number(row, "learning_rate", where)
        rate_S = [rule.rate_at(n * prompts) for rule in rates] if own_rate is None else [own_rate]
        arm_S = [_allocator(row, where)] if row.get("allocator") else allocators
        seed_S = [_whole(row, "seed", where, least=0)] if row.get("seed", "") != "" else seeds
        for seed in seed_S:
            for arm in arm_S:
                for rate in rate_S:
                    setting = Setting(
                        rollouts_per_prompt=n,
                        prompts_per_step=prompts,
                        learning_rate=rate,
                        allocator=str(arm),
                        seed=seed,
                        num_steps=steps,
                    )
                    found[setting] = None
    return checked(sorted(found, key=lambda setting: setting.seed))


def _rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"The list {path} cannot be read: {first_line(error)}.") from error
    if text.lstrip().startswith("{"):
        return _of_plan(path, text)
    table = csv.DictReader(text.splitlines())
    names = [name.strip() for name in table.fieldnames or []]
    missing = [name for name in _NEEDED if name not in names]
    unknown = [name for name in names if name not in _COLUMNS]
    if missing or unknown:
        wrong = f"lacks the column {missing[0]}" if missing else f"has the column {unknown[0]!r}"
        raise InvalidInputError(f"The list {path} {wrong}; known are {', '.join(_COLUMNS)}.")
    return [
        {str(name).strip(): (value or "").strip() for name, value in row.items() if name}
        for row in table
    ]


def _of_plan(path: Path, text: str) -> list[Mapping[str, Any]]:
    try:
        runs = json.loads(text)["sweep_first"]
        return [
            {name: run[name] for name in (*_NEEDED, "learning_rate", "num_steps")} for run in runs
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{path} is neither a table nor a plan of `apportion plan --out`."
        ) from error


def _steps(row: Mapping[str, Any], where: str, budget: int | None, batch: int) -> int:
    if row.get("num_steps", "") != "":
        return _whole(row, "num_steps", where)
    if budget is None:
        raise InvalidInputError(f"{where} has no num_steps: add the column, or give --budget.")
    return budget // batch


def _whole(row: Mapping[str, Any], name: str, where: str, *, least: int = 1) -> int:
    try:
        value = int(str(row.get(name, "")))
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidInputError(
            f"{where} has {name} {row.get(name, '')!r}, but it must be a whole number of at least "
            f"{least}."
        )
    return value


def _number(row: Mapping[str, Any], name: str, where: str) -> float | None:
    if row.get(name, "") == "":
        return None
    try:
        value = float(row[name])
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise InvalidInputError(
            f"{where} has {name} {row[name]!r}, but it must be a number above 0."
        )
    return value


def _allocator(row: Mapping[str, Any], where: str) -> str:
    arm = str(row["allocator"])
    if arm not in ALLOCATORS:
        raise InvalidInputError(
            f"{where} has allocator {arm!r}, but it must be one of {', '.join(ALLOCATORS)}."
        )
    return arm
