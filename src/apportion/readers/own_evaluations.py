"""The learning curve of a run folder of ours: its evaluations and what ``run.json`` says of it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from apportion.errors import InvalidInputError
from apportion.metrics import pass_at_k
from apportion.plan.runs import Run
from apportion.readers import curves
from apportion.readers.found_runs import (
    MEAN,
    Found,
    NotRecordedError,
    Wanted,
    allocator_of,
    averaged,
    is_choosing,
    is_number,
    rate,
    seed,
    sizes_of,
    whole,
)
from apportion.readers.tally import listed
from apportion.run_log import PROMPTS_FILE, read_config, read_lines
from apportion.validate import FloatArray
from apportion.words import counted

EVALUATIONS = "evaluations.jsonl"
_POOL = "pool"
"""Split of the prompts that a run trains on."""
_AT_K = re.compile(r"(?:pass|best)@(\d+)")
_OF_K = re.compile(r"(best|worst)@([1-9]\d*)")
_OTHER = ("step", "compute", "split", "num_problems", "num_samples")
_TASK = ("model", "dataset", "pool", "reward", "reward_low", "reward_high", "held_out")
_RECIPE = (
    *("estimator", "loss_type", "scale_rewards", "weighting", "prior", "kl", "beta", "entropy"),
    *("num_iterations", "temperature", "max_tokens", "max_completion_length"),
)


def read_own(folder: Path, wanted: Wanted) -> Found:
    """Read the evaluations of a run folder.

    Args:
        folder: it holds ``run.json`` and ``evaluations.jsonl``.
        wanted: metric and split, and whether the training reward will do.

    Raises:
        NotRecordedError: it was not evaluated so.
        InvalidInputError: n or B_p is not in its configuration, or a reward is out of range.
        RunFolderError: ``run.json`` is damaged.
    """
    told = told_by(folder)
    notes: list[str] = []
    n, prompts = sizes_of(told, wanted, folder)
    run = Run(
        name=folder.resolve().name,
        rollouts_per_prompt=n,
        prompts_per_step=prompts,
        compute_T=np.array([0.0]),
        reward_T=np.array([0.0]),
        seed=seed(told.get("seed")),
        learning_rate=rate(told.get("learning_rate")),
        allocator=allocator_of(told),
    )
    rows = _rows(folder, notes)
    here = [row for row in rows if row["split"] == wanted.split]
    column = _column(here, wanted.metric)
    if column is None:
        here = _with_metric(folder, here, wanted.metric, told)
        column = _column(here, wanted.metric)
    if column is None and wanted.training_reward:
        found = _training(folder, run, notes)
        if found is not None:
            return replace(found, told=told, notes=tuple(notes))
    if column is None:
        raise NotRecordedError(f"{folder} {_lacks(rows, here, wanted)}")
    reward_of = {float(row["compute"]): float(row[column]) for row in here if _is(row, column)}
    compute_T = np.array(sorted(reward_of))
    reward_T = np.array([reward_of[compute] for compute in sorted(reward_of)])
    run = replace(
        run,
        compute_T=compute_T,
        reward_T=_on_unit(reward_T, told, notes),
        evaluation=_size(here, column, told),
        num_prompts=_num_prompts(folder, rows, told),
    )
    return Found(run=run, place=folder, told=told, notes=tuple(notes))


def told_by(folder: Path) -> Mapping[str, Any]:
    """Return the configuration of a run, of `apportion train` or of the TRL trainers alike."""
    config = read_config(folder)
    train = config.get("train")
    return train if isinstance(train, Mapping) else config


def check_one_task(found: Sequence[Found]) -> list[str]:
    """Return a note for each setting in which runs differ beside those that a sweep varies.

    Raises:
        InvalidInputError: they learned or were judged on different problems.
    """
    notes = []
    for name in (*_TASK, *_RECIPE):
        value_of: dict[str, str] = {}
        for one in found:
            if name in one.told:
                # Of a path its end: the same model may lie elsewhere on another machine.
                value_of.setdefault(PurePath(str(one.told[name])).name, one.run.name)
        if len(value_of) < 2:
            continue
        values = list(value_of)
        if name in _TASK:
            raise InvalidInputError(
                f"The runs are of different tasks: {name} is {values[0]} in "
                f"{value_of[values[0]]} and {values[1]} in {value_of[values[1]]}. Give those of "
                "one task."
            )
        notes.append(f"Runs differ in {name} ({listed(values)}), which is not told apart here.")
    return notes


def _rows(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = read_lines(folder / EVALUATIONS)
    notes += [str(one.message) for one in caught]
    whole_rows = [
        row for row in rows if _is(row, "compute") and row["compute"] >= 0 and "split" in row
    ]
    if len(whole_rows) < len(rows):
        num = counted(len(rows) - len(whole_rows), "damaged line")
        notes.append(f"{folder / EVALUATIONS}: left out {num}.")
    return whole_rows


def _is(row: Mapping[str, Any], name: str) -> bool:
    return is_number(row.get(name))


def _column(rows: Sequence[Mapping[str, Any]], metric: str) -> str | None:
    """Return the name under which the metric was logged; best of k is pass@k for 0/1 rewards."""
    names = ("avg",) if metric == MEAN else (metric, metric.replace("best@", "pass@"))
    return next((name for name in names if any(_is(row, name) for row in rows)), None)


def _is_exact(told: Mapping[str, Any]) -> bool:
    """Return whether the success of each problem is exact, as it is of the embedded model."""
    return "arm" in told and told.get("model") is None and told.get("dataset") is None


def _with_metric(
    folder: Path, rows: Sequence[dict[str, Any]], metric: str, told: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return evaluations with best@k or worst@k of the success of each problem, where it tells."""
    match = _OF_K.fullmatch(metric)
    if match is None:
        return list(rows)
    import polars as pl

    k, found = int(match[2]), []
    for row in rows:
        step = int(row["step"]) if _is(row, "step") else -1
        name = f"{row['split']}-{step:08d}.parquet"
        try:
            success_Q = pl.read_parquet(folder / "evaluations" / name)["success"].to_numpy()
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
            found.append(row)
            continue
        samples = None if _is_exact(told) else _samples(row)
        value_Q = _of_k(success_Q, k, samples, is_best=match[1] == "best")
        found.append(row if value_Q is None else {**row, metric: float(value_Q.mean())})
    return found


