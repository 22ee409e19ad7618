"""What would each predictor have known, and what would its allocation have saved?

Takes folders of `apportion train --arm uniform` on the embedded model: even splits, so that every
predictor learns from the same rollouts. At each step a predictor sees the past only; its forecast
and its allocation are judged by the exact success that the run noted before the step.

    apportion train --arm uniform --pool bimodal --out runs/uniform-bimodal
    python research/forecasts.py runs/uniform-bimodal
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from apportion import calibration
from apportion.allocation import allocate
from apportion.allocator import RolloutAllocator
from apportion.embedding import TextEmbedding
from apportion.predictor import (
    VIP,
    Beta,
    FilterBank,
    GaussianProcess,
    MovingAverage,
    Predictor,
    Ridge,
)
from apportion.prompt_key import prompt_text
from apportion.training.arms import prompts_of
from apportion.training.run import start_of
from apportion.training.summary import logged_steps
from apportion.training.task import load_task
from apportion.types import Prompts

PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "filter bank": FilterBank,
    "filter bank, no features": FilterBank,
    "gaussian process": GaussianProcess,
    "beta": Beta,
    "ridge": Ridge,
    "moving average": MovingAverage,
    "vip": VIP,
}


def judge(folder: Path, name: str) -> tuple[float, float, float, list[float], float]:
    config = start_of(folder)
    rows = load_task(config).rows
    embedding = TextEmbedding().fit([prompt_text(row["prompt"]) for row in rows])
    prompts = prompts_of(rows, embedding)
    if name.endswith("no features"):
        prompts = Prompts(id_B=prompts.id_B)
    allocator = RolloutAllocator(PREDICTORS[name](), upper=config.most, do_no_harm=False)
    allocator.add(prompts)
    errors, likelihoods, ours, even, best = [], [], [], [], []
    for step in logged_steps(folder):
        truth_B = np.clip(step.success_B, 0.0, 1.0)
        batch = Prompts(id_B=step.outcomes.prompt_B)
        budget = config.budget_per_step
        split = allocator.allocate(batch, budget, step=step.outcomes.step)
        noise_B = truth_B * (1.0 - truth_B)
        ours.append(float((noise_B / (split.num_rollouts_B - 1)).sum()))
        even.append(float((noise_B / (config.rollouts_per_prompt - 1)).sum()))
        best.append(allocate(truth_B, budget, upper=config.most).variance)
        errors.append(float(((split.forecast.mean_B - truth_B) ** 2).mean()))
        outcomes = step.outcomes
        likelihoods.append(
            calibration.log_likelihood(
                split.forecast, outcomes.num_rollouts_B, outcomes.reward_sum_B
            )
        )
        allocator.observe(step.outcomes)
    quarters = np.array_split(np.arange(len(ours)), 4)
    ratios = [float(np.sum(np.take(ours, q)) / np.sum(np.take(even, q))) for q in quarters]
    total = float(np.sum(even))
    return (
        float(np.mean(errors)),
        float(np.mean(likelihoods)),
        float(np.sum(ours)) / total,
        ratios,
        float(np.sum(best)) / total,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of uniform runs")
    for folder in parser.parse_args().runs:
        print(f"{folder}")
        print("| predictor | squared error | log likelihood | variance / uniform | by quarter |")
        print("|---|---|---|---|---|")
        for name in PREDICTORS:
            error, likelihood, ratio, ratios, oracle = judge(folder, name)
            shown = ", ".join(f"{value:.2f}" for value in ratios)
            print(f"| {name} | {error:.4f} | {likelihood:.4f} | {ratio:.3f} | {shown} |")
        print(f"| oracle | 0 | | {oracle:.3f} | |\n")


if __name__ == "__main__":
    main()
