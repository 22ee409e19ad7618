"""Time and memory of the default predictor at a million prompts, against the other predictors.

    python benchmarks/predictor.py

Batches of 512 random prompts, 8 rollouts each; forecast and update of one batch, median of 30.
Features are the user's own and counted apart: the predictor keeps one copy. Hashing text is timed
apart as well. Machines differ, ratios less so.
"""

from __future__ import annotations

import os
import platform
import resource
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from apportion.embedding import TextEmbedding
from apportion.predictor import Beta, FilterBank, GaussianProcess, Predictor
from apportion.types import Outcomes, Prompts

NUM_PROMPTS = 1_000_000
NUM_FEATURES = 32
BATCH = 512
NUM_BATCHES = 30


def main() -> None:
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}"
    )
    for num_prompts in (10_000, NUM_PROMPTS):
        random = np.random.default_rng(0)
        prompts = Prompts(
            id_B=np.arange(num_prompts).astype(str),
            feature_BD=random.normal(size=(num_prompts, NUM_FEATURES)),
        )
        print(f"\n{num_prompts:,} prompts")
        print("  predictor         ms a batch   ratio   MB beside features")
        first = None
        for make in (FilterBank, GaussianProcess, Beta):
            milliseconds, megabytes = measure(make(), prompts)
            first = first or milliseconds
            print(
                f"  {make.__name__:16}  {milliseconds:10.2f}  {milliseconds / first:6.2f}"
                f"  {megabytes:19.0f}"
            )
    hashing()


def measure(predictor: Predictor, prompts: Prompts) -> tuple[float, float]:
    """Return milliseconds of forecast and update of a batch, and MB of state beside features."""
    predictor.add(prompts)
    random = np.random.default_rng(1)
    times = []
    for step in range(NUM_BATCHES):
        row_B = random.choice(len(prompts), BATCH, replace=False)
        success_B = random.binomial(8, 0.4, BATCH).astype(np.float64)
        num_B, zero_B = np.full(BATCH, 8), np.zeros(BATCH, dtype=np.int64)
        outcomes = Outcomes(
            prompt_B=prompts.id_B[row_B],
            num_requested_B=num_B,
            num_rollouts_B=num_B,
            reward_sum_B=success_B,
            reward_sumsq_B=success_B,
            num_tokens_B=zero_B,
            num_truncated_B=zero_B,
            step=step,
            policy_step_B=np.full(BATCH, step),
        )
        started = time.perf_counter()
        predictor.forecast(row_B, step)
        predictor.update(row_B, outcomes)
        times.append(time.perf_counter() - started)
    kept = sum(v.nbytes for name, v in predictor.state_dict().items() if name != "feature_QD")
    return 1e3 * float(np.median(times)), kept / 1e6


def hashing() -> None:
    texts = [
        f"What is {i} plus {i * 7 % 1000}? Explain each step of your answer." for i in range(20_000)
    ]
    embedding = TextEmbedding(num_features=NUM_FEATURES).fit(texts)
    started = time.perf_counter()
    embedding.transform(texts)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\nHashing text: {1e6 * seconds / len(texts):.0f} microseconds a prompt of 60 characters"
    )
    print(f"Peak memory of this process, all of the above: {peak:,.0f} MB")


if __name__ == "__main__":
    main()
