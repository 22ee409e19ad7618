"""The lines that say n and bounds to TRL and verl, with each framework's own arithmetic."""

from __future__ import annotations

import math

from apportion.allocator import EXPLORATION
from apportion.audit.choice import Choice
from apportion.words import counted

TRL, VERL = "TRL", "verl"
NO_VERL_ADAPTER = "Every prompt gets the same n: apportion has no verl adapter."
_MOST_PER_DEVICE = 16
_NUM_GPUS = (1, 2, 4, 8, 16, 32, 64)


def frameworks(source: str) -> tuple[str, ...]:
    """Return whose lines a record asks for: those of its trainer, both where it does not tell.

    >>> frameworks("verl rollouts"), frameworks("apportion run folder"), frameworks("CSV")
    (('verl',), ('TRL',), ('TRL', 'verl'))
    """
    named = tuple(name for name in (TRL, VERL) if name in source)
    return (TRL,) if source.startswith("apportion") else named or (TRL, VERL)


def trl_lines(
    mode: str,
    size: int,
    prompts: int,
    *,
    bounds: tuple[int, int],
    reward_range: tuple[float, float],
    is_range_seen: bool = False,
    choice: Choice | None = None,
) -> tuple[str, ...]:
    """Return imports, configuration and trainer: of this package, or stock TRL for equal groups.

    Args:
        mode: `adaptive`, `shadow` or `uniform`.
        size: n, the mean where groups differ.
        prompts: prompts a step.
        bounds: fewest and most rollouts a prompt.
        reward_range: lowest and highest reward.
        is_range_seen: whether the range is no more than what was seen.
        choice: how the run chose its prompts; None if it did not.
    """
    per_device = _per_device(size * prompts)
    even = mode == "uniform"
    name = "" if even else "Adaptive"
    ours = []
    if not even:
        ours = [f"    lower={bounds[0]},", f"    upper={bounds[1]},", *_choice_lines(choice)]
        ours += _reward_lines(reward_range, is_range_seen=is_range_seen)
        if mode == "shadow":
            ours.append('    allocator_mode="shadow",')
        ours.append('    rollout_log_dir="out/rollouts",')
    module = "trl" if even else "apportion.integrations.trl"
    return (
        f"from {module} import {name}GRPOConfig, {name}GRPOTrainer",
        "",
        f"args = {name}GRPOConfig(",
        '    "out",',
        f"    num_generations={size},",
        f"    per_device_train_batch_size={per_device},",
        f"    gradient_accumulation_steps={prompts * size // per_device},",
        *ours,
        "    # and keep your other arguments: learning rate, lengths, ...",
        ")",
        f"trainer = {name}GRPOTrainer(",
        "    model, reward_funcs, args=args, train_dataset=dataset",
        ")  # as you make yours",
    )


def trl_arithmetic(size: int, prompts: int) -> str:
    """Say how the batch of TRL comes about.

    ``per_device_train_batch_size x processes x steps_per_generation = prompts x num_generations``
    """
    per_device = _per_device(size * prompts)
    steps = prompts * size // per_device
    divided = "" if steps == 1 else f"; on W processes divide it by W (W divides {steps})"
    return (
        f"per_device_train_batch_size {per_device} x 1 process x steps_per_generation {steps} = "
        f"{prompts * size:,} = {counted(prompts, 'prompt')} x num_generations {size}. "
        f"steps_per_generation follows gradient_accumulation_steps{divided}."
    )


def verl_lines(size: int, prompts: int, *, is_kept: bool = False) -> tuple[str, ...]:
    """Return what changes on verl's command line.

    Args:
        size: n, the same for every prompt.
        prompts: prompts a step.
        is_kept: whether n is the run's, so that the batch stays as it is.

    >>> verl_lines(8, 64)[:2]
    ('data.train_batch_size=64', 'actor_rollout_ref.rollout.n=8')
    """
    batch = () if is_kept else (f"data.train_batch_size={prompts}",)
    return (*batch, f"actor_rollout_ref.rollout.n={size}", "trainer.rollout_data_dir=rollouts")


def verl_arithmetic(size: int, prompts: int, *, is_kept: bool = False) -> str:
    """Say how the batch of verl comes about: its rows must divide over the GPUs."""
    if is_kept:
        return f"n is as now, so all batch sizes stay. {NO_VERL_ADAPTER}"
    rows = prompts * size
    gpus = ", ".join(str(gpu) for gpu in _NUM_GPUS if rows % gpu == 0)
    return (
        f"train_batch_size {prompts:,} x n {size} = {rows:,} rows, which divide over {gpus} "
        f"GPU{'' if gpus == '1' else 's'}. Keep your ppo_mini_batch_size: it counts prompts and "
        f"must divide train_batch_size. {NO_VERL_ADAPTER}"
    )


def outward(reward_range: tuple[float, float]) -> tuple[float, float]:
    """Return a range of rewards, rounded outward to two significant digits.

    >>> outward((-0.1234, 1.234)), outward((0.0, 1.0))
    ((-0.13, 1.3), (0.0, 1.0))
    """
    low, high = reward_range
    return 0.0 - _rounded_up(-low), _rounded_up(high)


def _rounded_up(value: float) -> float:
    if value == 0.0:
        return 0.0
    digits = 1 - math.floor(math.log10(abs(value)))
    near = round(value, digits)
    return near if near >= value else round(near + 10.0**-digits, digits)


def _reward_lines(reward_range: tuple[float, float], *, is_range_seen: bool) -> list[str]:
    low, high = outward(reward_range) if is_range_seen else reward_range
    if (low, high) == (0.0, 1.0):
        return []
    ends = (("low", low, "lowest"), ("high", high, "highest"))
    hint = "  # {} seen; give your reward's true range"
    return [
        f"    reward_{name}={_exact(value)},{hint.format(word) if is_range_seen else ''}"
        for name, value, word in ends
    ]


def _choice_lines(choice: Choice | None) -> list[str]:
    if choice is None:
        return []
    lines = [f"    candidates={choice.candidates},"] if choice.candidates > 1 else []
    lines.append(f'    objective="{choice.objective}",')
    if choice.exploration is not None and choice.exploration != EXPLORATION:
        lines.append(f"    exploration={_exact(choice.exploration)},")
    return lines


def _exact(value: float) -> str:
    """Return a number in as few digits as give it back: a bound must not move inward."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _per_device(rows: int) -> int:
    return max(size for size in range(1, _MOST_PER_DEVICE + 1) if rows % size == 0)
