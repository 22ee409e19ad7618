"""The command of TRL's own command line that makes a run of a sweep."""

from __future__ import annotations

import shlex
from pathlib import Path

from apportion.errors import InvalidInputError
from apportion.sweep.command_parts import EXTRA, GPUS, check_plain, evaluation_interval, flags
from apportion.sweep.settings import Setting
from apportion.sweep.sweep import Sweep
from apportion.training.config import K, TrainConfig
from apportion.training.run import WARMUP_STEPS

_FILES = (".jsonl", ".json", ".csv", ".parquet")
_REWARD_OF = {
    "exact": "apportion.sweep.trl_rewards.exact_match",
    "math-verify": "apportion.sweep.trl_rewards.math_verified",
}
_LOSS_OF = {
    "dr_grpo": {"--loss_type": "dr_grpo", "--scale_rewards": "none"},
    "grpo": {"--loss_type": "grpo", "--scale_rewards": "group"},
    "rloo": {},
}
_EVALUATIONS_PER_SAVE = 4


def trl_command(sweep: Sweep, setting: Setting) -> str:
    """Return one shell line of ``trl grpo`` or ``trl rloo``.

    An update takes ``generation_batch_size = n B_p`` rollouts, whose parts on so many GPUs are
    gone through in ``gradient_accumulation_steps``.

    Raises:
        InvalidInputError: TRL's command line cannot make the run.
    """
    check_plain(sweep, "trl")
    config = sweep.config_of(setting)
    _check_data(config)
    is_rloo = config.estimator == "rloo"
    every = evaluation_interval(config.steps)
    micro_batch = config.micro_batch or config.budget_per_step
    known = {
        "--model_name_or_path": config.model,
        "--dataset_name": config.dataset,
        "--reward_funcs": _REWARD_OF.get(config.reward, config.reward.replace(":", ".")),
        "--output_dir": sweep.folder / setting.name,
        "--run_name": setting.name,
        "--num_generations": config.rollouts_per_prompt,
        "--generation_batch_size": config.budget_per_step,
        "--per_device_train_batch_size": micro_batch,
        "--max_completion_length": config.max_tokens,
        "--max_steps": config.steps,
        "--learning_rate": config.learning_rate,
        "--lr_scheduler_type": "constant_with_warmup",
        "--warmup_steps": min(WARMUP_STEPS, config.steps),
        **_LOSS_OF[config.estimator],
        "--beta": config.kl,
        **({} if is_rloo else {"--entropy_coef": config.entropy}),
        "--seed": config.seed,
        "--eval_strategy": "steps",
        "--eval_steps": every,
        "--eval_on_start": "true",
        "--num_generations_eval": K,
        "--per_device_eval_batch_size": K,
        "--logging_steps": 1,
        "--save_steps": every * _EVALUATIONS_PER_SAVE,
        "--save_total_limit": 1,
    }
    words = shlex.join(["trl", "rloo" if is_rloo else "grpo", *flags(known)])
    accumulated = f'"$(({config.budget_per_step // micro_batch} / {GPUS}))"'
    return f'{words} --num_processes "{GPUS}" --gradient_accumulation_steps {accumulated} {EXTRA}'


def _check_data(config: TrainConfig) -> None:
    data = str(config.dataset)
    suffix = Path(data).suffix
    if suffix in _FILES:
        raise InvalidInputError(
            f"--dataset is the file {data}, but TRL's command line reads folders and hub ids with "
            f"the splits train and test. Put train{suffix} and test{suffix} into a folder and give "
            "that."
        )
    needed = {"prompt": config.prompt_column}
    if config.reward in _REWARD_OF:
        needed["answer"] = config.answer_column
    for name, column in needed.items():
        if column != name:
            raise InvalidInputError(
                f"--{name}-column is {column}, but TRL's command line reads the column {name}. "
                "Rename it in the data set, or print commands of the kind apportion."
            )
