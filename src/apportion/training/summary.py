"""What a run bought, read back from its folder: success, signal, variance, forecasts, time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apportion import metrics
from apportion.allocation import allocate
from apportion.gain import Coverage, Progress
from apportion.gradient_variance import law_for
from apportion.predictor import MovingAverage, Predictor, Ridge
from apportion.run_log import RunLog, read_config, read_groups, read_lines
from apportion.state_file import replace_file
from apportion.training.config import K, TrainConfig
from apportion.training.memorising import memorising
from apportion.training.task import ID_COLUMN, Measured
from apportion.types import Forecast, Outcomes, Prompts
from apportion.validate import FloatArray, IntArray

Features = Callable[[list[str]], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroups:
    """The groups of one step, with the exact success of their prompts where it is known.

    Attributes:
        outcomes: of the B prompts that were sampled.
        forecast_mean_B: their forecasts.
        success_B: their exact success.
        even_success_A: exact success of the prompts that an even step would have sampled.
    """

    outcomes: Outcomes
    forecast_mean_B: FloatArray
    success_B: FloatArray | None
    even_success_A: FloatArray | None

    @property
    def target_B(self) -> FloatArray:
        """What a forecast is judged by: the exact success, else the observed mean reward."""
        if self.success_B is not None:
            return self.success_B
        scored_B = self.outcomes.num_rollouts_B
        nothing_B = np.full(len(scored_B), np.nan)
        return np.divide(self.outcomes.reward_sum_B, scored_B, out=nothing_B, where=scored_B > 0)


def summarise(
    folder: str | os.PathLike[str], features: Features, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Compute the summary of a run and write it to ``summary.json`` in its folder.

    Args:
        folder: run folder of `apportion train`.
        features: embedding of prompts by key, as the ridge baseline needs it.
        notes: what else the user should know.

    Returns:
        A dictionary ready for JSON; see the keys there.
    """
    path = Path(folder)
    config = TrainConfig.from_dict(read_config(path)["train"])
    evaluations = read_lines(path / "evaluations.jsonl")
    steps = list(logged_steps(path, config.reward_low, config.reward_high))
    lines = read_lines(path / "steps.jsonl")
    pool_T, held_out_T = (curve(path, split)[1].tolist() for split in ("pool", "held_out"))
    memorised = memorising(pool_T, held_out_T)
    # An even step says nothing of the forecast; it would draw the medians of the gain to 1.
    decided = [line for line in lines if not line.get("fallback")]
    summary = {
        "config": config.to_dict(),
        "success": _success(evaluations),
        "num_steps": len(steps),
        "num_rollouts": int(sum(step.outcomes.num_requested_B.sum() for step in steps)),
        "budget": config.budget,
        "share_with_signal": _share_with_signal(steps),
        "prompts_per_step": _mean(np.array([float(len(step.outcomes)) for step in steps])),
        "num_candidates": _last(lines, "num_candidates"),
        "share_touched": _last(lines, "share_touched"),
        "gain": _gain(config, steps, {line["step"] for line in decided}),
        "expected_gain": _expected(decided, "gain_ratio", np.median),
        "gradient_variance": None if config.chooses else _variance(config, steps),
        "expected_variance": _expected(lines, "variance_ratio", np.mean),
        "forecast_error": _forecast_errors(steps, features),
        "num_uniform_steps": len(lines) - len(decided),
        "memorising": memorised,
        "notes": [*notes, *([memorised] if memorised else [])],
        "seconds": _seconds(lines, read_lines(path / "batches.jsonl")),
    }
    replace_file(path / "summary.json", json.dumps(summary, indent=2).encode() + b"\n")
    return summary


def curve(folder: str | os.PathLike[str], split: str) -> tuple[FloatArray, FloatArray]:
    """Return rollouts spent and mean success at each evaluation of a split."""
    rows = _of_split(read_lines(Path(folder) / "evaluations.jsonl"), split)
    compute_T = np.array([row["compute"] for row in rows], dtype=np.float64)
    return compute_T, np.array([row["avg"] for row in rows], dtype=np.float64)


