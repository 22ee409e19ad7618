"""Arms side by side: the same prompts, budget and seeds; one process a core; resumable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apportion.comparison import Interval, paired_difference, share_of_compute
from apportion.errors import InvalidInputError, RunFolderError
from apportion.run_log import lock_folder, num_logged_steps
from apportion.state_file import replace_file
from apportion.training import processes
from apportion.training.config import TrainConfig
from apportion.training.memorising import memorising
from apportion.training.summary import curve

BASE = "uniform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of a comparison."""

    config: TrainConfig
    folder: Path

    @property
    def name(self) -> str:
        """Name for people."""
        return f"{self.config.arm}, seed {self.config.seed}"

    @property
    def is_done(self) -> bool:
        """Whether the run ended and was summarised."""
        return (self.folder / "summary.json").exists()

    @property
    def arguments(self) -> tuple[dict[str, Any], str]:
        """What a worker needs to make it."""
        return self.config.to_dict(), str(self.folder)

    @property
    def num_steps(self) -> int:
        """Steps logged so far."""
        return num_logged_steps(self.folder)


def jobs_of(
    config: TrainConfig, arms: Sequence[str], seeds: Sequence[int], folder: Path
) -> list[Job]:
    """Return the runs of a comparison, seed by seed so that pairs are complete early."""
    return [
        Job(config=config.with_arm(arm, seed), folder=folder / f"{arm}-seed{seed}")
        for seed in seeds
        for arm in arms
    ]


def start(config: TrainConfig, arms: Sequence[str], seeds: Sequence[int], folder: Path) -> None:
    """Check a comparison and write what it consists of to ``comparison.json``.

    Raises:
        InvalidInputError: an arm stands twice, the base arm is missing, or no seed.
        RunFolderError: the folder holds another comparison.
    """
    if BASE not in arms or len(set(arms)) != len(arms) or len(arms) < 2:
        raise InvalidInputError(
            f"The arms are {', '.join(arms)}, but a comparison needs {BASE} and another, each once."
        )
    if not seeds:
        raise InvalidInputError("A comparison needs at least one seed.")
    for arm in arms:
        config.with_arm(arm, seeds[0])
    if (folder / "comparison.json").exists() or (folder / "run.json").exists():
        raise RunFolderError(
            f"{folder} already holds a comparison or a run. Resume it, or choose another folder."
        )
    lock_folder(folder).close()
    plan = {"arms": list(arms), "seeds": list(seeds), "config": config.to_dict()}
    replace_file(folder / "comparison.json", json.dumps(plan, indent=2).encode() + b"\n")


