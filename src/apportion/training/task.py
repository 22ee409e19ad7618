"""What a run learns from: a model, prompts with answers, a reward, and how success is measured."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from apportion.errors import InvalidInputError, MissingExtraError, first_line
from apportion.prompt_key import prompt_key, prompt_text
from apportion.training.config import K, TrainConfig
from apportion.training.rewards import RewardFunction, load_reward
from apportion.validate import FloatArray

ID_COLUMN = "apportion_key"
PRIOR_MEAN, PRIOR_COUNT = "apportion_prior_mean", "apportion_prior_count"
_RESERVED = {"prompts", "completions", "completion_ids", "group_index"}
_RESERVED |= {"trainer_state", "log_extra", "log_metric"}
"""Names under which TRL, or the adapter, hands other things to a reward function."""
_PRIOR_COUNT = 8.0
"""Rollouts that an offline success rate is taken to rest on if the file does not say."""
_FILE_KINDS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How well a model does on Q problems.

    Attributes:
        success_Q: expected reward.
        best_Q: expected best of K rollouts; pass@K for 0/1 rewards.
        worst_Q: expected worst of K rollouts.
    """

    success_Q: FloatArray
    best_Q: FloatArray
    worst_Q: FloatArray

    @classmethod
    def of_success(cls, success_Q: FloatArray) -> Measured:
        """Know the success probability: ``best = 1 - (1-p)^K``, ``worst = p^K``.

        >>> Measured.of_success(np.array([0.5])).worst_Q
        array([0.00390625])
        """
        return cls(success_Q=success_Q, best_Q=1.0 - (1.0 - success_Q) ** K, worst_Q=success_Q**K)

    @classmethod
    def of_rewards(cls, reward_QK: FloatArray) -> Measured:
        """Take K rollouts of each problem: their mean, best and worst are unbiased.

        >>> Measured.of_rewards(np.array([[0.0, 1.0]])).success_Q
        array([0.5])
        """
        return cls(
            success_Q=reward_QK.mean(axis=1),
            best_Q=reward_QK.max(axis=1),
            worst_Q=reward_QK.min(axis=1),
        )


