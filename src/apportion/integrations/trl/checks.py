"""What a trainer is told at construction: what cannot work, and what will be ignored."""

from __future__ import annotations

import warnings
from typing import Any

from apportion.errors import InvalidInputError

from .config import AdaptiveRolloutConfig, check_bounds
from .rows import check_group_column


def check_setup(trainer: Any, allocator: Any | None) -> None:
    """Raise on settings that cannot work together; warn of those that have no effect.

    Raises:
        InvalidInputError: the configuration lacks our fields, the allocator's own bounds leave no
            split, or the loss runs in a fused kernel that cannot weight its rows.
    """
    args: Any = trainer.args
    if not isinstance(trainer.args, AdaptiveRolloutConfig):
        raise InvalidInputError(
            f"args is a {type(args).__name__}, but adaptive rollouts need the fields of "
            "AdaptiveRolloutConfig. Use AdaptiveGRPOConfig or AdaptiveRLOOConfig: every other "
            "argument stays as it is."
        )
    # Newer releases only patch layers by this option; older ones compute the loss in it.
    fused = getattr(args, "use_liger_kernel", False) and hasattr(trainer, "compute_liger_loss")
    if fused and args.allocator_mode == "adaptive":
        raise InvalidInputError(
            "use_liger_kernel is True, but this TRL release computes the loss in a fused kernel "
            "that weights neither tokens nor KL by prompt. Set it to False, or upgrade TRL."
        )
    if allocator is None:
        return
    if args.allocator_mode == "uniform":
        _warn('allocator_mode is "uniform", so the allocator is not used.')
        return
    lower = getattr(allocator, "lower", args.lower)
    upper = getattr(allocator, "upper", args.upper)
    if (lower, upper) != (args.lower, args.upper) and (args.lower, args.upper) != (2, None):
        _warn(
            f"lower {args.lower} and upper {args.upper} of the configuration are ignored: the "
            f"allocator brings its own ({lower} and {upper})."
        )
    own_range = getattr(allocator, "reward_range", None)
    if own_range is not None and (args.reward_low, args.reward_high) not in (own_range, (0.0, 1.0)):
        _warn(
            f"reward_low {args.reward_low:g} and reward_high {args.reward_high:g} are ignored: the "
            f"allocator brings its own range {own_range}."
        )
    batch = args.generation_batch_size
    check_bounds(lower, batch if upper is None else upper, args.num_generations, batch)


def check_dataset(args: Any, dataset: Any) -> None:
    """Raise if a column that the configuration names is not there, or one would be overwritten.

    Raises:
        InvalidInputError: names the missing column and those there are, or the one to rename.
    """
    present = getattr(dataset, "column_names", None)
    if present is None:
        return
    if args.allocator_mode == "adaptive":
        check_group_column(present)
    for name in ("prompt_key_column", "prior_mean_column", "prior_count_column"):
        column = getattr(args, name)
        if column is not None and column not in present:
            raise InvalidInputError(
                f"{name} is {column!r}, but the data set has {', '.join(sorted(present))}."
            )
    if args.prompt_key_column is None and {"image", "images"} & set(present):
        _warn(
            "Prompts with images are remembered by a hash of their words alone. Name a column "
            "with a key of their own in prompt_key_column."
        )


def described(trainer: Any) -> dict[str, Any]:
    """Return what defines the run, for ``run.json``; numbers are counted as apportion does."""
    args = trainer.args
    rollouts_per_step = (
        args.per_device_train_batch_size
        * trainer.accelerator.num_processes
        * args.gradient_accumulation_steps
    )
    names = (
        *("allocator_mode", "lower", "weighting", "reward_low", "reward_high", "seed"),
        *("learning_rate", "loss_type", "scale_rewards", "beta", "num_iterations", "temperature"),
        *("max_completion_length", "steps_per_generation"),
    )
    return {
        "trainer": type(trainer).__name__,
        "model": getattr(trainer.model.config, "_name_or_path", ""),
        "rollouts_per_prompt": args.num_generations,
        "prompts_per_step": rollouts_per_step / args.num_generations,
        "num_steps": trainer.state.max_steps,
        "upper": args.most,
        **{name: getattr(args, name, None) for name in names},
    }


def _warn(sentence: str) -> None:
    warnings.warn(sentence, UserWarning, stacklevel=4)
