"""Sizes of the KL and entropy terms: an ablation on easy and hard problems of the embedded model.

Easy problems have a base success of 0.3 to 0.6, hard ones of at most 1/16, as in the IsoCompute
Playbook; each kind is trained on and judged (exactly) on problems of its own range that it was not
trained on. Every run spends the same rollouts. A killed ablation goes on.

    python research/regularisation.py --out runs/terms
    python research/regularisation.py --out runs/terms --read
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

RANGES = {"easy": (0.3, 0.6), "hard": (0.005, 0.0625)}
RATES = (5e-5, 2e-4)
TERMS = (
    *((kl, 0.0) for kl in (0.0, 1e-3, 1e-2, 1e-1, 1.0)),
    *((0.0, entropy) for entropy in (1e-3, 1e-2, 1e-1)),
    *((kl, entropy) for kl, entropy in ((1e-3, 1e-3), (1e-2, 1e-3), (1e-2, 1e-2))),
)
NUM_PROMPTS, ROLLOUTS, STEPS, EVERY = 16, 16, 256, 16


def problems_of(kind: str) -> tuple[list[Any], list[Any]]:
    """Return problems to train on and to judge by, of the range of base success."""
    from apportion.embedded.pools import pool

    low, high = RANGES[kind]

    def within(*names: str) -> list[Any]:
        found = {}
        for one in map(pool, names):
            is_in_Q = (one.success_Q >= low) & (one.success_Q <= high)
            found |= {one.problems[q].prompt: one.problems[q] for q in np.flatnonzero(is_in_Q)}
        return list(found.values())

    return within("mixed", "bimodal", "hard"), within("held_out")


def run(job: tuple[str, float, float, float, int]) -> dict[str, Any]:
    """Make one run and return its curve."""
    import torch

    torch.set_num_threads(1)
    from apportion.embedded import peers
    from apportion.embedded.exact import exact_success
    from apportion.embedded.model import load
    from apportion.embedded.plain_loop import PlainLoop

    kind, rate, kl, entropy, seed = job
    train, held_out = problems_of(kind)
    model, tokenizer = load()
    loop = PlainLoop(
        model,
        tokenizer,
        train,
        peers.uniform,
        prompts_per_step=NUM_PROMPTS,
        rollouts_per_prompt=ROLLOUTS,
        num_steps=STEPS,
        learning_rate=rate,
        estimator="dr_grpo",
        kl=kl,
        entropy=entropy,
        seed=seed,
    )

    def success(problems: list[Any]) -> float:
        asked, answers = [p.prompt for p in problems], [p.answer for p in problems]
        return float(exact_success(model, tokenizer, asked, answers).mean())

    began, curve = time.monotonic(), [success(held_out)]
    while not loop.is_over:
        loop.step()
        if loop.number % EVERY == 0:
            curve.append(success(held_out))
    return {
        "kind": kind,
        "rate": rate,
        "kl": kl,
        "entropy": entropy,
        "seed": seed,
        "held_out": curve,
        "train": success(train),
        "num_train": len(train),
        "num_held_out": len(held_out),
        "seconds": time.monotonic() - began,
    }


def make(out: Path, rates: list[float], num_seeds: int, num_processes: int) -> None:
    """Make the runs that are missing."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "runs.jsonl"
    done = {key_of(one) for one in read(path)}
    jobs = [
        (kind, rate, *terms, seed)
        for kind, seed, rate, terms in product(RANGES, range(num_seeds), rates, TERMS)
    ]
    missing = [job for job in jobs if job not in done]
    with multiprocessing.get_context("spawn").Pool(num_processes) as workers:
        for number, found in enumerate(workers.imap_unordered(run, missing), 1):
            with path.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(
                f"{number} of {len(missing)}: {key_of(found)} {found['seconds']:.0f} s", flush=True
            )


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key_of(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["kind"], one["rate"], one["kl"], one["entropy"], one["seed"]


def print_table(runs: list[dict[str, Any]]) -> None:
    """Print last, best and training success, and each difference to no terms on the same seeds."""
    grouped: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for one in runs:
        grouped[key_of(one)[:-1]][one["seed"]] = one
    print("problems rate kl entropy seeds | last held-out (minus no terms) | best | last training")
    for kind, rate, (kl, entropy) in product(RANGES, RATES, TERMS):
        group, plain = grouped[kind, rate, kl, entropy], grouped[kind, rate, 0.0, 0.0]
        if not group:
            continue
        last = {seed: one["held_out"][-1] for seed, one in group.items()}
        gain = [last[seed] - plain[seed]["held_out"][-1] for seed in last if seed in plain]
        best = [max(one["held_out"]) for one in group.values()]
        train = [one["train"] for one in group.values()]
        print(
            kind, f"{rate:g} {kl:g} {entropy:g} {len(group)} | {np.mean(list(last.values())):.4f}",
            f"({shown(gain)}) | {np.mean(best):.4f} | {np.mean(train):.4f}",
        )  # fmt: skip


def shown(values: list[float]) -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):+.4f} +- {error:.4f}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/terms"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--read", action="store_true", help="read what is there")
    told = parser.parse_args()
    if not told.read:
        make(told.out, told.rates, told.seeds, told.processes)
    print_table(read(told.out / "runs.jsonl"))
