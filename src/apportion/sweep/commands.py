"""The runs of a sweep as shell commands, for schedulers of the user's own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from apportion import validate
from apportion.errors import InvalidInputError
from apportion.sweep.apportion_command import apportion_command
from apportion.sweep.command_parts import KINDS
from apportion.sweep.settings import Setting
from apportion.sweep.sweep import Sweep
from apportion.sweep.trl_command import trl_command
from apportion.sweep.verl_command import verl_command
from apportion.words import counted

_COMMAND_OF: dict[str, Callable[[Sweep, Setting], str]] = {
    "apportion": apportion_command,
    "trl": trl_command,
    "verl": verl_command,
}
_GUIDE_OF = {
    "apportion": (),
    "trl": (
        "The data set needs the splits train and test; all of test is sampled 8 times at each of "
        "8 to 16 evaluations, evenly spaced.",
        "APPORTION_GPUS: GPUs of a run, 1 if unset. APPORTION_EXTRA: options for every run, such "
        "as '--use_vllm true'.",
    ),
    "verl": (
        "All held-out prompts are sampled 8 times at each of 8 to 16 evaluations, evenly spaced. "
        "The reward is verl's own or the one you add; rewards go from 0 to 1.",
        "APPORTION_VAL_FILES: the held-out prompts, needed. APPORTION_GPUS: GPUs of a run, 1 if "
        "unset. APPORTION_EXTRA: your recipe, such as "
        "'reward.custom_reward_function.path=reward.py'; it wins.",
    ),
}


def commands(sweep: Sweep, kind: str) -> list[str]:
    r"""Return for each run the shell line that makes it, in the order of the sweep.

    Each stands alone and has no line break, so that ``bash``, ``parallel`` or an array of jobs may
    take one. What it leaves in the sweep's folder, `apportion fit` and `apportion plan` read.

    Args:
        sweep: the runs; those of kinds other than ``apportion`` train a model of the user's with
            even group sizes.
        kind: whose command line: ``apportion``, ``trl`` (``trl grpo`` or ``trl rloo``) or ``verl``
            (``python3 -m verl.trainer.main_ppo``).

    Raises:
        InvalidInputError: the kind is unknown, or cannot make these runs.

    >>> from pathlib import Path
    >>> from apportion.training.config import TrainConfig
    >>> setting = Setting(rollouts_per_prompt=8, prompts_per_step=32, learning_rate=1e-6,
    ...                   allocator="uniform", seed=0, num_steps=40)
    >>> base = TrainConfig(model="Qwen/Qwen2.5-0.5B", dataset="data/train.parquet")
    >>> line, = commands(Sweep(base=base, settings=(setting,), folder=Path("runs/mine")), "verl")
    >>> line[:81]
    'mkdir -p -- runs/mine/n8-prompts32-rate1e-06-uniform-seed0 && python3 -m verl.tra'
    """
    command = _COMMAND_OF[validate.choice("kind", kind, KINDS)]
    lines = [command(sweep, setting) for setting in sweep.settings]
    for line in lines:
        if re.search(r"[\r\n]", line):
            raise InvalidInputError(
                "A path, a name or a column holds a line break, but each command must be one line. "
                "Rename it."
            )
    return lines


def guide(sweep: Sweep, kind: str) -> list[str]:
    """Return what the user should know of the commands, a sentence or two each.

    Raises:
        InvalidInputError: the kind is unknown.
    """
    folder = shlex.quote(str(sweep.folder))
    return [
        f"{counted(len(sweep.settings), 'run')}, one line each. Relative paths are those of the "
        "folder that a line runs in.",
        *_GUIDE_OF[validate.choice("kind", kind, KINDS)],
        f"Afterwards: apportion plan {folder} --budget C, or apportion fit {folder}.",
    ]
