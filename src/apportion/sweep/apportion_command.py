"""The `apportion train` command that makes a run of a sweep."""

from __future__ import annotations

import shlex
from dataclasses import fields

from apportion.sweep.command_parts import flags
from apportion.sweep.settings import Setting
from apportion.sweep.sweep import Sweep
from apportion.training.config import CHOOSING_ARMS, TrainConfig

_ALWAYS = (
    *("arm", "rollouts_per_prompt", "prompts_per_step", "steps", "learning_rate", "seed"),
    *("max_tokens", "num_evaluations", "evaluation_spacing"),
)
"""What every run is told, be it the default or not."""
_FLAG_OF = {"num_evaluations": "evaluations"}


def apportion_command(sweep: Sweep, setting: Setting) -> str:
    """Return one shell line."""
    config = sweep.config_of(setting)
    told = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name in _ALWAYS or getattr(config, field.name) != field.default
    }
    for name in _unread(config):
        told.pop(name, None)
    if config.micro_batch is None and not config.is_embedded:
        told["micro_batch"] = config.budget_per_step
    named = {f"--{_FLAG_OF.get(name, name)}".replace("_", "-"): told[name] for name in told}
    named["--out"] = sweep.folder / setting.name
    return shlex.join(["apportion", "train", *flags(named)])


def _unread(config: TrainConfig) -> tuple[str, ...]:
    """Return fields that say nothing to the arm and would be refused."""
    if config.arm not in CHOOSING_ARMS:
        return ("objective", "candidates")
    return () if config.chooses else ("candidates",)
