"""What follows a run: evaluates it, notes the exact success of each batch, shows progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from apportion.prompt_stream import candidates, prompt_stream
from apportion.run_log import RunLog
from apportion.training import summary
from apportion.training.config import TrainConfig
from apportion.training.task import ID_COLUMN, Measured, Task
from apportion.types import Prompts
from apportion.validate import FloatArray, IntArray

OnStep = Callable[[int, dict[str, Any]], None]


class Watch:
    """Follows a run: evaluates it, notes the exact success of each batch, shows progress."""

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        folder: Path,
        lock: TextIO,
        on_step: OnStep | None,
        *,
        resume: bool,
        until: int | None = None,
    ) -> None:
        self.config, self.task, self.folder = config, task, folder
        # One epoch for the whole run: trainers restart their order when resumed in a later one.
        steps = prompt_stream(len(task.rows), config.prompts_per_step, seed=config.seed)
        self.order = np.concatenate(list(islice(steps, config.steps)))
        self._lock, self._resume = lock, resume
        self.trainer: Any = None
        self.prompts: Prompts | None = None
        self.asked_to_stop = threading.Event()
        self.stopped = self.paused = False
        self._until = config.steps if until is None else until
        self._on_step = on_step
        self._row_of = {row[ID_COLUMN]: row for row in task.rows}
        self._success_of: dict[str, float] = {}
        self._started = 0.0
        self._due = {*config.evaluation_steps, self._until}

    @property
    def notes(self) -> list[str]:
        """What the user should know about the choice of prompts."""
        config, size = self.config, len(self.task.rows)
        if config.num_candidates <= size:
            return []
        return [
            f"{config.candidates} x {config.prompts_per_step} = {config.num_candidates} candidates "
            f"were asked for, but there are {size} prompts: every step chose from all of them."
        ]

    def candidates(self, step: int) -> IntArray:
        """Return the rows that a step chooses from, those of the even batch first."""
        size, num_prompts = self.config.prompts_per_step, len(self.task.rows)
        batch_B = self.order[step * size : (step + 1) * size]
        num = min(self.config.num_candidates, num_prompts)
        return candidates(batch_B, num_prompts, num, seed=self.config.seed, step=step)

    def callback(self) -> Any:
        """Return the trainer callback that drives this watch."""
        from transformers import TrainerCallback

        watch = self

        class WatchCallback(TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch.open(state.global_step)

            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch.before(state.global_step)

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch.after(state.global_step)
                is_left = state.global_step < watch.config.steps
                watch.stopped = is_left and watch.asked_to_stop.is_set()
                watch.paused = is_left and state.global_step >= watch._until
                if watch.stopped or watch.paused:
                    control.should_save = control.should_training_stop = True

        return WatchCallback()

    def open(self, step: int) -> None:
        """Open the run folder where the run stands, and measure where it starts."""
        self.trainer.planner.run_log = RunLog.create(
            self.folder,
            {"train": self.config.to_dict()},
            resume_step=step if self._resume else None,
            lock=self._lock,
        )
        if self.prompts is not None:
            self._log().log_prompts(self.prompts)
        if step == 0:
            self.evaluate(0)

    def success_of(self, keys: Any) -> FloatArray:
        """Return the exact success of prompts, by key, under the policy as it stands."""
        if all(str(key) in self._success_of for key in keys):
            return np.array([self._success_of[str(key)] for key in keys])
        return self.measure([self._row_of[str(key)] for key in keys]).success_Q

    def measure(self, rows: list[dict[str, Any]]) -> Measured:
        """Return how well the policy as it stands does on rows."""
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(trainer.model)
        return self.task.measure(model, trainer.processing_class, rows)

    def before(self, step: int) -> None:
        """Note what the exact success of the candidates is before a step samples."""
        if self.task.is_exact:
            rows = [self.task.rows[i] for i in self.candidates(step)]
            success_B = self.measure(rows).success_Q.tolist()
            keys = [row[ID_COLUMN] for row in rows]
            self._success_of = dict(zip(keys, success_B, strict=True))
        self._started = time.perf_counter()

    def after(self, num_steps: int) -> None:
        """Log a step that was finished, evaluate if it is time, show progress."""
        seconds = time.perf_counter() - self._started
        self._log().log_batch(
            num_steps - 1, {**self._known_success(num_steps - 1), "seconds": seconds}
        )
        self._success_of = {}
        if num_steps in self._due:
            self.evaluate(num_steps)
        if self._on_step is not None:
            self._on_step(num_steps, self.trainer.planner.last_values)

    def _known_success(self, step: int) -> dict[str, Any]:
        """Return the exact success of what was sampled, and of what an even step would have."""
        if not self.task.is_exact:
            return {}
        sampled = self.trainer.planner.sampled.id_B.tolist()
        known = {"success": [self._success_of[key] for key in sampled]}
        if self.config.chooses:
            even = self.candidates(step)[: self.config.prompts_per_step]
            keys = [self.task.rows[i][ID_COLUMN] for i in even]
            known["even_success"] = [self._success_of[key] for key in keys]
        return known

    def evaluate(self, step: int) -> None:
        """Measure success on every split."""
        for split, rows in self.task.evaluation.items():
            summary.log_measured(
                self._log(),
                step,
                compute=step * self.config.budget_per_step,
                split=split,
                rows=rows,
                measured=self.measure(rows),
            )

    def _log(self) -> RunLog:
        log: RunLog = self.trainer.planner.run_log
        return log
