"""The lines that say n and bounds to TRL and verl, with each framework's own arithmetic."""

from __future__ import annotations

_MOST_PER_DEVICE = 16
_NUM_GPUS = (1, 2, 4, 8, 16, 32, 64)


def trl_lines(
    mode: str,
    size: int,
    prompts: int,
    *,
    bounds: tuple[int, int],
    reward_range: tuple[float, float],
) -> tuple[str, ...]:
    """Return the configuration of the trainer of this package, or of stock TRL for equal groups.

    Args:
        mode: `adaptive`, `shadow` or `uniform`.
        size: n, the mean where groups differ.
        prompts: prompts a step.
        bounds: fewest and most rollouts a prompt.
        reward_range: lowest and highest reward.
    """
    per_device = _per_device(size * prompts)
    even = mode == "uniform"
    name = "GRPOConfig" if even else "AdaptiveGRPOConfig"
    ours = []
    if not even:
        ours = [f"    lower={bounds[0]},", f"    upper={bounds[1]},"]
        if reward_range != (0.0, 1.0):
            low, high = reward_range
            ours += [f"    reward_low={low:g},", f"    reward_high={high:g},"]
        if mode == "shadow":
            ours.append('    allocator_mode="shadow",')
        ours.append('    rollout_log_dir="out/rollouts",')
    return (
        f"from {'trl' if even else 'apportion.integrations.trl'} import {name}",
        "",
        f"args = {name}(",
        '    "out",',
        f"    num_generations={size},",
        f"    per_device_train_batch_size={per_device},",
        f"    gradient_accumulation_steps={prompts * size // per_device},",
        *ours,
        ")",
    )


def trl_arithmetic(size: int, prompts: int) -> str:
    """Say how the batch of TRL comes about.

    ``per_device_train_batch_size x processes x steps_per_generation = prompts x num_generations``
    """
    per_device = _per_device(size * prompts)
    steps = prompts * size // per_device
    return (
        f"per_device_train_batch_size {per_device} x 1 process x steps_per_generation {steps} = "
        f"{prompts * size:,} = {prompts:,} prompts x num_generations {size}. "
        "steps_per_generation follows gradient_accumulation_steps; on W processes divide it by W "
        f"(W divides {steps})."
    )


def verl_lines(size: int, prompts: int) -> tuple[str, ...]:
    """Return settings for verl's command line.

    >>> verl_lines(8, 64)[1]
    'actor_rollout_ref.rollout.n=8'
    """
    return (
        f"data.train_batch_size={prompts}",
        f"actor_rollout_ref.rollout.n={size}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",
        "trainer.rollout_data_dir=rollouts",
    )


def verl_arithmetic(size: int, prompts: int) -> str:
    """Say how the batch of verl comes about: its rows must divide over the GPUs."""
    rows = prompts * size
    gpus = ", ".join(str(gpu) for gpu in _NUM_GPUS if rows % gpu == 0)
    return (
        f"train_batch_size {prompts:,} x n {size} = {rows:,} rows, which divide over {gpus} GPUs; "
        f"ppo_mini_batch_size counts prompts: {prompts:,} of {prompts:,} is one update a step. "
        "Every prompt gets the same n: apportion has no verl adapter."
    )


def _per_device(rows: int) -> int:
    return max(size for size in range(1, _MOST_PER_DEVICE + 1) if rows % size == 0)
