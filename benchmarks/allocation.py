"""Time and memory of the exact allocation, against a heap and against SciPy's SLSQP.

    python benchmarks/allocation.py

Each time is the best of several calls. Ratios say how many times longer the other takes; machines
differ, ratios less so.
"""

from __future__ import annotations

import heapq
import os
import platform
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy
from scipy.optimize import LinearConstraint, minimize

from apportion.allocation import allocate
from apportion.gradient_variance import LAWS
from apportion.types import Forecast

ROLLOUTS_PER_PROMPT = 16
LOWER = 3
UPPER = 64


def main() -> None:
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}, scipy {scipy.__version__}"
    )
    exact_times()
    against_heap()
    against_slsqp()
    large_batches()


def exact_times() -> None:
    print("\n1,024 prompts, 16,384 rollouts\n  law                   doubt   milliseconds")
    for name in LAWS:
        for doubt in (0.0, 0.1):
            forecast, budget = problem(1024, doubt)
            seconds = best(lambda f=forecast, c=budget, v=name: solve(f, c, v), 20)
            print(f"  {name:20}  {doubt:5.1f}  {1e3 * seconds:13.2f}")


def against_heap() -> None:
    print("\nHeap in plain Python, RLOO\n  prompts   heap ms   exact ms   ratio   same")
    for size in (64, 1024):
        forecast, budget = problem(size)
        heap = best(lambda f=forecast, c=budget: by_heap(f, c), 3)
        exact = best(lambda f=forecast, c=budget: solve(f, c, "rloo"), 10)
        same = by_heap(forecast, budget) == solve(forecast, budget, "rloo").num_rollouts_B.tolist()
        print(f"  {size:7}  {1e3 * heap:8.2f}  {1e3 * exact:9.2f}  {heap / exact:6.0f}   {same}")


def against_slsqp() -> None:
    print("\nSLSQP on the relaxed problem, RLOO (its result still has to be rounded)")
    print("  prompts  SLSQP ms   exact ms   ratio   variance of SLSQP / exact relaxation - 1")
    for size in (8, 64, 256):
        forecast, budget = problem(size)
        slsqp = best(lambda f=forecast, c=budget: by_slsqp(f, c), 1)
        exact = best(lambda f=forecast, c=budget: solve(f, c, "rloo"), 10)
        relaxed_B = solve(forecast, budget, "rloo").relaxed_B
        excess = noise(forecast, by_slsqp(forecast, budget)) / noise(forecast, relaxed_B) - 1.0
        print(
            f"  {size:7}  {1e3 * slsqp:8.1f}  {1e3 * exact:9.2f}  {slsqp / exact:6.0f}"
            f"   {excess:.1e}"
        )


def large_batches() -> None:
    print(
        "\n1,000,000 prompts, 16,000,000 rollouts\n  law       batch        seconds   extra peak MB"
    )
    size = 1_000_000
    batches = {
        "U-shaped": problem(size)[0],
        "all equal": Forecast.of_success(np.full(size, 0.3)),
        "all zero": Forecast.of_success(np.zeros(size)),
        "11 levels": Forecast.of_success(np.arange(size) % 11 / 10),
    }
    for name in ("rloo", "dr_grpo"):
        for label, forecast in batches.items():
            seconds = best(lambda f=forecast, v=name: solve(f, 16 * size, v, upper=None), 3)
            tracemalloc.start()
            solve(forecast, 16 * size, name, upper=None)
            peak = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
            print(f"  {name:8}  {label:11}  {seconds:7.2f}  {peak:14.0f}")


def problem(size: int, doubt: float = 0.0) -> tuple[Forecast, int]:
    """Draw success from a U-shaped Beta(0.5, 0.5), with a share of the largest possible doubt."""
    mean_B = np.random.default_rng(0).beta(0.5, 0.5, size)
    return Forecast.of_success(mean_B, doubt * mean_B * (1 - mean_B)), ROLLOUTS_PER_PROMPT * size


def solve(forecast: Forecast, budget: int, name: str, upper: int | None = UPPER) -> Any:
    return allocate(forecast, budget, variance=name, lower=LOWER, upper=upper)


def by_heap(forecast: Forecast, budget: int) -> list[int]:
    variance = forecast.reward_var_B.tolist()
    num = [LOWER] * len(variance)
    heap = [(-a / (LOWER * (LOWER - 1.0)), LOWER, i) for i, a in enumerate(variance)]
    heapq.heapify(heap)
    for _ in range(budget - sum(num)):
        _, n, i = heapq.heappop(heap)
        num[i] = n = n + 1
        if n < UPPER:
            heapq.heappush(heap, (-variance[i] / (n * (n - 1.0)), n, i))
    return num


def by_slsqp(forecast: Forecast, budget: int) -> np.ndarray:
    variance_B, size = forecast.reward_var_B, len(forecast)
    return minimize(
        lambda n_B: (variance_B / (n_B - 1)).sum(),
        np.full(size, budget / size),
        jac=lambda n_B: -variance_B / (n_B - 1) ** 2,
        method="SLSQP",
        bounds=[(LOWER, UPPER)] * size,
        constraints=[LinearConstraint(np.ones(size), budget, budget)],
        options={"ftol": 1e-10, "maxiter": 500},
    ).x


def noise(forecast: Forecast, num_B: np.ndarray) -> float:
    return float((forecast.reward_var_B / (num_B - 1)).sum())


def best(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
