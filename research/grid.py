"""What the full grid on the embedded model says: n or the learning rate, passes, interference.

Runs are made by `apportion sweep` (commands in research/LOG.md) and read here:

    python research/grid.py runs/grid/mixed runs/grid/mixed500

Success is exact, so a problem's change has no sampling noise; figures are means over seeds with
standard errors. Reward is held-out success of the best checkpoint so far.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from apportion.interference import MARGIN, UNSOLVED
from apportion.sweep.sweep import Sweep, load

LEVELS = (1 / 16, 1 / 4, 1)


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the finished runs of a sweep with their curves."""
    sweep: Sweep = load(folder)
    found = []
    for job in sweep.jobs:
        if not job.is_done:
            continue
        lines = [json.loads(x) for x in (job.folder / "evaluations.jsonl").read_text().splitlines()]
        held_out = [line for line in lines if line["split"] == "held_out"]
        found.append(
            {
                "setting": job.setting,
                "folder": job.folder,
                "prompts": next(x for x in lines if x["split"] == "pool")["num_problems"],
                "compute_T": np.array([line["compute"] for line in held_out]),
                "reward_T": np.maximum.accumulate([line["avg"] for line in held_out]),
                "last": held_out[-1]["avg"],
                "pool": [line["avg"] for line in lines if line["split"] == "pool"][-1],
            }
        )
    return found


def success(run: dict[str, Any], split: str, step: int) -> np.ndarray:
    """Return the exact success of every problem, in the order of its key."""
    path = run["folder"] / "evaluations" / f"{split}-{step:08d}.parquet"
    return pl.read_parquet(path).sort("prompt")["success"].to_numpy()


def by_setting(runs: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    grouped = defaultdict(list)
    for run in runs:
        s = run["setting"]
        grouped[s.allocator, s.rollouts_per_prompt, s.learning_rate].append(run)
    return dict(sorted(grouped.items()))


def shown(values: list[float]) -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):.4f} +- {error:.4f}"


def print_rewards(runs: list[dict[str, Any]]) -> None:
    most = max(run["compute_T"][-1] for run in runs)
    levels = [level * most for level in LEVELS]
    print(
        "allocator n rate seeds passes |", *(f"best up to {c:,.0f}" for c in levels), "| last pool"
    )
    for (arm, n, rate), group in by_setting(runs).items():
        at = [
            shown([np.interp(c, run["compute_T"], run["reward_T"]) for run in group])
            for c in levels
        ]
        print(
            f"{arm:9} {n:4} {rate:9.3g} {len(group)} "
            f"{group[0]['compute_T'][-1] / n / group[0]['prompts']:6.1f} |",
            *at,
            f"| {shown([run['last'] for run in group])} {np.mean([r['pool'] for r in group]):.3f}",
        )


def print_interference(runs: list[dict[str, Any]]) -> None:
    print(f"share of problems that changed by more than {MARGIN}, start to end; never solved")
    for (arm, n, rate), group in by_setting(runs).items():
        for split in ("pool", "held_out"):
            rows = []
            for run in group:
                before_Q = success(run, split, 0)
                after_Q = success(run, split, run["setting"].num_steps)
                change_Q = after_Q - before_Q
                is_never_Q = (before_Q <= UNSOLVED) & (after_Q <= UNSOLVED)
                rows.append(
                    [(change_Q > MARGIN).mean(), (change_Q < -MARGIN).mean(), is_never_Q.mean()]
                )
            up, down, never = (shown(list(column)) for column in np.transpose(rows))
            print(f"{arm:9} {n:4} {rate:9.3g} {split:8} up {up} down {down} never {never}")


def print_mixtures(runs: list[dict[str, Any]], small: int, large: int) -> None:
    """Which n is better is a matter of the problem, if it is the same in other seeds."""
    grouped = {
        n: [
            run
            for (arm, m, _), group in by_setting(runs).items()
            for run in group
            if m == n and arm == "uniform"
        ]
        for n in (small, large)
    }
    seeds = sorted({run["setting"].seed for run in grouped[small]})
    if len(seeds) < 2:
        return
    gap_SQ = []
    for seed in seeds:
        by_n = [
            np.mean(
                [
                    success(run, "held_out", run["setting"].num_steps)
                    for run in grouped[n]
                    if run["setting"].seed == seed
                ],
                axis=0,
            )
            for n in (small, large)
        ]
        gap_SQ.append(by_n[0] - by_n[1])
    gap_SQ = np.array(gap_SQ)
    agree = np.mean(
        [np.corrcoef(gap_SQ[a], gap_SQ[b])[0, 1] for a in range(len(seeds)) for b in range(a)]
    )
    mean_Q = gap_SQ.mean(0)
    print(
        f"n = {small} against n = {large}, held-out problems, mean of {len(seeds)} seeds: "
        f"better by more than {MARGIN} on {np.mean(mean_Q > MARGIN):.3f}, worse on "
        f"{np.mean(mean_Q < -MARGIN):.3f}; the gaps of two seeds correlate at {agree:.2f}"
    )
    chosen = [
        np.where(np.delete(gap_SQ, s, 0).mean(0) > 0, gap_SQ[s], 0.0).mean()
        for s in range(len(seeds))
    ]
    print(
        f"  choosing n by problem from the other seeds: {shown(chosen)} over n = {large} "
        f"throughout, {shown([c - g for c, g in zip(chosen, gap_SQ.mean(1), strict=True)])} over "
        f"n = {small}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweeps", type=Path, nargs="+")
    for folder in parser.parse_args().sweeps:
        runs = read(folder)
        print(f"\n{folder}: {len(runs)} runs, {runs[0]['prompts']:,} prompts to train on")
        print_rewards(runs)
        print_interference(runs)
        print_mixtures(runs, 4, 64)
        print_mixtures(runs, 4, 256)


if __name__ == "__main__":
    main()
