"""Who knows success before sampling: predictors judged on real logs and on simulated drift.

Takes the folder of the logs (not part of this project): `one_shot_rlvr_acc.json` and
`one_shot_rlvr_prompts.parquet` (ypwang61/One-Shot-RLVR), and AdaRFT's
`deepscaler_uniform_k128.parquet`.

    python research/predictors.py FOLDER
    python research/predictors.py FOLDER --parts revisits,first,simulated,allocation
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from apportion import calibration
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
from apportion.predictor.moments import sigmoid
from apportion.prompt_key import prompt_text
from apportion.recording import GroupTable, table_of_counts
from apportion.replay import replay
from apportion.types import Forecast, Outcomes, Prompts

DECAYS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
PRIOR_COUNTS = (0.4, 1.0, 2.0)


class GlobalMean:
    """The mean of all groups so far."""

    def __init__(self) -> None:
        self.total, self.count = 0.5, 1.0

    def add(self, prompts: Prompts) -> None:
        pass

    def forecast(self, row_B, step) -> Forecast:
        return Forecast.of_success(np.full(len(row_B), self.total / self.count))

    def update(self, row_B, outcomes: Outcomes) -> None:
        self.total += float((outcomes.reward_sum_B / outcomes.num_rollouts_B).sum())
        self.count += len(outcomes)


class LastValue(GlobalMean):
    """The prompt's latest success rate; the global mean before."""

    def add(self, prompts: Prompts) -> None:
        self.last_Q = np.full(len(prompts), np.nan)

    def forecast(self, row_B, step) -> Forecast:
        last_B = self.last_Q[row_B]
        return Forecast.of_success(np.where(np.isnan(last_B), self.total / self.count, last_B))

    def update(self, row_B, outcomes: Outcomes) -> None:
        super().update(row_B, outcomes)
        self.last_Q[row_B] = outcomes.reward_sum_B / outcomes.num_rollouts_B


@dataclass
class Judged:
    """Forecasts of one predictor and what came of them, in order; truth where it is known."""

    forecast: Forecast
    num_B: np.ndarray
    sum_B: np.ndarray
    truth_B: np.ndarray
    visit_B: np.ndarray

    def square(self, keep_B: np.ndarray) -> float:
        return float(((self.forecast.mean_B - self.truth_B)[keep_B] ** 2).mean())

    def row(self, keep_B: np.ndarray) -> str:
        forecast, num_B, sum_B = self.forecast.take(keep_B), self.num_B[keep_B], self.sum_B[keep_B]
        error_B = calibration.standardised_error(forecast, num_B, sum_B)
        return (
            f"{self.square(keep_B):.5f} | {calibration.log_likelihood(forecast, num_B, sum_B):.4f} "
            f"| {calibration.reliability(forecast, num_B, sum_B).error:.4f} "
            f"| {calibration.coverage(forecast, num_B, sum_B):.3f} | {np.mean(error_B**2):.2f}"
        )


@dataclass(frozen=True)
class Batch:
    row_B: np.ndarray
    num: int
    sum_B: np.ndarray
    truth_B: np.ndarray


def judge(predictor: Predictor, prompts: Prompts, batches: Iterator[Batch]) -> Judged:
    predictor.add(prompts)
    seen_Q = np.zeros(len(prompts), dtype=np.int64)
    forecasts, parts = [], []
    for step, batch in enumerate(batches):
        forecasts.append(predictor.forecast(batch.row_B, step))
        size = len(batch.row_B)
        parts.append((np.full(size, batch.num), batch.sum_B, batch.truth_B, seen_Q[batch.row_B]))
        seen_Q[batch.row_B] += 1
        predictor.update(batch.row_B, outcomes_of(prompts, batch, step))
    merged = Forecast(
        mean_B=np.concatenate([f.mean_B for f in forecasts]),
        var_B=np.concatenate([f.var_B for f in forecasts]),
        reward_var_B=np.concatenate([f.reward_var_B for f in forecasts]),
    )
    return Judged(merged, *(np.concatenate(values) for values in zip(*parts, strict=True)))


def outcomes_of(prompts: Prompts, batch: Batch, step: int) -> Outcomes:
    size = len(batch.row_B)
    num_B, zero_B = np.full(size, batch.num), np.zeros(size, dtype=np.int64)
    total_B = batch.sum_B.astype(np.float64)
    return Outcomes(
        prompt_B=prompts.id_B[batch.row_B],
        num_requested_B=num_B,
        num_rollouts_B=num_B,
        reward_sum_B=total_B,
        reward_sumsq_B=total_B,
        num_tokens_B=zero_B,
        num_truncated_B=zero_B,
        step=step,
        policy_step_B=np.full(size, step),
    )