def log_measured(
    log: RunLog,
    step: int,
    *,
    compute: int,
    split: str,
    rows: Sequence[Mapping[str, Any]],
    measured: Measured,
) -> None:
    """Log how well a model does on the problems of a split, on average and one by one."""
    log.log_evaluation(
        step,
        compute=compute,
        split=split,
        values=measured_values(measured),
        prompts=[row[ID_COLUMN] for row in rows],
        success_Q=measured.success_Q,
    )


def measured_values(measured: Measured) -> dict[str, float]:
    """Average over problems what was measured, under the names that the summary uses.

    >>> measured_values(Measured.of_success(np.array([0.5])))["avg"]
    0.5
    """
    return {
        "num_problems": len(measured.success_Q),
        "avg": float(measured.success_Q.mean()),
        f"pass@{K}": float(measured.best_Q.mean()),
        f"worst@{K}": float(measured.worst_Q.mean()),
    }


def _of_split(evaluations: Iterable[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    return [row for row in evaluations if row["split"] == split]


def _success(evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split in dict.fromkeys(row["split"] for row in evaluations):
        rows = _of_split(evaluations, split)
        found[split] = {"before": _metrics_of(rows[0]), "after": _metrics_of(rows[-1])}
    return found


def _metrics_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("step", "compute", "split")}


def logged_steps(folder: Path, low: float = 0.0, high: float = 1.0) -> Iterable[StepGroups]:
    """Yield the groups of each step in order, with the exact success from ``batches.jsonl``.

    Args:
        folder: run folder.
        low: lowest possible reward; rewards are mapped to [0, 1], as beliefs are.
        high: highest possible reward.
    """
    batches = read_lines(folder / "batches.jsonl")
    batch_of = {row["step"]: row for row in batches}
    groups = read_groups(folder)
    for (step,), table in groups.group_by("step", maintain_order=True):
        column = {name: table[name].to_numpy() for name in table.columns}
        total, square, num = (
            column[name] for name in ("reward_sum", "reward_sumsq", "num_rollouts")
        )
        outcomes = Outcomes(
            prompt_B=column["prompt"].astype(np.str_),
            num_requested_B=column["num_requested"],
            num_rollouts_B=column["num_rollouts"],
            reward_sum_B=np.clip((total - low * num) / (high - low), 0.0, num),
            reward_sumsq_B=(square - 2.0 * low * total + low**2 * num) / (high - low) ** 2,
            num_tokens_B=column["num_tokens"],
            num_truncated_B=column["num_truncated"],
            step=int(step),
            policy_step_B=column["policy_step"],
        )
        batch = batch_of.get(step, {})
        known = batch.get("success")
        even = batch.get("even_success", known)
        yield StepGroups(
            outcomes=outcomes,
            forecast_mean_B=column["forecast_mean"].astype(np.float64),
            success_B=None if known is None else np.array(known),
            even_success_A=None if even is None else np.array(even),
        )


def _share_with_signal(steps: list[StepGroups]) -> float:
    has_signal = [
        metrics.has_signal_from_sums(
            step.outcomes.num_rollouts_B,
            step.outcomes.reward_sum_B,
            step.outcomes.reward_sumsq_B,
        )
        for step in steps
    ]
    return float(np.concatenate(has_signal).mean()) if has_signal else float("nan")


def _variance(config: TrainConfig, steps: list[StepGroups]) -> dict[str, float] | None:
    """Gradient variance under the exact success, as shares of the even split's, over all steps."""
    known = [step for step in steps if step.success_B is not None]
    if not known:
        return None
    law = law_for(config.estimator, weighting="prompt")
    ours = uniform = oracle = 0.0
    for step in known:
        assert step.success_B is not None
        truth = Forecast.of_success(np.clip(step.success_B, 0.0, 1.0))
        num_B: IntArray = step.outcomes.num_requested_B
        ours += float(law(truth, num_B).sum())
        best = allocate(
            truth, int(num_B.sum()), variance=law, lower=config.lower, upper=config.most
        )
        uniform += best.uniform_variance
        oracle += best.variance
    return {"against_uniform": ours / uniform, "oracle_against_uniform": oracle / uniform}


def _gain(
    config: TrainConfig, steps: list[StepGroups], decided: set[int]
) -> dict[str, float | None] | None:
    """Gain under the exact success over an even step's: of all steps, and the median of some.

    In the measure of the run's objective, `apportion.gain.Coverage` or else `Progress`. The median
    is of the steps in `decided`, those in which the forecast did; None if there are none.
    """
    ours, even = [], []
    for step in steps:
        if step.success_B is None or step.even_success_A is None:
            return None
        num_A = np.full(len(step.even_success_A), config.rollouts_per_prompt)
        ours.append(_worth(config, step.success_B, step.outcomes.num_requested_B))
        even.append(_worth(config, step.even_success_A, num_A))
    if not sum(even) > 0.0:
        return None
    ratios = [
        one / other
        for step, one, other in zip(steps, ours, even, strict=True)
        if other > 0.0 and step.outcomes.step in decided
    ]
    return {
        "against_uniform": sum(ours) / sum(even),
        "median": float(np.median(ratios)) if ratios else None,
    }


def _worth(config: TrainConfig, success_B: FloatArray, num_B: IntArray) -> float:
    truth = Forecast.of_success(np.clip(success_B, 0.0, 1.0))
    gain = Coverage(truth) if config.objective == "coverage" else Progress.of(truth)
    return float(gain.value(num_B).sum())


def _expected(
    lines: list[dict[str, Any]], name: str, average: Callable[[list[float]], Any]
) -> float | None:
    """Average a ratio to an even split, as forecast before each step; in shadow, as it would be."""
    names = (name, f"shadow_{name}")
    ratios = [line[key] for line in lines for key in names if line.get(key) is not None]
    return float(average(ratios)) if ratios else None


def _last(lines: list[dict[str, Any]], name: str) -> float | None:
    """Return the last value of a name that the steps log."""
    found = [line[name] for line in lines if line.get(name) is not None]
    return found[-1] if found else None


def _forecast_errors(steps: list[StepGroups], features: Features) -> dict[str, float | None]:
    """Mean absolute error of each step's forecast, made before the step, over all groups."""
    rivals: Mapping[str, Predictor] = {"moving_average": MovingAverage(), "ridge": Ridge()}
    errors: dict[str, list[FloatArray]] = {name: [] for name in ("forecast", *rivals)}
    row_of: dict[str, int] = {}
    for step in steps:
        keys = step.outcomes.prompt_B.tolist()
        new = [key for key in dict.fromkeys(keys) if key not in row_of]
        row_of |= {key: len(row_of) + i for i, key in enumerate(new)}
        row_B = np.array([row_of[key] for key in keys], dtype=np.int64)
        errors["forecast"].append(np.abs(step.forecast_mean_B - step.target_B))
        for name, rival in rivals.items():
            if new:
                rival.add(Prompts(id_B=np.array(new), feature_BD=features(new)))
            forecast = rival.forecast(row_B, step.outcomes.step)
            errors[name].append(np.abs(forecast.mean_B - step.target_B))
            _, first = np.unique(row_B, return_index=True)
            scored = first[step.outcomes.num_rollouts_B[first] > 0]
            rival.update(row_B[scored], step.outcomes.take(scored))
    return {name: _mean(np.concatenate(parts)) for name, parts in errors.items()}


def _mean(values: FloatArray) -> float | None:
    """Return the mean of what is known; None if nothing is."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _seconds(lines: list[dict[str, Any]], batches: list[dict[str, Any]]) -> dict[str, float]:
    """Time of all steps, and the allocator's share of it (forecast, split, learning)."""
    step_seconds = sum(row["seconds"] for row in batches)
    allocation = sum(row.get("allocation_seconds") or 0.0 for row in lines)
    share = allocation / step_seconds if step_seconds else float("nan")
    return {"steps": step_seconds, "allocation": allocation, "allocation_share": share}
