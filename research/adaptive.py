"""What an adaptive sweep saves and risks, replayed on the populations of `planner.py`.

The records hold every run up to 1e7 rollouts. A sweep that asks for a run until some compute gets
its record up to the first evaluation there, and pays for that. The grid is seven n on three seeds,
seen up to 1e6 rollouts each; truth and regret are those of `planner.py`. Other sweeps of fixed
lengths stand beside it.

    python research/adaptive.py --out runs/planner
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from planner import (
    BUDGET,
    PROMPTS_PER_STEP,
    SEEDS,
    SIZES,
    curves,
    outcome,
    seen,
    setting,
    truth,
)

from apportion.plan.adaptive_sweep import Candidate, Decision, decisions
from apportion.plan.reward_forecast import forecast_rewards
from apportion.plan.runs import Run, cells_of

LENGTH = 1e6
WHOLE = 0.96e6
"""Where the evaluations of a run up to `LENGTH` end; the last steps of large n reach beyond."""
BEYOND = 1.07e6
GRID = LENGTH * len(SIZES) * len(SEEDS)


def some(runs: list[Run], length: float, num_seeds: int, whole: tuple[int, ...] = ()) -> list[Run]:
    """Cut the runs of the first seeds to a length, those of some n to that of the grid."""
    return [
        part
        for run in runs
        if run.seed < num_seeds
        and (part := run.until(LENGTH if run.rollouts_per_prompt in whole else length))
    ]


def adaptive(runs: list[Run]) -> tuple[list[Run], list[Decision]]:
    """Return the runs as far as the adaptive sweep took them, and what it decided."""
    known = {
        Candidate(
            rollouts_per_prompt=run.rollouts_per_prompt,
            prompts_per_step=PROMPTS_PER_STEP,
            learning_rate=run.learning_rate,
            seed=run.seed,
        ): run
        for run in sorted(runs, key=lambda run: (run.seed, run.rollouts_per_prompt))
    }
    made = decisions(list(known), runs, most_per_run=WHOLE, target=BUDGET)
    asked = {one.candidate: one.until for decision in made for one in decision.extensions}
    parts = []
    for one, until in asked.items():
        end = known[one].compute_T[np.searchsorted(known[one].compute_T, until)]
        parts.append(known[one].until(end))
    return [part for part in parts if part is not None], made


def judged(runs: list[Run], right_S: np.ndarray) -> dict[str, float]:
    """Judge the plan from some runs; regret is in errors of one evaluation, as in `planner.py`."""
    forecast = forecast_rewards(cells_of(runs), BUDGET)
    found = outcome(forecast, right_S)
    lead_D = forecast.reward_DS.max(1) - forecast.reward_DS[:, int(forecast.reward_S.argmax())]
    return {
        **found,
        "share": sum(float(run.compute_T[-1]) for run in runs) / GRID,
        "expected": float(lead_D.mean()) / found["noise"],
        "doublings": abs(np.log2(found["n planned"] / found["n best"])),
    }


def sweeps(runs: list[Run]) -> dict[str, list[Run]]:
    """Return what sweeps of fixed lengths would have seen."""
    return {
        "grid": some(runs, LENGTH, 3),
        "grid, a quarter of each run": some(runs, LENGTH / 4, 3),
        "one seed": some(runs, LENGTH, 1),
        "one seed, half of each run": some(runs, LENGTH / 2, 1),
        "one seed, a quarter of each run": some(runs, LENGTH / 4, 1),
        "the same, n = 8, 64, 512 whole": some(runs, LENGTH / 4, 1, (8, 64, 512)),
    }


def row(label: str, rows: list[dict[str, Any]]) -> str:
    """Return a line of the table."""

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows], dtype=float)

    share, regret = column("share"), column("regret")
    return (
        f"| {label} | {share.mean():.3f}, {np.median(share):.3f}, {share.max():.3f} | "
        f"{np.mean(regret < 1):.2f} | {regret.mean():.2f} | {column('expected').mean():.2f} | "
        f"{np.mean(column('doublings') <= 1):.2f} | {column('covered').mean():.2f} | "
        f"{column('width').mean():.3f}, {column('score').mean():.3f} |"
    )


def paired(found: list[dict[str, Any]], other: list[dict[str, Any]]) -> str:
    """Return the difference of mean regret, with the error of the pairs."""
    apart = np.array([a["regret"] - b["regret"] for a, b in zip(found, other, strict=True)])
    return f"{apart.mean():+.2f} +- {apart.std(ddof=1) / np.sqrt(len(apart)):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/planner"))
    parser.add_argument("--populations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=12, help="of the populations")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    table: dict[str, list[dict[str, Any]]] = {}
    for number in range(args.populations):
        population, training = setting(args.seed, number)
        found = curves(args.out / f"seed{args.seed}-{number}.pkl", args.seed, number)
        right_S = truth(found, BUDGET)
        for label, runs in sweeps(seen(found, population, training, LENGTH)).items():
            table.setdefault(label, []).append(judged(runs, right_S))
        runs, made = adaptive(seen(found, population, training, BEYOND))
        result = judged(runs, right_S) | {
            "rounds": len(made) - 1,
            "is_early": "expected to lose" in made[-1].stop,
        }
        table.setdefault("adaptive", []).append(result)
        print(
            f"{number}: {result['rounds']} rounds, share {result['share']:.3f}, regret "
            f"{result['regret']:.2f} (grid {table['grid'][-1]['regret']:.2f}), {made[-1].stop}",
            flush=True,
        )
    print(f"\n{args.populations} populations; regrets in evaluation noise, sqrt(p (1-p) / 1200)\n")
    print(
        "| sweep | share of the grid's rollouts: mean, median, most | regret below 1 | mean regret "
        "| expected | n within a factor of 2 | 90% interval covers | its width, score |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for label, rows in table.items():
        print(row(label, rows))
    print()
    for label, rows in table.items():
        if label != "adaptive":
            print(f"adaptive minus {label}: mean regret {paired(table['adaptive'], rows)}")
    for label, is_early in (("stopped early", True), ("share spent", False)):
        rows = [one for one in table["adaptive"] if one["is_early"] == is_early]
        if rows:
            expected = np.mean([one["expected"] * one["noise"] for one in rows])
            lost = np.array([one["regret"] * one["noise"] for one in rows])
            print(f"{row(label, rows)} {len(rows)} populations")
            print(
                f"in reward: expected regret {expected:.4f}, regret {lost.mean():.4f}, most "
                f"{lost.max():.4f}"
            )


if __name__ == "__main__":
    main()