def best_beta(
    prompts: Prompts, batches: Callable[[], Iterator[Batch]], decays, keep
) -> tuple[str, Judged]:
    """Return the Beta of least squared error in hindsight, over these decays and three priors."""
    found = []
    for decay in decays:
        for count in PRIOR_COUNTS:
            judged = judge(Beta(prior_count=count, decay=decay), prompts, batches())
            found.append((judged.square(keep(judged)), f"{decay:g}, prior {count:g}", judged))
    _, label, judged = min(found, key=lambda entry: entry[0])
    return label, judged


def everyone(
    prompts: Prompts, batches: Callable[[], Iterator[Batch]], keep
) -> Iterator[tuple[str, Judged]]:
    """Yield each predictor's name and judgement."""
    yield "global mean", judge(GlobalMean(), prompts, batches())
    yield "last value", judge(LastValue(), prompts, batches())
    label, judged = best_beta(prompts, batches, (1.0,), keep)
    yield f"cumulative Beta ({label.partition(', ')[2]})", judged
    label, judged = best_beta(prompts, batches, DECAYS, keep)
    yield f"discounted Beta, best in hindsight ({label})", judged
    for name, make in (
        ("Beta", Beta),
        ("moving_average", MovingAverage),
        ("ridge", Ridge),
        ("vip", VIP),
        ("noise-aware GP", GaussianProcess),
        ("**FilterBank**", FilterBank),
    ):
        yield name, judge(make(), prompts, batches())


HEADER = "squared error | log likelihood | reliability | coverage of 90% | squared error / stated"


def one_shot(folder: Path) -> tuple[dict[str, list[int]], dict[str, str]]:
    with open(folder / "one_shot_rlvr_acc.json", encoding="utf-8") as file:
        visits = {key: [round(8 * rate) for rate in v] for key, v in json.load(file).items()}
    table = pl.read_parquet(folder / "one_shot_rlvr_prompts.parquet")
    texts = {
        str(info["index"]): prompt_text(prompt)
        for info, prompt in zip(table["extra_info"], table["prompt"], strict=True)
    }
    return visits, {key: texts[key] for key in visits}


def revisits(folder: Path) -> None:
    visits, texts = one_shot(folder)
    keys = [key for key, found in visits.items() if len(found) >= 48]
    sum_TB = np.array([visits[key][:48] for key in keys]).T
    text = [texts[key] for key in keys]
    prompts = Prompts(id_B=keys, feature_BD=TextEmbedding().fit(text).transform(text))
    row_B = np.arange(len(keys))

    def batches() -> Iterator[Batch]:
        for sum_B in sum_TB:
            yield Batch(row_B, 8, sum_B, sum_B / 8)

    print(f"\n## Visits 2 to 48 of {len(keys):,} prompts, 8 rollouts, one visit a round\n")
    epochs = [(2, 5), (6, 10), (11, 20), (21, 35), (36, 48)]
    named = " | ".join(f"{a}-{b}" for a, b in epochs)
    print(f"| predictor | {HEADER} | first visit | {named} |")
    print("|---" * (7 + len(epochs)) + "|")
    for name, judged in everyone(prompts, batches, lambda j: j.visit_B > 0):
        visit_B = judged.visit_B + 1
        ranges = [judged.square((visit_B >= a) & (visit_B <= b)) for a, b in epochs]
        shown = " | ".join(f"{value:.4f}" for value in ranges)
        print(
            f"| {name} | {judged.row(visit_B > 1)} | {judged.square(visit_B == 1):.4f} | {shown} |",
            flush=True,
        )


def first_visits(folder: Path, num_seeds: int) -> None:
    table = pl.read_parquet(folder / "deepscaler_uniform_k128.parquet")
    text = [prompt_text(prompt) for prompt in table["prompt"]]
    truth_Q = 1.0 - np.array([info["difficulty"] for info in table["extra_info"]], float) / 100.0
    feature_QD = TextEmbedding().fit(text).transform(text)
    prompts = Prompts(id_B=np.arange(len(text)).astype(str), feature_BD=feature_QD)
    print(f"\n## First visits: {len(text):,} prompts once, batches of 256, 8 rollouts\n")
    print("R2 against the success of 128 rollouts; mean over seeds. Stated doubt against it.\n")
    print("| predictor | R2 after the first batch | R2, last 3,000 | squared error / var |")
    print("|---|---|---|---|")
    makers = (
        ("moving_average", MovingAverage),
        ("ridge", Ridge),
        ("vip", VIP),
        ("noise-aware GP", GaussianProcess),
        ("**FilterBank**", FilterBank),
    )
    for name, make in makers:
        rows = []
        for seed in range(num_seeds if name != "vip" else 1):
            random = np.random.default_rng(seed)
            order = random.permutation(len(text))
            batches = [
                Batch(row, 8, random.binomial(8, truth_Q[row]), truth_Q[row])
                for row in np.split(order, np.arange(256, len(order), 256))
            ]
            judged = judge(make(), prompts, iter(batches))
            square_B = (judged.forecast.mean_B - judged.truth_B) ** 2
            var_B = judged.forecast.var_B
            honest = np.nan if (var_B == 0).all() else (square_B[256:] / var_B[256:]).mean()
            rows.append(
                [
                    1.0 - square_B[256:].mean() / judged.truth_B[256:].var(),
                    1.0 - square_B[-3000:].mean() / judged.truth_B[-3000:].var(),
                    honest,
                ]
            )
        mean = np.mean(rows, axis=0)
        doubt = "none stated" if np.isnan(mean[2]) else f"{mean[2]:.2f}"
        print(f"| {name} | {mean[0]:.3f} | {mean[1]:.3f} | {doubt} |", flush=True)


