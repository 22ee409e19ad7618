"""A run of the embedded model in the plain loop that leaves a run folder like a trainer's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from apportion.embedding import TextEmbedding
from apportion.prompt_key import prompt_text
from apportion.run_log import RunLog
from apportion.state_file import load_state, save_state
from apportion.sweep.sweep import HELD_OUT
from apportion.training.arms import allocator_of, prompts_of
from apportion.training.config import TrainConfig
from apportion.training.run import hush, locked
from apportion.training.summary import log_measured
from apportion.training.task import Task, load_task

STATE_FILE = "state.safetensors"
SAVE_SECONDS = 20.0
POOL = "pool"


def run_embedded(config: TrainConfig, folder: Path, *, until: int) -> None:
    """Bring a run to a step, from its last saved state if it has one.

    Held-out problems are evaluated at every evaluation and where the run pauses, the pool at the
    start and at the end. The state is saved at every evaluation and every 20 seconds; a run that
    was killed goes on from it and leaves the same lines as one that was not.

    Args:
        config: the run, of the embedded model.
        folder: its run folder.
        until: steps that it should have made in all.

    Raises:
        RunFolderError: another process writes there.
        StateError: the saved state is damaged.
    """
    import torch

    from apportion.embedded.model import load

    torch.set_num_threads(1)
    hush(everything=True)
    with locked(folder) as lock:
        task = load_task(config)
        model, tokenizer = load()
        loop = _loop(config, task, model, tokenizer)
        state_file = folder / STATE_FILE
        is_begun = (folder / "run.json").exists()
        if state_file.exists():
            loop.load_state_dict(load_state(state_file)[0])
        log = RunLog.create(
            folder,
            {"train": config.to_dict()},
            resume_step=loop.number if is_begun else None,
            lock=lock,
        )
        with log:
            _go_on(_Folder(config, task, model, tokenizer, log, state_file), loop, until)


class _Folder:
    """Where a run is written down."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        model: Any,
        tokenizer: Any,
        log: RunLog,
        state_file: Path,
    ) -> None:
        self.config, self.task, self.log, self.state_file = config, task, log, state_file
        self._model, self._tokenizer = model, tokenizer
        self._saved = time.monotonic()

    def evaluate(self, step: int, spent: int) -> None:
        """Log the exact success on held-out problems, and on the pool where the run ends."""
        splits = (POOL, HELD_OUT) if step in (0, self.config.steps) else (HELD_OUT,)
        for split in splits:
            rows = self.task.evaluation[split]
            measured = self.task.measure(self._model, self._tokenizer, rows)
            log_measured(self.log, step, compute=spent, split=split, rows=rows, measured=measured)

    def note(self, record: Any) -> None:
        """Log a step and its groups."""
        out = record.outcomes
        rate_B = out.reward_sum_B / out.num_rollouts_B
        values = {
            "reward_prompt_mean": float(rate_B.mean()),
            "num_prompts": len(out),
            "num_rollouts": int(out.num_rollouts_B.sum()),
            "frac_groups_without_signal": float(np.mean((rate_B == 0.0) | (rate_B == 1.0))),
        }
        self.log.log_step(record.step, values)
        self.log.log_groups(out)

    def save(self, loop: Any) -> None:
        """Make all logged lines durable, and then the state that follows them."""
        self.log.checkpoint()
        save_state(self.state_file, loop.state_dict())
        self._saved = time.monotonic()

    @property
    def is_time_to_save(self) -> bool:
        """Whether a kill now would lose more than it should."""
        return time.monotonic() - self._saved > SAVE_SECONDS


def _go_on(folder: _Folder, loop: Any, until: int) -> None:
    due = {*folder.config.evaluation_steps, until}
    if loop.number == 0:
        folder.evaluate(0, 0)
    while loop.number < until and not loop.is_over:
        loop.step(folder.note)
        if loop.number in due:
            folder.evaluate(loop.number, loop.spent)
        if loop.number in due or folder.is_time_to_save:
            folder.save(loop)
    if loop.is_over:
        folder.log.checkpoint()
        folder.state_file.unlink(missing_ok=True)


def _loop(config: TrainConfig, task: Task, model: Any, tokenizer: Any) -> Any:
    """Make the loop of a run that has not begun."""
    from apportion.embedded import peers
    from apportion.embedded.plain_loop import PlainLoop
    from apportion.embedded.pools import pool

    problems = pool(config.pool).problems[: config.limit]
    arm: Any = peers.uniform
    if config.arm != "uniform":
        embedding = TextEmbedding().fit([prompt_text(row["prompt"]) for row in task.rows])
        arm = allocator_of(config, prompts_of(task.rows, embedding), None)
    return PlainLoop(
        model,
        tokenizer,
        problems,
        arm,
        prompts_per_step=config.prompts_per_step,
        rollouts_per_prompt=config.rollouts_per_prompt,
        candidates_per_step=min(config.num_candidates, len(problems)),
        num_steps=config.steps,
        learning_rate=config.learning_rate,
        estimator=config.estimator,  # type: ignore[arg-type]
        kl=config.kl,
        entropy=config.entropy,
        seed=config.seed,
    )
