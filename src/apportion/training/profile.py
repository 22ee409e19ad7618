"""Every prompt sampled equally often under the base model: how hard is the data, before a run?

The folder holds ``samples.jsonl`` (a line a batch, appended; a line that a kill tore is sampled
again), ``profile.json`` (format, version, configuration; once all is sampled, the summary and the
histogram), ``prior.parquet`` (success and counts by prompt, for ``train --prior``) and a ``lock``.
Prompts come in random order: those that are sampled first speak for all.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apportion import validate
from apportion.difficulty import Profile, graded_summary
from apportion.errors import InvalidInputError, StateError
from apportion.prompt_key import prompt_text
from apportion.state_file import replace_file
from apportion.training.config import TrainConfig
from apportion.training.profile_files import (
    PRIOR_FILE,
    PROFILE_FILE,
    append_samples,
    begun_profile,
    check_folder,
    read_described,
    read_samples,
    write_described,
)
from apportion.training.profile_sampler import TEMPERATURE, Sampler, sampler_of
from apportion.training.run import hush, locked
from apportion.training.task import ID_COLUMN, Task, load_task, score_rows
from apportion.validate import FloatArray

_TRAIN = TrainConfig()

Row = dict[str, Any]
OnBatch = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """Everything that defines a profile; model, data and reward as in `TrainConfig`.

    Attributes:
        model: path or hub id; the embedded model if None.
        dataset: file, folder or hub id; the embedded pool if None.
        pool: which embedded pool.
        reward: ``exact``, ``math-verify`` or ``package.module:function``.
        reward_low: lowest possible reward.
        reward_high: highest possible reward.
        prompt_column: column of the prompts.
        answer_column: column of the answers.
        num_samples: K, completions of every prompt.
        limit: so many prompts, drawn at random; all if None.
        max_tokens: longest completion, in tokens.
        prompts_per_batch: prompts sampled at a time, each with its K completions. Another size
            needs other memory and draws other random numbers.
        seed: of the order of prompts and of sampling.
    """

    model: str | None = None
    dataset: str | None = None
    pool: str = _TRAIN.pool
    reward: str = _TRAIN.reward
    reward_low: float = _TRAIN.reward_low
    reward_high: float = _TRAIN.reward_high
    prompt_column: str = _TRAIN.prompt_column
    answer_column: str = _TRAIN.answer_column
    num_samples: int = 16
    limit: int | None = None
    max_tokens: int = _TRAIN.max_tokens
    prompts_per_batch: int = 64
    seed: int = _TRAIN.seed

    def __post_init__(self) -> None:
        """Check every value."""
        validate.whole_number("samples", self.num_samples, at_least=2)
        validate.whole_number("prompts_per_batch", self.prompts_per_batch, at_least=1)
        if self.limit is not None:
            validate.whole_number("limit", self.limit, at_least=1)
        self.task_config()

    @property
    def is_embedded(self) -> bool:
        """Whether the shipped model is sampled on the shipped problems."""
        return self.model is None and self.dataset is None

    def task_config(self) -> TrainConfig:
        """Return a run on the same model, data and reward, with no prompt held out."""
        return TrainConfig(
            model=self.model,
            dataset=self.dataset,
            pool=self.pool,
            reward=self.reward,
            reward_low=self.reward_low,
            reward_high=self.reward_high,
            prompt_column=self.prompt_column,
            answer_column=self.answer_column,
            held_out=_TRAIN.held_out if self.is_embedded else 0,
            max_tokens=self.max_tokens,
            seed=self.seed,
        )


def run_profile(
    config: ProfileConfig, folder: Path, *, on_batch: OnBatch | None = None
) -> dict[str, Any]:
    """Sample every prompt K times, or go on with that, and write the profile.

    Each batch has a seed of its own, so a profile that was interrupted equals one that was not.
    Python's, NumPy's and torch's global random states are set anew.

    Args:
        config: what to sample.
        folder: made if absent; an unfinished profile of the same configuration is gone on with, a
            finished one is read.
        on_batch: called with the prompts done, all prompts and the mean success so far, once at
            the start and after each batch.

    Returns:
        The content of ``profile.json``.

    Raises:
        InvalidInputError: data, model or reward cannot be used, or a reward leaves its range.
        RunFolderError: the folder holds a run, or a profile of another configuration or of other
            prompts, or another process writes there.
        StateError: what the folder holds is damaged or of a newer version.
    """
    check_folder(folder)
    with locked(folder):
        begun = begun_profile(folder, asdict(config))
        if begun is not None and "summary" in begun and begun["config"] == asdict(config):
            return begun
        hush(everything=config.is_embedded)
        task = load_task(config.task_config())
        order = np.random.default_rng(config.seed).permutation(len(task.rows))
        rows = [task.rows[at] for at in order[: config.limit]]
        keys = [row[ID_COLUMN] for row in rows]
        batches = read_samples(folder, keys, config.num_samples)
        start = {"config": asdict(config), "temperature": TEMPERATURE}
        value_QK = _sample_rest(task, rows, batches, config, folder, start, on_batch)
        _write_prior(folder / PRIOR_FILE, rows, value_QK)
        return write_described(folder, start | _result(value_QK, batches, config, task.notes))


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read the counts of a finished profile.

    Args:
        path: the folder of a profile, or its ``profile.json``.

    Returns:
        Successes of the prompts in ascending order; ``prior.parquet`` says whose they are.

    Raises:
        StateError: there is no profile, it is not finished, damaged or of a newer version.
        InvalidInputError: its rewards are graded: there are no successes to count.
    """
    file = Path(path)
    described = read_described(file / PROFILE_FILE if file.is_dir() else file)
    if "summary" not in described:
        raise StateError(f"{path} is not finished. Give its `apportion profile` command again.")
    if described.get("histogram") is None:
        raise InvalidInputError(
            f"{path} is of graded rewards, but difficulty is counted in successes. Profile with a "
            "reward of two values."
        )
    return Profile.of_histogram(described["histogram"])


