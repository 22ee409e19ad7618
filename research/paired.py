"""Does adaptive allocation buy success at an equal budget? Paired seeds, learning rate per arm.

The plain loop on the embedded model (`apportion.embedded.loop`), evaluated exactly. For each pool
every arm runs at each learning rate on tuning seeds; the rate with the highest mean success on the
pool at the end is taken; then all arms run on the paired seeds, with the same prompts and the same
number of rollouts. Resumable: with the same ``--out`` no finished run is repeated.

    python research/paired.py --out runs/paired
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from apportion.allocator import OBJECTIVES
from apportion.comparison import Interval, paired_difference, share_of_compute
from apportion.state_file import replace_file
from apportion.training.config import CHOOSING_ARMS

TUNING_SEED = 1000
"""First of the seeds that learning rates are chosen on; far from the paired ones."""
SPLITS = ("pool", "held_out")


@dataclass(frozen=True)
class Run:
    pool: str
    arm: str
    rate: float
    seed: int
    rollouts_per_prompt: int
    steps: int
    every: int
    objective: str = "variance"
    candidates: int = 1

    def path(self, out: Path) -> Path:
        chooses = self.objective != "variance" and self.arm in CHOOSING_ARMS
        choice = f"-{self.objective}{self.candidates}x" if chooses else ""
        name = f"{self.arm}{choice}-rate{self.rate:g}-seed{self.seed}-every{self.every}.json"
        return out / f"{self.pool}-n{self.rollouts_per_prompt}-steps{self.steps}" / name


def execute(run: Run, out: Path) -> None:
    from transformers.utils.logging import disable_progress_bar

    from apportion import RolloutAllocator
    from apportion.embedded.exact import exact_success
    from apportion.embedded.loop import train_loop
    from apportion.embedded.model import load
    from apportion.embedded.pools import pool
    from apportion.embedding import TextEmbedding
    from apportion.predictor import Oracle
    from apportion.prompt_key import prompt_key
    from apportion.training.arms import allocator_of, prompts_of
    from apportion.training.config import TrainConfig
    from apportion.training.task import ID_COLUMN

    disable_progress_bar()
    started = time.perf_counter()
    problems, held_out = pool(run.pool), pool("held_out").problems
    model, tokenizer = load()
    config = TrainConfig(
        arm=run.arm,
        rollouts_per_prompt=run.rollouts_per_prompt,
        objective=run.objective,
        candidates=run.candidates,
    )
    rows = [{"prompt": p, ID_COLUMN: prompt_key(p)} for p in problems.prompts]
    row_of = {row[ID_COLUMN]: i for i, row in enumerate(rows)}

    def success_of(keys):
        chosen = [row_of[str(key)] for key in keys]
        prompts = [problems.prompts[i] for i in chosen]
        return exact_success(model, tokenizer, prompts, [problems.answers[i] for i in chosen])

    if run.arm == "uniform":
        # Equal forecasts are an even split, without the cost of looking at the truth.
        arm = RolloutAllocator(Oracle(lambda ids: np.full(len(ids), 0.5)), do_no_harm=False)
    else:
        arm = allocator_of(
            config, prompts_of(rows, TextEmbedding().fit(problems.prompts)), success_of
        )
    sizes = []
    result = train_loop(
        model,
        tokenizer,
        problems.problems,
        arm,
        prompts_per_step=config.prompts_per_step,
        rollouts_per_prompt=run.rollouts_per_prompt,
        candidates_per_step=min(config.num_candidates, len(problems)),
        num_steps=run.steps,
        learning_rate=run.rate,
        seed=run.seed,
        evaluation={"pool": problems.problems, "held_out": held_out},
        evaluate_every=run.every,
        on_step=lambda step: sizes.append(step.num_rollouts_B[step.num_rollouts_B > 0]),
    )
    record = {
        "run": asdict(run),
        "compute_T": result.compute_T.tolist(),
        "success_T": {split: result.success_T[split].tolist() for split in SPLITS},
        "num_rollouts": int(sum(size.sum() for size in sizes)),
        "size_min": int(min(size.min() for size in sizes)),
        "size_max": int(max(size.max() for size in sizes)),
        "num_even_steps": sum(
            len(size) == config.prompts_per_step and bool(size.min() == size.max())
            for size in sizes
        ),
        "seconds": time.perf_counter() - started,
    }
    replace_file(run.path(out), json.dumps(record).encode())


def execute_all(runs: Iterable[Run], out: Path, num_processes: int) -> None:
    missing = [run for run in runs if not run.path(out).exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as processes:
        futures = [processes.submit(execute, run, out) for run in missing]
        for number, future in enumerate(as_completed(futures), start=1):
            future.result()
            print(f"\r{number}/{len(missing)} runs", end="", flush=True)
    if missing:
        print()


def read(run: Run, out: Path) -> dict:
    return json.loads(run.path(out).read_text())


def shown(interval: Interval, form: str) -> str:
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for all runs")
    parser.add_argument("--pools", default="bimodal,mixed,hard")
    parser.add_argument("--arms", default="uniform,adaptive,vip,oracle")
    parser.add_argument("--seeds", type=int, default=10, help="paired seeds")
    parser.add_argument("--rates", default="1e-4,2e-4", help="learning rates to choose from")
    parser.add_argument("--tuning-seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations")
    parser.add_argument("--rollouts-per-prompt", type=int, default=4)
    parser.add_argument("--objective", default="variance", choices=OBJECTIVES)
    parser.add_argument("--candidates", type=int, default=1, help="times the prompts of a step")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    arms = options.arms.split(",")
    rates = [float(rate) for rate in options.rates.split(",")]
    size = {"rollouts_per_prompt": options.rollouts_per_prompt, "steps": options.steps}
    size |= {"objective": options.objective, "candidates": options.candidates}
    for pool in options.pools.split(","):
        tuning = {
            (arm, rate): [
                Run(pool=pool, arm=arm, rate=rate, seed=seed, every=options.steps, **size)
                for seed in range(TUNING_SEED, TUNING_SEED + options.tuning_seeds)
            ]
            for arm in arms
            for rate in rates
        }
        execute_all(
            [run for found in tuning.values() for run in found], options.out, options.processes
        )
        best = {}
        for arm in arms:
            ends = {
                rate: np.mean(
                    [read(run, options.out)["success_T"]["pool"][-1] for run in tuning[arm, rate]]
                )
                for rate in rates
            }
            best[arm] = max(ends, key=ends.__getitem__)
            print(f"{pool} {arm}: " + ", ".join(f"{r:g}: {end:.4f}" for r, end in ends.items()))
        runs = {
            arm: [
                Run(pool=pool, arm=arm, rate=best[arm], seed=seed, every=options.every, **size)
                for seed in range(options.seeds)
            ]
            for arm in arms
        }
        by_seed = [runs[arm][seed] for seed in range(options.seeds) for arm in arms]
        execute_all(by_seed, options.out, options.processes)
        report(pool, {arm: [read(run, options.out) for run in runs[arm]] for arm in arms})


def report(pool: str, records: dict[str, list[dict]]) -> None:
    compute_T = records["uniform"][0]["compute_T"]
    total = compute_T[-1]
    for split in SPLITS:
        curve_ST = {
            arm: np.array([record["success_T"][split] for record in found])
            for arm, found in records.items()
        }
        base_ST = curve_ST["uniform"]
        print(f"\n{pool}, {split}: before {base_ST[:, 0].mean():.4f}, {total:,} rollouts a run")
        print("| arm | rate | after | minus uniform, paired [95%] | rollouts to uniform's end |")
        print("|---|---|---|---|---|")
        for arm, arm_ST in curve_ST.items():
            difference = paired_difference(arm_ST[:, -1], base_ST[:, -1])
            share = share_of_compute(compute_T, arm_ST, base_ST)
            print(
                f"| {arm} | {records[arm][0]['run']['rate']:g} | {arm_ST[:, -1].mean():.4f} | "
                f"{shown(difference, '+.4f')} | {shown(share, '.2f')} |"
            )
    for arm, found in records.items():
        spent = {record["num_rollouts"] for record in found}
        if spent != {total}:
            raise SystemExit(f"{arm} spent {spent}, not {total}")


if __name__ == "__main__":
    main()
