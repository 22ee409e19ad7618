"""One run of one arm on exact ground, and the record that it leaves."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from apportion.embedding import TextEmbedding
from apportion.errors import InvalidInputError
from apportion.leaderboard.arms import arm_of, rule_digest
from apportion.leaderboard.large_pools import read_large_pools
from apportion.state_file import replace_file
from apportion.types import Prompts
from apportion.validate import FloatArray

POOLS_FILE = "pools.csv"
PROMPTS_PER_STEP = 64
K = 8
"""Of best@k and worst@k."""
NUM_GRADIENT = 500
"""Problems of the pool that the exact gradient is taken over."""
NUM_POOL = 2000
"""Problems of the pool, in its random order, that success on it is measured with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is run; equal runs leave equal records.

    Attributes:
        arm: name on the leaderboard, or ``module:function`` of a rule.
        pool: embedded pool.
        rollouts_per_prompt: n, mean rollouts a prompt.
        schedule: of the learning rate, "constant" or "linear".
        rate: learning rate.
        seed: of candidates, sampling and the rule.
        budget: rollouts of the run.
        digest: of the file that a rule stands in, see `apportion.leaderboard.arms.rule_digest`.
        prompts_per_step: B_p.
        num_evaluations: after the first, evenly over the budget.
        num_gradients: steps at which the estimated gradient is held against the exact one.
    """

    arm: str
    pool: str
    rollouts_per_prompt: int
    schedule: str
    rate: float
    seed: int
    budget: int
    digest: str = ""
    prompts_per_step: int = PROMPTS_PER_STEP
    num_evaluations: int = 6
    num_gradients: int = 0

    @property
    def num_steps(self) -> int:
        """Even steps that the budget pays for."""
        return self.budget // (self.prompts_per_step * self.rollouts_per_prompt)

    def path(self, out: Path) -> Path:
        """File of the record."""
        arm = self.arm
        if self.digest:
            arm = f"{arm.replace(':', '-')}-{self.digest}"
        cell = f"{self.pool}-n{self.rollouts_per_prompt}-{self.schedule}-budget{self.budget}"
        return out / cell / f"{arm}-rate{self.rate:g}-seed{self.seed}.json"


def execute(run: Run, out: Path) -> dict[str, Any]:
    """Run it, write its record and return it.

    Args:
        run: what to run.
        out: folder of the records and of the pools, see `large_pools`.

    Raises:
        InvalidInputError: the file of the rule is no longer the one that the run was made for.
    """
    import torch
    from transformers.utils.logging import disable_progress_bar

    from apportion.embedded.exact import exact_success
    from apportion.embedded.loop import train_loop
    from apportion.embedded.model import load
    from apportion.embedded.pools import pool

    if run.digest and rule_digest(run.arm) != run.digest:
        raise InvalidInputError(
            f"The file of {run.arm} was edited while the leaderboard ran. Start it again."
        )
    torch.set_num_threads(1)
    disable_progress_bar()
    problems = read_large_pools(out / POOLS_FILE)[run.pool].problems
    held_out = pool("held_out").problems
    model, tokenizer = load()
    everything = _prompts(out / POOLS_FILE, run.pool)

    def success_of(chosen: Sequence[Any]) -> FloatArray:
        prompts, answers = [p.prompt for p in chosen], [p.answer for p in chosen]
        return exact_success(model, tokenizer, prompts, answers)

    row_of = {key: row for row, key in enumerate(everything.id_B.tolist())}
    arm = arm_of(
        run.arm,
        everything,
        lambda keys: success_of([problems[row_of[str(key)]] for key in keys]),
        rollouts_per_prompt=run.rollouts_per_prompt,
    )
    watch = _Watch(run, model, tokenizer, problems)
    started = time.perf_counter()
    result = train_loop(
        model,
        tokenizer,
        problems,
        arm.decides,
        belief=arm.belief,
        prompts_per_step=run.prompts_per_step,
        rollouts_per_prompt=run.rollouts_per_prompt,
        candidates_per_step=min(arm.candidates * run.prompts_per_step, len(problems)),
        num_steps=run.num_steps,
        learning_rate=run.rate,
        schedule=run.schedule,
        seed=run.seed,
        evaluation={"held_out": held_out},
        evaluate_every=max(run.num_steps // run.num_evaluations, 1),
        on_step=watch,
    )
    seconds = time.perf_counter() - started
    end_Q = success_of(held_out)
    record = {
        "run": asdict(run),
        "commit": commit(),
        "compute_T": result.compute_T.tolist(),
        "held_out_T": result.success_T["held_out"].tolist(),
        "pool_end": float(success_of(problems[:NUM_POOL]).mean()),
        f"best@{K}": float((1.0 - (1.0 - end_Q) ** K).mean()),
        f"worst@{K}": float((end_Q**K).mean()),
        "seconds": seconds,
        **watch.summary(),
    }
    replace_file(run.path(out), json.dumps(record).encode())
    return record


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the commit of the source that runs; the version if it is no checkout."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return f"version {version('apportion')}"
    return found.stdout.strip()


@lru_cache(maxsize=4)
def _prompts(path: Path, name: str) -> Prompts:
    """Return the prompts of a pool with features of their texts; once in a process."""
    from apportion.embedded.step import prompts_of

    prompts = prompts_of(read_large_pools(path)[name].problems)
    assert prompts.text_B is not None
    embedding = TextEmbedding().fit(prompts.text_B[:NUM_POOL])
    return replace(prompts, feature_BD=embedding.transform(prompts.text_B))


class _Watch:
    """Follows the steps of a run: what was drawn, what was trained on, how true the gradient is."""

    def __init__(self, run: Run, model: Any, tokenizer: Any, problems: Sequence[Any]) -> None:
        self._run, self._model, self._tokenizer, self._problems = run, model, tokenizer, problems
        self._is_drawn_Q = np.zeros(len(problems), dtype=bool)
        self._prompts: list[int] = []
        self._with_signal: list[float] = []
        self._spent = 0
        self._cosines: list[float] = []
        self._curriculum: list[float] = []
        marks = np.arange(1, run.num_gradients + 1) / (run.num_gradients + 1)
        self._due = (marks * run.budget).tolist()

    def __call__(self, record: Any) -> None:
        """Note one step; where it is due, hold its gradient against the exact one."""
        self._spent = record.compute
        self._is_drawn_Q[record.row_B[record.num_rollouts_B > 0]] = True
        at = record.trained_B
        self._prompts.append(len(at))
        if len(at):
            total_B, right_B = record.num_rollouts_B[at], record.reward_sum_B[at]
            self._with_signal.append(float(((right_B > 0) & (right_B < total_B)).mean()))
        if self._due and self._spent >= self._due[0] and record.gradient is not None:
            self._due.pop(0)
            self._hold_against_truth(record)

    def _hold_against_truth(self, record: Any) -> None:
        from apportion.embedded.exact import exact_gradient

        def exact(problems: Sequence[Any]) -> Any:
            prompts, answers = [p.prompt for p in problems], [p.answer for p in problems]
            return exact_gradient(self._model, self._tokenizer, prompts, answers)

        pool = exact(self._problems[:NUM_GRADIENT])
        chosen = exact([self._problems[q] for q in record.row_B[record.trained_B]])
        self._cosines.append(_cosine(record.gradient, pool))
        self._curriculum.append(_cosine(chosen, pool))

    def summary(self) -> dict[str, Any]:
        """Return what was noted."""
        return {
            "num_rollouts": self._spent,
            "num_updates": sum(count > 0 for count in self._prompts),
            "prompts_per_update": float(np.mean([c for c in self._prompts if c] or [0])),
            "share_with_signal": float(np.mean(self._with_signal or [0.0])),
            "touched": float(self._is_drawn_Q.mean()),
            "gradient_cosine": self._cosines,
            "curriculum_cosine": self._curriculum,
        }


def _cosine(one: Any, other: Any) -> float:
    norm = float(one.norm() * other.norm())
    return float(one @ other) / norm if norm > 0.0 else 0.0
