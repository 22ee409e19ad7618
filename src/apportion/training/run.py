"""One run of one arm through TRL: from a configuration to a summarised run folder."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from apportion.embedding import TextEmbedding
from apportion.errors import InvalidInputError, MissingExtraError, first_line
from apportion.prompt_key import prompt_text
from apportion.run_log import holds_a_run, lock_folder, read_config, read_lines
from apportion.training import summary
from apportion.training.arms import allocator_of, mode_of, prompts_of
from apportion.training.config import TrainConfig
from apportion.training.task import ID_COLUMN, Task, load_task
from apportion.training.watch import OnStep, Watch

WARMUP_STEPS = 10


class Stopped(KeyboardInterrupt):
    """The user asked to stop; everything up to a finished step is on disk."""


def start_of(folder: str | os.PathLike[str]) -> TrainConfig:
    """Return the configuration that a run was started with.

    Raises:
        RunFolderError: the folder holds no run of `apportion train`.
        StateError: it was started by another version.
    """
    config = read_config(folder)
    if "train" not in config:
        raise InvalidInputError(
            f"{folder} holds a run log, but not of `apportion train`. Resume it with its trainer."
        )
    return TrainConfig.from_dict(config["train"])


def run(
    config: TrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    until: int | None = None,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Train one arm and summarise the run folder.

    Args:
        config: the run.
        folder: run folder; checkpoints go to ``checkpoints`` in it.
        resume: go on from the last whole checkpoint in the folder.
        until: pause after so many steps, with an evaluation and a checkpoint; to the end if None.
        on_step: called after each step with the number of steps done and a few values.

    Returns:
        The summary, see `apportion.training.summary.summarise`; empty for a run that was paused.

    Raises:
        InvalidInputError: data, model or reward cannot be used.
        RunFolderError: the folder already holds a run, or another process writes there.
        Stopped: the run was asked to stop; a checkpoint of the last step is on disk.
    """
    hush(everything=config.is_embedded)
    with locked(folder) as lock:
        is_there = (folder / "run.json").exists()
        if is_there and not resume and read_lines(folder / "batches.jsonl"):
            raise holds_a_run(folder)
        task = load_task(config)
        embedding = TextEmbedding().fit([prompt_text(row["prompt"]) for row in task.rows])
        # A run that failed before its first step is begun anew, under the lock.
        watch = Watch(config, task, folder, lock, on_step, resume=resume or is_there, until=until)
        trainer = _trainer(watch, embedding)
        checkpoint = last_checkpoint(folder) if resume else None
        with _stop_on_signal() as asked:
            watch.asked_to_stop = asked
            try:
                trainer.train(
                    resume_from_checkpoint=None if checkpoint is None else str(checkpoint)
                )
            except Exception:
                _save_what_is_done(trainer, folder)
                raise
        # TRL's model card knows neither the model nor the data of a run like this.
        (folder / "checkpoints" / "README.md").unlink(missing_ok=True)
    if watch.stopped:
        raise Stopped(f"stopped after step {trainer.state.global_step} of {config.steps}")
    if watch.paused:
        return {}
    text_of = task.text_of()
    return summary.summarise(
        folder,
        lambda keys: embedding.transform([text_of[key] for key in keys]),
        [*task.notes, *watch.notes],
    )


def hush(*, everything: bool) -> None:
    """Keep the libraries from drawing bars over ours and from warning about one another."""
    try:
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise MissingExtraError("transformers", "train") from error
    transformers_logging.disable_progress_bar()
    if everything:
        transformers_logging.set_verbosity_error()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that was written to its end, if any."""
    from apportion.integrations.trl.mixin import STATE_FILE

    found = [
        path
        for path in (folder / "checkpoints").glob("checkpoint-*")
        if (path / "trainer_state.json").exists() and (path / STATE_FILE).exists()
    ]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


@contextmanager
def locked(folder: Path) -> Iterator[TextIO]:
    """Hold the folder's lock; a folder that was new and stayed empty is not left behind."""
    is_new = not folder.exists()
    lock = lock_folder(folder)
    try:
        yield lock
    finally:
        lock.close()
        if is_new and [path.name for path in folder.iterdir()] == ["lock"]:
            (folder / "lock").unlink()
            folder.rmdir()


