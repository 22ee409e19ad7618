"""The command of verl that makes a run of a sweep, as overrides of its configuration."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from apportion.errors import InvalidInputError
from apportion.readers.logged_evaluations import VERL_LOG
from apportion.sweep.command_parts import EXTRA, GPUS, check_plain, evaluation_interval
from apportion.sweep.settings import Setting
from apportion.sweep.sweep import Sweep
from apportion.training.config import K, TrainConfig
from apportion.training.run import WARMUP_STEPS

_FILES = (".parquet", ".jsonl", ".json")
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z_./][\w./-]*", re.ASCII | re.IGNORECASE)
_HELD_OUT = '"${APPORTION_VAL_FILES:?the file of held-out prompts, for verl}"'
_LOSS_OF = {
    "dr_grpo": ("grpo", False, "seq-mean-token-sum-norm"),
    "grpo": ("grpo", True, "seq-mean-token-mean"),
    "rloo": ("rloo", True, "seq-mean-token-sum"),
}
"""Estimator, whether rewards are divided by the group's deviation, and how the loss is averaged."""


def verl_command(sweep: Sweep, setting: Setting) -> str:
    """Return one shell line of ``verl.trainer.main_ppo``; what it prints goes to ``verl.log``.

    One update a step: ``train_batch_size = ppo_mini_batch_size = B_p`` prompts, ``rollout.n = n``.

    Raises:
        InvalidInputError: verl cannot make the run.
    """
    check_plain(sweep, "verl")
    config = sweep.config_of(setting)
    if Path(str(config.dataset)).suffix not in _FILES:
        raise InvalidInputError(
            f"--dataset is {config.dataset}, but verl reads files: give one that ends in "
            f"{', '.join(_FILES)}."
        )
    folder = sweep.folder / setting.name
    told = {
        **_task(config),
        **_learning(config),
        **_validation(config),
        "trainer.project_name": quoted(sweep.folder.name or "sweep"),
        "trainer.experiment_name": setting.name,
        "trainer.default_local_dir": quoted(str(folder / "checkpoints")),
        "trainer.logger": "[console]",
    }
    overrides = shlex.join([f"{name}={value}" for name, value in told.items()])
    log = shlex.quote(str(folder / VERL_LOG))
    return (
        f"mkdir -p -- {shlex.quote(str(folder))} && python3 -m verl.trainer.main_ppo {overrides} "
        f'data.val_files={_HELD_OUT} trainer.n_gpus_per_node="{GPUS}" {EXTRA} >> {log} 2>&1'
    )


def quoted(text: str) -> str:
    r"""Return a text as a value of an override, in quotes where Hydra would split or convert it.

    >>> print(quoted("data/train.parquet"), quoted("my data"), quoted("it's"))
    data/train.parquet 'my data' 'it\'s'
    """
    if _PLAIN.fullmatch(text):
        return text
    doubled = re.sub(r"(\\*)'", r"\1\1\\'", text)
    doubled = re.sub(r"\\+$", lambda match: match[0] * 2, doubled)
    return f"'{doubled}'"


def _task(config: TrainConfig) -> dict[str, Any]:
    return {
        "actor_rollout_ref.model.path": quoted(str(config.model)),
        "data.train_files": quoted(str(config.dataset)),
        "data.prompt_key": quoted(config.prompt_column),
        "data.train_batch_size": config.prompts_per_step,
        "data.max_response_length": config.max_tokens,
        "data.seed": config.seed,
        "actor_rollout_ref.rollout.n": config.rollouts_per_prompt,
        "actor_rollout_ref.rollout.seed": config.seed,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    }


def _learning(config: TrainConfig) -> dict[str, Any]:
    estimator, is_scaled, average = _LOSS_OF[config.estimator]
    actor = "actor_rollout_ref.actor"
    return {
        "algorithm.adv_estimator": estimator,
        "algorithm.norm_adv_by_std_in_grpo": is_scaled,
        f"{actor}.loss_agg_mode": average,
        f"{actor}.ppo_mini_batch_size": config.prompts_per_step,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.optim.lr": config.learning_rate,
        f"{actor}.optim.lr_scheduler_type": "constant",
        f"{actor}.optim.lr_warmup_steps": min(WARMUP_STEPS, config.steps),
        f"{actor}.use_kl_loss": config.kl > 0.0,
        f"{actor}.kl_loss_coef": config.kl,
        f"{actor}.entropy_coeff": config.entropy,
        "trainer.total_training_steps": config.steps,
        "trainer.total_epochs": config.steps,
    }


def _validation(config: TrainConfig) -> dict[str, Any]:
    sampling = "actor_rollout_ref.rollout.val_kwargs"
    return {
        "trainer.val_before_train": True,
        "trainer.test_freq": evaluation_interval(config.steps),
        f"{sampling}.n": K,
        f"{sampling}.do_sample": True,
        f"{sampling}.temperature": 1.0,
    }
