"""How well a run is planned from a sweep of a tenth of its compute, on simulated populations.

Each population differs in difficulty, number of prompts, modes, features, signal, memory,
learning rate, its rule and the estimator. Seven n are run on three seeds up to 1e7 rollouts and
judged by 300 problems x 4 samples; the planner sees the first 1e6 (--seen). Truth is the exact
held-out success of the best checkpoint, mean over seeds. Killed, it goes on where it was.

    python research/planner.py --out runs/planner
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from apportion.plan.reward_forecast import RewardForecast, forecast_rewards
from apportion.plan.runs import Run, cells_of
from apportion.simulation import Population, Training, simulate
from apportion.state_file import replace_file

SIZES = (8, 16, 32, 64, 128, 256, 512)
SEEDS = (0, 1, 2)
BUDGET = 1e7
PROMPTS_PER_STEP = 32
EVALUATION = (300, 4)


def setting(seed: int, number: int) -> tuple[Population, dict[str, Any]]:
    rng = np.random.default_rng([seed, number])

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    population = Population(
        difficulty=str(rng.choice(["easy", "hard"])),
        num_train=int(log_uniform(500, 24000)),
        num_modes=int(rng.choice([4, 8, 16])),
        num_features=int(rng.choice([32, 64, 128])),
        signal=float(rng.uniform(0.7, 2.5)),
        seed=1000 + number,
    )
    training = {
        "learning_rate": log_uniform(0.005, 0.05),
        "memory": float(rng.choice([0, 3, 10, 100])),
        "rate_power": float(rng.choice([0, 0.5, 0.5, 0.5, 0.5])),
        "estimator": str(rng.choice(["dr_grpo", "grpo"])),
    }
    return population, training


def curves(path: Path, seed: int, number: int) -> dict[int, list[Any]]:
    """Run all n of a population, or read what was kept of it."""
    if not path.exists():
        population, training = setting(seed, number)
        problems = population.problems()
        found = {}
        for n in SIZES:
            how = Training(rollouts_per_prompt=n, prompts_per_step=PROMPTS_PER_STEP, **training)
            runs = simulate(
                problems,
                how,
                budget=BUDGET,
                seeds=SEEDS,
                num_evaluations=60,
                evaluation=EVALUATION,
            )
            found[n] = [(run.compute_T, run.success_T, run.measured.success_T) for run in runs]
        replace_file(path, pickle.dumps(found))
    return pickle.loads(path.read_bytes())


def seen(
    found: dict[int, list[Any]],
    population: Population,
    training: dict[str, Any],
    until: float,
) -> list[Run]:
    runs = []
    for n, of_seed in found.items():
        rate = training["learning_rate"] * (n * PROMPTS_PER_STEP / 1024) ** training["rate_power"]
        for seed, (compute_T, _, measured_T) in enumerate(of_seed):
            is_seen_T = compute_T <= until * 1.0001
            runs.append(
                Run(
                    name=f"n{n}-seed{seed}",
                    rollouts_per_prompt=n,
                    prompts_per_step=PROMPTS_PER_STEP,
                    seed=seed,
                    compute_T=compute_T[is_seen_T].astype(float),
                    reward_T=measured_T[is_seen_T],
                    learning_rate=rate,
                    num_prompts=population.num_train,
                    evaluation=EVALUATION,
                )
            )
    return runs


def truth(found: dict[int, list[Any]], compute: float) -> np.ndarray:
    """Exact success of the best checkpoint up to a compute, by n."""
    best = []
    for of_seed in found.values():
        mean_T = np.mean([success_T for _, success_T, _ in of_seed], axis=0)
        best.append(mean_T[of_seed[0][0] <= compute * 1.0001].max())
    return np.array(best)


def outcome(forecast: RewardForecast, right_S: np.ndarray) -> dict[str, Any]:
    """Judge the plan of a forecast by the truth; regret is in errors of one evaluation."""
    planned, best = int(forecast.reward_S.argmax()), int(right_S.argmax())
    noise = float(np.sqrt(right_S[best] * (1 - right_S[best]) / np.prod(EVALUATION)))
    low, high = forecast.interval(planned)
    reached = right_S[planned]
    return {
        "n planned": SIZES[planned],
        "n best": SIZES[best],
        "regret": (right_S[best] - reached) / noise,
        "noise": noise,
        "covered": low <= reached <= high,
        "width": high - low,
        "score": high - low + 20 * (max(low - reached, 0) + max(reached - high, 0)),
    }


def judged(seed: int, number: int, path: Path, until: float) -> dict[str, Any]:
    population, training = setting(seed, number)
    found = curves(path, seed, number)
    right_S, then_S = truth(found, BUDGET), truth(found, until)
    forecast = forecast_rewards(cells_of(seen(found, population, training, until)), BUDGET)
    found_out = outcome(forecast, right_S)
    stay = int(then_S.argmax())
    log2_D = forecast.best_log2_rollouts(np.ones(len(SIZES), dtype=bool))
    n_low, n_high = np.quantile(log2_D, [0.05, 0.95], method="nearest")
    return {
        "number": number,
        "difficulty": population.difficulty,
        "prompts": population.num_train,
        **training,
        **found_out,
        "n then": SIZES[stay],
        "regret of staying": (right_S.max() - right_S[stay]) / found_out["noise"],
        "n covered": n_low <= np.log2(found_out["n best"]) <= n_high,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/planner"))
    parser.add_argument("--populations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=12, help="of the populations")
    parser.add_argument("--seen", type=float, default=1e6, help="rollouts that the planner sees")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(args.populations):
        rows.append(
            judged(args.seed, number, args.out / f"seed{args.seed}-{number}.pkl", args.seen)
        )
        row = rows[-1]
        print(
            f"{number} {row['difficulty']} D {row['prompts']}: n {row['n then']} so far, planned "
            f"{row['n planned']}, best {row['n best']}, regret {row['regret']:.2f}",
            flush=True,
        )

    def column(name: str, which: Any = None) -> np.ndarray:
        return np.array([row[name] for row in rows if which is None or which(row)], dtype=float)

    def doublings(which: Any = None) -> np.ndarray:
        return np.abs(np.log2(column("n planned", which) / column("n best", which)))

    print(f"\n{len(rows)} populations; regrets in evaluation noise, sqrt(p (1-p) / 1200)")
    for name in ("regret", "regret of staying"):
        found = column(name)
        print(f"{name}: below 1 in {np.mean(found < 1):.2f}, mean {found.mean():.2f}")
    for label, which in (
        ("all", None),
        ("n* moved", lambda row: row["n best"] != row["n then"]),
        ("moved up", lambda row: row["n best"] > row["n then"]),
        ("moved down", lambda row: row["n best"] < row["n then"]),
        ("hard", lambda row: row["difficulty"] == "hard"),
        ("easy", lambda row: row["difficulty"] == "easy"),
    ):
        print(
            f"{label}: {len(column('regret', which))} populations, regret below 1 in "
            f"{np.mean(column('regret', which) < 1):.2f}, n within a factor of 2 in "
            f"{np.mean(doublings(which) <= 1):.2f}, 90% interval covers "
            f"{column('covered', which).mean():.2f}, width {column('width', which).mean():.3f}, "
            f"interval score {column('score', which).mean():.3f}, n* in its interval "
            f"{column('n covered', which).mean():.2f}"
        )


if __name__ == "__main__":
    main()