def _trainer(watch: Watch, embedding: TextEmbedding) -> Any:
    try:
        from datasets import Dataset

        from apportion.integrations.trl import AdaptiveGRPOTrainer, AdaptiveRLOOTrainer
    except ImportError as error:
        raise MissingExtraError(error.name or "trl", "train") from error
    config, task = watch.config, watch.task
    prompts = prompts_of(task.rows, embedding)
    trainer_class = AdaptiveRLOOTrainer if config.estimator == "rloo" else AdaptiveGRPOTrainer
    model, tokenizer = load_model(task, is_embedded=config.is_embedded)
    pool = Dataset.from_list(task.rows)

    def extra_rows(step: int, heads: Any) -> list[Any]:
        return [pool[row] for row in watch.candidates(step)[len(heads) :].tolist()]

    trainer = trainer_class(
        model=model,
        processing_class=tokenizer,
        reward_funcs=task.reward,
        args=_arguments(config, watch.folder),
        train_dataset=pool.select(watch.order),
        callbacks=[watch.callback()],
        allocator=allocator_of(config, prompts, watch.success_of if task.is_exact else None),
        extra_rows=extra_rows if config.chooses else None,
    )
    watch.trainer, watch.prompts = trainer, prompts
    trainer.remove_callback(_printer())
    return trainer


def _arguments(config: TrainConfig, folder: Path) -> Any:
    from transformers.utils import is_torch_cuda_available

    from apportion.integrations.trl import AdaptiveGRPOConfig, AdaptiveRLOOConfig

    micro_batch = config.micro_batch or config.budget_per_step
    on_gpu = is_torch_cuda_available()
    common: dict[str, Any] = {
        "output_dir": str(folder / "checkpoints"),
        "allocator_mode": mode_of(config),
        "objective": config.goal,
        "candidates": config.candidates if config.chooses else 1,
        "lower": config.least,
        "upper": config.most,
        "prompt_key_column": ID_COLUMN,
        "num_generations": config.rollouts_per_prompt,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": config.budget_per_step // micro_batch,
        "max_completion_length": config.max_tokens,
        "max_steps": config.steps,
        "shuffle_dataset": False,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": min(WARMUP_STEPS, config.steps),
        "beta": config.kl,
        "seed": config.seed,
        "save_strategy": "steps",
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not on_gpu,
        "bf16": on_gpu and not config.is_embedded,
        "gradient_checkpointing": not config.is_embedded,
    }
    with warnings.catch_warnings():
        if mode_of(config) == "shadow":
            warnings.simplefilter("ignore")
        if config.estimator == "rloo":
            return AdaptiveRLOOConfig(**common)
        is_grpo = config.estimator == "grpo"
        return AdaptiveGRPOConfig(
            loss_type="grpo" if is_grpo else "dr_grpo",
            scale_rewards="group" if is_grpo else "none",
            entropy_coef=config.entropy,
            **common,
        )


def load_model(task: Task, *, is_embedded: bool) -> tuple[Any, Any]:
    """Return the task's model and tokenizer, which must be able to read its prompts.

    Raises:
        InvalidInputError: there is no such model, or it does not fit the prompts.
    """
    if is_embedded:
        from apportion.embedded.model import load

        return load()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = task.model
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(
            f"The model {path!r} cannot be loaded: {first_line(error)}. Give a folder with a "
            "Hugging Face model, or a hub id that can be reached from here."
        ) from error
    if not isinstance(task.rows[0]["prompt"], str) and not tokenizer.chat_template:
        raise InvalidInputError(
            f"The prompts are chat messages, but the tokenizer of {path!r} has no chat template. "
            "Give prompts as text, or a model that was trained to chat."
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    for text in (prompt_text(row["prompt"]) for row in task.rows):
        try:
            tokenizer(text)
        except Exception as error:  # tokenizers raise bare exceptions
            raise InvalidInputError(
                f"The tokenizer of {path!r} cannot read the prompt {text[:60]!r}: {error}"
            ) from error
    return model, tokenizer


def _printer() -> type:
    from transformers import PrinterCallback

    return PrinterCallback


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Turn the first interrupt into a wish to stop after the step; the second one kills."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, before[number])

    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        before[number] = signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _save_what_is_done(trainer: Any, folder: Path) -> None:
    """Checkpoint the last finished step when a later one failed, so that none is lost."""
    step = trainer.state.global_step
    if step == 0 or (folder / "checkpoints" / f"checkpoint-{step}").exists():
        return
    if not all(bool(weight.isfinite().all()) for weight in trainer.model.parameters()):
        return  # what failed has spoiled the weights: the checkpoint before it is the one to keep
    with suppress(Exception):  # the failure that brought us here is the one to report
        trainer._save_checkpoint(trainer.model, trial=None)