def simulated(num_seeds: int) -> None:
    print("\n## Simulated drift: 2,000 prompts, 64 a step, 200 steps, 8 rollouts\n")
    print(f"| drift | predictor | squared error, seen | first visit | {HEADER} |")
    print("|---" * 9 + "|")
    for rate, speed in ((0.0, 0.0), (0.001, 0.0), (0.001, 0.02), (0.03, 0.02)):
        label = f"own {rate:g} a step, common {speed:g}"
        collected: dict[str, list[list[float]]] = {}
        for seed in range(num_seeds):
            prompts, batches = drifting(rate, speed, seed)
            for name, judged in everyone(
                prompts, lambda b=batches: iter(b), lambda j: j.visit_B > 0
            ):
                name = name.partition(" (")[0]
                row = [judged.square(judged.visit_B > 0), judged.square(judged.visit_B == 0)]
                row += [float(cell) for cell in judged.row(judged.visit_B >= 0).split(" | ")]
                collected.setdefault(name, []).append(row)
        for name, rows in collected.items():
            shown = " | ".join(f"{value:.4f}" for value in np.mean(rows, axis=0))
            print(f"| {label} | {name} | {shown} |", flush=True)


def drifting(rate: float, speed: float, seed: int) -> tuple[Prompts, list[Batch]]:
    """Clustered logits, features that tell the cluster, a common and an own movement."""
    random = np.random.default_rng(seed)
    size, num_kinds = 2_000, 20
    kind_Q = random.integers(num_kinds, size=size)
    feature_QD = random.normal(size=(num_kinds, 8))[kind_Q] + 0.2 * random.normal(size=(size, 8))
    logit_Q = random.normal(-0.5, 1.8, num_kinds)[kind_Q] + random.normal(0.0, 1.2, size)
    order = np.concatenate([random.permutation(size) for _ in range(7)])
    batches = []
    for step in range(200):
        row_B = order[64 * step : 64 * (step + 1)]
        row_B = np.unique(row_B)
        truth_B = sigmoid(logit_Q[row_B])
        batches.append(Batch(row_B, 8, random.binomial(8, truth_B), truth_B))
        slope_Q = 4.0 * sigmoid(logit_Q) * sigmoid(-logit_Q)
        logit_Q = logit_Q + speed * slope_Q + np.sqrt(rate) * random.normal(size=size)
    return Prompts(id_B=np.arange(size).astype(str), feature_BD=feature_QD), batches


def allocation(folder: Path) -> None:
    visits, texts = one_shot(folder)
    groups: GroupTable = table_of_counts(
        [key for key, found in visits.items() for _ in found],
        [step for found in visits.values() for step in range(len(found))],
        [k for found in visits.values() for k in found],
        8,
        text_of=texts,
    )
    feature_QD = TextEmbedding().fit(groups.text_Q).transform(groups.text_Q)
    prompts = Prompts(id_B=groups.id_Q, feature_BD=feature_QD)
    print(f"\n## Realised gradient variance against uniform (RLOO), {len(groups):,} groups\n")
    print("| mean n | predictor | variance / uniform | smoothed oracle | saving [95%] | oracle's |")
    print("|---|---|---|---|---|---|")
    for size in (4, 8, 16):
        for name, make in (
            ("Beta", Beta),
            ("ridge", Ridge),
            ("vip", VIP),
            ("noise-aware GP", GaussianProcess),
            ("**FilterBank**", FilterBank),
        ):
            allocator = RolloutAllocator(make(), upper=4 * size, do_no_harm=False)
            allocator.add(prompts)
            found = replay(groups, allocator, rollouts_per_prompt=size)
            low, high = found.saving_interval
            print(
                f"| {size} | {name} | {found.variance / found.uniform_variance:.3f} | "
                f"{found.oracle_variance / found.uniform_variance:.3f} | "
                f"{found.saving:+.3f} [{low:+.3f}, {high:+.3f}] | {found.oracle_saving:+.3f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the logs")
    parser.add_argument("--parts", default="revisits,first,simulated,allocation")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for part in options.parts.split(","):
        match part:
            case "revisits":
                revisits(options.folder)
            case "first":
                first_visits(options.folder, options.seeds)
            case "simulated":
                simulated(options.seeds)
            case "allocation":
                allocation(options.folder)
            case _:
                parser.error(
                    f"--parts holds {part!r}, but knows revisits, first, simulated, allocation"
                )


if __name__ == "__main__":
    main()