def load(folder: Path) -> tuple[TrainConfig, list[str], list[int]]:
    """Read what `start` wrote.

    Raises:
        RunFolderError: there is no comparison in the folder.
    """
    try:
        plan = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
        return TrainConfig.from_dict(plan["config"]), list(plan["arms"]), list(plan["seeds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{folder} holds no comparison that could be read: {error}") from error


def run_all(
    jobs: Sequence[Job],
    *,
    num_processes: int,
    on_poll: Callable[[Sequence[Job]], None],
) -> dict[Job, str]:
    """Run every job that is not done; those begun go on from their checkpoint.

    Returns:
        For each job that failed the reason; see `apportion.training.processes.run_all`.
    """
    return processes.run_all(jobs, _run_one, num_processes=num_processes, on_poll=on_poll)


def compare(jobs: Sequence[Job]) -> dict[str, Any]:
    """Put finished runs side by side, paired over seeds.

    Args:
        jobs: runs of several arms; a seed counts if all its arms are done.

    Returns:
        A dictionary ready for JSON: ``seeds``, ``budget`` and for each of ``arms`` the end success
        of each split, its paired difference to uniform, the share of uniform's rollouts that the
        arm needs to uniform's final level, signal, gain, variance, forecast error and time; and
        ``notes`` for people.

    Raises:
        InvalidInputError: no seed has all its arms.
    """
    arms = list(dict.fromkeys(job.config.arm for job in jobs))
    by_seed: dict[int, dict[str, Job]] = {}
    for job in jobs:
        if job.is_done:
            by_seed.setdefault(job.config.seed, {})[job.config.arm] = job
    seeds = [seed for seed, found in by_seed.items() if len(found) == len(arms)]
    if not seeds:
        raise InvalidInputError("No seed has finished in all arms, so nothing can be compared.")
    summaries = {arm: [_read_summary(by_seed[seed][arm].folder) for seed in seeds] for arm in arms}
    splits = list(summaries[arms[0]][0]["success"])
    curves = {
        (arm, split): [curve(by_seed[seed][arm].folder, split) for seed in seeds]
        for arm in arms
        for split in splits
    }
    return {
        "seeds": seeds,
        "budget": summaries[arms[0]][0]["budget"],
        # As this version writes it: an older one knew fewer fields.
        "config": TrainConfig.from_dict(summaries[arms[0]][0]["config"]).to_dict(),
        "arms": {arm: _arm_entry(arm, summaries, curves, splits) for arm in arms},
        "notes": _notes(summaries, curves),
    }


def _notes(
    summaries: dict[str, list[dict[str, Any]]],
    curves: dict[tuple[str, str], list[tuple[Any, Any]]],
) -> list[str]:
    """Return what the runs' own notes say, each once, and which arms learn the pool by heart."""
    notes: dict[str, None] = {}
    for found in summaries.values():
        for summary in found:
            # Summaries of the first version lack notes.
            own = (n for n in summary.get("notes", []) if n != summary.get("memorising"))
            notes |= dict.fromkeys(own)
    for arm in summaries:
        if (arm, "pool") in curves and (arm, "held_out") in curves:
            pool_T, held_out_T = (
                np.mean([reward_T for _, reward_T in curves[arm, split]], axis=0).tolist()
                for split in ("pool", "held_out")
            )
            if sentence := memorising(pool_T, held_out_T):
                notes[f"{arm}: {sentence}"] = None
    return list(notes)


def _arm_entry(
    arm: str,
    summaries: dict[str, list[dict[str, Any]]],
    curves: dict[tuple[str, str], list[tuple[Any, Any]]],
    splits: Sequence[str],
) -> dict[str, Any]:
    ours, base = summaries[arm], summaries[BASE]
    entry: dict[str, Any] = {"success": {}}
    for split in splits:
        after_S = [summary["success"][split]["after"]["avg"] for summary in ours]
        base_S = [summary["success"][split]["after"]["avg"] for summary in base]
        compute_T = curves[arm, split][0][0]
        share = share_of_compute(
            compute_T,
            np.stack([reward_T for _, reward_T in curves[arm, split]]),
            np.stack([reward_T for _, reward_T in curves[BASE, split]]),
        )
        entry["success"][split] = {
            "before": float(np.mean([s["success"][split]["before"]["avg"] for s in ours])),
            "after": float(np.mean(after_S)),
            "after_S": after_S,
            "difference": _plain(paired_difference(after_S, base_S)),
            "share_of_rollouts": _plain(share),
        }
    entry["share_with_signal"] = _mean(summary["share_with_signal"] for summary in ours)
    entry["num_rollouts"] = _mean(summary["num_rollouts"] for summary in ours)
    entry["num_uniform_steps"] = _mean(summary["num_uniform_steps"] for summary in ours)
    entry["allocation_share"] = _mean(summary["seconds"]["allocation_share"] for summary in ours)
    entry["forecast_error"] = {
        name: _mean(summary["forecast_error"][name] for summary in ours)
        for name in ours[0]["forecast_error"]
    }
    # Summaries written before prompts were chosen lack these.
    for name in ("prompts_per_step", "num_candidates", "share_touched"):
        entry[name] = _mean(summary.get(name) for summary in ours)
    gains = [summary.get("gain") for summary in ours]
    entry["gain"] = _mean(gain["against_uniform"] if gain else None for gain in gains)
    if ours[0]["gradient_variance"] is not None:
        entry["gradient_variance"] = {
            name: _mean(summary["gradient_variance"][name] for summary in ours)
            for name in ours[0]["gradient_variance"]
        }
    return entry


def _run_one(config: dict[str, Any], folder: str) -> str:
    """Run one job in a worker; return why it failed, or nothing."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)

    def make() -> None:
        from apportion.training.run import run

        run(TrainConfig.from_dict(config), path, resume=(path / "run.json").exists())

    return processes.reason_of_failure(make, path / "output.txt")


def _read_summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if a run has no such value."""
    known = list(values)
    return None if any(value is None for value in known) else float(np.mean(known))  # type: ignore[arg-type]


def _plain(interval: Interval) -> dict[str, float | None]:
    """Return the interval for JSON, which knows neither NaN nor infinity: both become null."""
    return {name: (v if np.isfinite(v) else None) for name, v in asdict(interval).items()}