class Measure(Protocol):
    """How well a model as it stands does on some rows."""

    def __call__(self, model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> Measured:
        """Return success, best and worst of K of each row."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model to train and what to train it on.

    Attributes:
        model: path or hub id.
        rows: training prompts; each has `prompt`, `prompt_id` and the columns of the reward.
        evaluation: rows by split on which success is measured.
        reward: called as TRL calls rewards.
        measure: success of rows under a model.
        is_exact: whether `measure` is exact and cheap (else it samples).
        notes: what the user should know about the data.
    """

    model: str
    rows: list[dict[str, Any]]
    evaluation: dict[str, list[dict[str, Any]]]
    reward: RewardFunction
    measure: Measure
    is_exact: bool
    notes: tuple[str, ...] = ()

    def text_of(self) -> dict[str, str]:
        """Return the prompt text by key, for features."""
        return {row[ID_COLUMN]: prompt_text(row["prompt"]) for row in self.rows}


def score_rows(
    reward: RewardFunction, rows: Sequence[Mapping[str, Any]], completions: Sequence[Any]
) -> FloatArray:
    """Return the reward of one completion of each row, NaN where there is none."""
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    prompts = [row["prompt"] for row in rows]
    rewards = reward(completions=completions, prompts=prompts, **columns)
    return np.array([np.nan if r is None else r for r in rewards], dtype=np.float64)


def load_task(config: TrainConfig) -> Task:
    """Load the embedded task or the user's own.

    Raises:
        InvalidInputError: a file, column or reward cannot be used.
        MissingExtraError: the training extra is not installed.
    """
    return _embedded_task(config) if config.is_embedded else _own_task(config)


def _embedded_task(config: TrainConfig) -> Task:
    try:
        from apportion.embedded.exact import exact_success
        from apportion.embedded.model import checkpoint_path
        from apportion.embedded.pools import Pool, pool
        from apportion.embedded.tasks import Problem, score
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "train") from error

    once = lru_cache(maxsize=1 << 16)(score)  # rollouts of a prompt repeat one another

    def rows_of(problems: Pool) -> list[dict[str, Any]]:
        return [
            dict(prompt=q.prompt, answer=q.answer, cell=q.cell, **{ID_COLUMN: prompt_key(q.prompt)})
            for q in problems.problems
        ]

    def reward(
        completions: Sequence[str],
        prompts: Sequence[str],
        answer: Sequence[str],
        cell: Sequence[str],
        **_: Any,
    ) -> list[float | None]:
        problems = [Problem(c, p, a) for c, p, a in zip(cell, prompts, answer, strict=True)]
        return [float(once(q, text)) for q, text in zip(problems, completions, strict=True)]

    def measure(model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> Measured:
        prompts, answers = [row["prompt"] for row in rows], [row["answer"] for row in rows]
        return Measured.of_success(exact_success(model, tokenizer, prompts, answers))

    train_rows = rows_of(pool(config.pool))[: config.limit]
    return Task(
        model=str(checkpoint_path()),
        rows=_with_prior(train_rows, config),
        evaluation={"pool": train_rows, "held_out": rows_of(pool("held_out"))},
        reward=reward,
        measure=measure,
        is_exact=True,
    )


def _own_task(config: TrainConfig) -> Task:
    assert config.model is not None
    assert config.dataset is not None
    reward = load_reward(config.reward, config.answer_column)
    rows, notes = _load_rows(config)
    held_out = _held_out(rows, config.held_out)
    kept = {row[ID_COLUMN] for row in held_out}
    train_rows = [row for row in rows if row[ID_COLUMN] not in kept][: config.limit]

    def measure(model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> Measured:
        from apportion.integrations.sampling import sample_texts

        repeated = [row for row in rows for _ in range(K)]
        prompts = [row["prompt"] for row in repeated]
        completions = sample_texts(
            model, tokenizer, prompts, max_tokens=config.max_tokens, seed=config.seed
        )
        reward_N = score_rows(reward, repeated, completions)
        return Measured.of_rewards(np.nan_to_num(reward_N).reshape(len(rows), K))

    return Task(
        model=config.model,
        rows=_with_prior(train_rows, config),
        evaluation={"held_out": held_out} if held_out else {},
        reward=reward,
        measure=measure,
        is_exact=False,
        notes=notes,
    )


def _load_rows(config: TrainConfig) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    assert config.dataset is not None
    try:
        from datasets import disable_progress_bars, load_dataset
    except ImportError as error:
        raise MissingExtraError("datasets", "train") from error
    disable_progress_bars()
    path = Path(config.dataset)
    if path.is_dir() and not any(path.rglob("*.*")):
        raise InvalidInputError(f"The data set folder {path} is empty.")
    if path.suffix in _FILE_KINDS and not path.is_file():
        raise InvalidInputError(f"The data set {path} cannot be loaded: there is no such file.")
    if path.is_file() and path.suffix not in _FILE_KINDS:
        raise InvalidInputError(
            f"The data set {path} ends in {path.suffix!r}, but must be one of "
            f"{', '.join(_FILE_KINDS)}."
        )
    try:
        if path.is_file():
            kind = _FILE_KINDS[path.suffix]
            table = load_dataset(kind, data_files=str(path), split="train")
        else:
            table = load_dataset(config.dataset, split="train")
        rows = [dict(row) for row in table]
    except Exception as error:  # the loader raises dozens of kinds for a file it cannot read
        raise InvalidInputError(
            f"The data set {config.dataset!r} cannot be loaded: {first_line(error)}. "
            "Give a .jsonl, .csv or .parquet file, a folder, or a hub id."
        ) from error
    return _checked_rows(rows, config)


def _checked_rows(
    rows: list[dict[str, Any]], config: TrainConfig
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return one row for each distinct prompt, and a note if there were more."""
    if not rows:
        raise InvalidInputError(f"The data set {config.dataset!r} holds no rows.")
    _check_columns(list(rows[0]), config)
    checked: dict[str, dict[str, Any]] = {}
    num_differing = 0
    for number, row in enumerate(rows):
        prompt = row.pop(config.prompt_column)
        if not _is_prompt(prompt):
            raise InvalidInputError(
                f"Row {number} of {config.dataset!r} has the prompt {prompt!r}, but a prompt must "
                "be text or a list of chat messages with role and content."
            )
        key = prompt_key(prompt)
        first = checked.setdefault(key, {**row, "prompt": prompt, ID_COLUMN: key})
        num_differing += first.get(config.answer_column) != row.get(config.answer_column)
    num_repeated = len(rows) - len(checked)
    if num_repeated == 0:
        return list(checked.values()), ()
    note = f"{num_repeated:,} of {len(rows):,} rows repeat a prompt and were left out"
    if num_differing:
        note += f", {num_differing:,} of them with another answer than the row that was kept"
    return list(checked.values()), (note + ".",)


def _check_columns(columns: list[str], config: TrainConfig) -> None:
    needed = [config.prompt_column]
    if config.reward in ("exact", "math-verify"):
        needed.append(config.answer_column)
    for column in needed:
        if column not in columns:
            raise InvalidInputError(
                f"The data set {config.dataset!r} has no column {column!r}; it has "
                f"{', '.join(map(repr, columns))}. Name yours with --prompt-column and "
                "--answer-column."
            )
    taken = _RESERVED | ({"prompt"} - {config.prompt_column})
    for column in columns:
        if column in taken:
            raise InvalidInputError(
                f"The data set {config.dataset!r} has a column {column!r}, a name under which "
                "reward functions are given something else. Rename or drop the column."
            )


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return bool(prompt)
    is_chat = isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt)
    return is_chat and bool(prompt) and all("content" in message for message in prompt)


def _held_out(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Keep a fixed choice by key for evaluation, at most a fifth of the data."""
    num = min(most, len(rows) // 5)
    chosen = sorted(rows, key=lambda row: str(row[ID_COLUMN]))[:num]
    return chosen


def _with_prior(rows: list[dict[str, Any]], config: TrainConfig) -> list[dict[str, Any]]:
    if config.prior is None:
        return rows
    prior = read_prior(config.prior)
    found = [prior.get(row[ID_COLUMN]) for row in rows]
    if not any(found):
        raise InvalidInputError(
            f"None of the {len(rows)} prompts stands in the prior file {config.prior!r}. "
            "Its prompt column must hold the same texts."
        )
    return [
        {**row, PRIOR_MEAN: entry[0] if entry else 0.5, PRIOR_COUNT: entry[1] if entry else 0.0}
        for row, entry in zip(rows, found, strict=True)
    ]


def read_prior(path: str | os.PathLike[str]) -> dict[str, tuple[float, float]]:
    """Read offline success rates: JSONL, CSV or Parquet with `prompt`, `success`, `num_rollouts`.

    Args:
        path: the file; ``num_rollouts`` (how many rollouts a rate rests on) may be left out and is
            then taken as 8. The keys of a file that `apportion profile` wrote are taken as they
            are.

    Returns:
        Success and count by prompt key.

    Raises:
        InvalidInputError: the file cannot be read, lacks a column, or a rate is outside [0, 1].
    """
    import polars as pl

    file = Path(path)
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".jsonl": pl.read_ndjson,
        ".csv": pl.read_csv,
        ".parquet": pl.read_parquet,
    }
    if file.suffix not in readers:
        raise InvalidInputError(f"The prior file {file} must end in {', '.join(readers)}.")
    try:
        table = readers[file.suffix](file)
    except (OSError, pl.exceptions.PolarsError, ValueError) as error:
        raise InvalidInputError(f"The prior file {file} cannot be read: {error}") from error
    missing = [name for name in ("prompt", "success") if name not in table.columns]
    if missing:
        raise InvalidInputError(
            f"The prior file {file} has no column {missing[0]!r}; it has "
            f"{', '.join(table.columns)}."
        )
    success = _numbers(table, "success", file, low=0.0, high=1.0)
    if "num_rollouts" in table.columns:
        counts = _numbers(table, "num_rollouts", file, low=0.0, high=math.inf)
    else:
        counts = [_PRIOR_COUNT] * len(success)
    if ID_COLUMN in table.columns:
        keys = table[ID_COLUMN].to_list()
    else:
        keys = [prompt_key(p.to_list() if isinstance(p, pl.Series) else p) for p in table["prompt"]]
    return dict(zip(keys, zip(success, counts, strict=True), strict=True))


def _numbers(table: Any, name: str, file: Path, *, low: float, high: float) -> list[float]:
    values = table[name].to_list()
    for i, value in enumerate(values):
        if not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidInputError(
                f"Row {i} of {file} has {name} {value!r}, but it must be a number of at least "
                f"{low:g}" + ("." if math.isinf(high) else f" and at most {high:g}.")
            )
    return [float(value) for value in values]