def _sample_rest(
    task: Task,
    rows: Sequence[Row],
    batches: list[Row],
    config: ProfileConfig,
    folder: Path,
    start: Row,
    on_batch: OnBatch | None,
) -> FloatArray:
    """Sample what is missing, batch by batch, and return the success (Q, K) of everything."""
    values = [_success(batch["reward"], config) for batch in batches]
    num_done, total = sum(map(len, values)), sum(float(value_BK.sum()) for value_BK in values)
    sample = None
    if num_done < len(rows):
        sample = sampler_of(
            task,
            is_embedded=config.is_embedded,
            num_samples=config.num_samples,
            max_tokens=config.max_tokens,
        )
    write_described(folder, start)
    while True:
        if on_batch is not None:
            on_batch(num_done, len(rows), total / max(num_done * config.num_samples, 1))
        if sample is None or num_done == len(rows):
            return np.concatenate(values)
        part = rows[num_done : num_done + config.prompts_per_batch]
        batches.append(_sample_batch(sample, task, part, config, num_done))
        append_samples(folder, batches[-1])
        values.append(_success(batches[-1]["reward"], config))
        num_done, total = num_done + len(part), total + float(values[-1].sum())


def _sample_batch(
    sample: Sampler, task: Task, rows: Sequence[Row], config: ProfileConfig, start: int
) -> Row:
    from transformers import set_seed

    set_seed(int(np.random.SeedSequence([config.seed, start]).generate_state(1)[0]))
    completions, is_cut = sample(rows)
    repeated = [row for row in rows for _ in range(config.num_samples)]
    reward_N = score_rows(task.reward, repeated, completions)
    shape = (len(rows), config.num_samples)
    reward_BK = reward_N.astype(object).reshape(shape)
    reward_BK[np.isnan(reward_N).reshape(shape)] = None
    return {
        "prompt": [row[ID_COLUMN] for row in rows],
        "reward": reward_BK.tolist(),
        "num_truncated": np.reshape(is_cut, shape).sum(axis=1).tolist(),
    }


def _success(reward: Sequence[Sequence[float | None]], config: ProfileConfig) -> FloatArray:
    """Return rewards as shares of their range; a completion without a score is a failure."""
    reward_BK = np.array(reward, dtype=np.float64)
    low, high = config.reward_low, config.reward_high
    outside = reward_BK[(reward_BK < low) | (reward_BK > high)]
    if outside.size:
        raise InvalidInputError(
            f"A reward is {outside[0]:g}, outside [{low:g}, {high:g}]. Name its range with "
            "--reward-low and --reward-high; what is sampled is kept."
        )
    return np.asarray(np.nan_to_num((reward_BK - low) / (high - low)))


def _result(
    value_QK: FloatArray, batches: Sequence[Row], config: ProfileConfig, notes: Sequence[str]
) -> Row:
    if _is_graded(value_QK):
        summary, histogram = graded_summary(value_QK), None
    else:
        profile = Profile(
            num_success_Q=value_QK.sum(axis=1).astype(np.int64), num_samples=config.num_samples
        )
        summary, histogram = profile.summary(), profile.histogram.tolist()
    num = value_QK.size
    num_cut = sum(sum(batch["num_truncated"]) for batch in batches)
    num_unscored = sum(reward.count(None) for batch in batches for reward in batch["reward"])
    told = list(notes)
    if num_cut:
        told.append(
            f"{num_cut:,} of {num:,} completions were cut off at {config.max_tokens} tokens: with "
            "more of them, success may be higher."
        )
    if num_unscored:
        told.append(f"{num_unscored:,} of {num:,} completions got no score and count as wrong.")
    summary |= {"num_rollouts": num, "num_truncated": num_cut, "num_unscored": num_unscored}
    return {"summary": summary, "histogram": histogram, "notes": told}


def _is_graded(value_QK: FloatArray) -> bool:
    return not np.isin(value_QK, (0.0, 1.0)).all()


def _write_prior(path: Path, rows: Sequence[Row], value_QK: FloatArray) -> None:
    """Write what ``train --prior`` reads; of rewards with two values the counts as well."""
    import polars as pl

    columns: dict[str, Any] = {
        ID_COLUMN: [row[ID_COLUMN] for row in rows],
        "prompt": [prompt_text(row["prompt"]) for row in rows],
        "success": value_QK.mean(axis=1),
        "num_rollouts": [value_QK.shape[1]] * len(rows),
    }
    if not _is_graded(value_QK):
        columns["num_success"] = value_QK.sum(axis=1).astype(np.int64)
        columns["num_samples"] = columns["num_rollouts"]
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    replace_file(path, buffer.getvalue())