def _of_k(
    success_Q: FloatArray, k: int, samples: int | None, *, is_best: bool
) -> FloatArray | None:
    """Return best@k or worst@k of each problem: of exact success p, or without bias of samples.

    ``best = 1 - (1-p)^k``, ``worst = p^k``; of samples `apportion.metrics.pass_at_k`. None where
    the success is no share of the samples (rewards of more than two values), or there are fewer
    than k.
    """
    if samples is None:
        exact_Q: FloatArray = 1.0 - (1.0 - success_Q) ** k if is_best else success_Q**k
        return exact_Q
    correct_Q = np.rint(success_Q * samples)
    if k > samples or np.abs(success_Q * samples - correct_Q).max(initial=0.0) > 1e-6:
        return None
    num_Q = np.full(len(correct_Q), samples)
    if is_best:
        return pass_at_k(num_Q, correct_Q, k)
    return 1.0 - pass_at_k(num_Q, num_Q - correct_Q, k)


def _lacks(
    rows: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]], wanted: Wanted
) -> str:
    if not any(_is(row, "avg") for row in rows):
        return (
            "has no evaluation yet. Where its trainer logs held-out rewards itself, give the "
            "trainer's output folder instead."
        )
    if not here:
        splits = listed(list(dict.fromkeys(str(row["split"]) for row in rows if _is(row, "avg"))))
        return f"has no evaluation of the split {wanted.split}, but of {splits}: see --split."
    names = [name for name in here[0] if name not in _OTHER]
    shown = listed([MEAN if name == "avg" else name.replace("pass@", "best@") for name in names])
    return f"measures {shown or 'nothing'}, not {wanted.metric}: see --metric."


def _on_unit(reward_T: FloatArray, told: Mapping[str, Any], notes: list[str]) -> FloatArray:
    """Map rewards to [0, 1] by the range that the run was told."""
    low, high = told.get("reward_low", 0.0), told.get("reward_high", 1.0)
    is_range = is_number(low) and is_number(high) and low < high
    if (low, high) == (0.0, 1.0) or not is_range:
        return reward_T
    notes.append(f"Rewards from {low:g} to {high:g} were mapped to [0, 1].")
    mapped_T: FloatArray = (reward_T - low) / (high - low)
    return mapped_T


def _size(
    rows: Sequence[Mapping[str, Any]], column: str, told: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Return problems and independent samples of each; None where success is exact or unknown.

    The embedded model's success is exact; that of others was sampled as often as best of k needs.
    """
    row = next(row for row in rows if _is(row, column))
    samples = whole(row.get("num_samples")) if _is_exact(told) else _samples(row)
    problems = whole(row.get("num_problems"))
    if samples is None or problems is None:
        return None
    of_k = re.search(r"@(\d+)", column)
    return problems, max(samples // int(of_k[1]) if of_k else samples, 1)


def _samples(row: Mapping[str, Any]) -> int | None:
    told = whole(row.get("num_samples"))
    if told is not None:
        return told
    return max((int(match[1]) for match in map(_AT_K.fullmatch, row) if match), default=None)


def _num_prompts(
    folder: Path, rows: Sequence[Mapping[str, Any]], told: Mapping[str, Any]
) -> int | None:
    """Return how many prompts a run of `apportion train` learns from."""
    if "arm" not in told:
        return None
    pool = next((row for row in rows if row["split"] == _POOL), {})
    if whole(pool.get("num_problems")) is not None:
        return whole(pool["num_problems"])
    path = folder / PROMPTS_FILE
    if not path.exists():
        return None
    import polars as pl

    try:
        return whole(int(pl.scan_parquet(path).select(pl.len()).collect().item()))
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def _training(folder: Path, run: Run, notes: list[str]) -> Found | None:
    """Return the run with the reward of its batches, every prompt counting alike."""
    path = folder / "steps.jsonl"
    found = curves.read(path) if path.exists() else None
    if found is None or "reward_prompt_mean" not in found[0]:
        return None
    notes += [f"{path}: {note}" for note in found[1]]
    curve = found[0]["reward_prompt_mean"]
    is_known = np.isfinite(curve.value_T)
    if not is_known.any():
        return None
    num_T = curve.step_T[is_known].astype(np.float64) + 1.0
    spent_T = num_T * run.prompts_per_step * run.rollouts_per_prompt
    compute_T, reward_T, num_steps = averaged(spent_T, curve.value_T[is_known])
    return Found(
        run=replace(
            run,
            compute_T=compute_T,
            reward_T=reward_T,
            evaluation=(run.prompts_per_step * num_steps, run.rollouts_per_prompt),
            is_filtered=is_choosing(run.allocator),
        ),
        place=folder,
        is_training=True,
    )
