"""A run folder of ours: groups with steps, prompts by key, and the configuration of the run."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apportion.errors import InvalidInputError, MissingExtraError, RunFolderError, first_line
from apportion.metrics import has_signal_from_sums
from apportion.readers import curves
from apportion.recording import Curve, GroupTable, Recording
from apportion.run_log import FORMAT, PROMPTS_FILE, read_config, read_groups
from apportion.types import StrArray
from apportion.validate import FloatArray

if TYPE_CHECKING:
    import polars as pl


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder holds a run of ours."""
    try:
        described = json.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(described, dict) and described.get("format") == FORMAT


def read_run_folder(folder: Path) -> Recording:
    """Read the groups, the scalars and the configuration of a run of ours.

    Raises:
        InvalidInputError: it is damaged, or it holds no group.
    """
    import polars as pl

    broken = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            config, frame = read_config(folder), read_groups(folder)
        except RunFolderError as error:
            raise InvalidInputError(str(error)) from error
        except (*broken, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{folder} is damaged: its groups cannot be read ({first_line(error)})."
            ) from error
    notes += [_dropped(str(one.message), folder) for one in caught]
    groups = _groups(frame.sort("step", maintain_order=True), notes)
    if groups is not None and (folder / PROMPTS_FILE).exists():
        groups = replace(groups, feature_QD=_features(folder / PROMPTS_FILE, groups.id_Q, notes))
    scalars = _curves(folder / "steps.jsonl", notes)
    if groups is None and not scalars:
        raise InvalidInputError(f"{folder} holds a run of apportion without any group yet.")
    return Recording(
        source="apportion run folder",
        groups=groups,
        curves=scalars,
        reward_range=(0.0, 1.0) if groups is None else _reward_range(groups),
        config=config,
        notes=tuple(notes),
    )


def _curves(path: Path, notes: list[str]) -> dict[str, Curve]:
    try:
        found = curves.read(path) if path.exists() else None
    except (InvalidInputError, MissingExtraError) as error:
        notes.append(f"{path.name} cannot be read: {first_line(error)}.")
        return {}
    if found is None:
        return {}
    notes += [f"{path.name}: {note}" for note in found[1]]
    return found[0]


def _features(path: Path, id_Q: StrArray, notes: list[str]) -> FloatArray | None:
    """Return the features of the prompts, NaN rows where there are none; None if all are so."""
    import polars as pl

    broken = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
    try:
        table = pl.read_parquet(path, columns=["prompt", "feature"], glob=False)
        if not len(table):
            return None
        row_of = {key: row for row, key in enumerate(table["prompt"].cast(pl.String).to_list())}
        feature = table["feature"].cast(pl.List(pl.Float64))
        is_whole = feature.null_count() == 0 and feature.list.len().n_unique() == 1
        # As one flat column: a list of lists of numbers would take ten times the memory.
        feature_RD = feature.explode().to_numpy().reshape(len(table), -1)
        feature_RD = np.where(np.isfinite(feature_RD).all(axis=1)[:, None], feature_RD, np.nan)
    except (*broken, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        notes.append(f"{path.name} is damaged: the features of prompts were left out.")
        return None
    found = [(at, row_of[key]) for at, key in enumerate(id_Q.tolist()) if key in row_of]
    if not found:
        return None
    feature_QD = np.full((len(id_Q), feature_RD.shape[1]), np.nan)
    at_Q, row_Q = np.array(found).T
    feature_QD[at_Q] = feature_RD[row_Q]
    return None if np.isnan(feature_QD).all() else feature_QD


def _groups(frame: pl.DataFrame, notes: list[str]) -> GroupTable | None:
    import polars as pl

    needed = ("step", "prompt", "num_requested", "num_rollouts", "reward_sum", "reward_sumsq")
    whole = ("step", "num_requested", "num_rollouts", "num_tokens", "num_truncated")
    usable = pl.all_horizontal(
        *(pl.col(name).is_not_null() for name in needed),
        *(pl.col(name).fill_null(0) >= 0 for name in whole),
        *(pl.col(name).is_finite() for name in ("reward_sum", "reward_sumsq")),
        ~pl.col("prompt").str.contains("\0", literal=True),
    )
    kept = frame.filter(usable)
    if len(kept) < len(frame):
        left_out = len(frame) - len(kept)
        notes.append(f"{left_out:,} of {len(frame):,} groups are damaged and were left out.")
    if not len(kept):
        return None
    id_Q, prompt_G = np.unique(np.array(kept["prompt"].to_list()), return_inverse=True)
    count = {name: kept[name].fill_null(0).to_numpy().astype(np.int64) for name in whole}
    total = kept["reward_sum"].to_numpy().astype(np.float64)
    square = kept["reward_sumsq"].to_numpy().astype(np.float64)
    return GroupTable(
        id_Q=id_Q,
        text_Q=None,
        prompt_G=prompt_G.astype(np.int64),
        step_G=count["step"],
        policy_step_G=kept["policy_step"].fill_null(kept["step"]).to_numpy().astype(np.int64),
        num_requested_G=count["num_requested"],
        num_rollouts_G=count["num_rollouts"],
        reward_sum_G=total,
        reward_sumsq_G=square,
        signal_G=has_signal_from_sums(count["num_rollouts"], total, square),
        num_tokens_G=count["num_tokens"],
        num_truncated_G=count["num_truncated"],
    )


def _reward_range(groups: GroupTable) -> tuple[float, float]:
    """Return the ends of single rewards if all are 0 or 1, else of the means of groups."""
    scored = groups.num_rollouts_G > 0
    if not scored.any():
        return 0.0, 1.0
    total_G, num_G = groups.reward_sum_G[scored], groups.num_rollouts_G[scored]
    if _are_counts(total_G) and np.array_equal(total_G, groups.reward_sumsq_G[scored]):
        return float((total_G == num_G).all()), float((total_G > 0).any())
    rate_G = groups.rate_G[scored]
    return float(rate_G.min()), float(rate_G.max())


def _are_counts(total_G: FloatArray) -> bool:
    return bool((total_G == np.floor(total_G)).all())


def _dropped(warning: str, folder: Path) -> str:
    """Turn a warning of the run log, ``PATH: dropped ...``, into a note without its folder."""
    return warning.replace(f"{folder}/", "", 1)
